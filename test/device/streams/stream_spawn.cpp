// SPDX-License-Identifier: BSL-1.0
// Stackful coroutines on a stream, by Boost.Context. Boost.Coroutine is what older versions of Asio
// used.
#define BOOST_ASIO_DISABLE_BOOST_COROUTINE
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/asio/write.hpp>

#include <exception>
#include <string>

namespace test::stream_spawn_tests {
namespace {

/// The end of a coroutine.
struct course {
  bool over = false;
  std::exception_ptr failure;

  auto handler() {
    return [this](std::exception_ptr e) {
      over = true;
      failure = std::move(e);
    };
  }
};

} // namespace

TEST_CASE("stackful coroutines read, write, throw errors or take them") {
  stream_pair t;
  course client, server;
  asio::spawn(
      t.io,
      [&](asio::yield_context yield) {
        std::string line;
        for (int i = 0; i < 100; ++i) {
          line.clear();
          asio::async_read_until(t.b, asio::dynamic_buffer(line), '\n', yield);
          asio::async_write(t.b, asio::buffer(line), yield);
        }
        t.b.shutdown(asio::socket_base::shutdown_send);
        char c = 0;
        t.b.async_read_some(asio::buffer(&c, 1), yield); // throws
      },
      server.handler());
  asio::spawn(
      t.io,
      [&](asio::yield_context yield) {
        for (int i = 0; i < 100; ++i) {
          const std::string question(static_cast<std::size_t>(i * 700), 'q');
          std::string answer;
          asio::async_write(t.a, asio::buffer(question + '\n'), yield);
          const std::size_t n =
              asio::async_read_until(t.a, asio::dynamic_buffer(answer), '\n', yield);
          CHECK(n == question.size() + 1);
          CHECK(answer == question + '\n');
        }
        error_code ec;
        char c = 0;
        CHECK(t.a.async_read_some(asio::buffer(&c, 1), yield[ec]) == 0);
        CHECK(ec == asio::error::eof);
        t.a.close();
      },
      client.handler());
  t.until([&] { return client.over && server.over; });
  CHECK(!client.failure);
  REQUIRE(server.failure);
  try {
    std::rethrow_exception(server.failure);
  } catch (const system_error& e) {
    CHECK(e.code() == asio::error::eof);
  }
}

TEST_CASE("a stackful coroutine that is cancelled while it reads") {
  stream_pair t;
  course reader;
  asio::cancellation_signal signal;
  error_code ec;
  bool reads = false;
  asio::spawn(
      t.io,
      [&](asio::yield_context yield) {
        char c = 0;
        reads = true;
        t.a.async_read_some(asio::buffer(&c, 1), yield[ec]);
      },
      asio::bind_cancellation_slot(signal.slot(), reader.handler()));
  t.until([&] { return reads; });
  signal.emit(asio::cancellation_type::terminal);
  t.until([&] { return reader.over; });
  CHECK(ec == asio::error::operation_aborted);
}

} // namespace test::stream_spawn_tests
