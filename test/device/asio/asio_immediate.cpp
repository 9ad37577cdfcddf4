// SPDX-License-Identifier: BSL-1.0
//
// The executor of a handler whose operation fails at once.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/version.hpp>
#if BOOST_VERSION >= 108200
#include <boost/asio/bind_immediate_executor.hpp>
#endif

#include <vector>

namespace test::asio_immediate_tests {
namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

/// Starts operations that fail at once, each a different way, with handlers of `make()`.
template <class Executor, class Make>
int start_failing(linked<Executor>& q, basic_queue_pair<Executor>& fresh,
                  basic_queue_pair<Executor>& closed, const ground& g, Make make) {
  closed.async_send(g.part(0), make(asio::error::bad_descriptor));
  closed.async_receive(g.part(0), make(asio::error::bad_descriptor));
  closed.async_wait_disconnect(make(asio::error::bad_descriptor));
  fresh.async_send(g.part(0), make(asio::error::not_connected));
  q.a.async_write(g.part(0, 64), g.remote_part(1, 63), make(error::remote_range));
  q.a.async_read(g.part(0, 64), g.remote_part(1, 63), make(error::remote_range));
  // Also on a device without atomics: the request is checked before the device is asked.
  q.a.async_fetch_add(g.remote_part(1, 64) + 1, 1, make(error::misaligned));
  q.a.async_send(std::vector<mutable_buffer>(16, g.part(0)), make(error::too_many_buffers));
  q.a.async_receive(std::vector<mutable_buffer>(17, g.part(0)), make(error::too_many_buffers));
  return 9;
}

} // namespace

TEST_CASE("an immediate error never calls the handler from inside the initiating function") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  queue_pair fresh(io, g.pd), closed(io);
  int done = 0, started = 0;
  bool initiating = false;
  const auto make = [&](error_code expected) {
    return [&, expected](error_code ec, auto&&...) {
      CHECK_FALSE(initiating);
      CHECK(ec == expected);
      ++done;
    };
  };
  const auto start = [&] {
    initiating = true;
    started += start_failing(q, fresh, closed, g, make);
    initiating = false;
  };
  start();
  CHECK(done == 0);
  // Nor on a thread that runs the context.
  asio::dispatch(io, start);
  asio::post(io, start);
  io.run();
  CHECK(done == started);
  CHECK(started == 27);
}

TEST_CASE("an immediate error does not call the handler inside the initiating function in the "
          "running strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  linked<strand_type> q(strand, g);
  basic_queue_pair<strand_type> fresh(strand, g.pd), closed(strand);
  int done = 0, started = 0;
  bool initiating = false;
  asio::post(strand, [&] {
    initiating = true;
    started = start_failing(q, fresh, closed, g, [&](error_code expected) {
      return [&, expected](error_code ec, auto&&...) {
        CHECK_FALSE(initiating);
        CHECK(strand.running_in_this_thread());
        CHECK(ec == expected);
        ++done;
      };
    });
    initiating = false;
  });
  io.run();
  CHECK(done == started);
}

TEST_CASE("an immediate error's handler runs on the associated executor") {
  ground g;
  asio::io_context io(1);
  recording_executor::record record;
  queue_pair closed(io);
  bool called = false;
  closed.async_send(g.part(0), asio::bind_executor(recording_executor(io, record),
                                                   [&](error_code ec, std::size_t) {
                                                     CHECK(ec == asio::error::bad_descriptor);
                                                     CHECK(record.running == 1);
                                                     called = true;
                                                   }));
  CHECK_FALSE(called);
  io.run();
  CHECK(called);
}

#if BOOST_VERSION >= 108200
TEST_CASE("an immediate error's handler runs on the immediate executor if the handler has one") {
  ground g;
  asio::io_context io(1);
  queue_pair closed(io);
  bool called = false;
  closed.async_send(g.part(0), asio::bind_immediate_executor(
                                   asio::system_executor(), [&](error_code ec, std::size_t) {
                                     CHECK(ec == asio::error::bad_descriptor);
                                     called = true;
                                   }));
  CHECK(called); // the handler asked for it
  io.run();
}

TEST_CASE("an immediate error passes through the immediate executor and then the handler's own "
          "executor") {
  ground g;
  asio::io_context io(1);
  recording_executor::record record;
  queue_pair closed(io);
  bool called = false;
  closed.async_send(g.part(0), asio::bind_immediate_executor(
                                   asio::system_executor(),
                                   asio::bind_executor(recording_executor(io, record),
                                                       [&](error_code ec, std::size_t) {
                                                         CHECK(ec == asio::error::bad_descriptor);
                                                         CHECK(record.running == 1);
                                                         called = true;
                                                       })));
  CHECK_FALSE(called);
  io.run();
  CHECK(called);
  CHECK(record.executed == 1);
}
#endif

} // namespace test::asio_immediate_tests
