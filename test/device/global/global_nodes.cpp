// SPDX-License-Identifier: BSL-1.0
// Nodes of global memory that join and leave.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/connection.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace test::global_nodes_tests {
namespace {

using word = std::uint64_t;

} // namespace

TEST_CASE("each node reaches the segments of the other, and its own") {
  world w;
  global_memory third(w.io, w.pool, max_node);
  third.host(4096);
  REQUIRE(w.join(third).value == host_id);
  const remote_ptr<word> there(max_node, 0, 64);
  CHECK(w.ask<void>([&](auto h) {
           w.host.async_write(there, 5, visibility::flushed, h);
         }).succeeded());
  CHECK(*third.local(there) == 5);
  CHECK(w.read(there).ec == error::node_unknown); // the guest has not joined it
  const auto p =
      w.ask<remote_ptr<word>>([&](auto h) { w.host.async_allocate<word>(max_node, 0, h); });
  CHECK(p.succeeded());
  CHECK(p.value.node() == max_node);

  CHECK(!w.host.knows(host_id));
  REQUIRE(w.join(w.host).value == host_id);
  CHECK(w.host.knows(host_id));
  const remote_ptr<word> own(host_id, 0, 128);
  CHECK(
      w.ask<void>([&](auto h) { w.host.async_write(own, 6, visibility::flushed, h); }).succeeded());
  CHECK(*w.host.local(own) == 6);
}

TEST_CASE("a connection of a node to itself ends, and the node continues") {
  world w;
  {
    global_memory view(w.io, w.host);
    REQUIRE(w.join(view).value == host_id);
    const remote_ptr<word> own(host_id, 0, 64);
    CHECK(w.ask<word>([&](auto h) { view.async_read(own, h); }).succeeded());
  }
  for (int steps = 0; steps < 40; ++steps) { // cancelled at each step
    CAPTURE(steps);
    global_memory view(w.io, w.host);
    asio::cancellation_signal stop;
    outcome<node_id> joined;
    view.async_join(w.host.local_endpoint(),
                    asio::bind_cancellation_slot(stop.slot(), joined.handler()));
    for (int i = 0; i < steps && !joined.done(); ++i)
      w.io.run_one();
    stop.emit(asio::cancellation_type::terminal);
    w.until([&] { return joined.done(); });
    CHECK(joined.calls == 1);
  }
  for (int steps = 0; steps < 40; ++steps) {
    CAPTURE(steps);
    asio::cancellation_signal stop;
    outcome<node_id> joined;
    w.host.async_join(w.host.local_endpoint(),
                      asio::bind_cancellation_slot(stop.slot(), joined.handler()));
    for (int i = 0; i < steps && !joined.done(); ++i)
      w.io.run_one();
    stop.emit(asio::cancellation_type::terminal);
    w.until([&] { return joined.done(); });
    CHECK(joined.calls == 1);
  }
  CHECK(w.read(remote_ptr<word>(host_id, 0, 64)).succeeded());
}

TEST_CASE("a node that is joined and does not introduce itself is not waited for") {
  world w;
  global_memory_options o;
  o.lanes.keep_alive = std::chrono::milliseconds(50);
  global_memory joins(w.io, w.pool, 9, o);
  acceptor a(w.io, {device_address(w.dev), 0});
  asio_rdma::connection silent(w.io, w.pool);
  test::connection accepted;
  a.async_accept(silent, accepted.handler());
  outcome<node_id> joined;
  joins.async_join(a.local_endpoint(), joined.handler());
  w.until([&] { return joined.done() && accepted.done(); });
  CHECK(accepted.succeeded());
  CHECK(joined.ec == asio::error::timed_out);
}

TEST_CASE("an id belongs to one node") {
  world w;
  global_memory twin(w.io, w.pool, guest_id), usurper(w.io, w.pool, host_id);
  CHECK(w.join(twin).ec == error::node_in_use);
  CHECK(w.join(usurper).ec == error::node_in_use);
  CHECK(w.write(remote_ptr<word>(host_id, 0, 64), 1) == error_code());
  CHECK_THROWS_AS(global_memory(w.io, w.pool, 0), system_error);
  CHECK_THROWS_AS(global_memory(w.io, w.pool, max_node + 1), system_error);
  error_code ec;
  w.host.host(4096, ec);
  CHECK(ec == asio::error::already_started);
  twin.host(64, ec);
  CHECK(ec == asio::error::invalid_argument);
}

TEST_CASE("a node on two contexts has a lane on each") {
  world w;
  asio::io_context other(1);
  global_memory view(other, w.guest);
  CHECK(view.id() == guest_id);
  auto joined = view.async_join(w.host.local_endpoint(), asio::use_future);
  std::thread thread([&] { other.run(); });
  w.until([&] { return joined.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  thread.join();
  REQUIRE(joined.get() == host_id);
  const remote_ptr<word> p(host_id, 0, 64);
  other.restart();
  auto written = view.async_write(p, 3, visibility::flushed, asio::use_future);
  other.run();
  written.get();
  CHECK(w.read(p).value == 3);
}

TEST_CASE("a node that leaves ends the operations on its memory, and no others") {
  world w;
  global_memory third(w.io, w.pool, 9);
  third.host(4096);
  third.listen({device_address(w.dev), 0});
  outcome<node_id> joined;
  w.guest.async_join(third.local_endpoint(), joined.handler());
  w.until([&] { return joined.done(); });
  REQUIRE(joined.value == 9);
  const remote_ptr<word> leaving(host_id, 0, 64), staying(9, 0, 64);
  std::vector<outcome<word>> reads(300);
  for (auto& r : reads)
    w.guest.async_read(leaving, r.handler());
  outcome<word> other;
  w.guest.async_read(staying, other.handler());
  w.host.close();
  w.until([&] {
    return other.done() &&
           std::all_of(reads.begin(), reads.end(), [](auto& r) { return r.done(); });
  });
  CHECK(other.succeeded());
  for (const auto& r : reads)
    CHECK(r.calls == 1);
  CHECK(w.read(leaving).ec);
  CHECK(w.ask<remote_ptr<word>>([&](auto h) { w.guest.async_allocate<word>(host_id, 0, h); }).ec);
  CHECK(w.read(staying).succeeded());
}

TEST_CASE("nodes that have left leave no registered memory behind") {
  world w;
  const auto before = w.pool.statistics().blocks_in_use;
  for (node_id id = 100; id < 120; ++id) {
    global_memory passing(w.io, w.pool, id);
    REQUIRE(!w.join(passing).ec);
    const remote_ptr<word> p(host_id, 0, 64);
    REQUIRE(w.ask<word>([&](auto h) { passing.async_read(p, h); }).succeeded());
    passing.close();
    w.until([&] { return w.pool.statistics().blocks_in_use <= before; });
  }
  CHECK(w.pool.statistics().blocks_in_use == before);
}

TEST_CASE("a node is reached as long as one of its views is") {
  world w;
  const auto first = std::make_unique<global_memory>(w.io, w.pool, 9);
  first->host(4096);
  global_memory second(w.io, *first);
  REQUIRE(w.join(*first).value == host_id);
  REQUIRE(w.join(second).value == host_id);
  const remote_ptr<word> there(9, 0, 64);
  const auto read = [&] {
    return w.ask<word>([&](auto h) { w.host.async_read(there, h); }).succeeded();
  };
  CHECK(read());
  first->close();
  int in_a_row = 0;
  for (int i = 0; i < 1000 && in_a_row < 10; ++i) // until the host is notified
    in_a_row = read() ? in_a_row + 1 : 0;
  CHECK(in_a_row == 10);
  second.close();
  for (int i = 0; i < 1000 && read(); ++i)
    continue;
  CHECK_FALSE(read());
}

TEST_CASE(
    "a batch that is posted again finds the segments that a node has hosted since it came back") {
  world w;
  const remote_ptr<word> there(9, 0, 128);
  const auto host_at = [&](global_memory& m, std::uint64_t bytes) {
    m.host(bytes);
    m.listen({device_address(w.dev), 0});
  };
  const auto join = [&](global_memory& m) {
    return w.ask<node_id>([&](auto h) { w.guest.async_join(m.local_endpoint(), h); }).ec;
  };
  auto before = std::make_unique<global_memory>(w.io, w.pool, 9);
  host_at(*before, 4096);
  REQUIRE(!join(*before));
  global_memory::batch b(w.guest, 9);
  b.write(there, 5);
  const auto seen = b.read(there);
  const auto post = [&] {
    return w.ask<void>([&](auto h) { b.async_post(h); }).ec;
  };
  CHECK(!post());
  before.reset();
  const registered_buffer where_it_was = w.pool.allocate(8192);
  global_memory after(w.io, w.pool, 9);
  host_at(after, 65536);
  error_code ec = error::node_in_use; // until the guest is notified of the other's end
  for (int i = 0; i < 1000 && ec == error::node_in_use; ++i)
    ec = join(after);
  REQUIRE(!ec);
  CHECK(!post());
  CHECK(b[seen] == 5);
  CHECK(*after.local(there) == 5);
  global_memory small(w.io, w.pool, 10);
  host_at(small, 65);
  REQUIRE(!join(small));
  global_memory::batch beyond(w.guest, 10);
  beyond.write(remote_ptr<word>(10, 0, 128), 1);
  CHECK(w.ask<void>([&](auto h) { beyond.async_post(h); }).ec == error::remote_range);
}

} // namespace test::global_nodes_tests
