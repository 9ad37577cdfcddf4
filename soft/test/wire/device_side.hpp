// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_DEVICE_SIDE_HPP
#define SOFT_TEST_WIRE_DEVICE_SIDE_HPP

#include "fuzz_input.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <infiniband/verbs.h>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace soft::test {

inline constexpr std::size_t region_size = 1024;
/// Of the region that takes messages long enough to be read into it directly.
inline constexpr std::size_t wide_size = 1 << 16;
/// Of a READ into it.
inline constexpr std::uint32_t wide_request = 1 << 15;
/// Below those of the device's queue pairs, so that the peer connects.
inline constexpr std::uint32_t peer_number = 1;
/// The STag of the READs of the device's side.
inline constexpr std::uint32_t sink_key = 0x50f7;
inline constexpr int most_steps = 48, most_posted = 2 * most_steps;

/// Memory that no peer may read has these bytes, again and again. Each input meets new ones:
/// libFuzzer learns what is compared, and a later input may contain it.
inline constexpr std::size_t secret_size = 8;
inline std::string& the_secret() {
  static std::string s(secret_size, ' ');
  return s;
}
inline void renew_secret() {
  std::random_device random;
  for (char& c : the_secret())
    c = static_cast<char>(random());
}
inline bool has_secret(const bytes& all) {
  const std::string twice = the_secret() + the_secret();
  const std::string_view view(reinterpret_cast<const char*>(all.data()), all.size());
  for (std::size_t i = 0; i + secret_size <= view.size(); ++i)
    if (twice.find(view.substr(i, secret_size)) != std::string::npos)
      return true;
  return false;
}

/// Registered memory, and what it must hold at the end.
struct region {
  /// `hidden`: where the memory that the peer may not read begins.
  region(ibv_pd* pd, int access, std::size_t hidden = region_size, std::size_t size = region_size)
      : memory(size), end(size) {
    hide(hidden);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE | access);
    require(mr != nullptr, "ibv_reg_mr");
    key = mr->rkey;
  }
  region(const region&) = delete;
  region& operator=(const region&) = delete;
  ~region() { deregister(); }
  void deregister() {
    if (mr == nullptr)
      return;
    require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    mr = nullptr;
    hide(0);
  }
  /// Hides the memory from there on, and expects that all of it stays as it then is.
  void hide(std::size_t from) {
    for (std::size_t i = from; i < memory.size(); ++i)
      memory[i] = static_cast<std::byte>(the_secret()[i % secret_size]);
    expected = memory;
  }
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }
  bool is_unchanged() const { return memory == expected; }
  bool is_unchanged(std::size_t from, std::size_t to = region_size) const {
    return std::memcmp(memory.data() + from, expected.data() + from, to - from) == 0;
  }

  bytes memory, expected;
  std::size_t begin = 0, end; ///< of what a peer may reach, with the right to
  ibv_mr* mr = nullptr;
  std::uint32_t key = 0;
};

inline ibv_context* open_soft() {
  static ibv_context* const opened = [] {
    int count = 0;
    ibv_context* c = nullptr;
    ibv_device** const list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i)
      if (std::string_view(ibv_get_device_name(list[i])) == "soft0")
        c = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    require(c != nullptr, "there is no soft0");
    return c;
  }();
  return opened;
}

/// The device's side: a queue pair, and memory of each kind.
struct device_side {
  /// `type`: IBV_QPT_RC or IBV_QPT_UC. `shared`: it receives by a shared receive queue.
  device_side(ibv_qp_type type, bool shared) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {most_posted + 1, most_posted, 1, 1, 0};
    init.qp_type = type;
    init.sq_sig_all = 1;
    if (shared) {
      ibv_srq_init_attr receives{};
      receives.attr = {most_posted, 1, 0};
      init.srq = srq = ibv_create_srq(pd, &receives);
      require(srq != nullptr, "ibv_create_srq");
    }
    const bool reliable = type == IBV_QPT_RC;
    qp = ibv_create_qp(pd, &init);
    require(qp != nullptr, "ibv_create_qp");
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = reliable ? all_rights : IBV_ACCESS_REMOTE_WRITE;
    modify(a, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer_number;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 1;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    require(ibv_query_gid(qp->context, 1, 0, &a.ah_attr.grh.dgid) == 0, "ibv_query_gid");
    modify(a, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                  (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    modify(a, IBV_QP_SQ_PSN | (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                              IBV_QP_MAX_QP_RD_ATOMIC
                                        : 0));
  }
  device_side(const device_side&) = delete;
  device_side& operator=(const device_side&) = delete;
  ~device_side() {
    free_window();
    require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    require(srq == nullptr || ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
    require(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0, "ibv_destroy_cq");
    for (region* const r : {&open, &closed, &passing, &inbox, &foreign, &seen_by_window, &wide})
      r->deregister();
    require(ibv_dealloc_pd(other_pd) == 0 && ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
  }

  void modify(ibv_qp_attr& a, int mask) {
    require(ibv_modify_qp(qp, &a, mask | IBV_QP_STATE) == 0, "ibv_modify_qp");
  }
  void wait_for_event() const {
    require(wait_for(channel->fd), "a request does not complete");
    ibv_cq* of = nullptr;
    void* context = nullptr;
    require(uninterrupted([&] { return ibv_get_cq_event(channel, &of, &context); }) == 0,
            "ibv_get_cq_event");
    ibv_ack_cq_events(of, 1);
  }
  /// The peer may use the middle half of `seen_by_window` from now on.
  void bind_window() {
    region& r = seen_by_window;
    r.begin = region_size / 4;
    r.end = region_size * 3 / 4;
    std::fill(r.memory.data() + r.begin, r.memory.data() + r.end, std::byte{});
    r.expected = r.memory;
    window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    require(window != nullptr, "ibv_alloc_mw");
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    wr.bind_mw.bind_info = {r.mr, r.address() + r.begin, r.end - r.begin,
                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    require(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
    require(next_completion().status == IBV_WC_SUCCESS, "IBV_WR_BIND_MW");
    r.key = wr.bind_mw.rkey;
  }
  void free_window() {
    if (window == nullptr)
      return;
    require(ibv_dealloc_mw(window) == 0, "ibv_dealloc_mw");
    window = nullptr;
    seen_by_window.hide(0);
  }
  ibv_wc next_completion() {
    ibv_wc w{};
    while (ibv_poll_cq(cq, 1, &w) != 1) {
      require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
      if (ibv_poll_cq(cq, 1, &w) == 1)
        break;
      wait_for_event();
    }
    return w;
  }
  /// For a queue pair with a shared receive queue, in the state of error.
  void wait_for_last_receive() const {
    ibv_async_event e{};
    do {
      require(wait_for(qp->context->async_fd), "last WQE reached does not come");
      require(uninterrupted([&] { return ibv_get_async_event(qp->context, &e); }) == 0,
              "ibv_get_async_event");
      ibv_ack_async_event(&e);
    } while (e.event_type != IBV_EVENT_QP_LAST_WQE_REACHED);
  }

  // The first half of the inbox takes messages and the results of READs and atomics.
  ibv_sge element(std::uint32_t size) const {
    return {inbox.address(), std::min<std::uint32_t>(size, region_size / 2), inbox.mr->lkey};
  }
  ibv_sge wide_element(std::uint32_t size) const { return {wide.address(), size, wide.key}; }
  void post_receive(std::uint32_t size) { post_receive(element(size)); }
  void post_receive(ibv_sge e) {
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = posted;
    wr.sg_list = &e;
    wr.num_sge = 1;
    if (posted == most_posted)
      return;
    require((srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) ==
                0,
            "ibv_post_recv");
    is_request[posted++] = false;
  }
  /// `kind`: the operation, and a bit: with the wide region.
  void post_request(unsigned kind, std::uint32_t size) {
    constexpr ibv_wr_opcode kinds[] = {IBV_WR_RDMA_READ,          IBV_WR_ATOMIC_FETCH_AND_ADD,
                                       IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_SEND,
                                       IBV_WR_RDMA_WRITE,         IBV_WR_SEND_WITH_IMM};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = kinds[kind % std::size(kinds)];
    const bool atomic =
        wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    ibv_sge e = atomic ? element(8) : (kind & 64) != 0 ? wide_element(wide_request) : element(size);
    wr.wr_id = posted;
    wr.sg_list = &e;
    wr.num_sge = 1;
    if (atomic) {
      wr.wr.atomic.remote_addr = 4096;
      wr.wr.atomic.rkey = 77;
    } else {
      wr.wr.rdma.remote_addr = 4096;
      wr.wr.rdma.rkey = 77;
    }
    if (posted < most_posted && ibv_post_send(qp, &wr, &bad) == 0)
      is_request[posted++] = true;
  }

  static constexpr int all_rights =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ibv_pd* const pd = ibv_alloc_pd(open_soft());
  ibv_pd* const other_pd = ibv_alloc_pd(open_soft());
  ibv_comp_channel* const channel = ibv_create_comp_channel(open_soft());
  ibv_cq* const cq = ibv_create_cq(open_soft(), most_posted + 1, nullptr, channel, 0);
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mw* window = nullptr;
  region open{pd, all_rights},       // the peer may use it
      closed{pd, 0, 0},              // the peer may not
      passing{pd, all_rights},       // until it is deregistered
      inbox{pd, 0, region_size / 2}, // of receives and results
      foreign{other_pd, all_rights, 0}, seen_by_window{pd, IBV_ACCESS_MW_BIND, 0},
      wide{pd, all_rights, wide_size, wide_size}; // the peer may use it until it is deregistered
  int posted = 0;
  std::array<bool, most_posted> is_request{}; ///< of what was posted: no receive
};

} // namespace soft::test

#endif
