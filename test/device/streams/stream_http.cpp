// SPDX-License-Identifier: BSL-1.0
// Boost.Beast's HTTP and WebSocket over a stream, without changes.
#include "catch.hpp"
#include "device/streams/stream_web.hpp"
#include "device/support/long_run.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace test::stream_http_tests {
namespace {

using namespace asio::experimental::awaitable_operators;

static_assert(beast::is_async_stream<asio_rdma::stream>::value);
static_assert(beast::is_sync_stream<asio_rdma::stream>::value);

constexpr std::size_t piece = std::size_t(1) << 18; // of a body that is produced in pieces

/// Writes a message whose body is generated.
template <bool is_request>
asio::awaitable<void> write_endless(asio_rdma::stream& s,
                                    http::message<is_request, http::buffer_body> m,
                                    std::uint64_t bytes, const endless_bytes& from) {
  m.content_length(bytes);
  http::serializer<is_request, http::buffer_body> out(m);
  co_await http::async_write_header(s, out, asio::use_awaitable);
  std::vector<std::uint8_t> memory(piece);
  for (std::uint64_t at = 0; at != bytes;) {
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(piece, bytes - at));
    std::copy_n(from.at(at), n, memory.begin());
    at += n;
    m.body() = {memory.data(), n, at != bytes};
    beast::error_code ec;
    co_await http::async_write(s, out, asio::redirect_error(asio::use_awaitable, ec));
    if (ec && ec != http::error::need_buffer)
      throw beast::system_error(ec);
  }
}

/// Reads such a message and compares its body; `look` is called after each fifth.
template <bool is_request, class Look>
asio::awaitable<void> read_endless(asio_rdma::stream& s, std::uint64_t bytes,
                                   const endless_bytes& expected, Look look) {
  beast::flat_buffer buffer;
  buffer.reserve(piece); // otherwise Beast reads 512 bytes at a time
  http::parser<is_request, http::buffer_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(s, buffer, parser, asio::use_awaitable);
  CHECK(parser.content_length().value_or(0) == bytes);
  std::vector<std::uint8_t> memory(piece);
  std::uint64_t at = 0;
  for (std::uint64_t next_look = bytes / 5; !parser.is_done();) {
    parser.get().body() = {memory.data(), memory.size()};
    beast::error_code ec;
    co_await http::async_read(s, buffer, parser, asio::redirect_error(asio::use_awaitable, ec));
    if (ec && ec != http::error::need_buffer)
      throw beast::system_error(ec);
    const std::size_t n = memory.size() - parser.get().body().size;
    expected.compare(at, memory.data(), n);
    at += n;
    if (at >= next_look) {
      next_look += bytes / 5;
      look();
    }
  }
  CHECK(at == bytes);
}

} // namespace

TEST_CASE("HTTP/1.1: bodies of 1 GiB each way, in flat memory") {
  const std::uint64_t bytes = std::uint64_t(1) << (is_sanitized ? 25 : 30);
  stream_pair t;
  t.pool.reserve(most_registered);
  const endless_bytes up(1), down(2);
  std::optional<memory_in_use> early;
  const auto look = [&] {
    const memory_in_use now(t.pool);
    if (!early)
      early = now;
    now.compare(*early);
  };
  const auto server = [&]() -> asio::awaitable<void> {
    co_await read_endless<true>(t.b, bytes, up, look);
    http::response<http::buffer_body> response(http::status::ok, 11);
    co_await write_endless(t.b, std::move(response), bytes, down);
  };
  const auto client = [&]() -> asio::awaitable<void> {
    http::request<http::buffer_body> request(http::verb::post, "/", 11);
    request.set(http::field::host, "peer");
    co_await write_endless(t.a, std::move(request), bytes, up);
    co_await read_endless<false>(t.a, bytes, down, look);
  };
  t.play(
      [&]() -> asio::awaitable<void> {
        co_await (server() && client());
      }(),
      std::chrono::minutes(4));
}

TEST_CASE("HTTP/1.1: keep-alive, chunked both ways, a large body") {
  stream_pair t;
  const std::size_t large = std::size_t(64) << 20;
  const auto server = [&]() -> asio::awaitable<void> {
    co_await serve(t.b, large);
    t.b.shutdown(asio::socket_base::shutdown_send);
  };
  t.play(
      [&]() -> asio::awaitable<void> {
        co_await (server() && ask_all(t.a, large));
      }(),
      std::chrono::minutes(4));
}

TEST_CASE("HTTP/1.1 without handlers") {
  stream_pair t;
  http::request<http::string_body> request(http::verb::post, "/", 11);
  request.body() = text_of_size(20000);
  request.prepare_payload();
  http::write(t.a, request);
  beast::flat_buffer buffer;
  http::request<http::string_body> got;
  http::read(t.b, buffer, got);
  CHECK(got.body() == request.body());
}

TEST_CASE("WebSocket with permessage-deflate, and its close") {
  stream_pair t;
  websocket::stream<asio_rdma::stream&> a(t.a), b(t.b);
  compress(a);
  compress(b);
  t.play([&]() -> asio::awaitable<void> {
    co_await (echo_messages(b) && exchange_messages(a));
  }());
  CHECK(!t.a.is_open());
  CHECK(!t.b.is_open());
}

} // namespace test::stream_http_tests
