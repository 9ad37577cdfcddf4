// SPDX-License-Identifier: BSL-1.0
//
// No heap allocation for an operation once the context has warmed up.
#include <catch.hpp>

#include "asio_support.hpp"
#include "life_counted_new.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstddef>

using namespace test;

namespace {

constexpr std::size_t window = 32;
constexpr std::size_t warm_up = 1000;
constexpr std::size_t million = 1'000'000;
constexpr std::size_t some = 100'000; // where only what surrounds the operation differs

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
  if (g.dev.type() == transport::iwarp)
    return not_on_this_device("connecting by address");
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
          for (std::size_t n = 0; n < (warm_up + some) / window + 1; ++n) {
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

TEST_CASE("messages both ways, cancellation slots, batches and a full queue allocate nothing") {
  ground g;
  asio::io_context io(1);
  queue_pair_options options;
  options.send_depth = 4;
  joined q(io, g, options);
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
    {
      queue_pair::batch batch(q.a);
      q.a.async_send(g.part(0), sent_one);
    }
    io.restart();
    io.run();
    after = allocations;
  }
  CHECK(failed == 0);
  CHECK(received_messages == rounds);
  CHECK(sent_messages == rounds);
  CHECK(after - before == 0);
}
