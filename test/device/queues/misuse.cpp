// SPDX-License-Identifier: BSL-1.0
//
// Impossible requests are refused.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/deferred.hpp>

#include <optional>
#include <utility>

namespace test::misuse_tests {
TEST_CASE("a completion queue of another execution context is refused") {
  ground g;
  asio::io_context io, other;
  const completion_queue cq(other, g.dev);
  error_code ec;
  queue_pair q(io);
  q.open(g.pd, cq, {}, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(q.is_open());

  queue_pair theirs(other);
  theirs.open(g.pd, cq);
  q.assign(g.pd, cq, theirs.native_handle(), ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(q.is_open());
}

TEST_CASE("a shared receive queue of another execution context is refused") {
  ground g;
  if (g.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  asio::io_context io, other;
  const completion_queue cq(other, g.dev);
  error_code ec;
  shared_receive_queue srq(io);
  srq.open(g.pd, cq, {}, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(srq.is_open());

  shared_receive_queue elsewhere(other, g.pd);
  queue_pair q(io);
  q.open(g.pd, elsewhere, {}, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(q.is_open());
}

TEST_CASE("an operation of a queue of no depth is refused") {
  ground g;
  asio::io_context io;
  queue_pair_options options;
  options.receive_depth = 0;
  queue_pair q(io);
  error_code ec;
  q.open(g.pd, options, ec);
  if (ec) { // siw has no such queue
    CHECK(ec == errc::invalid_argument);
    return;
  }
  got r;
  q.async_receive(g.part(0), r.handler());
  drain(io);
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::invalid_argument);
}

TEST_CASE("a deferred operation that the device does not offer once it is started") {
  ground g;
  if (g.dev.has_atomics())
    return;
  asio::io_context io;
  auto q = queue_pair(io);
  auto operation = q.async_fetch_add(g.remote_part(0), 1, asio::deferred);
  joined two(io, g);
  q = std::move(two.a);
  outcome<std::uint64_t> end;
  std::move(operation)(end.handler());
  two.b.close();
  drain(io);
  CHECK(end.calls == 1);
  CHECK(end.ec == asio::error::operation_not_supported);
}

TEST_CASE("a deferred read is refused if the peer answers none once it is started") {
  ground g;
  if (g.dev.type() == transport::iwarp)
    return; // cannot be connected by hand
  asio::io_context io;
  queue_pair a(io), b(io);
  const bool opened_before = GENERATE(false, true);
  if (opened_before)
    a.open(g.pd);
  auto read = a.async_read(g.part(0), g.remote_part(1), asio::deferred);
  if (!opened_before)
    a.open(g.pd);
  b.open(g.pd);
  queue_pair_address of_b = b.local_address();
  of_b.max_reads = 0;
  const queue_pair_address of_a = a.local_address();
  a.connect(of_b);
  b.connect(of_a);
  sent end;
  std::move(read)(end.handler());
  drain(io);
  CHECK(end.calls == 1);
  CHECK(end.ec == asio::error::operation_not_supported);
}

TEST_CASE("a deferred read is refused by a queue pair that was opened again, of another type") {
  ground g;
  queue_pair_options unreliable;
  unreliable.type = IBV_QPT_UC;
  asio::io_context io;
  error_code ec;
  queue_pair a(io);
  a.open(g.pd, unreliable, ec);
  if (ec || g.dev.type() == transport::iwarp)
    return;
  a.close();
  std::optional<joined> two(std::in_place, io, g);
  a = std::move(two->a);
  auto read = a.async_read(g.part(0), g.remote_part(1), asio::deferred);
  a.close();
  a.open(g.pd, unreliable);
  queue_pair b(io);
  b.open(g.pd, unreliable);
  connect(io, a, b);
  sent end;
  std::move(read)(end.handler());
  two.reset();
  drain(io);
  CHECK(end.calls == 1);
  CHECK(end.ec == asio::error::operation_not_supported);
}

} // namespace test::misuse_tests
