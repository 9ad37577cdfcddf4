// SPDX-License-Identifier: BSL-1.0
// Exceptions from handlers; stop and restart.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "queues/completion_queue_impl.hpp"
#include "queues/completion_service.hpp"

#include <boost/asio/post.hpp>

#include <new>
#include <vector>

namespace test::asio_exceptions_tests {
TEST_CASE("an exception from a handler leaves run, and nothing is lost") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
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

// An operation of the library's own that throws, as it does if memory runs out.
struct internal_operation final : detail::operation {
  internal_operation(std::vector<int>& o, int n, bool t)
      : operation(&internal_operation::run), order(o), number(n), throws(t) {
    internal = true;
  }

  static void run(operation* base, detail::disposal) {
    auto& self = static_cast<internal_operation&>(*base);
    self.order.push_back(self.number);
    if (self.throws)
      throw std::bad_alloc();
  }

  std::vector<int>& order;
  int number;
  bool throws;
};

TEST_CASE("an internal operation that throws is counted, and the operations behind it run") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  const bool in_a_thread_that_blocks = GENERATE(false, true);
  ground g;
  asio::io_context io(1);
  error_code ec;
  const auto queue = detail::completion_service::of(io).make_queue(g.dev, {.mode = mode}, ec);
  REQUIRE_FALSE(ec);
  queue->expect_internal();
  std::vector<int> order;
  internal_operation first(order, 1, false), second(order, 2, true), third(order, 3, false);
  detail::operation_list list;
  for (internal_operation* const op : {&first, &second, &third}) {
    queue->operation_starting();
    list.push_back(*op);
  }
  queue->complete(list);
  if (in_a_thread_that_blocks)
    CHECK_THROWS_AS(queue->drive(-1, detail::waker::of_this_thread()), std::bad_alloc);
  else
    CHECK_THROWS_AS(io.run(), std::bad_alloc);
  CHECK(order == std::vector{1, 2});
  CHECK_FALSE(io.stopped());
  io.run(); // returns: all three have been counted
  CHECK(order == std::vector{1, 2, 3});
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
  connect(io, a, b);
  io.restart();
  int done = 0;
  const auto start_ten = [&] {
    for (int i = 0; i < 10; ++i)
      a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) {
        ++done;
        throw 0;
      });
  };
  // Outside of the context the handlers are posted: each exception leaves its own call of run().
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
  // Inside the context, dispatch runs the handlers in poll, and Asio throws their exceptions when
  // poll has returned.
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

TEST_CASE("stop keeps outstanding operations for the next run") {
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

TEST_CASE("after stop, at most 31 further handlers of a closed queue pair run") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  constexpr int receives = 100;
  int done = 0;
  for (int i = 0; i < receives; ++i)
    q.a.async_receive(g.part(0), [&](error_code ec, received) {
      CHECK(ec == asio::error::operation_aborted);
      if (++done == 1)
        io.stop();
    });
  q.a.close();
  io.run();
  CHECK(done <= 32);
  io.restart();
  io.run();
  CHECK(done == receives);
}

} // namespace test::asio_exceptions_tests
