// SPDX-License-Identifier: BSL-1.0
//
// The runner of a completion queue on a context that several threads may run.
#include "catch.hpp"

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "interposer/failing_allocation.hpp"
#include "interposer/faults.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>
#include <thread>
#include <vector>

namespace test::runner_tests {
namespace {

void wait_until_held(faults::injector& injector, std::size_t n) {
  while (injector.held() < n)
    std::this_thread::yield();
}

/// Starts an operation that the device refuses. The runner must count the refused operation, and is
/// queued for that even if its role is taken.
void start_refused(joined& q, const ground& g, faults::injector& injector) {
  injector.refuse_post(faults::call::post_recv);
  q.a.async_receive(g.part(3), [](error_code, received) {});
}

} // namespace

TEST_CASE("steady operations with gaps below the spin time never let the queue be armed") {
  const int hint = GENERATE(1, 2);
  using clock = std::chrono::steady_clock;
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(hint);
  completion_queue_options options = in_mode(completion_mode::adaptive);
  options.spin = std::chrono::milliseconds(300);
  const completion_queue cq(io, g.dev, options);
  joined q(io, g, cq);
  // A machine that pauses for longer than the spin time causes a gap itself.
  for (bool steady = false; !steady;) {
    const std::uint64_t arms = cq.counters().arms;
    const auto start = clock::now();
    auto last = start;
    clock::duration gap{};
    while (clock::now() < start + 3 * options.spin) {
      injector.hold_completions();
      sent s;
      q.a.async_write(g.part(0), g.remote_part(1), s.handler());
      wait_until_held(injector, 1);
      const std::uint64_t polls = cq.counters().polls;
      // The runner polls in vain, more than once.
      while (cq.counters().polls < polls + 2000 && cq.counters().arms == arms)
        io.run_one();
      injector.release_completions();
      io.run();
      io.restart();
      REQUIRE(s.succeeded());
      gap = std::max(gap, clock::now() - last);
      last = clock::now();
    }
    steady = gap < options.spin / 2;
    if (steady)
      CHECK(cq.counters().arms == arms);
  }
  CHECK(cq.counters().events == 0);
}

TEST_CASE("handlers begin in the order of completions though the runner is queued already") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io; // several threads may run it, but one does
  const completion_queue cq(io, g.dev);
  joined q(io, g, cq);
  constexpr int writes = 6, receive = writes;
  std::vector<int> order;
  q.b.async_receive(g.part(2), [&](error_code, received) { order.push_back(receive); });
  injector.hold_completions();
  for (int i = 0; i < writes; ++i)
    q.a.async_write(g.part(0), g.remote_part(1), [&, i](error_code, std::size_t) {
      order.push_back(i);
      if (i == 0)
        q.b.close(); // its receive completes next
    });
  wait_until_held(injector, writes);
  io.poll(); // arms
  REQUIRE(order.empty());
  // The reactor's turn with the event comes first. So this handler runs after the event has taken
  // the runner's role, and before the runner's turn.
  asio::post(io, [&] { start_refused(q, g, injector); });
  injector.release_completions();
  drain(io);
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, receive});
}

TEST_CASE("a completion that is found once the queue is armed does not keep the queue") {
  const bool throws = GENERATE(false, true);
  ground g;
  faults::injector injector(g.dev.native_handle());
  // With some seeds the completion is visible to the poll that follows arming.
  bool found = false;
  for (std::uint64_t seed = 1; !found; ++seed) {
    CAPTURE(throws, seed);
    const resource_check nothing_left;
    asio::io_context io;
    const completion_queue cq(io, g.dev);
    joined q(io, g, cq);
    faults::plan p;
    p.seed = seed;
    p.hold_completion = 1;
    injector.run(p);
    const auto before = cq.counters();
    q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) {
      const auto now = cq.counters();
      found = now.arms != before.arms && now.events == before.events;
      if (throws)
        throw 1;
      io.stop();
    });
    try {
      io.run();
    } catch (int) {
    }
    injector.clear();
  }
}

TEST_CASE("a handler that throws in the runner's own turn leaves no work behind") {
  const int hint = GENERATE(1, 2);
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(hint);
  const completion_queue cq(io, g.dev);
  joined q(io, g, cq);
  injector.hold_completions();
  q.a.async_write(g.part(0), g.remote_part(1), [](error_code, std::size_t) { throw 1; });
  wait_until_held(injector, 1);
  io.poll();                      // arms
  injector.lose_channel_events(); // so the queued runner finds the completion
  injector.release_completions();
  start_refused(q, g, injector);
  CHECK_THROWS_AS(io.run(), int);
  drain(io);
  CHECK(io.stopped());
}

TEST_CASE("a completion queue that cannot be polled fails its queue pairs though memory fails") {
  const int hint = GENERATE(1, 2);
  ground g;
  faults::injector injector(g.dev.native_handle());
  for (std::size_t n = 1;; ++n) {
    CAPTURE(hint, n);
    asio::io_context io(hint);
    const completion_queue cq(io, g.dev);
    joined q(io, g, cq);
    got r;
    q.b.async_receive(g.part(1), r.handler());
    io.poll(); // arms
    injector.fail(faults::call::poll_cq, EIO, {1, faults::forever});
    injector.raise_channel_event(cq.native_handle());
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    bool failed = false, thrown = false;
    {
      const failing_allocation failing(n);
      try {
        while (!r.done() && std::chrono::steady_clock::now() < give_up)
          io.run_one_until(give_up);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      failed = failing.failed();
    }
    injector.clear();
    CHECK_FALSE(thrown);
    REQUIRE(r.calls == 1);
    CHECK(r.ec == error::queue_pair_fatal);
    if (!failed)
      return;
  }
}

} // namespace test::runner_tests
