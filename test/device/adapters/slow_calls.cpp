// SPDX-License-Identifier: BSL-1.0
// Calls of the device that take long, while a connection of the same context is in use.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/streams/stream_support.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace test::slow_calls_tests {
namespace {

using namespace std::chrono_literals;

void until_held(meeting& m, const held_calls& held) {
  until({&m.io}, [&] { return held.entered() == 1; });
}

/// The messages that an established connection carries before the condition is true.
template <class Condition>
int round_trips_until(meeting& m, const Condition& condition) {
  int n = 0;
  for (; !condition(); ++n)
    if (!m.carries("meanwhile"))
      return -1;
  return n;
}

int queue_pairs_on_device() {
  soft_resources r{};
  soft_get_resources(&r);
  return r.queue_pairs;
}

/// The later calls of an attempt. rdma_establish is not called on iWARP.
cm_call later_call(const device& d) {
  return GENERATE(false, true) && d.type() != transport::iwarp ? cm_call::establish
                                                               : cm_call::accept;
}

} // namespace

TEST_CASE("a connection carries messages while a later call of an attempt runs", "[h17]") {
  const connections_check nothing_left;
  const cm_call which = later_call(open_device());
  held_calls held(1, 0, which);
  meeting m;
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  connection accepted, connected;
  m.listener->async_accept(d, accepted.handler());
  m.initiator->async_connect(c, m.where(), connected.handler());
  until_held(m, held);
  // The calls that follow are not held.
  m.meet();
  for (int i = 0; i < 20; ++i)
    CHECK(m.carries("meanwhile"));
  CHECK(held.are_held());
  CHECK_FALSE(accepted.done());
  CHECK_FALSE(connected.done());
  held.release();
  m.until([&] { return accepted.done() && connected.done(); });
  CHECK(accepted.succeeded());
  CHECK(connected.succeeded());
}

TEST_CASE("the end of an attempt does not wait for its later calls") {
  const connections_check nothing_left;
  const cm_call which = later_call(open_device());
  held_calls held(1, 0, which);
  meeting m;
  asio::cancellation_signal signal;
  const std::string way =
      GENERATE(as<std::string>(), "terminal", "out of time", "closed", "total, then partial");
  INFO(way << (which == cm_call::accept ? ", accept" : ", establish"));
  const auto timeout = way == "out of time" ? 300ms : 60s;
  accept_options accepting;
  connect_options connecting;
  const bool accepts = which == cm_call::accept;
  (accepts ? accepting.timeout : connecting.timeout) = timeout;
  connection& held_one = accepts ? m.accepted : m.connected;
  queue_pair& qp = accepts ? m.b : m.a;
  const auto slot_of = [&](connection& c) {
    return asio::bind_cancellation_slot(&c == &held_one ? signal.slot() : asio::cancellation_slot(),
                                        c.handler());
  };
  m.listener->async_accept(m.b, accepting, slot_of(m.accepted));
  m.initiator->async_connect(m.a, m.where(), connecting, slot_of(m.connected));
  until_held(m, held);
  if (way == "terminal")
    signal.emit(asio::cancellation_type::terminal);
  else if (way == "closed")
    qp.close();
  else if (way.starts_with("total")) {
    signal.emit(asio::cancellation_type::total); // the end would fail the queue pair
    m.io.poll();
    CHECK_FALSE(held_one.done());
    signal.emit(asio::cancellation_type::partial);
  }
  until({&m.io}, [&] { return held_one.done(); });
  CHECK(held_one.calls == 1);
  CHECK(held_one.ec ==
        (way == "out of time" ? asio::error::timed_out : asio::error::operation_aborted));
  CHECK(qp.state() == (way == "closed" ? queue_pair_state::closed : queue_pair_state::failed));
  CHECK(held.are_held());
  held.release();
  m.a.close();
  m.b.close();
}

TEST_CASE("a later call of an attempt fails") {
  const connections_check nothing_left;
  const cm_call which = later_call(open_device());
  held_calls held(1, ENOMEM, which);
  meeting m;
  m.accept();
  m.connect();
  until_held(m, held);
  held.release();
  const bool accepts = which == cm_call::accept;
  connection& held_one = accepts ? m.accepted : m.connected;
  until({&m.io}, [&] { return held_one.done(); });
  CHECK(held_one.ec == boost::system::errc::not_enough_memory);
  CHECK((accepts ? m.b : m.a).state() == queue_pair_state::failed);
  m.a.close();
  m.b.close();
}

TEST_CASE("contexts are destroyed while a later call of an attempt runs") {
  const connections_check nothing_left;
  const cm_call which = later_call(open_device());
  held_calls held(1, 0, which);
  std::optional<meeting> m(std::in_place);
  auto alive = std::make_shared<int>();
  const std::weak_ptr<int> lives = alive;
  const auto handler = [keep = std::move(alive)](error_code, auto&&) {
  };
  m->listener->async_accept(m->b, handler);
  m->initiator->async_connect(m->a, m->where(), handler);
  until_held(*m, held);
  std::atomic<bool> ending = false;
  std::thread releasing([&] {
    while (!ending)
      std::this_thread::sleep_for(100us);
    std::this_thread::sleep_for(5ms);
    held.release();
  });
  if (GENERATE(false, true)) {
    m->a.close();
    m->b.close();
  }
  CHECK(held.are_held());
  ending = true;
  m.reset();
  CHECK_FALSE(held.are_held());
  releasing.join();
  CHECK(lives.use_count() == 1); // of `handler`
}

TEST_CASE("a connection carries messages while the device destroys a failed queue pair", "[h17]") {
  if (soft_set == nullptr)
    return not_on_this_device("destroying cannot be slowed down");
  const connections_check nothing_left;
  adapter device("plain");
  meeting m;
  m.meet();
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  connection accepted, connected;
  m.listener->async_accept(d, accepted.handler());
  m.initiator->async_connect(c, m.where(), connected.handler());
  m.until([&] { return accepted.done() && connected.done(); });
  got given_back;
  c.async_receive(m.mb.buffer(1024, 64), given_back.handler());
  const int before = queue_pairs_on_device();
  device.become("plain,destroy=500ms");
  c.cancel(); // fails: its receive is posted
  const auto destroyed = [before] {
    return queue_pairs_on_device() < before;
  };
  CHECK(round_trips_until(m, destroyed) >= 20);
  m.until([&] { return given_back.done(); });
  CHECK(given_back.ec == asio::error::operation_aborted);
  device.become("plain");
}

} // namespace test::slow_calls_tests
