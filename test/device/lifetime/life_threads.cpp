// SPDX-License-Identifier: BSL-1.0
//
// Several threads run one context.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace test::life_threads_tests {
namespace {

constexpr int thread_count = 4;

using strand_type = asio::strand<asio::any_io_executor>;

/// A queue pair with a window of operations. Each handler starts the next operation.
class endpoint {
public:
  endpoint(asio::io_context& io, const ground& g, bool with_strand)
      : qp(io), strand_(io.get_executor()), ground_(g), with_strand_(with_strand) {
    queue_pair_options options;
    options.send_depth = 8; // fewer than the window, so that some wait
    qp.open(g.pd, options);
  }

  /// Call it before the context runs and before any end sends: each message needs a posted receive.
  void start_receives(int n) {
    for (int i = 0; i < n; ++i)
      receive();
  }
  void start_sends(int n) {
    left_ = n;
    for (int i = 0; i < 16; ++i) {
      if (with_strand_)
        asio::post(strand_, [this] { send(); });
      else
        send();
    }
  }

  std::atomic<int> sends{0}, receives{0}, failures{0}, overlaps{0};
  queue_pair qp;

private:
  struct scope {
    explicit scope(endpoint& e) : self(e) {
      if (self.busy_.exchange(true))
        ++self.overlaps;
    }
    ~scope() { self.busy_ = false; }
    endpoint& self;
  };

  void receive() {
    with(
        [this](error_code ec, received) {
          const scope s(*this);
          ++(ec ? failures : receives);
        },
        [this](auto handler) { qp.async_receive(ground_.part(1), std::move(handler)); });
  }

  void send() {
    if (left_-- <= 0)
      return;
    with(
        [this](error_code ec, std::size_t) {
          const scope s(*this);
          ++(ec ? failures : sends);
          send();
        },
        [this](auto handler) { qp.async_send(ground_.part(0), std::move(handler)); });
  }

  template <class Handler, class Start>
  void with(Handler handler, Start start) {
    if (with_strand_)
      start(asio::bind_executor(strand_, std::move(handler)));
    else
      start(std::move(handler));
  }

  strand_type strand_;
  const ground& ground_;
  bool with_strand_;
  std::atomic<int> left_ = 0; // without a strand handlers run on several threads at a time
  std::atomic<bool> busy_{false};
};

} // namespace

TEST_CASE("4 threads, 64 queue pairs, many operations both ways") {
  const bool with_strands = GENERATE(false, true);
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::adaptive, completion_mode::busy);
  INFO((with_strands ? "strands" : "no strands") << ", mode " << static_cast<int>(mode));
  constexpr int operations = 100;
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  completion_queue::set_default_options(io, in_mode(mode));
  std::deque<endpoint> ends;
  for (int i = 0; i < 64; ++i)
    ends.emplace_back(io, g, with_strands);
  for (std::size_t i = 0; i < 64; i += 2)
    connect(io, ends[i].qp, ends[i + 1].qp);
  io.restart();
  for (endpoint& e : ends)
    e.start_receives(operations);
  for (endpoint& e : ends)
    e.start_sends(operations);
  run_by_threads(io, thread_count);
  for (const endpoint& e : ends) {
    CHECK(e.sends == operations);
    CHECK(e.receives == operations);
    CHECK(e.failures == 0);
    if (with_strands)
      CHECK(e.overlaps == 0);
  }
}

TEST_CASE("queue pairs are closed while other threads complete their operations") {
  const resource_check nothing_left;
  ground g;
  for (int round = 0; round < 10; ++round) {
    asio::io_context io;
    std::atomic<int> started{0}, ended{0};
    {
      struct side {
        explicit side(asio::io_context& io) : strand(io.get_executor()), qp(io) {}
        strand_type strand;
        queue_pair qp;
      };
      std::vector<std::shared_ptr<side>> sides;
      for (int i = 0; i < 16; ++i) {
        sides.push_back(std::make_shared<side>(io));
        sides.back()->qp.open(g.pd);
      }
      for (std::size_t i = 0; i < 16; i += 2)
        connect(io, sides[i]->qp, sides[i + 1]->qp);
      io.restart();
      const auto guard = asio::make_work_guard(io);
      for (int i = 0; i < 16; ++i) {
        const auto s = sides[static_cast<std::size_t>(i)];
        asio::post(s->strand, [s, i, round, &g, &started, &ended] {
          for (int n = 0; n < 150; ++n) {
            started += 2;
            const bool closes = n == (i * 37 + round * 11) % 150;
            s->qp.async_write(
                g.part(0), g.remote_part(1),
                asio::bind_executor(s->strand, [s, closes, &ended](error_code, std::size_t) {
                  ++ended;
                  if (closes)
                    s->qp.close();
                }));
            s->qp.async_receive(
                g.part(2),
                asio::bind_executor(s->strand, [s, &ended](error_code, received) { ++ended; }));
          }
        });
        // Also from outside of its handlers, once some operations have completed.
        if (i % 3 == 0)
          asio::post(s->strand, [s] { asio::post(s->strand, [s] { s->qp.close(); }); });
        else
          asio::post(s->strand, [s] { asio::post(s->strand, [s] { s->qp.cancel(); }); });
      }
    }
    run_by_threads(io, thread_count);
    REQUIRE(started == 16 * 300);
    REQUIRE(ended == started);
  }
}

TEST_CASE("queue pairs are opened and closed by threads that share a completion queue") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  const completion_queue cq(io, g.dev);
  const auto other = asio::make_work_guard(io);
  std::vector<std::thread> runners;
  for (int i = 0; i < 2; ++i)
    runners.emplace_back([&io] { io.run(); });
  std::atomic<int> started{0}, ended{0};
  std::vector<std::thread> users;
  for (int t = 0; t < 2; ++t)
    users.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        queue_pair a(io), b(io);
        a.open(g.pd, cq);
        b.open(g.pd, cq);
        for (int i = 0; i < 140; ++i) {
          ++started;
          b.async_receive(g.part(static_cast<std::size_t>(t)),
                          [&](error_code, received) { ++ended; });
        }
        if (round % 2 == 0)
          a = std::move(b);
      }
    });
  for (std::thread& t : users)
    t.join();
  // The context has other work, so its end cannot be waited for: wait for the handlers.
  while (ended != started)
    std::this_thread::yield();
  io.stop();
  for (std::thread& t : runners)
    t.join();
  CHECK(ended == 2 * 50 * 140);
}

TEST_CASE("a context of one thread, and queue pairs that another thread uses after it") {
  constexpr int writes = 200, receives = 20;
  const resource_check nothing_left;
  ground g;
  for (int round = 0; round < 20; ++round) {
    asio::io_context io(1);
    joined q(io, g);
    struct chain {
      queue_pair& qp;
      const ground& g;
      std::atomic<int> written{0}, failures{0};

      // Each handler starts the next two, so most operations start in handlers.
      void write(int n) {
        if (n >= writes)
          return;
        qp.async_write(g.part(0), g.remote_part(1), [this, n](error_code ec, std::size_t) {
          failures += ec ? 1 : 0;
          ++written;
          write(2 * n + 1);
          write(2 * n + 2);
        });
      }
    } a{q.a, g}, b{q.b, g};
    io.restart();
    auto guard = asio::make_work_guard(io);
    std::thread runner([&io] { io.run(); });
    asio::post(io, [&a] { a.write(0); });
    while (a.written != writes)
      std::this_thread::yield();
    // From here on this thread uses one of the queue pairs, and the handlers use the other one.
    asio::post(io, [&b] { b.write(0); });
    std::atomic<int> ended{0}, aborted{0};
    for (int i = 0; i < writes; ++i)
      q.a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t) {
        a.failures += ec ? 1 : 0;
        ++ended;
      });
    while (ended != writes)
      std::this_thread::yield();
    for (int i = 0; i < receives; ++i)
      q.a.async_receive(g.part(2), [&](error_code ec, received) {
        aborted += ec == asio::error::operation_aborted ? 1 : 0;
        ++ended;
      });
    while (b.written != writes)
      std::this_thread::yield();
    q.a.close();
    guard.reset();
    runner.join();
    REQUIRE(ended == writes + receives);
    REQUIRE(aborted == receives);
    REQUIRE(a.failures == 0);
    REQUIRE(b.failures == 0);
  }
}

TEST_CASE("two contexts use one device, each with threads of its own") {
  const resource_check nothing_left;
  ground g;
  std::array<asio::io_context, 2> io;
  std::array<std::unique_ptr<joined>, 2> q;
  std::array<std::atomic<int>, 2> done{};
  for (std::size_t i = 0; i < 2; ++i) {
    q[i] = std::make_unique<joined>(io[i], g);
    for (int n = 0; n < 2000; ++n)
      q[i]->a.async_write(g.part(i), g.remote_part(2 + i), [&, i](error_code ec, std::size_t) {
        if (!ec)
          ++done[i];
      });
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i)
    threads.emplace_back([&, i] { io[static_cast<std::size_t>(i % 2)].run(); });
  for (std::thread& t : threads)
    t.join();
  CHECK(done[0] == 2000);
  CHECK(done[1] == 2000);
}

} // namespace test::life_threads_tests
