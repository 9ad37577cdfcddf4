// SPDX-License-Identifier: BSL-1.0
// ibv_wr_post(3): the operations, with each kind of data.
#include "built_requests.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

using namespace soft::test;

namespace {

constexpr std::array<std::byte, 8> sent{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                        std::byte{5}, std::byte{6}, std::byte{7}, std::byte{8}};
constexpr std::array<std::byte, 8> nothing{};

void put(side& s, std::size_t offset = 0) {
  std::copy(sent.begin(), sent.end(), s.memory.begin() + static_cast<std::ptrdiff_t>(offset));
}
std::uint64_t word(const side& s) {
  std::uint64_t w = 0;
  std::memcpy(&w, s.memory.data(), sizeof(w));
  return w;
}
void set_word(side& s, std::uint64_t w) { std::memcpy(s.memory.data(), &w, sizeof(w)); }
std::uint64_t address(const side& s) { return s.element(0, 0).addr; }

void check(const ibv_wc& wc, std::uint64_t id, ibv_wc_opcode opcode) {
  CHECK(wc.wr_id == id);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == opcode);
}

struct window {
  explicit window(side& s) : mw(ibv_alloc_mw(s.pd.get(), IBV_MW_TYPE_2)) { REQUIRE(mw != nullptr); }
  ~window() { ibv_dealloc_mw(mw); }
  window(const window&) = delete;
  window& operator=(const window&) = delete;
  ibv_mw* mw;
};

// Binds the window to the memory of `s`, which its peer may write then. Returns the key.
std::uint32_t bind(side& s, window& w, std::uint64_t id) {
  const std::uint32_t key = ibv_inc_rkey(w.mw->rkey);
  const ibv_mw_bind_info how{s.mr.get(), address(s), s.memory.size(), IBV_ACCESS_REMOTE_WRITE};
  REQUIRE(post(s, id, [&](ibv_qp_ex* q) { ibv_wr_bind_mw(q, w.mw, key, &how); }) == 0);
  check(s.completion(), id, IBV_WC_BIND_MW);
  w.mw->rkey = key;
  return key;
}

ibv_wc_status write_by(side& from, std::uint32_t key, const side& to) {
  REQUIRE(post(from, 1, [&](ibv_qp_ex* q) {
            ibv_wr_rdma_write(q, key, address(to));
            set_element(from);
          }) == 0);
  return from.completion().status;
}

} // namespace

TEST_CASE("A SEND is built, and its completion has the id") {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    connected_pair p({.type = type, .operations = unreliable_operations});
    put(p.a);
    REQUIRE(p.b.receive(1) == 0);
    REQUIRE(post(p.a, 7, [&](ibv_qp_ex* q) {
              ibv_wr_send(q);
              set_element(p.a);
            }) == 0);
    const ibv_wc wc = p.b.completion();
    check(wc, 1, IBV_WC_RECV);
    CHECK(wc.byte_len == 8);
    CHECK(wc.wc_flags == 0);
    CHECK(p.b.bytes_at(0) == sent);
    check(p.a.completion(), 7, IBV_WC_SEND);
  }
}

TEST_CASE("A SEND and a WRITE with immediate data are built") {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    connected_pair p({.type = type, .operations = unreliable_operations});
    put(p.a);
    REQUIRE(p.b.receive(1, 64) == 0);
    REQUIRE(p.b.receive(2) == 0);
    REQUIRE(post(p.a, 7, [&](ibv_qp_ex* q) {
              ibv_wr_send_imm(q, 0x12345678);
              set_element(p.a);
              q->wr_id = 8;
              ibv_wr_rdma_write_imm(q, p.b.mr->rkey, address(p.b), 0x9abcdef0);
              set_element(p.a);
            }) == 0);
    ibv_wc wc = p.b.completion();
    check(wc, 1, IBV_WC_RECV);
    CHECK(wc.wc_flags == IBV_WC_WITH_IMM);
    CHECK(wc.imm_data == 0x12345678);
    wc = p.b.completion();
    check(wc, 2, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(wc.imm_data == 0x9abcdef0);
    CHECK(p.b.bytes_at(0) == sent);
    CHECK(p.b.bytes_at(64) == sent);
    check(p.a.completion(), 7, IBV_WC_SEND);
    check(p.a.completion(), 8, IBV_WC_RDMA_WRITE);
  }
}

TEST_CASE("A WRITE, a READ and atomics are built") {
  connected_pair p({.operations = all_operations});
  put(p.a);
  REQUIRE(write_by(p.a, p.b.mr->rkey, p.b) == IBV_WC_SUCCESS);
  CHECK(p.b.bytes_at(0) == sent);
  REQUIRE(post(p.a, 2, [&](ibv_qp_ex* q) {
            ibv_wr_rdma_read(q, p.b.mr->rkey, address(p.b));
            set_element(p.a, 64);
          }) == 0);
  check(p.a.completion(), 2, IBV_WC_RDMA_READ);
  CHECK(p.a.bytes_at(64) == sent);

  set_word(p.b, 100);
  REQUIRE(post(p.a, 3, [&](ibv_qp_ex* q) {
            ibv_wr_atomic_fetch_add(q, p.b.mr->rkey, address(p.b), 11);
            set_element(p.a);
          }) == 0);
  check(p.a.completion(), 3, IBV_WC_FETCH_ADD);
  CHECK(word(p.a) == 100);
  CHECK(word(p.b) == 111);
  for (const auto& [compare, after] : {std::pair{110, 111}, std::pair{111, 222}}) {
    REQUIRE(post(p.a, 4, [&, expected = compare](ibv_qp_ex* q) {
              ibv_wr_atomic_cmp_swp(q, p.b.mr->rkey, address(p.b),
                                    static_cast<std::uint64_t>(expected), 222);
              set_element(p.a);
            }) == 0);
    check(p.a.completion(), 4, IBV_WC_COMP_SWAP);
    CHECK(word(p.a) == 111);
    CHECK(word(p.b) == static_cast<std::uint64_t>(after));
  }
}

TEST_CASE("A window is bound and invalidated, locally and by the peer's SEND") {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    INFO(type);
    connected_pair p({.type = type, .operations = unreliable_operations});
    window w(p.b);
    put(p.a);
    std::uint32_t key = bind(p.b, w, 1);
    CHECK(write_by(p.a, key, p.b) == IBV_WC_SUCCESS);
    CHECK(p.b.bytes_at(0) == sent);
    REQUIRE(post(p.b, 2, [&](ibv_qp_ex* q) { ibv_wr_local_inv(q, key); }) == 0);
    check(p.b.completion(), 2, IBV_WC_LOCAL_INV);

    key = bind(p.b, w, 3);
    REQUIRE(p.b.receive(4, 64) == 0);
    REQUIRE(post(p.a, 5, [&](ibv_qp_ex* q) {
              ibv_wr_send_inv(q, key);
              set_element(p.a);
            }) == 0);
    check(p.a.completion(), 5, IBV_WC_SEND);
    const ibv_wc wc = p.b.completion();
    check(wc, 4, IBV_WC_RECV);
    CHECK(wc.wc_flags == IBV_WC_WITH_INV);
    CHECK(wc.invalidated_rkey == key);
    if (type == IBV_QPT_RC)
      CHECK(write_by(p.a, key, p.b) == IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_CASE("Data are elements in a list, or copied from a buffer or a list of buffers") {
  connected_pair p({.operations = all_operations, .elements = 3, .inline_bytes = 64});
  put(p.a);
  const auto written = [&](auto set) {
    std::fill_n(p.b.memory.begin(), 8, std::byte{0});
    REQUIRE(post(p.a, 1, [&](ibv_qp_ex* q) {
              ibv_wr_rdma_write(q, p.b.mr->rkey, address(p.b));
              set(q);
            }) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    return p.b.bytes_at(0);
  };
  const ibv_sge elements[] = {p.a.element(0, 3), p.a.element(3, 0), p.a.element(3, 5)};
  CHECK(written([&](ibv_qp_ex* q) { ibv_wr_set_sge_list(q, 3, elements); }) == sent);
  CHECK(written([&](ibv_qp_ex* q) { ibv_wr_set_sge_list(q, 0, nullptr); }) == nothing);
  CHECK(written([&](ibv_qp_ex* q) { ibv_wr_set_sge(q, 0, 0, 0); }) == nothing);
  auto data = sent; // free for other use as soon as it is set
  CHECK(written([&](ibv_qp_ex* q) {
          ibv_wr_set_inline_data(q, data.data(), data.size());
          data = {};
        }) == sent);
  data = sent;
  const ibv_data_buf buffers[] = {
      {data.data(), 1}, {nullptr, 0}, {data.data() + 1, 4}, {data.data() + 5, 3}};
  CHECK(written([&](ibv_qp_ex* q) {
          ibv_wr_set_inline_data_list(q, 4, buffers);
          data = {};
        }) == sent);
  CHECK(written([&](ibv_qp_ex* q) { ibv_wr_set_inline_data(q, nullptr, 0); }) == nothing);
}

TEST_CASE("As many elements and inline bytes as the queue pair has are built") {
  connected_pair p({.operations = all_operations, .elements = 32, .inline_bytes = 512});
  std::vector<ibv_sge> elements;
  for (unsigned i = 0; i < 32; ++i)
    elements.push_back(p.a.element(4 * i, 4));
  for (unsigned i = 0; i < 512; ++i)
    p.a.memory[i] = static_cast<std::byte>(i * 7 + 1);
  REQUIRE(post(p.a, 1, [&](ibv_qp_ex* q) {
            ibv_wr_rdma_write(q, p.b.mr->rkey, address(p.b));
            ibv_wr_set_sge_list(q, elements.size(), elements.data());
          }) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(std::equal(p.a.memory.begin(), p.a.memory.begin() + 128, p.b.memory.begin()));
  REQUIRE(post(p.a, 2, [&](ibv_qp_ex* q) {
            ibv_wr_rdma_write(q, p.b.mr->rkey, address(p.b));
            ibv_wr_set_inline_data(q, p.a.memory.data(), 512);
          }) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(std::equal(p.a.memory.begin(), p.a.memory.begin() + 512, p.b.memory.begin()));
}

TEST_CASE("Datagrams are built with their address") {
  connected_pair p({.type = IBV_QPT_UD, .operations = datagram_operations, .inline_bytes = 64});
  const owned_ah way = p.a.way_here();
  put(p.a);
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.b.receive(2, 256) == 0);
  REQUIRE(post(p.a, 5, [&](ibv_qp_ex* q) {
            ibv_wr_send(q);
            ibv_wr_set_ud_addr(q, way.get(), p.b.qp->qp_num, test_q_key);
            set_element(p.a);
            q->wr_id = 6;
            ibv_wr_send_imm(q, 77); // the setters come in any order
            ibv_wr_set_inline_data(q, p.a.memory.data(), 8);
            ibv_wr_set_ud_addr(q, way.get(), p.b.qp->qp_num, test_q_key);
          }) == 0);
  ibv_wc wc = p.b.completion();
  check(wc, 1, IBV_WC_RECV);
  CHECK(wc.src_qp == p.a.qp->qp_num);
  CHECK(wc.byte_len == sizeof(ibv_grh) + 8);
  CHECK(p.b.bytes_at(sizeof(ibv_grh)) == sent);
  wc = p.b.completion();
  check(wc, 2, IBV_WC_RECV);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == 77);
  CHECK(p.b.bytes_at(256 + sizeof(ibv_grh)) == sent);
  check(p.a.completion(), 5, IBV_WC_SEND);
  check(p.a.completion(), 6, IBV_WC_SEND);
}

TEST_CASE("The flags of a built request are its own") {
  connected_pair p({.all_signaled = false, .operations = all_operations});
  REQUIRE(post(p.a, 1, [&](ibv_qp_ex* q) {
            // Inline data are set, and not by the flag.
            q->wr_flags = IBV_SEND_INLINE;
            ibv_wr_rdma_write(q, p.b.mr->rkey, address(p.b));
            set_element(p.a);
            q->wr_id = 2;
            q->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
            ibv_wr_rdma_read(q, p.b.mr->rkey, address(p.b));
            set_element(p.a);
          }) == 0);
  check(p.a.completion(), 2, IBV_WC_RDMA_READ);
  CHECK(p.a.is_quiet());
}

TEST_CASE("A built SEND is solicited by its flag") {
  connected_pair p({.operations = all_operations});
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.b.receive(2) == 0);
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 1) == 0);
  REQUIRE(post(p.a, 1, [&](ibv_qp_ex* q) {
            ibv_wr_send(q);
            set_element(p.a);
            q->wr_flags = IBV_SEND_SOLICITED;
            ibv_wr_send(q);
            set_element(p.a);
          }) == 0);
  ibv_cq* q = nullptr;
  void* context = nullptr;
  REQUIRE(ibv_get_cq_event(p.b.channel.get(), &q, &context) == 0);
  ibv_ack_cq_events(q, 1);
  ibv_wc wc[2];
  CHECK(ibv_poll_cq(p.b.cq.get(), 2, wc) == 2); // the event is that of the second message
}
