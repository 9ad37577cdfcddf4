// SPDX-License-Identifier: BSL-1.0
// Mistakes of other libraries with completion queues, events and handlers, one test for each.
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <thread>

namespace test::mistakes_tests {
namespace {

completion_queue_options with_events() { return {}; }

bool readable(const completion_queue& cq) {
  pollfd p{cq.native_handle()->channel->fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

// Exchanges messages one after the other. A receive without a message keeps an operation
// outstanding, so the completion queue sleeps between the messages.
void exchange(pair& p, unsigned rounds) {
  p.a.async_receive(p.ma.buffer(8000, 8), asio::detached);
  for (unsigned i = 0; i < rounds; ++i)
    REQUIRE(p.carries("a message"));
}

} // namespace

TEST_CASE("a completion queue polled and then armed without polling again", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  faults::plan plan;
  plan.seed = 1;
  plan.hold_completion = 1; // visible when the queue is armed, often without an event
  faults.run(plan);
  exchange(p, 100);
}

TEST_CASE("one event read per readiness", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  for (int i = 0; i < 3; ++i)
    faults.raise_channel_event(p.cq.native_handle());
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  p.until([&] { return r.done(); });
  CHECK(r.succeeded());
  exchange(p, 300);
  p.io.restart();
  p.io.poll();
  CHECK_FALSE(readable(p.cq));
}

TEST_CASE("channel events never read at all", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  exchange(p, 300);
  p.io.restart();
  p.io.poll();
  CHECK(p.cq.counters().events >= 100);
  CHECK(faults.counts().channel_events == p.cq.counters().events);
  CHECK_FALSE(readable(p.cq));
}

TEST_CASE("events acknowledged one by one, or by count of completions", "[mistake]") {
  const device keep = open_device(); // the injector outlives the pair
  std::optional<faults::injector> faults;
  {
    pair p(with_events());
    faults.emplace(p.dev.native_handle());
    exchange(p, 300);
    const auto counts = faults->counts();
    CHECK(counts.channel_events > 0);
    CHECK(counts.channel_ack_calls * 16 <= counts.channel_events);
  }
  const auto counts = faults->counts();
  CHECK(counts.channel_events_acked == counts.channel_events);
  CHECK(counts.unacknowledged_at_destroy == 0);
}

TEST_CASE("completions of a batch handled in reverse or dropped after the first match",
          "[mistake]") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  std::vector<unsigned> order;
  for (unsigned i = 0; i < 100; ++i)
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), [&order, i](error_code ec, std::size_t) {
      CHECK_FALSE(ec);
      order.push_back(i);
    });
  p.io.restart();
  while (faults.held() < 100)
    p.io.poll(); // posts the writes
  faults.release_completions();
  p.drain();
  REQUIRE(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("a completion queue smaller than the queues that feed it", "[mistake]") {
  queue_pair_options options;
  options.send_depth = options.receive_depth = 32;
  completion_queue_options queues;
  queues.entries = 128; // exactly the need of two such queue pairs
  pair p(queues, options);
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  std::vector<sent> sends(64);
  std::vector<got> receives(64);
  for (unsigned i = 0; i < 32; ++i) {
    p.a.async_receive(p.ma.buffer(8 * i, 8), receives[i].handler());
    p.b.async_receive(p.mb.buffer(8 * i, 8), receives[32 + i].handler());
  }
  for (unsigned i = 0; i < 32; ++i) {
    p.a.async_send(p.ma.buffer(1000, 8), sends[i].handler());
    p.b.async_send(p.mb.buffer(1000, 8), sends[32 + i].handler());
  }
  while (faults.held() < 128)
    std::this_thread::yield();
  queue_pair more(p.io);
  error_code ec;
  more.open(p.pd, p.cq, options, ec);
  const bool has_room = p.cq.entries() >= 192; // the device may have made it larger
  CHECK(ec == (has_room ? error_code() : error_code(error::completion_queue_full)));
  faults.release_completions();
  p.until([&] {
    return sends[31].done() && sends[63].done() && receives[31].done() && receives[63].done();
  });
  for (const auto& s : sends)
    CHECK(s.succeeded());
  for (const auto& r : receives)
    CHECK(r.succeeded());
}

TEST_CASE("a handler run on the poller's thread instead of its executor", "[mistake]") {
  pair p;
  asio::thread_pool pool(1);
  auto strand = asio::make_strand(p.io);
  const auto work = asio::make_work_guard(p.io);
  int done = 0; // used on the context only
  std::atomic<int> on_pool{0}, on_strand{0};
  auto of_pool = asio::bind_executor(pool, [&](error_code, received) {
    on_pool += pool.get_executor().running_in_this_thread() ? 1 : 0;
    asio::post(p.io, [&] { ++done; });
  });
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.a.async_send(p.ma.buffer(0, 8), asio::bind_executor(strand, [&](error_code, std::size_t) {
                   on_strand += strand.running_in_this_thread() ? 1 : 0;
                   ++done;
                 }));
  p.until([&] { return done == 2; });
  p.b.close(); // aborted and immediately failing operations use the executor too
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.until([&] { return done == 4; });
  pool.join();
  CHECK(done == 4);
  CHECK(on_pool == 3);
  CHECK(on_strand == 1);
}

TEST_CASE("a failed completion that terminates the process or escapes from io_context::run",
          "[mistake]") {
  pair p(impatient());
  faults::injector faults(p.dev.native_handle());
  faults.fail_completion({.status = IBV_WC_GENERAL_ERR, .qp_num = p.a.native_handle()->qp_num});
  sent s;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
  CHECK_NOTHROW(p.until([&] { return s.done(); }));
  CHECK(s.ec == IBV_WC_GENERAL_ERR);
  CHECK(s.ec == errc::io_error);
}

TEST_CASE("an event queue handled by a blocking call inside the event loop", "[mistake]") {
  pair p(with_events());
  const auto blocks = [](int fd) {
    return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
  };
  CHECK_FALSE(blocks(p.dev.native_handle()->async_fd));
  CHECK_FALSE(blocks(p.cq.native_handle()->channel->fd));
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.io.restart();
  p.io.poll(); // armed, with no completion to come
  int turns = 0;
  const std::function<void()> turn = [&] {
    if (++turns < 10)
      asio::post(p.io, turn);
  };
  asio::post(p.io, turn);
  p.until([&] { return turns == 10; });
  CHECK(r.calls == 0);
}

} // namespace test::mistakes_tests
