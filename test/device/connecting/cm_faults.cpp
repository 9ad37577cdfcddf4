// SPDX-License-Identifier: BSL-1.0
// Faults of the device or of the connection manager on the way to a connection. Each side gets one
// error, nothing is left, and the next attempt succeeds.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <chrono>
#include <string>
#include <thread>

namespace test::cm_faults_tests {
namespace {

using unix_stream = asio::local::stream_protocol;
using result = outcome<void>;

/// A side of a connection, on a device that is opened for it alone, so that a fault affects one
/// side only.
struct party {
  explicit party(asio::io_context& io) : qp(io, pd) {}

  void reopen() {
    qp.close();
    qp.open(pd);
  }
  bool is_iwarp() const { return dev.type() == transport::iwarp; }

  device dev = open_device();
  faults::injector faults{dev.native_handle()};
  protection_domain pd{dev};
  memory m{pd, 64, access::local_write};
  queue_pair qp;
};

bool carries(asio::io_context& io, party& from, party& to) {
  sent s;
  got r;
  from.m.put_word(0, 42);
  to.m.put_word(8, 0);
  to.qp.async_receive(to.m.buffer(8, 8), r.handler());
  from.qp.async_send(from.m.buffer(0, 8), s.handler());
  until(io, [&] { return s.done() && r.done(); });
  return s.succeeded() && r.succeeded() && to.m.word(8) == 42;
}

/// An attempt by rdma_cm.
struct attempt {
  void start() {
    start_accepting();
    initiator.async_connect(a.qp, where(), connected.handler());
  }
  void start_accepting() { listener.async_accept(b.qp, accepted.handler()); }
  endpoint where() const { return listener.local_endpoint(); }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  // Cancels the operations that have not ended: if one side never sent its request, the other side
  // would wait for ever.
  void end() {
    listener.cancel();
    initiator.cancel();
    until([&] { return connected.done() && accepted.done(); });
    CHECK(connected.calls == 1);
    CHECK(accepted.calls == 1);
  }

  /// Checks that a queue pair that has not failed can be used for another attempt. The attempt uses
  /// another port, where no request of the failed attempt arrives late.
  void check_next() {
    before_cm_call = nullptr;
    listener.close();
    listener.open(endpoint(device_address(b.dev), 0));
    for (party* p : {&a, &b}) {
      p->faults.clear();
      if (p->qp.state() != queue_pair_state::open)
        p->reopen();
    }
    connected = accepted = {};
    start();
    until([&] { return connected.done() && accepted.done(); });
    INFO(describe(connected.ec) << ", " << describe(accepted.ec));
    REQUIRE(connected.succeeded());
    REQUIRE(accepted.succeeded());
    CHECK(carries(io, a, b));
  }

  // Pending operations are destroyed with the context, and the parties' devices after that.
  connection connected, accepted;
  asio::io_context io{1};
  party a{io}, b{io};
  acceptor listener{io, endpoint(device_address(b.dev), 0)};
  connector initiator{io};
  const hooks functions{}; // reset first, as they use the locals of the test
};

const char* name(bool connecting) {
  return connecting ? "the connecting one" : "the accepting one";
}

} // namespace

TEST_CASE("a queue pair that cannot be taken to a state that connects it") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  const auto state = GENERATE(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS);
  INFO(name(connecting) << ", state " << state);
  attempt t;
  party& failing = connecting ? t.a : t.b;
  const connection& own = connecting ? t.connected : t.accepted;
  const connection& peers = connecting ? t.accepted : t.connected;
  failing.faults.fail_modify_qp(state, ENETDOWN);
  t.start();
  t.until([&] { return own.done(); });
  if (failing.faults.counts().refused_of(faults::call::modify_qp) == 0) {
    CHECK(failing.is_iwarp()); // the kernel sets the other states there
    CHECK(own.succeeded());
    return;
  }
  INFO(describe(own.ec));
  CHECK(own.ec == errc::network_down);
  if (connecting && state == IBV_QPS_INIT) { // the request was not sent yet
    CHECK(failing.qp.state() == queue_pair_state::open);
    t.io.poll();
    CHECK(peers.calls == 0);
  } else {
    t.until([&] { return peers.done(); });
    INFO(describe(peers.ec));
    CHECK(peers.ec ==
          (connecting ? error_code(asio::error::connection_aborted) : error_code(error::rejected)));
    CHECK(failing.qp.state() == queue_pair_state::failed);
  }
  t.end();
  t.check_next();
}

TEST_CASE("a neighbour that the device cannot reach is reported as unreachable") {
  const connections_check nothing_left;
  attempt t;
  t.b.faults.fail_modify_qp(IBV_QPS_RTR, EHOSTUNREACH);
  t.start();
  t.until([&] { return t.accepted.done(); });
  if (t.b.faults.counts().refused_of(faults::call::modify_qp) != 0)
    CHECK(t.accepted.ec == error::unreachable);
  t.end();
  t.check_next();
}

TEST_CASE("an attempt ends if any call of the connection manager that connects fails") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  INFO(name(connecting));
  bool failed = true;
  for (int step = 0; failed; ++step) {
    INFO("call " << step);
    attempt t;
    const connection& own = connecting ? t.connected : t.accepted;
    const rdma_cm_id* connecting_id = nullptr;
    int calls = 0;
    before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
      if (call == cm_call::resolve_address)
        connecting_id = id;
      return (id == connecting_id) == connecting && calls++ == step ? ENOSPC : 0;
    };
    t.start();
    t.until([&] { return own.done(); });
    failed = calls > step;
    INFO(describe(own.ec));
    if (failed) {
      CHECK(own.ec == errc::no_space_on_device);
    } else {
      CHECK(own.succeeded());
      CHECK(step >= (connecting ? 4 : 3));
    }
    t.end();
    if (failed)
      t.check_next();
  }
}

TEST_CASE("a fatal event in each call of the connection manager that connects") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false), of_device = GENERATE(true, false);
  INFO((of_device ? "a device of " : "a queue pair of ") << name(connecting));
  bool raised = true;
  for (int step = 0; raised; ++step) {
    INFO("call " << step);
    attempt t;
    party& failing = connecting ? t.a : t.b;
    result ended;
    failing.qp.async_wait_disconnect(ended.handler());
    const rdma_cm_id* connecting_id = nullptr;
    int calls = 0;
    before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
      if (call == cm_call::resolve_address)
        connecting_id = id;
      if ((id == connecting_id) == connecting && calls++ == step) {
        if (of_device)
          failing.faults.raise_device_fatal();
        else
          failing.faults.raise_qp_event(failing.qp.native_handle());
      }
      return 0;
    };
    t.start();
    const connection& own = connecting ? t.connected : t.accepted;
    t.until([&] { return own.done(); });
    raised = calls > step;
    if (raised) {
      // The connection may have been made before. A step may have failed before the event was read:
      // no state follows an error state (EINVAL), and a dead device refuses (EIO).
      const error_code fatal = of_device ? error::device_fatal : error::queue_pair_fatal;
      const auto working = asio::make_work_guard(t.io); // waiting for an event is no work
      t.until([&] {
        return ended.done() && (!of_device || failing.faults.counts().async_events_acked == 1);
      });
      INFO(describe(own.ec) << ", " << describe(ended.ec));
      CHECK((!own.ec || own.ec == fatal ||
             own.ec == (of_device ? errc::io_error : errc::invalid_argument) ||
             (failing.is_iwarp() && own.ec == asio::error::connection_reset)));
      CHECK((ended.ec == fatal || ended.ec == asio::error::connection_reset));
      CHECK(failing.qp.state() == queue_pair_state::failed);
    }
    t.end();
    if (raised)
      t.check_next();
  }
}

TEST_CASE("a fatal event ends the wait for the peer's answer") {
  const connections_check nothing_left;
  const bool of_device = GENERATE(true, false);
  INFO((of_device ? "a device" : "a queue pair"));
  attempt t;
  outcome<connection_request> request;
  t.listener.async_wait_request(request.handler());
  t.initiator.async_connect(t.a.qp, t.where(), t.connected.handler());
  t.until([&] { return request.done(); });
  REQUIRE(request.succeeded());
  // If the device does not flush a receive, the receive stays posted until the queue pair is
  // destroyed. On iWARP the destruction waits for the peer's answer.
  const bool receives = !t.a.is_iwarp();
  got receiving;
  if (receives)
    t.a.qp.async_receive(t.a.m.buffer(8, 8), receiving.handler());
  t.a.faults.hold_completions(); // the event comes before the flush
  const error_code fatal = of_device ? error::device_fatal : error::queue_pair_fatal;
  if (of_device)
    t.a.faults.raise_device_fatal();
  else
    t.a.faults.raise_qp_event(t.a.qp.native_handle());
  t.until([&] { return t.connected.done() && receiving.done() == receives; });
  CHECK(t.connected.ec == fatal);
  if (receives)
    CHECK(receiving.ec == fatal);
  CHECK(t.a.qp.state() == queue_pair_state::failed);

  // On iWARP the attempt continues in the kernel until the peer answers.
  t.listener.async_accept(std::move(request.value), t.b.qp, t.accepted.handler());
  t.until([&] { return t.accepted.done(); });
  INFO(describe(t.accepted.ec));
  if (!t.b.is_iwarp())
    CHECK(t.accepted.ec == asio::error::connection_aborted);
  t.end();
  t.check_next();
}

TEST_CASE("attempts that fail leave nothing while their context lives") {
  attempt t;
  const std::string before = device_resources();
  const endpoint nobody = acceptor(t.io, endpoint(device_address(t.b.dev), 0)).local_endpoint();
  for (int i = 0; i < 3; ++i) {
    t.connected = {};
    t.initiator.async_connect(t.a.qp, nobody, t.connected.handler());
    t.until([&] { return t.connected.done(); });
    CHECK(t.connected.ec == error::peer_not_listening);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (device_resources() != before && std::chrono::steady_clock::now() < end)
    std::this_thread::yield(); // another thread destroys the ids
  CHECK(device_resources() == before);
  t.check_next();
}

namespace {

/// Two parties, and two ends of a stream.
struct exchanging {
  exchanging() { asio::local::connect_pair(here, there); }

  void start() {
    async_exchange(here, a.qp, of_a.handler());
    async_exchange(there, b.qp, of_b.handler());
  }
  bool by_hand() const { return !a.is_iwarp(); }

  void check_next() {
    a.faults.clear();
    a.reopen();
    b.reopen();
    of_a = of_b = {};
    start();
    test::until(io, [&] { return of_a.done() && of_b.done(); });
    INFO(describe(of_a.ec) << ", " << describe(of_b.ec));
    REQUIRE(of_a.succeeded());
    REQUIRE(of_b.succeeded());
    CHECK(carries(io, a, b));
  }

  result of_a, of_b;
  asio::io_context io{1};
  party a{io}, b{io};
  unix_stream::socket here{io}, there{io};
};

} // namespace

TEST_CASE("a queue pair that an exchange cannot connect") {
  const connections_check nothing_left;
  const auto state = GENERATE(IBV_QPS_RTR, IBV_QPS_RTS);
  INFO("state " << state);
  exchanging t;
  if (!t.by_hand())
    return not_on_this_device("connecting by address");
  got receiving;
  t.a.qp.async_receive(t.a.m.buffer(8, 8), receiving.handler());
  t.a.faults.fail_modify_qp(state, ENETDOWN);
  t.start();
  until(t.io, [&] { return t.of_a.done() && t.of_b.done(); });
  CHECK(t.of_a.ec == errc::network_down);
  CHECK(t.of_b.ec == error::rejected);
  CHECK(t.b.qp.state() == queue_pair_state::failed); // it had been connected
  if (state == IBV_QPS_RTR) {
    CHECK(t.a.qp.state() == queue_pair_state::open);
    CHECK(receiving.calls == 0);
  } else { // half connected: it cannot be connected any more
    CHECK(t.a.qp.state() == queue_pair_state::failed);
    until(t.io, [&] { return receiving.done(); });
    CHECK(receiving.ec == errc::network_down);
  }
  t.check_next();
}

TEST_CASE("a fatal event during an exchange ends it at both ends") {
  const connections_check nothing_left;
  const bool of_device = GENERATE(true, false);
  INFO((of_device ? "a device" : "a queue pair"));
  exchanging t;
  if (!t.by_hand())
    return not_on_this_device("connecting by address");
  async_exchange(t.here, t.a.qp, t.of_a.handler());
  until(t.io, [&] { return t.there.available() != 0; });
  if (of_device)
    t.a.faults.raise_device_fatal();
  else
    t.a.faults.raise_qp_event(t.a.qp.native_handle());
  until(t.io, [&] { return t.a.qp.state() == queue_pair_state::failed; });
  async_exchange(t.there, t.b.qp, t.of_b.handler());
  until(t.io, [&] { return t.of_a.done() && t.of_b.done(); });
  CHECK(t.of_a.calls == 1);
  CHECK(t.of_a.ec == (of_device ? error::device_fatal : error::queue_pair_fatal));
  CHECK(t.of_b.ec == error::rejected);
  t.check_next();
}

} // namespace test::cm_faults_tests
