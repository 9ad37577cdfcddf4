// SPDX-License-Identifier: BSL-1.0
// An adapter is removed from the machine: the operations end, and their memory is free again.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/pair.hpp"
#include "verbs/device_listeners.hpp"

#include <asio_rdma/device_events.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <vector>

// For LeakSanitizer: what a provider allocated for objects of a removed device is lost (`end_use`).
extern "C" const char* __lsan_default_suppressions(); // NOLINT
extern "C" const char* __lsan_default_suppressions() { return "leak:libasio_rdma_soft"; }

namespace test::adapter_removal_tests {
namespace {

using asio::use_awaitable;

void remove() { soft_set("mlx5,event=now:device_fatal"); }

/// Counts what coroutines have carried, and keeps the error that ended each of them.
struct carried {
  template <class Step>
  asio::awaitable<void> repeat(Step step) {
    ++running;
    try {
      for (;;) {
        co_await step();
        ++steps;
      }
    } catch (const system_error& e) {
      errors.push_back(e.code());
    }
    --running;
  }

  int running = 0;
  int steps = 0;
  std::vector<error_code> errors;
};

/// Whether a device has been closed, with all that uses it.
struct closing final : detail::device_listener {
  explicit closing(const device& d) : of(d.listeners().shared_from_this()) { of->add(*this); }
  ~closing() { of->remove(*this); }
  void on_event(const ibv_async_event&, detail::notified_objects&) noexcept override {}
  void on_closing() noexcept override { done = true; }

  std::shared_ptr<detail::device_listeners> of;
  bool done = false;
};

} // namespace

TEST_CASE("blocking calls end when an adapter is removed, also if no thread runs the context",
          "[h6]") {
  const adapter a("mlx5");
  stream_pair t;
  t.io.stop();
  SECTION("before the call") {
    remove();
    error_code ec;
    char got = 0;
    t.a.read_some(asio::buffer(&got, 1), ec);
    CHECK(ec == error::device_removed);
  }
  SECTION("in calls of both ends") {
    std::atomic<int> rounds{0};
    const auto repeat = [&](auto step) {
      return std::thread([&rounds, step] {
        for (error_code ec; !ec; ++rounds)
          ec = step();
      });
    };
    error_code read, written;
    std::vector<char> bytes(1 << 20), got(1 << 20);
    std::thread reader = repeat([&] {
      t.a.read_some(asio::buffer(got), read);
      return read;
    });
    std::thread writer = repeat([&] {
      t.b.write_some(asio::buffer(bytes), written);
      return written;
    });
    while (rounds < 50)
      std::this_thread::yield();
    remove();
    reader.join();
    writer.join();
    CHECK(read == error::device_removed);
    CHECK(written == error::device_removed);
  }
}

TEST_CASE("operations end and their context becomes idle when an adapter is removed", "[h6]") {
  const adapter a("mlx5");
  talk t;
  outcome<message> r;
  outcome<void> gone, of_b;
  std::vector<sent> s(40); // more than a connection posts
  const auto text = pattern(100'000, 1);
  t.a.async_receive(r.handler());
  t.a.async_wait_disconnect(gone.handler());
  t.b.async_wait_disconnect(of_b.handler());
  for (sent& each : s)
    t.a.async_send(asio::buffer(text), each.handler());
  SECTION("reported by an event") { soft_set("mlx5,event=now:device_fatal"); }
  SECTION("reported, and closed by the program") {
    soft_set("mlx5,event=now:device_fatal");
    t.a.close();
    t.b.close();
  }
  t.until([&] { return r.done() && gone.done() && s.back().done() && of_b.done(); });
  CHECK(r.ec);
  for (const sent& each : s)
    CHECK(each.calls == 1);
  t.a.close();
  t.b.close();
  t.listener.close();
  drain(t.io);
}

TEST_CASE("a removed device has another error than one that reports a fatal error and stays",
          "[h6]") {
  const bool removed = GENERATE(true, false);
  adapter a(removed ? "mlx5" : "plain");
  const error wanted = removed ? error::device_removed : error::device_fatal;
  pair p;
  shared_receive_queue shared(p.io, p.pd);
  outcome<void> gone;
  got posted, of_shared, late_of_shared;
  sent waits, late;
  p.a.async_wait_disconnect(gone.handler());
  p.a.async_receive(p.ma.buffer(0, 8), posted.handler());
  shared.async_receive(p.mb.buffer(0, 8), of_shared.handler());
  {
    const queue_pair::batch held(p.a);
    p.a.async_send(p.ma.buffer(8, 8), waits.handler());
    a.become(removed ? "mlx5,event=now:device_fatal" : "plain,event=now:device_fatal");
    p.until([&] { return gone.done() && posted.done() && of_shared.done() && waits.done(); });
  }
  p.a.async_send(p.ma.buffer(8, 8), late.handler());
  shared.async_receive(p.mb.buffer(0, 8), late_of_shared.handler());
  p.until([&] { return late.done() && late_of_shared.done(); });
  for (const error_code& ec :
       {gone.ec, posted.ec, of_shared.ec, waits.ec, late.ec, late_of_shared.ec}) {
    CHECK(ec == wanted);
    CHECK(ec == errc::io_error);
  }
  CHECK(p.dev.is_removed() == removed);
  error_code of_registration, of_opening;
  const memory_region region(p.pd, p.ma.data(), 64, access::local_write, of_registration);
  queue_pair anew(p.io);
  anew.open(p.pd, {}, of_opening);
  CHECK(of_registration == (removed ? error_code(wanted) : error_code()));
  CHECK(of_opening == (removed ? error_code(wanted) : error_code()));
}

TEST_CASE("the memory of operations is free again after an adapter was removed", "[h6]") {
  const adapter a("mlx5");
  talk t;
  outcome<void> gone;
  t.a.async_wait_disconnect(gone.handler());
  soft_set("mlx5,event=now:device_fatal");
  t.until([&] { return gone.done(); });
  t.a.close();
  t.b.close();
  t.listener.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("memory that an adapter keeps during its removal is free afterwards", "[h6]") {
  const adapter a("mlx5");
  pair p;
  memory_pool pool(p.pd);
  got r;
  auto memory = pool.allocate(64);
  p.a.async_receive(memory, r.handler());
  soft_set("mlx5,removal=60s,event=now:device_fatal");
  p.a.close();
  p.until([&] { return r.done(); });
  CHECK(r.ec == error::device_keeps_memory);
  memory = {};
  CHECK(pool.statistics().blocks_in_use == 1);
  outcome<device_event> event;
  device_events events(p.io, p.dev);
  events.async_wait_event(event.handler());
  remove(); // at once
  p.until([&] { return event.done(); });
  p.drain();
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE("memory that an adapter keeps is free after the removal, although the program has closed "
          "everything",
          "[h6]") {
  const adapter a("mlx5");
  asio::io_context io(1);
  const auto work = asio::make_work_guard(io); // of something else
  std::optional<closing> closes;
  std::optional<memory_pool> pool;
  {
    const device dev = open_device();
    closes.emplace(dev);
    const protection_domain pd(dev);
    pool.emplace(pd);
    queue_pair qp(io, pd);
    got r;
    auto memory = pool->allocate(64);
    qp.async_receive(memory, r.handler());
    SECTION("it refuses to destroy the queue pair") {
      soft_set("mlx5,removal=60s,event=now:device_fatal");
      qp.close();
      until(io, [&] { return r.done(); });
      CHECK(r.ec == error::device_keeps_memory);
      memory = {};
      CHECK(pool->statistics().blocks_in_use == 1);
    }
    SECTION("it refuses to deregister the memory") {
      qp.close();
      until(io, [&] { return r.done(); });
      CHECK(r.ec == asio::error::operation_aborted);
      memory = {};
      CHECK(pool->statistics().blocks_in_use == 0);
      soft_set("mlx5,removal=60s,event=now:device_fatal");
      pool.reset();
    }
  }
  CHECK_FALSE(closes->done);
  remove(); // at once
  if (pool)
    until(io, [&] { return pool->statistics().blocks_in_use == 0; });
  pool.reset();
  until(io, [&] { return closes->done; });
}

TEST_CASE("an adapter is removed at any moment of messages and streams", "[h6]") {
  std::mt19937 random(26);
  for (int round = 0; round < 30; ++round) {
    INFO("round " << round);
    const adapter a("mlx5");
    talk t;
    stream_pair s;
    carried messages, bytes;
    std::vector<char> text(200'000), read(70'000);
    const auto part = [&] {
      return asio::buffer(text.data(), 1 + random() % text.size());
    };
    const auto start = [](auto& io, carried& c, auto step) {
      asio::co_spawn(io, c.repeat(step), asio::detached);
    };
    for (asio_rdma::connection* c : {&t.a, &t.b}) {
      start(t.io, messages,
            [&, c]() -> asio::awaitable<void> { co_await c->async_send(part(), use_awaitable); });
      start(t.io, messages,
            [c]() -> asio::awaitable<void> { co_await c->async_receive(use_awaitable); });
    }
    for (asio_rdma::stream* c : {&s.a, &s.b}) {
      start(s.io, bytes, [&, c]() -> asio::awaitable<void> {
        co_await asio::async_write(*c, part(), use_awaitable);
      });
      start(s.io, bytes, [&, c]() -> asio::awaitable<void> {
        co_await c->async_read_some(asio::buffer(read), use_awaitable);
      });
    }
    const int before = static_cast<int>(random() % 100);
    t.until([&] { return messages.running == 4 && messages.steps >= before; });
    s.until([&] { return bytes.running == 4 && bytes.steps >= before; });
    remove();
    t.until([&] { return messages.running == 0; });
    s.until([&] { return bytes.running == 0; });
    for (const carried* c : {&messages, &bytes})
      for (const error_code& ec : c->errors)
        CHECK(ec == error::device_removed);
    t.a.close();
    t.b.close();
    t.listener.close();
    drain(t.io);
    s.a.close();
    s.b.close();
    s.listener.close();
    drain(s.io);
    CHECK(t.pool.statistics().blocks_in_use == 0);
    CHECK(s.pool.statistics().blocks_in_use == 0);
  }
}

} // namespace test::adapter_removal_tests
