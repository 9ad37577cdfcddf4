// SPDX-License-Identifier: BSL-1.0
//
// Queue pairs and the execution context: what counts as work, what becomes of operations when the
// context goes, exceptions, stop and restart, moves, default tokens.
#include <catch.hpp>

#include "asio_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

using namespace test;

namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

/// A handler that must never be called, only destroyed.
struct never_called {
  std::shared_ptr<int> token;
  template <class... Args>
  void operator()(Args&&...) const {
    FAIL("a handler was called");
  }
};

/// A handler whose destruction acts on its queue pairs.
struct restless {
  std::shared_ptr<linked<asio::any_io_executor>> q;
  const ground* where;
  int* destroyed;
  restless(std::shared_ptr<linked<asio::any_io_executor>> p, const ground& g, int& n)
      : q(std::move(p)), where(&g), destroyed(&n) {}
  restless(restless&&) = default;
  ~restless() {
    if (!q)
      return;
    ++*destroyed;
    q->a.cancel();
    q->b.close();
    q->a.close();
  }
  template <class... Args>
  void operator()(Args&&...) {
    FAIL("a handler was called");
  }
};

completion_queue_options in_mode(completion_mode mode) {
  completion_queue_options options;
  options.mode = mode;
  return options;
}

} // namespace

// --- Work
// ------------------------------------------------------------------------------------------

TEST_CASE("an open queue pair is no work") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  CHECK(io.run() == 0);
  CHECK(io.stopped());
}

TEST_CASE("run returns when the last handler has run") {
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::adaptive, completion_mode::busy);
  ground g;
  asio::io_context io(1);
  completion_queue::set_default_options(io, in_mode(mode));
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  // More than the queue is deep, and each starts another one.
  for (int i = 0; i < 500; ++i)
    q.a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t) {
      CHECK_FALSE(ec);
      ++done;
      q.a.async_read(g.part(2), g.remote_part(1), [&](error_code ec2, std::size_t) {
        CHECK_FALSE(ec2);
        ++done;
      });
    });
  io.run();
  CHECK(done == 1000);
  CHECK(io.stopped());
  // And again, from the idle state.
  for (int round = 0; round < 100; ++round) {
    io.restart();
    bool called = false;
    q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { called = true; });
    io.run();
    REQUIRE(called);
    REQUIRE(io.stopped());
  }
}

TEST_CASE("a pending receive is work, until it is cancelled, closed or filled") {
  const int end = GENERATE(0, 1, 2);
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  got r;
  q.b.async_receive(g.part(1), r.handler());
  q.a.async_write(g.part(0), g.remote_part(2), [&](error_code, std::size_t) {
    // Once this has run, only the receive is left.
    asio::post(io, [&] {
      io.poll(); // nothing is ready
      CHECK_FALSE(io.stopped());
      CHECK(r.calls == 0);
      if (end == 0)
        q.b.cancel();
      else if (end == 1)
        q.b.close();
      else
        q.a.async_send(g.part(0), [](error_code, std::size_t) {});
    });
  });
  io.run();
  CHECK(r.calls == 1);
  CHECK(r.ec == (end == 2 ? error_code() : error_code(asio::error::operation_aborted)));
}

TEST_CASE("run waits for handlers that are on their way to a strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  for (int i = 0; i < 50; ++i)
    q.a.async_write(g.part(0), g.remote_part(1),
                    asio::bind_executor(strand, [&](error_code, std::size_t) { ++done; }));
  io.run();
  CHECK(done == 50);
}

TEST_CASE("an operation is work of its handler's context too") {
  ground g;
  asio::io_context io(1), other(1);
  linked<asio::any_io_executor> q(io, g);
  std::thread::id ran;
  q.a.async_write(g.part(0), g.remote_part(1),
                  asio::bind_executor(
                      other, [&](error_code, std::size_t) { ran = std::this_thread::get_id(); }));
  std::thread runner([&] { other.run(); }); // must not return before the handler has run
  const std::thread::id id = runner.get_id();
  io.run();
  runner.join();
  CHECK(ran == id);
}

TEST_CASE("a wait for a disconnect is work") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  outcome<void> wait;
  q.a.async_wait_disconnect(wait.handler());
  io.poll();
  CHECK_FALSE(io.stopped());
  q.a.cancel();
  io.run();
  CHECK(wait.calls == 1);
  CHECK(wait.ec == asio::error::operation_aborted);
}

TEST_CASE("a gathered batch is work before it is committed") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  {
    queue_pair::batch batch(q.a);
    for (int i = 0; i < 10; ++i)
      q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { ++done; });
    io.poll();
    CHECK_FALSE(io.stopped());
    CHECK(done == 0);
  }
  io.run();
  CHECK(done == 10);
}

TEST_CASE("four threads run one context, and all return when all is done") {
  ground g;
  asio::io_context io;
  linked<asio::any_io_executor> q(io, g);
  for (int round = 0; round < 20; ++round) {
    io.restart();
    std::atomic<int> done{0};
    for (int i = 0; i < 200; ++i)
      q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) { ++done; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { io.run(); });
    for (std::thread& t : threads)
      t.join();
    REQUIRE(done == 200);
  }
}

// --- The context is destroyed
// ---------------------------------------------------------------------

TEST_CASE("a context that is destroyed destroys the handlers of its operations, uncalled") {
  const auto mode = GENERATE(completion_mode::event, completion_mode::adaptive,
                             completion_mode::busy, completion_mode::manual);
  ground g;
  INFO("mode " << static_cast<int>(mode));
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>();
    alive = token;
    asio::io_context io(1);
    completion_queue::set_default_options(io, in_mode(mode));
    const strand_type strand(io.get_executor());
    linked<asio::any_io_executor> q(io, g);
    for (int i = 0; i < 300; ++i) { // posted and waiting for room
      q.b.async_receive(g.part(1), never_called{token});
      q.a.async_write(g.part(0), g.remote_part(2), never_called{token});
      q.a.async_write(g.part(0), g.remote_part(2),
                      asio::bind_executor(strand, never_called{token}));
    }
    q.a.async_wait_disconnect(never_called{token});
    queue_pair(io).async_send(g.part(0), never_called{token});
  }
  CHECK(alive.expired());
}

TEST_CASE("a queue pair may outlive its context") {
  ground g;
  auto io = std::make_unique<asio::io_context>(1);
  linked<asio::any_io_executor> q(*io, g);
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> alive = token;
  q.b.async_receive(g.part(1), never_called{token});
  q.a.async_write(g.part(0), g.remote_part(1), never_called{token});
  q.a.async_wait_disconnect(never_called{std::move(token)});
  io.reset();
  CHECK(alive.expired());
  CHECK(q.a.state() == queue_pair_state::closed);
  q.a.cancel();
  q.a.close();
}

TEST_CASE("so may a completion queue, and a batch, and a cancellation signal") {
  ground g;
  auto io = std::make_unique<asio::io_context>(1);
  completion_queue cq(*io, g.dev);
  queue_pair a(*io);
  a.open(g.pd, cq);
  asio::cancellation_signal signal;
  a.async_receive(g.part(1), asio::bind_cancellation_slot(signal.slot(),
                                                          never_called{std::make_shared<int>()}));
  queue_pair::batch batch(a);
  a.async_receive(g.part(1), never_called{std::make_shared<int>()});
  io.reset();
  signal.emit(asio::cancellation_type::terminal);
  batch.commit();
  CHECK(cq.poll() == 0);
}

TEST_CASE("handlers may own the queue pairs that they wait for") {
  ground g;
  std::weak_ptr<linked<asio::any_io_executor>> alive;
  {
    asio::io_context io(1);
    auto q = std::make_shared<linked<asio::any_io_executor>>(io, g);
    alive = q;
    for (int i = 0; i < 200; ++i) {
      q->b.async_receive(g.part(1), [q](error_code, received) {});
      q->a.async_write(g.part(0), g.remote_part(1), [q](error_code, std::size_t) {});
    }
    q->a.async_wait_disconnect([q](error_code) {});
    q->b.async_wait_disconnect([q](error_code) {});
  }
  CHECK(alive.expired());
}

TEST_CASE(
    "the context goes while a failure waits to be noticed, and the handlers own the queue pair") {
  ground g;
  std::weak_ptr<queue_pair> alive;
  {
    asio::io_context io(1);
    auto q = std::make_unique<linked<asio::any_io_executor>>(io, g);
    auto b = std::make_shared<queue_pair>(std::move(q->b));
    alive = b;
    for (int i = 0; i < 3; ++i)
      b->async_receive(g.part(1), [](error_code, received) {});
    b->async_wait_disconnect([b](error_code) {}); // the last owner
    // The device fails b's receives; nobody has looked at the completion queue yet.
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(b->native_handle(), &attr, IBV_QP_STATE) == 0);
    // Closing a looks, while the context shuts down.
    q->a.async_receive(g.part(2), [](error_code, received) {});
    auto keeps_a = std::make_shared<queue_pair>(std::move(q->a));
    keeps_a->async_wait_disconnect([keeps_a](error_code) {});
  }
  CHECK(alive.expired());
}

TEST_CASE("what a destroyed handler starts, or closes, harms nobody") {
  ground g;
  int destroyed = 0;
  {
    asio::io_context io(1);
    auto q = std::make_shared<linked<asio::any_io_executor>>(io, g);
    for (int i = 0; i < 3; ++i) {
      q->b.async_receive(g.part(1), restless(q, g, destroyed));
      q->a.async_write(g.part(0), g.remote_part(1), restless(q, g, destroyed));
      q->a.async_wait_disconnect(restless(q, g, destroyed));
    }
  }
  CHECK(destroyed == 9);
}

// --- Exceptions, stop and restart
// ------------------------------------------------------------------

TEST_CASE("an exception from a handler leaves run, and nothing is lost") {
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::adaptive, completion_mode::busy);
  ground g;
  asio::io_context io(1);
  completion_queue::set_default_options(io, in_mode(mode));
  linked<asio::any_io_executor> q(io, g);
  std::vector<int> order;
  {
    queue_pair::batch batch(q.a);
    for (int i = 0; i < 64; ++i)
      q.a.async_write(g.part(0), g.remote_part(1), [&, i](error_code ec, std::size_t) {
        CHECK_FALSE(ec);
        order.push_back(i);
        if (i % 3 == 0)
          throw i;
      });
  }
  int caught = 0;
  for (;;) {
    try {
      io.run();
      break;
    } catch (int i) {
      CHECK(i == order.back());
      ++caught;
    }
  }
  CHECK(caught == 22);
  REQUIRE(order.size() == 64);
  for (int i = 0; i < 64; ++i)
    CHECK(order[static_cast<std::size_t>(i)] == i);
  CHECK(io.stopped());
}

TEST_CASE("an exception leaves poll of a manual queue, and nothing is lost") {
  ground g;
  asio::io_context io(1);
  completion_queue_options options;
  options.mode = completion_mode::manual;
  completion_queue cq(io, g.dev, options);
  queue_pair a(io), b(io);
  a.open(g.pd, cq);
  b.open(g.pd, cq);
  a.connect(b.local_address());
  b.connect(a.local_address());
  int done = 0;
  const auto start_ten = [&] {
    for (int i = 0; i < 10; ++i)
      a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) {
        ++done;
        throw 0;
      });
  };
  // Outside of the context the handlers are posted: each exception leaves a run of its own.
  start_ten();
  for (std::size_t n = 0; n != 10;)
    n += cq.poll();
  int caught = 0;
  while (caught != 10) {
    try {
      io.poll();
    } catch (int) {
      ++caught;
    }
  }
  CHECK(done == 10);
  // Inside, dispatch runs them in poll, and Asio throws what they threw when poll has returned.
  start_ten();
  while (done != 20) {
    io.restart();
    asio::post(io, [&] { cq.poll(); });
    try {
      io.poll();
    } catch (...) {
    }
  }
  io.restart();
  CHECK(io.run() == 0);
}

TEST_CASE("an exception from a handler of a closed queue pair or of a wait loses nothing") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  int done = 0, caught = 0;
  const auto thrower = [&](error_code ec, auto&&...) {
    CHECK(ec == asio::error::operation_aborted);
    ++done;
    throw 0;
  };
  for (int i = 0; i < 5; ++i) {
    q.a.async_wait_disconnect(thrower);
    q.a.async_receive(g.part(1), thrower);
  }
  q.a.close();
  for (;;) {
    try {
      io.run();
      break;
    } catch (int) {
      ++caught;
    }
  }
  CHECK(done == 10);
  CHECK(caught == 10);
}

TEST_CASE("stop keeps what is outstanding for the next run") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  for (int i = 0; i < 300; ++i)
    q.a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t) {
      CHECK_FALSE(ec);
      ++done;
      io.stop();
    });
  int runs = 0;
  while (done != 300) {
    io.restart();
    io.run();
    REQUIRE(++runs <= 300);
  }
  io.restart();
  CHECK(io.run() == 0);
}

// --- Moves and default tokens
// ----------------------------------------------------------------------

TEST_CASE("a queue pair moves with operations outstanding; what it left can be opened again") {
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

TEST_CASE("move assignment ends the operations of what was there") {
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
  awaitable_pair a(io, g.pd), b(io, g.pd);
  connect_by_address(a, b);
  bool finished = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const std::size_t n = co_await a.async_write(g.part(0), g.remote_part(1));
        CHECK(n == 64);
        // Not in CHECK, whose macro names its expression twice.
        const std::size_t read = co_await a.async_read(g.part(2), g.remote_part(1));
        CHECK(read == 64);
        const std::size_t sent =
            co_await a.async_send(g.part(2, 0), awaitable_pair::flags::none, asio::use_awaitable);
        CHECK(sent == 0);
        finished = true;
      },
      [](std::exception_ptr e) {
        if (e)
          std::rethrow_exception(e);
      });
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
      [](std::exception_ptr e) {
        if (e)
          std::rethrow_exception(e);
      });
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
      [](std::exception_ptr e) {
        if (e)
          std::rethrow_exception(e);
      });
  io.run();
  CHECK(n == 100);
}
