// SPDX-License-Identifier: BSL-1.0
// The work of the execution context.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include <atomic>
#include <thread>

namespace test::asio_work_tests {
namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

} // namespace

TEST_CASE("an open queue pair is no work") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  CHECK(io.run() == 0);
  CHECK(io.stopped());
}

TEST_CASE("run returns when the last handler has run") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  ground g;
  asio::io_context io(1);
  completion_queue::set_default_options(io, in_mode(mode));
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  // More operations than the queue is deep; each starts another one.
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
  // Again, from the idle state.
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
    // When this function has run, only the receive is left.
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
    run_by_threads(io, 4);
    REQUIRE(done == 200);
  }
}

} // namespace test::asio_work_tests
