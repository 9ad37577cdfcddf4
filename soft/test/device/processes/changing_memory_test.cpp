// SPDX-License-Identifier: BSL-1.0
// Memory that its program changes while the device reads or writes it, with CRCs.
#include "support/fixture.hpp"
#include "support/processes.hpp"
#include "support/raw_peer.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <rdma/rdma_verbs.h>
#include <string>
#include <thread>
#include <vector>

using namespace soft::test;
using soft::iwarp::opcode;

namespace {

constexpr std::uint32_t block = 60 << 10;
constexpr std::uint32_t stride = 512; // from one word that changes to the next
constexpr int rounds = 1000;

// ThreadSanitizer does not see these accesses, which it would report as races with the device's.
__attribute__((no_sanitize("thread"))) void change_words(std::byte* bytes) {
  for (std::uint32_t i = stride; i != block; i += stride) {
    auto* const word = reinterpret_cast<volatile std::uint64_t*>(bytes + i);
    *word = *word + 1;
  }
}

// Registered memory. A thread changes its words all the time, but for the first.
struct changing {
  explicit changing(ibv_pd& pd) {
    mr.reset(ibv_reg_mr(&pd, bytes.data(), bytes.size(),
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
    REQUIRE(mr);
    changer = std::thread([this] {
      while (!stops)
        change_words(bytes.data());
    });
  }
  ~changing() {
    stops = true;
    if (changer.joinable())
      changer.join();
  }
  changing(const changing&) = delete;
  changing& operator=(const changing&) = delete;

  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(bytes.data()); }

  std::vector<std::byte> bytes = std::vector<std::byte>(block);
  owned_mr mr;
  std::atomic<bool> stops{false};
  std::thread changer;
};

struct place {
  std::uint64_t address = 0, key = 0;
};

} // namespace

TEST_CASE("child: memory that its owner changes is READ", "[.child]") {
  endpoint e;
  resolve(e, std::getenv("PORT"));
  changing memory(*e.id->pd);
  REQUIRE(connect(e) == 0);
  trade(parent_channel, place{memory.address(), memory.mr->rkey});
  meet(parent_channel);
}

TEST_CASE("Memory that its owner changes can be READ with CRCs") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  child other("child: memory that its owner changes is READ",
              {{"PORT", port}, {"ASIO_RDMA_SOFT", "crc=1"}});
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  std::vector<std::byte> memory(block);
  const owned_mr mr(ibv_reg_mr(e.id->pd, memory.data(), block, IBV_ACCESS_LOCAL_WRITE));
  REQUIRE(mr);
  REQUIRE(accept(e) == 0);
  const place from = trade(other.channel(), place{});
  for (int i = 0; i != rounds; ++i) {
    // The second one is short, and goes by another way.
    for (const std::uint32_t bytes : {block, stride + 8})
      REQUIRE(rdma_post_read(e.id, nullptr, memory.data(), bytes, mr.get(), IBV_SEND_SIGNALED,
                             from.address, static_cast<std::uint32_t>(from.key)) == 0);
    REQUIRE(completion(e.id->send_cq).status == IBV_WC_SUCCESS);
    REQUIRE(completion(e.id->send_cq).status == IBV_WC_SUCCESS);
  }
  meet(other.channel());
  CHECK(other.wait() == 0);
}

// The peer writes the rest of its WRITE once the device has placed the first byte.
TEST_CASE("Memory may change while bytes arrive with CRCs") {
  const auto context = open_soft();
  side s(*context);
  changing memory(*s.pd);
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  REQUIRE(s.to(IBV_QPS_RTR, number_of_raw_peer, 0) == 0);
  REQUIRE(s.to(IBV_QPS_RTS) == 0);
  raw_peer peer(*s.qp);
  soft::iwarp::start_options o;
  o.peer_to_peer = true;
  o.crc = true;
  peer.send_request(*s.qp, o);
  REQUIRE(peer.start(true).crc);
  soft::iwarp::fpdu_writer writer(true);
  for (int i = 0; i != rounds; ++i) {
    const std::vector<std::byte> payload(block, static_cast<std::byte>(i + 1));
    const auto write = raw_peer::fpdu(writer,
                                      {.op = opcode::rdma_write,
                                       .length = block,
                                       .stag = memory.mr->rkey,
                                       .tagged_offset = memory.address()},
                                      payload);
    const std::size_t first = write.size() - block;
    peer.send(std::span(write).first(first));
    wait_for(memory.bytes[0], payload[0]);
    peer.send(std::span(write).subspan(first));
    REQUIRE(s.receive(1) == 0);
    peer.send(raw_peer::fpdu(writer, {.op = opcode::send, .length = 8}, std::vector<std::byte>(8)));
    REQUIRE(s.completion().status == IBV_WC_SUCCESS);
  }
}
