// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <optional>
#include <type_traits>

namespace test::tokens_tests {

namespace {

// Calls `f(name, start)` for every operation of a queue pair. `start(token)` starts the operation
// at p.a, and at p.b an operation that lets it succeed.
template <class F>
void each_operation(F&& f) {
  using qp = queue_pair;
  std::optional<memory_window> window;
  const auto run = [&](const char* name, auto start, bool bound = false) {
    INFO(name);
    pair p;
    p.ma.put(0, "token");
    if (bound) {
      window.emplace(p.pd);
      p.b.async_bind(*window, p.mb.region, 0, 64, access::remote_read, asio::detached);
      p.drain();
    }
    f(p, [&](auto&& token) { return start(p, std::forward<decltype(token)>(token)); });
  };
  run("send", [](pair& p, auto&& token) {
    p.b.async_receive(p.mb.buffer(0, 8), asio::detached);
    return p.a.async_send(p.ma.buffer(0, 8), std::forward<decltype(token)>(token));
  });
  run("send, flags", [](pair& p, auto&& token) {
    p.b.async_receive(p.mb.buffer(0, 8), asio::detached);
    return p.a.async_send(p.ma.buffer(0, 8), qp::flags::solicited,
                          std::forward<decltype(token)>(token));
  });
  run("receive", [](pair& p, auto&& token) {
    // Sent a turn later, because on iWARP the receive must be posted first.
    const auto later = [&p] {
      p.b.async_send(p.mb.buffer(0, 8), asio::detached);
    };
    if (std::is_same_v<std::decay_t<decltype(token)>, asio::deferred_t>)
      p.when_drained = later;
    else
      asio::post(p.io, later);
    return p.a.async_receive(p.ma.buffer(0, 8), std::forward<decltype(token)>(token));
  });
  run("write", [](pair& p, auto&& token) {
    return p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), std::forward<decltype(token)>(token));
  });
  run("read", [](pair& p, auto&& token) {
    return p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(), std::forward<decltype(token)>(token));
  });
  const device dev = open_device();
  if (dev.has_immediate()) {
    run("send with immediate", [](pair& p, auto&& token) {
      p.b.async_receive(p.mb.buffer(0, 8), asio::detached);
      return p.a.async_send_immediate(p.ma.buffer(0, 8), 5, std::forward<decltype(token)>(token));
    });
    run("write with immediate", [](pair& p, auto&& token) {
      p.b.async_receive(p.mb.buffer(0, 8), asio::detached);
      return p.a.async_write_immediate(p.ma.buffer(0, 8), p.mb.remote(), 5,
                                       std::forward<decltype(token)>(token));
    });
  }
  if (dev.has_atomics()) {
    run("compare and swap", [](pair& p, auto&& token) {
      return p.a.async_compare_and_swap(p.mb.remote(0, 8), 0, 1,
                                        std::forward<decltype(token)>(token));
    });
    run("fetch and add", [](pair& p, auto&& token) {
      return p.a.async_fetch_add(p.mb.remote(0, 8), 1, std::forward<decltype(token)>(token));
    });
  }
  if (dev.has_flush(placement::visible))
    run("flush", [](pair& p, auto&& token) {
      return p.a.async_flush(p.mb.remote(0, 8), placement::visible,
                             std::forward<decltype(token)>(token));
    });
  if (dev.has_memory_windows()) {
    run("bind", [&window](pair& p, auto&& token) {
      window.emplace(p.pd);
      return p.a.async_bind(*window, p.ma.region, 0, 64, access::remote_read,
                            std::forward<decltype(token)>(token));
    });
    run(
        "invalidate",
        [&window](pair& p, auto&& token) {
          return p.b.async_invalidate(window->rkey(), std::forward<decltype(token)>(token));
        },
        true);
    run(
        "send with invalidate",
        [&window](pair& p, auto&& token) {
          p.b.async_receive(p.mb.buffer(0, 8), asio::detached);
          return p.a.async_send_invalidate(p.ma.buffer(0, 8), window->rkey(),
                                           std::forward<decltype(token)>(token));
        },
        true);
  }
}

} // namespace

TEST_CASE("every operation with a callback") {
  each_operation([](pair& p, auto start) {
    int calls = 0;
    error_code ec = asio::error::fault;
    start([&](error_code e, auto&&...) {
      ++calls;
      ec = e;
    });
    REQUIRE(calls == 0);
    p.drain();
    CHECK(calls == 1);
    CHECK(ec == error_code());
  });
}

TEST_CASE("every operation with a callback that can only be moved") {
  each_operation([](pair& p, auto start) {
    auto calls = std::make_unique<int>(0);
    int& count = *calls;
    std::unique_ptr<int> kept;
    start([calls = std::move(calls), &kept](error_code, auto&&...) mutable {
      ++*calls;
      kept = std::move(calls);
    });
    p.drain();
    CHECK(kept);
    CHECK(count == 1);
  });
}

TEST_CASE("every operation with use_future") {
  each_operation([](pair& p, auto start) {
    auto future = start(asio::use_future);
    p.drain();
    CHECK_NOTHROW(future.get());
  });
}

TEST_CASE("every operation with use_awaitable") {
  each_operation([](pair& p, auto start) {
    bool done = false;
    asio::co_spawn(
        p.io,
        [&]() -> asio::awaitable<void> {
          co_await start(asio::use_awaitable);
          done = true;
        },
        [](std::exception_ptr e) {
          if (e)
            std::rethrow_exception(e);
        });
    p.drain();
    CHECK(done);
  });
}

TEST_CASE("every operation with as_tuple") {
  each_operation([](pair& p, auto start) {
    error_code ec = asio::error::fault;
    asio::co_spawn(
        p.io,
        [&]() -> asio::awaitable<void> {
          const auto result = co_await start(asio::as_tuple(asio::use_awaitable));
          ec = std::get<0>(result);
        },
        asio::detached);
    p.drain();
    CHECK(ec == error_code());
  });
}

TEST_CASE("every operation deferred: no operation starts before it is launched") {
  each_operation([](pair& p, auto start) {
    int calls = 0;
    auto operation = start(asio::deferred);
    p.io.restart();
    p.io.poll();
    CHECK(calls == 0);
    std::move(operation)([&](error_code ec, auto&&...) {
      ++calls;
      CHECK(ec == error_code());
    });
    p.drain();
    CHECK(calls == 1);
  });
}

TEST_CASE("every operation detached") {
  each_operation([](pair& p, auto start) {
    start(asio::detached);
    p.drain();
    CHECK(p.a.state() == queue_pair_state::connected);
    CHECK(p.b.state() == queue_pair_state::connected);
    CHECK(p.carries("goes on"));
  });
}

TEST_CASE("an error reaches a future and a coroutine as an exception") {
  pair p;
  p.a.close();
  auto future = p.a.async_send(p.ma.buffer(0, 4), asio::use_future);
  error_code thrown;
  asio::co_spawn(
      p.io,
      [&]() -> asio::awaitable<void> {
        try {
          co_await p.a.async_receive(p.ma.buffer(0, 4), asio::use_awaitable);
        } catch (const system_error& e) {
          thrown = e.code();
        }
      },
      asio::detached);
  p.drain();
  CHECK(thrown == asio::error::bad_descriptor);
  CHECK_THROWS_AS(future.get(), system_error);
}

TEST_CASE("the default token is the executor's") {
  pair p;
  using socket = asio::use_awaitable_t<>::as_default_on_t<queue_pair>;
  socket a(std::move(p.a)), b(std::move(p.b));
  static_assert(std::is_same_v<decltype(a.async_send(p.ma.buffer())),
                               asio::awaitable<std::size_t, asio::any_io_executor>>);
  received result;
  asio::co_spawn(
      p.io, [&]() -> asio::awaitable<void> { result = co_await b.async_receive(p.mb.buffer()); },
      asio::detached);
  asio::co_spawn(
      p.io, [&]() -> asio::awaitable<void> { co_await a.async_send(p.ma.buffer(0, 9)); },
      asio::detached);
  p.drain();
  CHECK(result.bytes == 9);
}

TEST_CASE("every operation on a queue pair that is closed or not connected") {
  pair p;
  queue_pair open(p.io, p.pd), closed(p.io);
  int calls = 0;
  const auto expect = [&calls](error_code wanted) {
    return [&calls, wanted](error_code ec, auto&&...) {
      ++calls;
      CHECK(ec == wanted);
    };
  };
  for (auto* qp : {&open, &closed}) {
    const auto e = expect(qp == &open ? error_code(asio::error::not_connected)
                                      : error_code(asio::error::bad_descriptor));
    qp->async_send(p.ma.buffer(0, 4), e);
    qp->async_write(p.ma.buffer(0, 4), p.mb.remote(), e);
    qp->async_read(p.ma.buffer(0, 4), p.mb.remote(), e);
    if (p.dev.has_immediate()) {
      qp->async_send_immediate(p.ma.buffer(0, 4), 1, e);
      qp->async_write_immediate(p.ma.buffer(0, 4), p.mb.remote(), 1, e);
    }
    if (p.dev.has_atomics()) {
      qp->async_compare_and_swap(p.mb.remote(), 0, 1, e);
      qp->async_fetch_add(p.mb.remote(), 1, e);
    }
  }
  closed.async_receive(p.ma.buffer(0, 4), expect(asio::error::bad_descriptor));
  closed.async_wait_disconnect(expect(asio::error::bad_descriptor));
  CHECK(calls == 0); // never from inside the initiating function
  p.drain();
  CHECK(calls == 2 * (3 + 2 * p.dev.has_immediate() + 2 * p.dev.has_atomics()) + 2);
}

} // namespace test::tokens_tests
