// SPDX-License-Identifier: BSL-1.0
// Moves and default completion tokens.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <exception>
#include <type_traits>
#include <utility>

namespace test::asio_moves_tests {
namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

/// The completion handler of co_spawn.
void rethrow(std::exception_ptr e) {
  if (e)
    std::rethrow_exception(e);
}

} // namespace

TEST_CASE("a queue pair moves with operations outstanding; the moved-from queue pair can be opened "
          "again") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  got r;
  sent s;
  q.b.async_receive(g.part(1), r.handler());
  queue_pair b(std::move(q.b));
  q.a.async_send(g.part(0), s.handler());
  queue_pair a(io);
  a = std::move(q.a);
  io.run();
  CHECK(r.succeeded());
  CHECK(s.succeeded());
  CHECK(b.is_open());
  CHECK_FALSE(q.b.is_open());
  CHECK(q.b.state() == queue_pair_state::closed);
  CHECK(q.b.get_executor() == io.get_executor());
  q.b.open(g.pd);
  q.b.close();
  sent refused;
  q.b.async_send(g.part(0), refused.handler());
  io.restart();
  io.run();
  CHECK(refused.ec == asio::error::bad_descriptor);
}

TEST_CASE("move assignment ends the operations of the queue pair that is assigned to") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  got r;
  q.b.async_receive(g.part(1), r.handler());
  q.b = queue_pair(io);
  CHECK(r.calls == 0);
  io.run();
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

static_assert(!std::is_copy_constructible_v<queue_pair>);
static_assert(std::is_nothrow_move_constructible_v<queue_pair>);
static_assert(
    std::is_same_v<queue_pair::rebind_executor<strand_type>::other, basic_queue_pair<strand_type>>);

TEST_CASE("default completion tokens by rebinding the executor") {
  ground g;
  asio::io_context io(1);
  using awaitable_pair = asio::use_awaitable_t<>::as_default_on_t<queue_pair>;
  asio::io_context manager(1);
  awaitable_pair a(io, g.pd), b(io, g.pd);
  connect(manager, a, b);
  bool finished = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const std::size_t n = co_await a.async_write(g.part(0), g.remote_part(1));
        CHECK(n == 64);
        // Not in CHECK: its macro evaluates the expression in two places.
        const std::size_t read = co_await a.async_read(g.part(2), g.remote_part(1));
        CHECK(read == 64);
        const std::size_t sent =
            co_await a.async_send(g.part(2, 0), awaitable_pair::flags::none, asio::use_awaitable);
        CHECK(sent == 0);
        finished = true;
      },
      rethrow);
  got r;
  b.async_receive(g.part(3), r.handler());
  io.run();
  CHECK(finished);
  CHECK(r.succeeded());

  using tuple_pair = asio::as_tuple_t<asio::use_awaitable_t<>>::as_default_on_t<
      basic_queue_pair<asio::io_context::executor_type>>;
  tuple_pair closed(io.get_executor());
  error_code seen;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const auto [ec, n] = co_await closed.async_write(g.part(0), g.remote_part(1));
        seen = ec;
        CHECK(n == 0);
        const auto [wait_ec] = co_await closed.async_wait_disconnect();
        CHECK(wait_ec == asio::error::bad_descriptor);
      },
      rethrow);
  io.restart();
  io.run();
  CHECK(seen == asio::error::bad_descriptor);
}

TEST_CASE("as_default_on turns an open queue pair into one with that token") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  auto a = asio::use_awaitable.as_default_on(std::move(q.a));
  std::size_t n = 0;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        n = co_await a.async_write(g.part(0, 100), g.remote_part(1, 100));
      },
      rethrow);
  io.run();
  CHECK(n == 100);
}

TEST_CASE("as_default_on turns an open shared receive queue into one with that token") {
  ground g;
  asio::io_context io(1), manager(1);
  shared_receive_queue srq(io, g.pd);
  queue_pair a(io, g.pd), b(io);
  b.open(g.pd, srq);
  connect(manager, a, b);
  got first;
  srq.async_receive(g.part(1), first.handler());
  auto moved = asio::use_awaitable.as_default_on(std::move(srq));
  CHECK(moved.is_open());
  CHECK_FALSE(srq.is_open());
  CHECK(srq.get_executor() == io.get_executor());
  received second;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        asio::post(io, [&] {
          a.async_send(g.part(0), asio::detached);
          a.async_send(g.part(0, 7), asio::detached);
        });
        second = co_await moved.async_receive(g.part(2));
      },
      rethrow);
  io.run();
  CHECK(first.succeeded());
  CHECK(first.value.bytes == 64);
  CHECK(second.bytes == 7);
  srq.open(g.pd);
  CHECK(srq.is_open());
}

TEST_CASE("as_default_on turns open device events into ones with that token") {
  ground g;
  asio::io_context io(1);
  faults::injector faults(g.dev.native_handle());
  device_events events(io, g.dev);
  outcome<device_event> first;
  events.async_wait_event(first.handler());
  auto moved = asio::use_awaitable.as_default_on(std::move(events));
  CHECK(moved.is_open());
  CHECK_FALSE(events.is_open());
  device_event second;
  bool heard = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        second = co_await moved.async_wait_event();
        heard = true;
      },
      rethrow);
  faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
  faults.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
  until(io, [&] { return first.done() && heard; });
  CHECK(first.value.type == IBV_EVENT_PORT_ERR);
  CHECK(second.type == IBV_EVENT_PORT_ACTIVE);
}

} // namespace test::asio_moves_tests
