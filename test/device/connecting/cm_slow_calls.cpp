// SPDX-License-Identifier: BSL-1.0
// rdma_connect(3) that takes long: a thread of the library's makes the call.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace test::cm_slow_calls_tests {
namespace {

using namespace std::chrono_literals;

/// Holds the first `most` calls of rdma_connect(3): each waits inside the call, before the device
/// knows of it, until it is released. Declared before the context that makes the calls. A test that
/// makes such a call on its own thread goes on after some time, and fails.
class held_calls {
public:
  /// The held calls fail with `error`, if it is not 0.
  explicit held_calls(std::size_t most, int error = 0) : most_(most) {
    before_cm_call = [this, error](cm_call call, const rdma_cm_id*) {
      return call == cm_call::connect && hold() ? error : 0;
    };
  }
  held_calls(const held_calls&) = delete;

  std::size_t entered() const {
    const std::lock_guard lock(mutex_);
    return entered_;
  }
  /// Whether calls were held, and none of them has continued.
  bool are_held() const {
    const std::lock_guard lock(mutex_);
    return entered_ != 0 && left_ == 0;
  }
  void release() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }

private:
  bool hold() {
    std::unique_lock lock(mutex_);
    if (entered_ == most_)
      return false;
    ++entered_;
    changed_.wait_for(lock, 20s, [this] { return released_; });
    ++left_;
    return true;
  }

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t entered_ = 0, left_ = 0;
  bool released_ = false;
  const hooks functions_{};
};

void until_held(meeting& m, const held_calls& held, std::size_t calls = 1) {
  until({&m.io}, [&] { return held.entered() == calls; });
}

/// After an attempt has ended while its call runs: the queue pair can be used for another attempt.
/// On iWARP it has failed, because the kernel uses it.
void check_ended(meeting& m, const held_calls& held) {
  CHECK(held.are_held());
  CHECK(m.connected.calls == 1);
  m.check_next_attempt(meeting::peer::reached);
  CHECK(held.are_held());
}

/// Lets another thread go on, most likely. No check depends on it.
void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

} // namespace

TEST_CASE("a context does other work while a call of rdma_connect runs", "[h17]") {
  const connections_check nothing_left;
  held_calls held(1);
  meeting m;
  acceptor other(m.io, {device_address(m.dev), 0});
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  std::thread::id handler_ran_on;
  m.accept();
  m.initiator->async_connect(m.a, m.where(), [&](error_code ec, const connection_info& info) {
    handler_ran_on = std::this_thread::get_id();
    m.connected.handler()(ec, info);
  });
  until_held(m, held);

  bool posted = false;
  asio::post(m.io, [&] { posted = true; });
  m.until([&] { return posted; });
  connection accepted, connected;
  other.async_accept(d, accepted.handler());
  m.initiator->async_connect(c, other.local_endpoint(), connected.handler());
  m.until([&] { return accepted.done() && connected.done(); });
  CHECK(accepted.succeeded());
  CHECK(connected.succeeded());
  CHECK(held.are_held());
  CHECK_FALSE(m.connected.done());

  held.release();
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.accepted.succeeded());
  CHECK(handler_ran_on == std::this_thread::get_id());
  CHECK(m.carries("after all"));
}

TEST_CASE("the end of an attempt does not wait for its call of rdma_connect") {
  const connections_check nothing_left;
  held_calls held(1);
  meeting m;
  asio::cancellation_signal signal;
  got given_back;
  const bool receives = GENERATE(false, true);
  if (receives)
    m.a.async_receive(m.ma.buffer(0, 64), given_back.handler());
  using asio::cancellation_type;
  const std::string way =
      GENERATE(as<std::string>(), "terminal", "partial", "total", "all", "out of time", "closed");
  INFO(way << (receives ? ", with a receive" : ""));
  connect_options options;
  if (way == "out of time")
    options.timeout = 50ms;
  while (held.entered() == 0) { // more than once if the machine is so slow that no call begins
    m.connected = {};
    m.initiator->async_connect(m.a, m.where(), options,
                               asio::bind_cancellation_slot(signal.slot(), m.connected.handler()));
    until({&m.io}, [&] { return held.entered() == 1 || m.connected.done(); });
    options.timeout *= 2;
  }
  if (way == "terminal")
    signal.emit(cancellation_type::terminal);
  else if (way == "partial")
    signal.emit(cancellation_type::partial);
  else if (way == "total")
    signal.emit(cancellation_type::total);
  else if (way == "all")
    m.initiator->cancel();
  else if (way == "closed")
    m.a.close();
  if (way == "total" && m.dev.type() == transport::iwarp) {
    // The end would fail the queue pair, so only the other types end the attempt.
    m.io.poll();
    CHECK_FALSE(m.connected.done());
    m.initiator->cancel();
  }
  until({&m.io}, [&] { return m.connected.done(); });
  CHECK(m.connected.ec ==
        (way == "out of time" ? asio::error::timed_out : asio::error::operation_aborted));
  if (way == "closed" && m.dev.type() != transport::iwarp)
    m.a.open(m.pd);
  const bool failed = m.a.state() == queue_pair_state::failed;
  if (receives && failed) // the queue pair has ended for the program; the kernel may still use it
    m.until([&] { return given_back.done(); });
  if (way == "closed") {
    CHECK(held.are_held());
    if (m.dev.type() == transport::iwarp)
      m.a.open(m.pd);
    m.accepted = m.connected = {};
    m.meet();
    CHECK(m.carries("another queue pair"));
    CHECK(held.are_held());
  } else {
    check_ended(m, held);
  }
  held.release();
  m.a.close();
  m.b.close();
}

TEST_CASE("after its time the next endpoint is tried, except on iWARP") {
  const connections_check nothing_left;
  held_calls held(1);
  meeting m;
  connect_options options;
  options.timeout = 1s;
  m.accept();
  m.initiator->async_connect(m.a, std::vector{m.where(), m.where()}, options,
                             m.connected.handler());
  until({&m.io}, [&] { return m.connected.done(); });
  CHECK(held.are_held());
  if (m.dev.type() == transport::iwarp) {
    CHECK(m.connected.ec == asio::error::timed_out);
    CHECK(m.a.state() == queue_pair_state::failed);
  } else {
    CHECK(m.connected.succeeded());
    CHECK(m.carries("by the second"));
  }
  m.initiator->cancel();
  m.listener->cancel();
  held.release();
}

TEST_CASE("a call of rdma_connect that fails late: the next endpoint is tried") {
  const connections_check nothing_left;
  held_calls held(1, ETIMEDOUT);
  meeting m;
  m.accept();
  const bool has_next = GENERATE(false, true);
  std::vector<endpoint> to{m.where()};
  if (has_next)
    to.push_back(m.where());
  m.initiator->async_connect(m.a, to, m.connected.handler());
  until_held(m, held);
  held.release();
  until({&m.io}, [&] { return m.connected.done(); });
  if (has_next) {
    CHECK(m.connected.succeeded());
    CHECK(m.carries("by the second"));
  } else {
    CHECK(m.connected.ec == asio::error::timed_out);
    CHECK(m.a.state() == queue_pair_state::open);
    m.listener->cancel();
    m.until([&] { return m.accepted.done(); });
    m.check_next_attempt();
  }
}

TEST_CASE("the destruction of a context waits for calls of rdma_connect") {
  const connections_check nothing_left;
  held_calls held(2);
  std::optional<meeting> m(std::in_place);
  std::optional<queue_pair> c(std::in_place, m->io, m->pd);
  auto alive = std::make_shared<int>();
  const std::weak_ptr<int> lives = alive;
  const auto handler = [keep = std::move(alive)](error_code, auto&&) {
  };
  const std::string before = GENERATE(as<std::string>(), "nothing", "connector", "queue pair",
                                      "cancelled", "cancelled and drained");
  INFO(before << " is destroyed before");
  m->listener->async_accept(m->b, handler);
  m->a.async_receive(m->ma.buffer(0, 64), handler);
  m->initiator->async_connect(m->a, m->where(), handler);
  m->initiator->async_connect(*c, m->where(), handler);
  until_held(*m, held, 2);
  std::atomic<bool> ending = false;
  std::thread releasing([&] {
    while (!ending)
      pause(100us);
    pause(5ms);
    held.release();
  });
  if (before == "connector")
    m->initiator.reset();
  else if (before == "queue pair")
    m->a.close();
  else if (before.starts_with("cancelled"))
    m->initiator->cancel();
  if (before.ends_with("drained")) {
    m->listener->cancel();
    m->a.close();
    drain(m->io);
  }
  c.reset();
  CHECK(held.are_held());
  ending = true;
  m.reset();
  CHECK_FALSE(held.are_held());
  releasing.join();
  CHECK(lives.use_count() == 1); // of `handler`
}

TEST_CASE("the context of a queue pair is destroyed while its call of rdma_connect runs") {
  const connections_check nothing_left;
  held_calls held(1);
  meeting m;
  std::optional<asio::io_context> home(1);
  std::optional<queue_pair> qp(std::in_place, *home, m.pd);
  m.initiator->async_connect(*qp, m.where(), m.connected.handler());
  until_held(m, held);
  const auto impl = qp->impl(); // outlives the context if it is not closed before
  if (GENERATE(false, true))
    qp.reset();
  home.reset();
  qp.reset();
  until({&m.io}, [&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::operation_aborted);
  m.connected = {};
  m.meet();
  CHECK(m.carries("undisturbed"));
  CHECK(held.are_held());
  held.release();
}

TEST_CASE("events that arrive before rdma_connect has returned") {
  const connections_check nothing_left;
  std::atomic<const rdma_cm_id*> id = nullptr;
  std::atomic<bool> answered = false, may_return = false;
  const hooks functions{};
  const auto wait_for = [](const std::atomic<bool>& what) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!what && std::chrono::steady_clock::now() < end)
      pause(100us);
  };
  meeting m;
  before_cm_call = [&](cm_call call, const rdma_cm_id* of) {
    if (call == cm_call::connect)
      id = of;
    return 0;
  };
  edit_event = [&](const rdma_cm_event& e) {
    answered = answered || e.id == id;
  };
  after_connecting = [&] {
    if (!may_return.exchange(true)) { // the first call
      may_return = false;
      wait_for(may_return);
    }
  };
  const std::string way = GENERATE(as<std::string>(), "accepted", "rejected", "cancelled",
                                   "cancelled and closed", "accepted, then closed by the peer");
  INFO(way);
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.connect();
  until({&m.io}, [&] { return request.done(); });
  if (way == "rejected")
    request.value.reject();
  else
    m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  until({&m.io}, [&] { return answered.load(); });
  CHECK_FALSE(m.connected.done());
  if (way.starts_with("cancelled")) {
    m.initiator->cancel();
    if (way.ends_with("closed"))
      m.a.close();
    until({&m.io}, [&] { return m.connected.done(); });
    CHECK(m.connected.ec == asio::error::operation_aborted);
  } else if (way.ends_with("peer")) {
    m.b.close();
    m.io.poll();
  }
  CHECK_FALSE(may_return);
  may_return = true;
  until({&m.io}, [&] { return m.connected.done(); });
  if (way == "accepted") {
    m.until([&] { return m.accepted.done(); });
    CHECK(m.connected.succeeded());
    CHECK(m.carries("in order"));
  } else if (way == "rejected") {
    CHECK(m.connected.ec == error::rejected);
    m.check_next_attempt(meeting::peer::reached);
  } else if (way.ends_with("peer") && m.connected.succeeded()) { // with its end behind it
    outcome<void> ended;
    m.a.async_wait_disconnect(ended.handler());
    until({&m.io}, [&] { return ended.done(); });
    CHECK(ended.ec == asio::error::connection_reset);
  }
}

TEST_CASE("a context that no other thread may use makes the call of rdma_connect itself") {
  const device dev = open_device();
  const protection_domain pd(dev);
  const hooks functions{};
  std::thread::id called_on;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    if (call == cm_call::connect)
      called_on = std::this_thread::get_id();
    return 0;
  };
  asio::io_context io(BOOST_ASIO_CONCURRENCY_HINT_UNSAFE);
  queue_pair a(io, pd), b(io, pd);
  connect_by_manager(io, a, b);
  CHECK(called_on == std::this_thread::get_id());
}

TEST_CASE("more calls of rdma_connect than threads") {
  const connections_check nothing_left;
  constexpr std::size_t threads = 32, attempts = 40;
  held_calls held(attempts);
  meeting m;
  struct one {
    explicit one(meeting& m) : qp(m.io, m.pd), initiator(m.io) {}
    queue_pair qp;
    connector initiator;
    connection connected;
  };
  std::list<one> all;
  for (std::size_t i = 0; i < attempts; ++i) {
    one& o = all.emplace_back(m);
    o.initiator.async_connect(o.qp, m.where(), o.connected.handler());
  }
  until_held(m, held, threads);
  std::vector<one*> order;
  for (one& o : all)
    order.push_back(&o);
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  std::shuffle(order.begin(), order.end(), random);
  for (one* o : order) {
    o->initiator.cancel();
    until({&m.io}, [&] { return o->connected.done(); });
    CHECK(o->connected.ec == asio::error::operation_aborted);
  }
  std::size_t open = 0;
  for (const one& o : all)
    open += o.qp.state() == queue_pair_state::open ? 1u : 0u;
  CHECK(open == (m.dev.type() == transport::iwarp ? attempts - threads : attempts));
  CHECK(held.are_held());
  CHECK(held.entered() == threads);
  held.release();

  // A later call comes after the earlier ones, which were never made.
  acceptor other(m.io, {device_address(m.dev), 0});
  other.async_accept(m.b, m.accepted.handler());
  m.initiator->async_connect(m.a, other.local_endpoint(), m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());
  CHECK(held.entered() == threads + 1);
}

TEST_CASE("attempts end at random moments of their calls, on several threads") {
  const connections_check nothing_left;
  constexpr int rounds = 25;
  std::mt19937 source(std::random_device{}());
  const auto random = [&] {
    return std::chrono::microseconds(std::uniform_int_distribution(0, 1000)(source));
  };
  for (int round = 0; round < rounds; ++round) {
    const hooks functions{};
    const auto time = random();
    before_cm_call = [&](cm_call call, const rdma_cm_id*) {
      if (call == cm_call::connect)
        pause(time);
      return 0;
    };
    const device dev = open_device();
    const protection_domain pd(dev);
    std::atomic<int> calls = 0;
    constexpr int attempts = 6;
    {
      asio::io_context io;
      acceptor listener(io, {device_address(dev), 0});
      std::list<queue_pair> accepting, connecting;
      std::list<connector> initiators;
      const auto handler = [&](error_code, auto&&) {
        ++calls;
      };
      for (int i = 0; i < attempts; ++i) {
        listener.async_accept(accepting.emplace_back(io, pd), handler);
        connect_options options;
        if (i % 3 == 2)
          options.timeout = 1ms;
        initiators.emplace_back(io).async_connect(connecting.emplace_back(io, pd),
                                                  listener.local_endpoint(), options, handler);
      }
      std::vector<std::thread> threads;
      for (int i = 0; i < 2; ++i)
        threads.emplace_back([&] { io.run(); });
      pause(random());
      initiators.front().cancel();
      pause(random());
      connecting.back().close();
      const bool stops = round % 2 == 0; // else the context is destroyed after all has ended
      pause(random());
      if (stops)
        io.stop();
      else
        listener.close();
      for (std::thread& t : threads)
        t.join();
      if (!stops)
        CHECK(calls == 2 * attempts);
    }
    CHECK(calls <= 2 * attempts);
  }
}

} // namespace test::cm_slow_calls_tests
