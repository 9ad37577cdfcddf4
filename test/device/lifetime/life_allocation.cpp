// SPDX-License-Identifier: BSL-1.0
//
// No heap allocation for an operation once the context has warmed up.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_counted_heap.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstddef>
#include <utility>

namespace test::life_allocation_tests {
namespace {

constexpr std::size_t window = 32;
constexpr std::size_t warm_up = 1000;
constexpr std::size_t million = 1'000'000;
constexpr std::size_t some = 100'000; // if only the surroundings of the operation differ

template <class QueuePair>
struct writer {
  QueuePair& qp;
  const ground& g;
  const std::size_t operations;
  std::size_t started = 0, done = 0, failed = 0, before = 0, after = 0;

  void start() {
    ++started;
    qp.async_write(g.part(0, 8), g.remote_part(1, 8), [this](error_code ec, std::size_t) {
      if (ec)
        ++failed;
      if (++done == warm_up)
        before = allocations;
      if (done == warm_up + operations)
        after = allocations;
      if (started < warm_up + operations)
        start();
    });
  }
};

template <class QueuePair>
void no_allocation_with_callbacks(asio::io_context& io, QueuePair& qp, const ground& g,
                                  std::size_t operations) {
  writer<QueuePair> w{qp, g, operations};
  for (std::size_t i = 0; i < window; ++i)
    w.start();
  io.run();
  CHECK(w.failed == 0);
  CHECK(w.done == warm_up + operations);
  CHECK(w.after - w.before == 0);
}

} // namespace

TEST_CASE("a million operations with callbacks allocate nothing") {
  ground g;
  asio::io_context io(1);
  joined q(io, g);
  no_allocation_with_callbacks(io, q.a, g, million);
}

TEST_CASE("operations with callbacks and the context's executor allocate nothing") {
  ground g;
  asio::io_context io(1);
  linked<asio::io_context::executor_type> q(io.get_executor(), g);
  no_allocation_with_callbacks(io, q.a, g, some);
}

TEST_CASE("operations of coroutines allocate nothing") {
  ground g;
  asio::io_context io(1);
  joined q(io, g);
  std::size_t done = 0, before = 0, after = 0;
  for (std::size_t i = 0; i < window; ++i)
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
          while (done < warm_up + some) {
            co_await q.a.async_write(g.part(0, 8), g.remote_part(1, 8), asio::use_awaitable);
            if (++done == warm_up)
              before = allocations;
            if (done == warm_up + some)
              after = allocations;
          }
        },
        [](std::exception_ptr e) {
          if (e)
            std::rethrow_exception(e);
        });
  io.run();
  CHECK(done >= warm_up + some);
  CHECK(after - before == 0);
}

TEST_CASE("operations with cancellation slots allocate nothing") {
  ground g;
  asio::io_context io(1);
  joined q(io, g);
  std::size_t received_messages = 0, sent_messages = 0, failed = 0;
  std::size_t before = 0, after = 0;
  constexpr std::size_t rounds = 2000;
  asio::cancellation_signal signal;
  for (std::size_t round = 0; round < rounds; ++round) {
    if (round == 20)
      before = allocations;
    const auto got_one = [&](error_code ec, received) {
      failed += ec ? 1u : 0u;
      ++received_messages;
    };
    const auto sent_one = [&](error_code ec, std::size_t) {
      failed += ec ? 1u : 0u;
      ++sent_messages;
    };
    q.b.async_receive(g.part(1), asio::bind_cancellation_slot(signal.slot(), got_one));
    q.a.async_send(g.part(0), sent_one);
    io.restart();
    io.run();
    after = allocations;
  }
  CHECK(failed == 0);
  CHECK(received_messages == rounds);
  CHECK(sent_messages == rounds);
  CHECK(after - before == 0);
}

namespace {

/// Counts over the operations of several kinds. Stops the context at the end.
struct tally {
  asio::io_context& io;
  const std::size_t operations;
  std::size_t done = 0, failed = 0, before = 0, after = 0;

  void one(const error_code& ec) {
    failed += ec ? 1u : 0u;
    if (++done == warm_up)
      before = allocations;
    if (done == warm_up + operations) {
      after = allocations;
      io.stop();
    }
  }
  void check() const {
    CHECK(failed == 0);
    CHECK(done >= warm_up + operations);
    CHECK(after - before == 0);
  }
};

/// One end of traffic in both directions. It writes into the peer's memory, more at a time than its
/// send queue has room for. Between the writes it answers each message with another message.
struct busy_end {
  queue_pair& qp;
  const ground& g;
  tally& count;
  bool starts_first; // the connecting side of iWARP
  bool writes = false;

  static constexpr std::size_t writes_at_a_time = 24, receives_at_a_time = 16;

  void start() {
    for (std::size_t i = 0; i < receives_at_a_time; ++i)
      receive();
    if (starts_first)
      for (int i = 0; i < 2; ++i)
        send();
  }
  void write() {
    qp.async_write(g.part(0, 8), g.remote_part(1, 8), [this](error_code ec, std::size_t) {
      count.one(ec);
      write();
    });
  }
  void send() {
    qp.async_send(g.part(2), [this](error_code ec, std::size_t) { count.one(ec); });
    if (!std::exchange(writes, true))
      for (std::size_t i = 0; i < writes_at_a_time; ++i)
        write();
  }
  void receive() {
    qp.async_receive(g.part(3), [this](error_code ec, received) {
      count.one(ec);
      receive();
      send();
    });
  }
};

} // namespace

TEST_CASE("traffic both ways through queues that are full allocates nothing") {
  ground g;
  asio::io_context io(1);
  queue_pair_options options;
  options.send_depth = 4;
  options.receive_depth = 4;
  joined q(io, g, options);
  tally count{io, some};
  busy_end a{q.a, g, count, true}, b{q.b, g, count, false};
  b.start(); // its receives must be posted first
  a.start();
  io.run();
  CHECK(b.writes);
  count.check();
}

TEST_CASE("batches, each started when the one before has completed, allocate nothing") {
  constexpr std::size_t batch_size = 16;
  ground g;
  asio::io_context io(1);
  queue_pair_options options;
  // The queue has room for one chain, or for less.
  options.send_depth = GENERATE(2u * std::uint32_t{batch_size}, std::uint32_t{batch_size} / 2);
  joined q(io, g, options);
  tally count{io, some / 2};
  struct rounds {
    joined& pair;
    const ground& g;
    tally& count;
    std::size_t left = 0;

    void ended(const error_code& ec) {
      count.one(ec);
      if (--left == 0)
        start();
    }
    void start() {
      queue_pair::batch receives(pair.b), sends(pair.a);
      for (std::size_t i = 0; i < batch_size; ++i, left += 3) {
        pair.b.async_receive(g.part(3), [this](error_code ec, received) { ended(ec); });
        pair.a.async_send(g.part(0), [this](error_code ec, std::size_t) { ended(ec); });
        pair.a.async_write(g.part(0, 8), g.remote_part(1, 8),
                           [this](error_code ec, std::size_t) { ended(ec); });
      }
      receives.commit(); // before the sends that need them
    }
  } all{q, g, count};
  all.start();
  io.run();
  count.check();
}

} // namespace test::life_allocation_tests
