// SPDX-License-Identifier: BSL-1.0
//
// The runner of a completion queue when completions and events come at the worst moments: none is
// lost, none is handled twice, and no operation waits for ever.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace test::life_faults_tests {
namespace {

/// A window of writes, each of which starts the next, until `total` writes have ended. Handlers run
/// by `executor`: a strand if several threads run the context, as one queue pair must not be used
/// by two of them at the same time.
struct traffic {
  traffic(joined& q, const ground& g, std::size_t total)
      : traffic(q, g, total, q.a.get_executor()) {}
  traffic(joined& q, const ground& g, std::size_t total, asio::any_io_executor executor)
      : pair(q), where(g), runs_by(std::move(executor)), left(total) {}

  void start(int window) {
    for (int i = 0; i < window; ++i)
      next();
  }
  void next() {
    if (left == 0)
      return;
    --left;
    pair.a.async_write(where.part(0), where.remote_part(1),
                       asio::bind_executor(runs_by, [this](error_code ec, std::size_t) {
                         ++(ec ? failed : done);
                         if (ec)
                           last = ec;
                         next();
                       }));
  }

  joined& pair;
  const ground& where;
  asio::any_io_executor runs_by;
  std::size_t left, done = 0, failed = 0;
  error_code last;
};

} // namespace

TEST_CASE("completions that come late and events without completions lose and double nothing") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  const int threads = GENERATE(1, 3);
  ground g;
  faults::plan plan;
  plan.seed = faults::seed_from_environment();
  plan.hold_completion = 0.2;
  plan.spurious_event = 0.2;
  INFO(plan << ", mode " << static_cast<int>(mode) << ", threads " << threads);
  faults::injector injector(g.dev.native_handle());
  {
    asio::io_context io;
    const completion_queue cq(io, g.dev, in_mode(mode));
    joined q(io, g, cq);
    injector.run(plan);
    for (int round = 0; round < 20; ++round) {
      traffic t = threads == 1 ? traffic(q, g, 300) : traffic(q, g, 300, asio::make_strand(io));
      t.start(1 + round * 3);
      run_by_threads(io, threads);
      io.restart();
      REQUIRE(t.done == 300);
      REQUIRE(t.failed == 0);
    }
    injector.clear();
  }
  const faults::counters c = injector.counts();
  CHECK(c.channel_events == c.channel_events_acked);
  CHECK(c.unacknowledged_at_destroy == 0);
}

TEST_CASE("refused posts fail their own operations and no other") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  ground g;
  faults::plan plan;
  plan.seed = faults::seed_from_environment();
  plan.refuse_send = 0.1;
  plan.hold_completion = 0.1;
  INFO(plan << ", mode " << static_cast<int>(mode));
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  const completion_queue cq(io, g.dev, in_mode(mode));
  queue_pair_options options;
  options.send_depth = 8;
  joined q(io, g, cq, options);
  injector.run(plan);
  traffic t(q, g, 5000);
  t.start(40);
  {
    queue_pair::batch batch(q.a);
    t.start(20);
  }
  io.run();
  injector.clear();
  CHECK(t.done + t.failed == 5000);
  CHECK(t.failed != 0);
  CHECK(t.failed == injector.counts().refused_of(faults::call::post_send));
  CHECK(t.last == errc::not_enough_memory);
  CHECK(q.a.state() == queue_pair_state::connected);
}

TEST_CASE("a first operation that is refused leaves the context running, and its handler in it") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  joined q(io, g);
  injector.refuse_post(faults::call::post_send);
  injector.refuse_post(faults::call::post_recv);
  sent refused, good;
  got refused_receive;
  q.a.async_write(g.part(0), g.remote_part(1), refused.handler());
  q.a.async_receive(g.part(0), refused_receive.handler());
  CHECK_FALSE(io.stopped());
  q.a.async_write(g.part(0), g.remote_part(1), good.handler());
  io.run();
  CHECK(refused.calls == 1);
  CHECK(refused.ec == errc::not_enough_memory);
  CHECK(refused_receive.calls == 1);
  CHECK(refused_receive.ec == errc::not_enough_memory);
  CHECK(good.succeeded());
}

TEST_CASE("sends whose post fails without naming a request end when the queue pair is destroyed") {
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::busy, completion_mode::manual);
  const bool alone = GENERATE(true, false);
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  completion_queue cq(io, g.dev, in_mode(mode));
  queue_pair_options options;
  options.send_depth = 4;
  joined q(io, g, cq, options);
  outcome<void> gone;
  std::vector<sent> sends(alone ? 1 : 6); // two wait for room
  q.a.async_wait_disconnect(gone.handler());
  injector.hold_completions();
  injector.fail_post_unnamed(faults::call::post_send, EIO);
  {
    std::optional<queue_pair::batch> batch;
    if (!alone)
      batch.emplace(q.a);
    for (sent& s : sends)
      q.a.async_write(g.part(0), g.remote_part(1), s.handler());
  }
  CHECK(q.a.state() == queue_pair_state::failed);
  while (mode == completion_mode::manual && cq.poll() != 0)
    continue;
  io.run();
  for (const sent& s : sends) {
    CHECK(s.calls == 1);
    CHECK(s.ec == errc::io_error);
  }
  CHECK(gone.ec == errc::io_error);
  CHECK(q.a.native_handle() == nullptr);
}

TEST_CASE("receives whose post fails without naming a request: the first fails, and the others are "
          "posted") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  joined q(io, g);
  injector.fail_post_unnamed(faults::call::post_recv, EINVAL);
  std::array<got, 3> receives;
  {
    queue_pair::batch batch(q.b);
    for (got& r : receives)
      q.b.async_receive(g.part(1), r.handler());
  }
  std::array<sent, 2> sends;
  for (sent& s : sends)
    q.a.async_send(g.part(0), s.handler());
  io.run();
  CHECK(receives[0].calls == 1);
  CHECK(receives[0].ec == errc::invalid_argument);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(receives[i + 1].succeeded());
    CHECK(sends[i].succeeded());
  }
  CHECK(q.b.state() == queue_pair_state::connected);
}

TEST_CASE("a completion that comes while no thread polls wakes the context") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  const completion_queue cq(io, g.dev);
  joined q(io, g, cq);
  for (int round = 0; round < 100; ++round) {
    injector.hold_completions();
    std::atomic<bool> called{false};
    q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { called = true; });
    io.poll(); // arms
    REQUIRE_FALSE(called);
    REQUIRE_FALSE(io.stopped());
    // At a random moment: while the context polls, arms or sleeps.
    std::thread releaser([&] {
      while (injector.held() == 0)
        std::this_thread::yield();
      injector.release_completions();
    });
    io.run();
    releaser.join();
    REQUIRE(called);
    io.restart();
  }
}

TEST_CASE("events without completions do no harm, at any time") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  {
    asio::io_context io(1);
    const completion_queue cq(io, g.dev);
    joined q(io, g, cq);
    for (int round = 0; round < 200; ++round) {
      traffic t(q, g, 1 + static_cast<std::size_t>(round % 5));
      if (round % 2 == 0)
        injector.raise_channel_event(cq.native_handle());
      t.start(3);
      if (round % 3 == 0)
        injector.raise_channel_event(cq.native_handle());
      if (round % 5 == 0)
        io.poll();
      if (round % 7 == 0)
        injector.raise_channel_event(cq.native_handle());
      io.run();
      io.restart();
      REQUIRE(t.left == 0);
      REQUIRE(t.failed == 0);
    }
  }
  CHECK(injector.counts().unacknowledged_at_destroy == 0);
}

TEST_CASE("operations end once if they are closed while completions are held back") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  for (int round = 0; round < 20; ++round) {
    asio::io_context io(1);
    const completion_queue cq(io, g.dev);
    auto q = std::make_unique<joined>(io, g, cq);
    injector.hold_completions();
    int ended = 0;
    for (int i = 0; i < 200; ++i)
      q->a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { ++ended; });
    if (round % 2 == 0)
      io.poll();
    if (round % 3 == 0)
      injector.release_completions(5);
    q.reset();
    injector.release_completions();
    io.run();
    CHECK(ended == 200);
  }
}

TEST_CASE("a queue that cannot be armed is polled instead") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  asio::io_context io(1);
  const completion_queue cq(io, g.dev);
  joined q(io, g, cq);
  injector.hold_completions();
  injector.fail(faults::call::req_notify_cq, EIO, {1, 5});
  bool called = false;
  q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { called = true; });
  io.poll_one();
  while (injector.held() == 0)
    io.poll_one();
  injector.release_completions();
  io.run();
  CHECK(called);
}

TEST_CASE("an event of a queue pair reaches it, whichever context of the device reads it") {
  ground g;
  faults::injector injector(g.dev.native_handle());
  for (std::size_t victim = 0; victim < 2; ++victim) {
    std::array<asio::io_context, 2> io;
    std::array<std::unique_ptr<joined>, 2> q;
    std::array<outcome<void>, 2> ended;
    for (std::size_t i = 0; i < 2; ++i) {
      q[i] = std::make_unique<joined>(io[i], g);
      q[i]->a.async_wait_disconnect(ended[i].handler());
      io[i].poll();
    }
    injector.raise_qp_event(q[victim]->a.native_handle());
    // The other context polls first.
    for (int i = 0; i < 100; ++i)
      io[1 - victim].poll();
    until(io[victim], [&] { return ended[victim].done(); });
    CHECK(ended[victim].ec == error::queue_pair_fatal);
    CHECK(ended[1 - victim].calls == 0);
    CHECK(q[1 - victim]->a.state() == queue_pair_state::connected);
  }
}

} // namespace test::life_faults_tests
