// SPDX-License-Identifier: BSL-1.0
// A peer that makes many requests does not use up the descriptors of the process.
#include "support/raw_connection.hpp"

#include "iwarp/mpa_negotiation.hpp"

#include <catch2/catch.hpp>
#include <deque>
#include <sys/resource.h>

using namespace soft::test;

namespace {

// At most `most` descriptors may be open, for the lifetime of a test case.
struct descriptor_limit {
  explicit descriptor_limit(rlim_t most) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit set{most, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &set) == 0);
  }
  ~descriptor_limit() { setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

bool is_answered_by_rejection(raw_peer& p) { return p.start(true).rejected; }

} // namespace

TEST_CASE("Rejected requests whose peer does not close hold few descriptors") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  std::deque<raw_peer> peers; // the first ones wait for the program
  for (int i = 0; i < 8; ++i)
    peers.emplace_back(port).send(request_of());
  constexpr int most = 128, rejected = 2 * most;
  const std::size_t before = open_descriptors();
  for (int i = 0; i < rejected; ++i) {
    peers.emplace_back(port).send(request_of());
    REQUIRE(is_answered_by_rejection(peers.back()));
  }
  CHECK(open_descriptors() <= before + rejected + most + 32);
}

TEST_CASE("Requests that wait for the program hold a quarter of the descriptors at most") {
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
  const endpoint listener(id);
  sockaddr_in a = local_address(0);
  REQUIRE(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&a)) == 0);
  REQUIRE(rdma_listen(id, 0) == 0); // the longest backlog
  const std::string port = std::to_string(ntohs(rdma_get_src_port(id)));
  constexpr int share = 100;
  const descriptor_limit set(4 * share);
  std::deque<raw_peer> peers;
  for (int i = 0; i < share + 1; ++i)
    peers.emplace_back(port).send(request_of());
  CHECK(is_answered_by_rejection(peers.back()));
  endpoint taken; // makes room for another one
  REQUIRE(rdma_get_request(id, &taken.id) == 0);
  peers.emplace_back(port).send(request_of());
  for (int i = 1; i < share + 1; ++i) {
    endpoint e;
    REQUIRE(rdma_get_request(id, &e.id) == 0);
  }
}
