// SPDX-License-Identifier: BSL-1.0
// Boost.Beast's HTTP and WebSocket over a stream, as they are.
#include "catch.hpp"
#include "long_run.hpp"
#include "stream_support.hpp"

#include <boost/asio/buffered_stream.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace {

using namespace test;
using namespace asio::experimental::awaitable_operators;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;

static_assert(beast::is_async_stream<asio_rdma::stream>::value);
static_assert(beast::is_sync_stream<asio_rdma::stream>::value);

std::string text_of_size(std::size_t n) {
  std::string s(n, ' ');
  for (std::size_t i = 0; i < n; ++i)
    s[i] = static_cast<char>('a' + (i * 2654435761u >> 16) % 26);
  return s;
}

// Answers what a target asks for: /echo, /chunked, /large; until the client wants no more.
template <class Stream>
asio::awaitable<void> serve(Stream& s, std::size_t large) {
  beast::flat_buffer buffer;
  for (bool more = true; more;) {
    http::request_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read(s, buffer, parser, asio::use_awaitable);
    const auto request = parser.release();
    http::response<http::string_body> answer(http::status::ok, request.version());
    answer.keep_alive(request.keep_alive());
    if (request.target() == "/large")
      answer.body() = text_of_size(large);
    else
      answer.body() = request.body();
    if (request.target() == "/chunked")
      answer.chunked(true);
    else
      answer.prepare_payload();
    co_await http::async_write(s, answer, asio::use_awaitable);
    more = request.keep_alive();
  }
  s.shutdown(asio::socket_base::shutdown_send);
}

template <class Stream>
asio::awaitable<std::string> ask(Stream& s, beast::flat_buffer& buffer, const char* target,
                                 std::string body, bool chunked, bool last) {
  http::request<http::string_body> request(http::verb::post, target, 11);
  request.set(http::field::host, "peer");
  request.body() = std::move(body);
  request.keep_alive(!last);
  if (chunked)
    request.chunked(true);
  else
    request.prepare_payload();
  co_await http::async_write(s, request, asio::use_awaitable);
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read(s, buffer, parser, asio::use_awaitable);
  CHECK(parser.get().result() == http::status::ok);
  co_return parser.release().body();
}

constexpr std::size_t piece = std::size_t(1) << 18; // of a body that is handed over by pieces

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
  buffer.reserve(piece); // or Beast reads 512 bytes at a time
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
  const auto client = [&]() -> asio::awaitable<void> {
    beast::flat_buffer buffer;
    for (int i = 0; i < 50; ++i)
      CHECK(co_await ask(t.a, buffer, "/echo", "question " + std::to_string(i), false, false) ==
            "question " + std::to_string(i));
    const std::string longer = text_of_size(300000);
    CHECK(co_await ask(t.a, buffer, "/chunked", longer, true, false) == longer);
    const std::string whole = co_await ask(t.a, buffer, "/large", "", false, true);
    CHECK(whole == text_of_size(large));
    beast::error_code ec;
    http::response<http::string_body> none;
    co_await http::async_read(t.a, buffer, none, asio::redirect_error(asio::use_awaitable, ec));
    CHECK(ec == http::error::end_of_stream);
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await (serve(t.b, large) && client());
  }());
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
  websocket::permessage_deflate deflate;
  deflate.client_enable = deflate.server_enable = true;
  websocket::stream<asio_rdma::stream&> a(t.a), b(t.b);
  a.set_option(deflate);
  b.set_option(deflate);
  const auto server = [&]() -> asio::awaitable<void> {
    co_await b.async_accept(asio::use_awaitable);
    for (;;) {
      beast::flat_buffer buffer;
      beast::error_code ec;
      co_await b.async_read(buffer, asio::redirect_error(asio::use_awaitable, ec));
      if (ec == websocket::error::closed)
        break;
      CHECK(!ec);
      b.text(b.got_text());
      co_await b.async_write(buffer.data(), asio::use_awaitable);
    }
  };
  const auto client = [&]() -> asio::awaitable<void> {
    co_await a.async_handshake("peer", "/", asio::use_awaitable);
    for (const std::size_t n :
         {std::size_t(0), std::size_t(5), std::size_t(100000), std::size_t(5) << 20}) {
      const std::string sent = text_of_size(n);
      co_await a.async_write(asio::buffer(sent), asio::use_awaitable);
      beast::flat_buffer buffer;
      co_await a.async_read(buffer, asio::use_awaitable);
      CHECK(beast::buffers_to_string(buffer.data()) == sent);
    }
    co_await a.async_close(websocket::close_code::normal, asio::use_awaitable);
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await (server() && client());
  }());
  CHECK(!t.a.is_open());
  CHECK(!t.b.is_open());
}
