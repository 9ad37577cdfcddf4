// SPDX-License-Identifier: BSL-1.0
//
// What a handler brings along, as in asio_associated.cpp, for what is not a queue pair's operation.
#include <asio_rdma/stream.hpp>

#include <catch.hpp>

#include "asio_support.hpp"

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/local/stream_protocol.hpp>

using namespace test;

namespace {

/// Objects that nothing can be started on.
template <class Executor>
struct unusable {
  template <class ExecutorOrContext>
  explicit unusable(ExecutorOrContext&& ex) : closed(ex), unopened(ex), socket(ex) {}

  basic_queue_pair<Executor> closed;
  basic_stream<Executor> unopened;
  asio::basic_stream_socket<asio::local::stream_protocol, Executor> socket;
};

/// Starts operations that fail at once, with handlers of `make(error)`.
template <class Executor, class Make>
int start_failing(unusable<Executor>& u, Make make) {
  async_exchange(u.socket, u.closed, make(asio::error::bad_descriptor));
  async_teardown(boost::beast::role_type(), u.unopened, make(asio::error::bad_descriptor));
  return 2;
}

} // namespace

TEST_CASE("an immediate error of any object's operation takes the way of the handler") {
  ground g;
  asio::io_context io(1);
  unusable<asio::any_io_executor> u(io);
  recording_executor::record record;
  const recording_executor ex(io, record);
  int done = 0, started = 0;
  bool initiating = false;
  asio::post(io, [&] {
    initiating = true;
    started = start_failing(u, [&](error_code expected) {
      return asio::bind_executor(ex, [&, expected](error_code ec, auto&&...) {
        CHECK_FALSE(initiating);
        CHECK(record.running == 1);
        CHECK(ec == expected);
        ++done;
      });
    });
    initiating = false;
  });
  io.run();
  CHECK(done == started);
  CHECK(record.executed == started);
}
