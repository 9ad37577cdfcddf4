// SPDX-License-Identifier: BSL-1.0
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <poll.h>
#include <string_view>
#include <system_error>
#include <thread>

namespace soft::test {
namespace {

// The GID of 127.0.0.1.
constexpr ibv_gid loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
constexpr ibv_gid loopback_v6{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

} // namespace

std::uint8_t loopback_index(ibv_context& c, bool v6) {
  const ibv_gid& wanted = v6 ? loopback_v6 : loopback;
  for (int i = 0; i < 256; ++i) {
    ibv_gid g{};
    REQUIRE(ibv_query_gid(&c, 1, i, &g) == 0);
    if (std::memcmp(g.raw, wanted.raw, sizeof(g.raw)) == 0)
      return static_cast<std::uint8_t>(i);
  }
  FAIL("the device has no GID of this loopback address");
  return 0;
}

// The device has no pipe. UBSan's runtime opens one for a moment, in any thread, to see whether
// memory can be read.
std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::count_if(begin(all), end(all), [](const auto& entry) {
    std::error_code closed_meanwhile;
    return read_symlink(entry.path(), closed_meanwhile).native().rfind("pipe:", 0) != 0 &&
           !closed_meanwhile;
  }));
}

void with_settings::replace(const std::string& text) {
  INFO(text);
  REQUIRE(soft_set(text.c_str()) == 0);
}

owned_context open_soft() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  REQUIRE(list != nullptr);
  ibv_context* opened = nullptr;
  int error = ENODEV;
  for (int i = 0; i < count; ++i)
    if (std::string_view(ibv_get_device_name(list[i])) == "soft0") {
      opened = ibv_open_device(list[i]);
      error = errno;
    }
  ibv_free_device_list(list);
  errno = error;
  return owned_context(opened);
}

ibv_device_attr attributes(ibv_context& c) {
  ibv_device_attr a{};
  REQUIRE(ibv_query_device(&c, &a) == 0);
  return a;
}

side::side(ibv_context& c, const options& o)
    : pd(ibv_alloc_pd(&c)),
      channel(ibv_create_comp_channel(&c)),
      cq(ibv_create_cq(&c, 4 * depth, nullptr, channel.get(), 0)),
      memory(4096) {
  REQUIRE(pd);
  REQUIRE(cq);
  if (o.shared) {
    ibv_srq_init_attr init{};
    init.attr.max_wr = depth;
    init.attr.max_sge = 1;
    srq.reset(ibv_create_srq(pd.get(), &init));
    REQUIRE(srq);
  }
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = cq.get();
  init.srq = srq.get();
  init.cap.max_send_wr = init.cap.max_recv_wr = depth;
  init.cap.max_send_sge = o.elements;
  init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = o.inline_bytes;
  init.qp_type = o.type;
  init.sq_sig_all = o.all_signaled ? 1 : 0;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.pd = pd.get();
  if (o.operations != 0) {
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = o.operations;
  }
  qp.reset(ibv_create_qp_ex(&c, &init));
  REQUIRE(qp);
  built = ibv_qp_to_qp_ex(qp.get());
  REQUIRE((built != nullptr) == (o.operations != 0));
  mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
  REQUIRE(mr);
}

int side::to(ibv_qp_state state, std::uint32_t peer, std::uint8_t timeout) {
  const ibv_qp_type type = qp->qp_type;
  ibv_qp_attr a{};
  a.qp_state = state;
  int mask = IBV_QP_STATE;
  switch (state) {
  case IBV_QPS_INIT:
    a.port_num = 1;
    a.qkey = test_q_key;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    break;
  case IBV_QPS_RTR: {
    const auto reads = std::min(attributes(*qp->context).max_qp_rd_atom, 16);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer;
    a.max_dest_rd_atomic = static_cast<std::uint8_t>(reads);
    a.min_rnr_timer = 1;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = loopback;
    a.ah_attr.grh.sgid_index = loopback_index(*qp->context);
    if (type != IBV_QPT_UD)
      mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC)
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    break;
  }
  case IBV_QPS_RTS:
    a.timeout = timeout;
    a.retry_cnt = 1;
    a.rnr_retry = 7;
    a.max_rd_atomic =
        static_cast<std::uint8_t>(std::min(attributes(*qp->context).max_qp_rd_atom, 16));
    mask |= IBV_QP_SQ_PSN;
    if (type == IBV_QPT_RC)
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    break;
  default:
    break;
  }
  return ibv_modify_qp(qp.get(), &a, mask);
}

owned_ah side::way_here() const {
  ibv_ah_attr a{};
  a.is_global = 1;
  a.port_num = 1;
  a.grh.dgid = loopback;
  a.grh.sgid_index = loopback_index(*qp->context);
  owned_ah made(ibv_create_ah(pd.get(), &a));
  REQUIRE(made);
  return made;
}

ibv_send_wr side::request(std::uint64_t id, ibv_wr_opcode opcode, ibv_sge& element) {
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &element;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  return wr;
}

ibv_sge side::element(std::size_t offset, std::uint32_t bytes) const {
  return {reinterpret_cast<std::uintptr_t>(memory.data()) + offset, bytes, mr->lkey};
}

int side::receive(std::uint64_t id, std::size_t offset, std::uint32_t bytes) {
  ibv_sge e = element(offset, bytes);
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &e;
  wr.num_sge = 1;
  return srq ? ibv_post_srq_recv(srq.get(), &wr, &bad) : ibv_post_recv(qp.get(), &wr, &bad);
}

int side::send(std::uint64_t id, std::size_t offset, std::uint32_t bytes) {
  ibv_sge e = element(offset, bytes);
  ibv_send_wr wr = request(id, IBV_WR_SEND, e), *bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

int side::remote(std::uint64_t id, ibv_wr_opcode opcode, const side& peer, std::uint32_t bytes) {
  ibv_sge e = element(0, bytes);
  ibv_send_wr wr = request(id, opcode, e), *bad = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(peer.memory.data());
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = address;
    wr.wr.atomic.rkey = peer.mr->rkey;
    wr.wr.atomic.compare_add = 1;
  } else {
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = peer.mr->rkey;
  }
  return ibv_post_send(qp.get(), &wr, &bad);
}

ibv_wc completion(ibv_cq* q) {
  constexpr std::chrono::minutes longest(2);
  const auto until = clock::now() + longest;
  ibv_wc wc{};
  while (clock::now() < until) {
    const int n = ibv_poll_cq(q, 1, &wc);
    if (n != 0) {
      REQUIRE(n == 1);
      return wc;
    }
    std::this_thread::yield();
  }
  FAIL("no completion for two minutes");
  return wc;
}

ibv_wc side::completion() { return soft::test::completion(cq.get()); }

bool side::is_quiet() {
  ibv_wc wc{};
  return ibv_poll_cq(cq.get(), 1, &wc) == 0;
}

std::array<std::byte, 8> side::bytes_at(std::size_t offset) const {
  std::array<std::byte, 8> result;
  std::memcpy(result.data(), memory.data() + offset, result.size());
  return result;
}

void connect(side& a, side& b, std::uint8_t timeout) {
  REQUIRE(a.to(IBV_QPS_INIT) == 0);
  REQUIRE(b.to(IBV_QPS_INIT) == 0);
  REQUIRE(a.to(IBV_QPS_RTR, &b) == 0);
  REQUIRE(b.to(IBV_QPS_RTR, &a) == 0);
  REQUIRE(a.to(IBV_QPS_RTS, nullptr, timeout) == 0);
  REQUIRE(b.to(IBV_QPS_RTS, nullptr, timeout) == 0);
}

void check_clean(side& s, const side& peer, std::uint64_t id) {
  INFO("the request " << id);
  CHECK(s.is_quiet());
  REQUIRE(s.remote(id, IBV_WR_RDMA_WRITE, peer) == 0);
  const ibv_wc wc = s.completion();
  CHECK(wc.wr_id == id);
  CHECK(wc.status == IBV_WC_SUCCESS);
}

sockaddr_in local_address(std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  return a;
}

ibv_qp_state state_of(ibv_qp& qp) {
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(&qp, &a, IBV_QP_STATE, &init) == 0);
  return a.qp_state;
}

connected_pair::connected_pair(const side::options& o)
    : context(open_soft()), a(*context, o), b(*context, o) {
  connect(a, b);
}

__attribute__((no_sanitize("thread"))) bool is_now(const std::byte& place, std::byte value) {
  const volatile std::byte& changes = place;
  return changes == value;
}

void wait_for(const std::byte& place, std::byte value) {
  while (!is_now(place, value))
    continue;
}

__attribute__((no_sanitize("thread"))) std::byte value_now(const std::byte& place) {
  const volatile std::byte& changes = place;
  return changes;
}

ibv_event_type next_event(ibv_context& c) {
  ibv_async_event e{};
  REQUIRE(ibv_get_async_event(&c, &e) == 0);
  ibv_ack_async_event(&e);
  return e.event_type;
}

bool has_event(ibv_context& c) {
  pollfd p{c.async_fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

} // namespace soft::test
