// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include <cerrno>
#include <optional>

namespace test::modes_tests {
namespace {

completion_queue_options mode(completion_mode m) {
  completion_queue_options options;
  options.mode = m;
  options.entries = 1024;
  return options;
}

// Exchanges messages one after the other; each is answered before the next is sent.
unsigned ping_pong(pair& p, unsigned rounds) {
  unsigned done = 0;
  const std::function<void()> round = [&] {
    p.a.async_receive(p.ma.buffer(8, 8), [&](error_code ec, received) {
      if (!ec && ++done < rounds)
        round();
    });
    p.b.async_receive(p.mb.buffer(0, 8), [&](error_code ec, received) {
      if (!ec)
        p.b.async_send(p.mb.buffer(0, 8), asio::detached);
    });
    p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  };
  round();
  p.drain();
  return done;
}

} // namespace

TEST_CASE("mode event: sleeps between completions, reads and acknowledges every event") {
  const device dev = open_device();
  std::optional<faults::injector> faults;
  {
    pair p(mode(completion_mode::event));
    faults.emplace(p.dev.native_handle());
    CHECK(p.cq.mode() == completion_mode::event);
    CHECK(ping_pong(p, 200) == 200);
    const auto c = p.cq.counters();
    CHECK(c.completions == 800);
    CHECK(c.arms > 0);
    CHECK(c.events > 0);
    CHECK(c.events <= c.arms);
    const auto counts = faults->counts();
    CHECK(counts.channel_events == c.events);
    CHECK(counts.channel_ack_calls < counts.channel_events); // in batches
    // While nothing is outstanding, the queue is not polled.
    const auto polls = c.polls;
    p.io.restart();
    p.io.poll();
    CHECK(p.cq.counters().polls == polls);
  }
  const auto counts = faults->counts();
  CHECK(counts.channel_events_acked == counts.channel_events);
  CHECK(counts.unacknowledged_at_destroy == 0);
}

TEST_CASE("mode adaptive: polls for a while, then sleeps") {
  auto options = mode(completion_mode::adaptive);
  const bool sleeps = GENERATE(false, true);
  options.spin = sleeps ? std::chrono::microseconds(0) : std::chrono::hours(1);
  pair p(options);
  CHECK(ping_pong(p, 200) == 200);
  CHECK(p.cq.counters().completions == 800);
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  sent s;
  p.io.restart();
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
  if (sleeps) {
    p.until([&] { return p.cq.counters().arms != 0; });
  } else {
    const auto polls = p.cq.counters().polls;
    p.until([&] { return p.cq.counters().polls > polls + 10'000; });
    CHECK(p.cq.counters().arms == 0);
  }
  CHECK_FALSE(s.done());
  faults.release_completions();
  p.until([&] { return s.done(); });
  CHECK(s.succeeded());
  CHECK((p.cq.counters().arms != 0) == sleeps);
}

TEST_CASE("mode busy: never arms, and leaves the context live") {
  pair p(mode(completion_mode::busy));
  CHECK(ping_pong(p, 200) == 200);
  const auto c = p.cq.counters();
  CHECK(c.completions == 800);
  CHECK(c.arms == 0);
  CHECK(c.events == 0);
  // Other work of the context runs while a receive is outstanding for which no message arrives.
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  int turns = 0;
  const std::function<void()> turn = [&] {
    if (++turns < 100)
      asio::post(p.io, turn);
  };
  asio::post(p.io, turn);
  p.until([&] { return turns == 100; });
  CHECK(r.calls == 0);
  p.b.close();
  p.drain();
  CHECK(r.calls == 1);
}

TEST_CASE("mode manual: only poll() polls completions") {
  pair p(mode(completion_mode::manual));
  sent s;
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.a.async_send(p.ma.buffer(0, 8), s.handler());
  p.io.restart();
  p.io.poll();
  CHECK(s.calls + r.calls == 0);
  CHECK(p.cq.counters().polls == 0);
  std::size_t completed = 0;
  while (completed < 2)
    completed += p.cq.poll();
  CHECK(completed == 2);
  // The handlers are called on their executor.
  p.drain();
  CHECK(s.succeeded());
  CHECK(r.succeeded());
  CHECK(p.cq.poll() == 0);
}

TEST_CASE("mode manual: closed and failed operations complete by poll() too") {
  pair p(mode(completion_mode::manual), impatient());
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.b.close();
  CHECK(p.cq.poll() == 1);
  p.drain();
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

TEST_CASE("an event that comes without a completion does no harm") {
  pair p(mode(completion_mode::event));
  faults::injector faults(p.dev.native_handle());
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  for (int i = 0; i < 5; ++i) {
    const auto events = p.cq.counters().events;
    faults.raise_channel_event(p.cq.native_handle());
    p.until([&] { return p.cq.counters().events > events; });
  }
  CHECK(r.calls == 0);
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  p.until([&] { return r.done(); });
  CHECK(r.succeeded());
  CHECK(ping_pong(p, 50) == 50);
}

TEST_CASE("completions that come while the queue is being armed are found") {
  pair p(mode(completion_mode::event));
  faults::injector faults(p.dev.native_handle());
  faults::plan plan;
  plan.seed = faults::seed_from_environment();
  plan.hold_completion = 0.5; // held among others until after arming
  plan.spurious_event = 0.1;
  INFO("ASIO_RDMA_FAULT_SEED=" << plan.seed);
  faults.run(plan);
  CHECK(ping_pong(p, 300) == 300);
}

TEST_CASE("the shared completion queue is followed by another when it is full") {
  asio::io_context io(1);
  completion_queue_options options;
  options.entries = 64;
  completion_queue::set_default_options(io, options);
  const device dev = open_device();
  const protection_domain pd(dev);
  memory m(pd, 4096, most_rights(dev));
  queue_pair_options small;
  small.send_depth = small.receive_depth = 16;
  std::vector<queue_pair> pairs;
  for (int i = 0; i < 6; ++i) {
    pairs.emplace_back(io, pd, small);
    CHECK(pairs.back().native_handle()->send_cq->cqe >= 32);
  }
  CHECK(pairs[0].native_handle()->send_cq == pairs[1].native_handle()->send_cq);
  CHECK(pairs[0].native_handle()->send_cq != pairs[2].native_handle()->send_cq);
  // Each queue pair carries traffic, in either completion queue.
  for (std::size_t i = 0; i < pairs.size(); i += 2)
    connect(io, pairs[i], pairs[(i + 3) % 6]);
  int done = 0;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    pairs[(i + 3) % 6].async_receive(m.buffer(0, 8), [&](error_code ec, received) {
      CHECK_FALSE(ec);
      ++done;
    });
    pairs[i].async_send(m.buffer(8, 8), asio::detached);
  }
  until(io, [&] { return done == 3; });
  // Entries that a queue pair returns when it closes are used again.
  auto* first = pairs[0].native_handle()->send_cq;
  pairs[0].close();
  drain(io);
  pairs[0].open(pd, small);
  CHECK(pairs[0].native_handle()->send_cq == first);
}

TEST_CASE("an explicit completion queue that is full is an error") {
  asio::io_context io(1);
  const device dev = open_device();
  const protection_domain pd(dev);
  completion_queue_options options;
  options.entries = 40;
  completion_queue cq(io, dev, options);
  queue_pair_options half;
  half.send_depth = half.receive_depth = 20;
  queue_pair a(io), b(io);
  error_code ec;
  a.open(pd, cq, half, ec);
  CHECK_FALSE(ec);
  b.open(pd, cq, half, ec);
  CHECK(ec == error::completion_queue_full);
  CHECK_FALSE(b.is_open());
  CHECK_THROWS_AS(b.open(pd, cq, half), system_error);
  a.close();
  b.open(pd, cq, half, ec);
  CHECK_FALSE(ec);
}

TEST_CASE(
    "a completion queue outlives its handle, and its queue pairs their context's other work") {
  pair p(mode(completion_mode::event));
  p.cq = completion_queue();
  CHECK(p.carries("without a handle"));
}

TEST_CASE("the objects are destroyed in any order") {
  asio::io_context io(1);
  auto dev = std::make_unique<device>(open_device());
  auto pd = std::make_unique<protection_domain>(*dev);
  auto cq = std::make_unique<completion_queue>(io, *dev);
  auto a = std::make_unique<queue_pair>(io);
  a->open(*pd, *cq);
  std::vector<char> bytes(64);
  auto region = std::make_unique<memory_region>(*pd, bytes.data(), bytes.size());
  got r;
  a->async_receive(region->buffer(), r.handler());
  dev.reset();
  pd.reset();
  cq.reset();
  SECTION("the region before the queue pair") {
    region.reset();
    a.reset();
  }
  SECTION("the queue pair before the region") {
    a.reset();
    region.reset();
  }
  drain(io);
  CHECK(r.calls == 1);
}

TEST_CASE("a completion queue that cannot be polled fails its queue pairs") {
  const bool manual = GENERATE(false, true);
  pair p(mode(manual ? completion_mode::manual : completion_mode::event));
  faults::injector faults(p.dev.native_handle());
  faults.fail(faults::call::poll_cq, EIO, {1, faults::forever});
  got r;
  sent s;
  outcome<void> ended;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.b.async_wait_disconnect(ended.handler());
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
  p.until([&] {
    if (manual)
      p.cq.poll();
    return r.done() && s.done() && ended.done();
  });
  CHECK(r.ec == error::queue_pair_fatal);
  CHECK(s.ec == error::queue_pair_fatal);
  CHECK(ended.ec == error::queue_pair_fatal);
  queue_pair next(p.io);
  error_code ec;
  next.open(p.pd, p.cq, {}, ec);
  CHECK(ec == error::completion_queue_full);
}

} // namespace test::modes_tests
