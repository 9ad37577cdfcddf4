// SPDX-License-Identifier: BSL-1.0
// Shared receives for which memory is lacking.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/support/pairs.hpp"
#include "interposer/failing_allocation.hpp"
#include "link/shared_receives_impl.hpp"

#include <boost/asio/buffer.hpp>

#include <vector>

namespace test::shared_receives_memory_tests {
namespace {

memory_pool_options of_one_arena() {
  memory_pool_options o;
  o.limit = o.first_arena;
  return o;
}

shared_receives_options few() {
  shared_receives_options o;
  o.receives = 12;
  return o;
}

/// Two connections. The receives of b are of a pool with little memory.
struct scarce {
  scarce() {
    a.open(pool);
    b.open(receives);
    connect_by_manager(*this);
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  message pass() {
    sent s;
    outcome<message> r;
    a.async_send(asio::buffer(text), s.handler());
    b.async_receive(r.handler());
    until([&] { return s.done() && r.done(); });
    REQUIRE(s.succeeded());
    REQUIRE(r.succeeded());
    return std::move(r.value);
  }

  const std::vector<std::uint8_t> text = pattern(2000, 1);
  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd}, little{pd, of_one_arena()};
  asio::io_context io{1};
  shared_receives receives{io, little, few()};
  acceptor listener{io};
  connector initiator{io};
  asio_rdma::connection a{io}, b{io};
};

} // namespace

TEST_CASE("receives that lack memory are still known to lack it while one link looks for memory") {
  scarce s;
  std::vector<registered_buffer> taken; // all memory
  error_code ec;
  for (std::size_t bytes = s.little.statistics().bytes_registered; bytes != 0; bytes /= 2)
    for (ec = {}; !ec;)
      taken.push_back(s.little.allocate(bytes, ec));
  std::vector<message> kept; // with the memory of their receives
  while (s.receives.statistics().missing == 0)
    kept.push_back(s.pass());
  auto& impl = *s.receives.impl();
  REQUIRE(impl.starved());
  int asked = 0, known = 0;
  {
    // A pool allocates a record before it finds that it has no memory.
    const watched_allocations during([&] {
      ++asked;
      known += impl.starved() ? 1 : 0; // as another link asks, on another thread
    });
    impl.refill();
  }
  CHECK(asked != 0);
  CHECK(known == asked);
  CHECK(impl.starved());
  kept.clear();
  taken.clear();
  impl.refill();
  CHECK_FALSE(impl.starved());
  CHECK(s.receives.statistics().missing == 0);
  CHECK(s.pass().size() == s.text.size());
}

} // namespace test::shared_receives_memory_tests
