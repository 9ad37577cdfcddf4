// SPDX-License-Identifier: BSL-1.0
// Attempts to connect by rdma_cm that are given up, at each of their steps.
#include "catch.hpp"
#include "device/connecting/cm_support.hpp"

#include <functional>
#include <memory>
#include <string>

namespace test::cm_cancel_tests {
namespace {

using asio::cancellation_type;

struct attempt : meeting {
  asio::cancellation_signal connecting, accepting;
};

struct way {
  const char* name;
  std::function<void(attempt&)> give_up;
};

const way ways[] = {
    {"connect: terminal",
     [](attempt& m) {
       m.connecting.emit(cancellation_type::terminal);
     }},
    {"connect: partial",
     [](attempt& m) {
       m.connecting.emit(cancellation_type::partial);
     }},
    {"connect: total",
     [](attempt& m) {
       m.connecting.emit(cancellation_type::total);
     }},
    {"accept: terminal",
     [](attempt& m) {
       m.accepting.emit(cancellation_type::terminal);
     }},
    {"accept: partial",
     [](attempt& m) {
       m.accepting.emit(cancellation_type::partial);
     }},
    {"accept: total",
     [](attempt& m) {
       m.accepting.emit(cancellation_type::total);
     }},
    {"connector::cancel",
     [](attempt& m) {
       m.initiator->cancel();
     }},
    {"connector destroyed",
     [](attempt& m) {
       m.initiator.reset();
     }},
    {"acceptor::cancel",
     [](attempt& m) {
       m.listener->cancel();
     }},
    {"acceptor::close",
     [](attempt& m) {
       m.listener->close();
     }},
    {"acceptor destroyed",
     [](attempt& m) {
       m.listener.reset();
     }},
    {"connecting queue pair closed",
     [](attempt& m) {
       m.a.close();
     }},
    {"accepting queue pair closed",
     [](attempt& m) {
       m.b.close();
     }},
    {"both closed",
     [](attempt& m) {
       m.a.close(), m.b.close();
     }},
};

} // namespace

TEST_CASE("an attempt is cancelled at each of its steps") {
  const connections_check nothing_left;
  const way& w = GENERATE(from_range(std::begin(ways), std::end(ways)));
  INFO(w.name);
  bool reached_the_end = false;
  for (int steps = 0; !reached_the_end; ++steps) {
    REQUIRE(steps < 100);
    INFO("after " << steps << " steps");
    attempt m;
    m.listener->async_accept(
        m.b, asio::bind_cancellation_slot(m.accepting.slot(), m.accepted.handler()));
    m.initiator->async_connect(
        m.a, m.where(), asio::bind_cancellation_slot(m.connecting.slot(), m.connected.handler()));
    for (int i = 0; i < steps && !(m.connected.done() && m.accepted.done()); ++i)
      m.io.run_one();
    reached_the_end = m.connected.done() && m.accepted.done();
    w.give_up(m);
    // The other side is given up too, so that each operation must end.
    if (m.listener)
      m.listener->close();
    if (m.initiator)
      m.initiator->cancel();
    m.a.close();
    m.b.close();
    drain(m.io);
    CHECK(m.connected.calls == 1);
    CHECK(m.accepted.calls == 1);
    INFO(describe(m.connected.ec) << ", " << describe(m.accepted.ec));
    CHECK((!m.connected.ec || m.connected.ec == asio::error::operation_aborted ||
           m.connected.ec == error::rejected || m.connected.ec == error::peer_not_listening));
    CHECK((!m.accepted.ec || m.accepted.ec == asio::error::operation_aborted ||
           m.accepted.ec == asio::error::connection_aborted));
    if (reached_the_end) {
      CHECK(m.connected.succeeded());
      CHECK(m.accepted.succeeded());
    }
  }
}

TEST_CASE("a cancelled attempt leaves the queue pair for the next") {
  meeting m;
  asio::cancellation_signal signal;
  const auto type =
      GENERATE(cancellation_type::terminal, cancellation_type::partial, cancellation_type::total);
  m.initiator->async_connect(m.a, m.where(),
                             asio::bind_cancellation_slot(signal.slot(), m.connected.handler()));
  signal.emit(type);
  CHECK_FALSE(m.connected.done()); // not from inside cancel
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::operation_aborted);
  CHECK(m.a.state() == queue_pair_state::open);

  m.listener->async_accept(m.b, asio::bind_cancellation_slot(signal.slot(), m.accepted.handler()));
  signal.emit(type);
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == asio::error::operation_aborted);
  CHECK(m.b.state() == queue_pair_state::open);

  m.connected = m.accepted = {};
  m.meet();
  CHECK(m.carries("the next"));
}

// siw keeps a connection that it requested until it is answered, for ten seconds (MPAREQ_TIMEOUT in
// siw_cm.h), and the queue pair with it. The end of such an attempt must not block other
// operations.
TEST_CASE("giving up an attempt without an answer stops no other operation") {
  const connections_check nothing_left;
  meeting m;
  connector other_initiator(m.io);
  queue_pair other(m.io, m.pd);
  outcome<connection_request> unanswered;
  got given_back;
  const bool receives = GENERATE(false, true);
  if (receives)
    m.a.async_receive(m.ma.buffer(0, 64), given_back.handler());
  m.listener->async_wait_request(unanswered.handler());
  connect_options options;
  const std::string way = GENERATE(as<std::string>(), "cancelled", "cancelled, then closed",
                                   "cancelled, closed later", "closed", "out of time");
  if (way == "out of time")
    options.timeout = std::chrono::milliseconds(200);
  m.initiator->async_connect(m.a, m.where(), options, m.connected.handler());
  m.until([&] { return unanswered.done(); });
  REQUIRE(unanswered.succeeded());
  INFO(way);
  if (way.starts_with("cancelled"))
    m.initiator->cancel();
  if (way == "cancelled, closed later")
    m.until([&] { return m.connected.done(); });
  if (way.ends_with("closed") || way.ends_with("closed later"))
    m.a.close();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec);

  connection second;
  m.accept();
  other_initiator.async_connect(other, m.where(), second.handler());
  m.until([&] { return m.accepted.done() && second.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(second.succeeded());
  if (m.dev.type() == transport::iwarp) {
    error_code ec;
    unanswered.value.reject({}, ec);
    CHECK_FALSE(ec); // the attempt still exists
  }
  m.a.close();
  if (receives)
    m.until([&] { return given_back.done(); });
}

TEST_CASE("a cancelled wait for a request loses none") {
  meeting m;
  asio::cancellation_signal signal;
  outcome<connection_request> cancelled, request;
  m.listener->async_wait_request(asio::bind_cancellation_slot(signal.slot(), cancelled.handler()));
  m.listener->async_wait_request(request.handler());
  signal.emit(cancellation_type::total);
  m.connect();
  m.until([&] { return cancelled.done() && request.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK_FALSE(cancelled.value.is_open());
  CHECK(request.succeeded());
  m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());
}

TEST_CASE("cancelling a connector leaves its established connections open") {
  meeting m;
  m.meet();
  m.initiator->cancel();
  m.listener->cancel();
  CHECK(m.carries("still here"));
}

TEST_CASE("a context is destroyed with every operation pending") {
  const connections_check nothing_left;
  for (int steps = 0; steps < 8; ++steps) {
    auto alive = std::make_shared<int>();
    {
      meeting m;
      queue_pair c(m.io, m.pd), d(m.io, m.pd);
      acceptor other(m.io, {device_address(m.dev), 0});
      int done = 0;
      const auto handler = [alive, &done](error_code, auto&&...) {
        ++done;
      };
      m.listener->async_accept(m.b, handler);
      m.initiator->async_connect(m.a, m.where(), handler);
      m.initiator->async_connect(c, other.local_endpoint(), handler); // is not accepted
      m.a.async_wait_disconnect(handler);
      m.b.async_receive(m.mb.buffer(0, 64), handler);
      m.listener->async_accept(d, handler);
      m.listener->async_wait_request(handler);
      for (int i = 0; i < steps; ++i)
        m.io.poll_one();
      CHECK(alive.use_count() == 1 + 1 + 7 - done);
    }
    CHECK(alive.use_count() == 1);
  }
}

} // namespace test::cm_cancel_tests
