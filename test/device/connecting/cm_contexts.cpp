// SPDX-License-Identifier: BSL-1.0
// Acceptors and connectors on other contexts than the queue pairs that they connect.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_homes.hpp"
#include "device/connecting/cm_support.hpp"

#include <asio_rdma/stream.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

namespace test::cm_contexts_tests {
namespace {

/// Calls a function when the context shuts down, after the services that were made later.
struct at_shutdown final : asio::execution_context::service {
  using key_type = at_shutdown;
  inline static asio::execution_context::id id;

  explicit at_shutdown(asio::execution_context& context) : service(context) {}
  void shutdown() override { call(); }

  std::function<void()> call = [] {
  };
};

} // namespace

TEST_CASE("the contexts that made a connection need not run for its end to be noticed") {
  const connections_check nothing_left;
  home h;
  makers m;
  m.meet(h.io, h.a, h.b);
  CHECK(h.carries());
  m.listener.reset();
  for (auto* io : {&*m.connecting, &*m.accepting})
    drain(*io); // an open connection is no work of theirs
  const bool of_a = GENERATE(true, false);
  queue_pair& closing = of_a ? h.a : h.b;
  queue_pair& left = of_a ? h.b : h.a;
  outcome<void> ended;
  left.async_wait_disconnect(ended.handler());
  closing.close();
  until(h.io, [&] { return ended.done(); });
  CHECK(ended.ec == asio::error::connection_reset);
  CHECK(left.state() == queue_pair_state::failed);
}

TEST_CASE("a connection outlives the contexts that made it") {
  const connections_check nothing_left;
  home h;
  makers m;
  m.meet(h.io, h.a, h.b);
  m.destroy_accepting();
  m.destroy_connecting();
  CHECK(h.carries());
  outcome<void> ended;
  h.b.async_wait_disconnect(ended.handler());
  h.a.close();
  until(h.io, [&] { return ended.done(); });
  CHECK(ended.ec == asio::error::connection_reset);
  h.b.close();
}

TEST_CASE("an event that comes before the connection has moved is read where it has moved to") {
  const connections_check nothing_left;
  home h;
  makers m;
  // The connector's context does not run while the peer closes the accepted connection. On iWARP
  // the acceptor is connected at once. On RoCE the acceptor would fail before it receives the
  // connector's next message.
  m.listener->async_accept(h.b, m.accepted.handler());
  m.initiator->async_connect(h.a, m.listener->local_endpoint(), m.connected.handler());
  if (h.dev.type() != transport::iwarp)
    return not_on_this_device("a connector that is connected by one event");
  until_all({&*m.connecting, &*m.accepting}, [&] { return m.accepted.done(); });
  h.b.close();
  until_all({&*m.connecting}, [&] { return m.connected.done(); });
  if (m.connected.succeeded()) {
    outcome<void> ended;
    h.a.async_wait_disconnect(ended.handler());
    until(h.io, [&] { return ended.done(); });
    CHECK(ended.ec == asio::error::connection_reset);
  }
}

TEST_CASE("a connection that cannot move to its queue pair's context ends") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  home h;
  makers m;
  const rdma_cm_id* connecting_id = nullptr;
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    if (call == cm_call::connect)
      connecting_id = id;
    return call == cm_call::migrate && (id == connecting_id) == connecting ? ENOMEM : 0;
  };
  outcome<void> ended; // the peer may be connected by then
  (connecting ? h.b : h.a).async_wait_disconnect(ended.handler());
  m.start(h.a, h.b);
  const connection& own = connecting ? m.connected : m.accepted;
  until_all({&*m.connecting, &*m.accepting, &h.io},
            [&] { return own.done() && m.connected.done(); });
  before_cm_call = nullptr;
  INFO(describe(own.ec));
  CHECK(own.ec == errc::not_enough_memory);
  CHECK((connecting ? h.a : h.b).state() == queue_pair_state::failed);
  const connection& peers = connecting ? m.accepted : m.connected;
  until_all({&*m.connecting, &*m.accepting, &h.io}, [&] { return peers.done() && ended.done(); });
}

TEST_CASE("a request is accepted by an acceptor of another context") {
  const connections_check nothing_left;
  makers m;
  home h;
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.initiator->async_connect(h.a, m.listener->local_endpoint(), m.connected.handler());
  until_all({&*m.connecting, &*m.accepting}, [&] { return request.done(); });
  acceptor worker(h.io);
  worker.async_accept(std::move(request.value), h.b, m.accepted.handler());
  h.io.restart();
  CHECK(h.io.poll() == 0);
  CHECK_FALSE(h.io.stopped()); // the accept is work of the worker's context
  until_all({&*m.connecting, &*m.accepting},
            [&] { return m.connected.done() && m.accepting->stopped(); });
  CHECK_FALSE(m.accepted.done());
  until_all({&h.io}, [&] { return m.accepted.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(h.carries());
}

// The accept has the last reference to the queue pair, and so to its completion queue. Both threads
// then use the reactor of the context, which one of them destroys.
TEST_CASE("an accept ends while the context of its queue pair is being destroyed") {
  const connections_check nothing_left;
  const device dev = open_device();
  const protection_domain pd(dev);
  makers m;
  for (int round = 0; round < 50; ++round) {
    std::optional<asio::io_context> io(1);
    std::optional<completion_queue> cq(std::in_place, *io, dev);
    auto& moment = asio::use_service<at_shutdown>(*io); // before the service of the connections
    std::optional<queue_pair> qp(std::in_place, *io);
    qp->open(pd, *cq);
    const std::weak_ptr<detail::queue_pair_impl> waiting = qp->impl();
    connection accepted;
    m.listener->async_accept(*qp, accepted.handler());
    qp.reset();
    cq.reset();
    REQUIRE_FALSE(waiting.expired());
    std::thread other;
    moment.call = [&] {
      std::atomic<bool> begins{false};
      other = std::thread([&] {
        begins = true;
        m.listener->cancel();
      });
      while (!begins)
        std::this_thread::yield();
    };
    io.reset();
    other.join();
    CHECK(waiting.expired());
    until_all({&*m.accepting}, [&] { return accepted.done(); });
    CHECK(accepted.ec == asio::error::operation_aborted);
  }
}

TEST_CASE("a stream outlives the contexts that made it") {
  const connections_check nothing_left;
  device dev = open_device();
  protection_domain pd(dev);
  memory_pool pool(pd);
  asio::io_context io(1);
  stream a(io), b(io);
  a.open(pool);
  b.open(pool);
  makers m;
  m.meet(io, a, b);
  m.destroy_accepting();
  m.destroy_connecting();
  sent wrote, read;
  std::array<char, 5> text{};
  asio::async_write(a, asio::buffer("hello", 5), wrote.handler());
  asio::async_read(b, asio::buffer(text), read.handler());
  until(io, [&] { return wrote.done() && read.done(); });
  CHECK(std::string(text.data(), text.size()) == "hello");
  read = {};
  b.async_read_some(asio::buffer(text), read.handler());
  a.close();
  until(io, [&] { return read.done(); });
  CHECK(read.ec == asio::error::eof);
  b.close();
}

} // namespace test::cm_contexts_tests
