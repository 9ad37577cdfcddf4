// SPDX-License-Identifier: BSL-1.0
// asio::ssl::stream over a stream: both sides show a certificate, and HTTP and WebSocket on top.
#include "catch.hpp"
#include "stream_support.hpp"
#include "tls_identity.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/beast/websocket/ssl.hpp>

#include <string>

namespace {

using namespace test;
using namespace asio::experimental::awaitable_operators;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using tls_stream = asio::ssl::stream<asio_rdma::stream&>;

struct tls_pair : stream_pair {
  identity of_a, of_b, stranger;
  asio::ssl::context context_a = context_of(of_a, of_b), context_b = context_of(of_b, of_a);
  tls_stream tls_a{a, context_a}, tls_b{b, context_b};

  asio::awaitable<void> shake_hands() {
    co_await (tls_a.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable) &&
              tls_b.async_handshake(asio::ssl::stream_base::server, asio::use_awaitable));
  }
};

} // namespace

TEST_CASE("mutual TLS, HTTP over it, and its shutdown") {
  tls_pair t;
  const std::string body(3000000, 'b');
  t.play([&]() -> asio::awaitable<void> {
    co_await t.shake_hands();
    const auto client = [&]() -> asio::awaitable<void> {
      http::request<http::string_body> request(http::verb::post, "/", 11);
      request.body() = body;
      request.prepare_payload();
      co_await http::async_write(t.tls_a, request, asio::use_awaitable);
      beast::flat_buffer buffer;
      http::response<http::string_body> answer;
      co_await http::async_read(t.tls_a, buffer, answer, asio::use_awaitable);
      CHECK(answer.body() == body);
    };
    const auto server = [&]() -> asio::awaitable<void> {
      beast::flat_buffer buffer;
      http::request_parser<http::string_body> parser;
      parser.body_limit(boost::none);
      co_await http::async_read(t.tls_b, buffer, parser, asio::use_awaitable);
      http::response<http::string_body> answer(http::status::ok, 11);
      answer.body() = parser.get().body();
      answer.prepare_payload();
      co_await http::async_write(t.tls_b, answer, asio::use_awaitable);
    };
    co_await (client() && server());
    co_await (t.tls_a.async_shutdown(asio::use_awaitable) &&
              t.tls_b.async_shutdown(asio::use_awaitable));
  }());
}

TEST_CASE("a stranger's certificate is refused") {
  tls_pair t;
  asio::ssl::context strange = context_of(t.stranger, t.of_b);
  tls_stream stranger(t.a, strange);
  outcome<void> client, server;
  stranger.async_handshake(asio::ssl::stream_base::client, client.handler());
  t.tls_b.async_handshake(asio::ssl::stream_base::server, server.handler());
  t.until([&] { return server.done(); });
  CHECK(server.ec.category() == asio::error::get_ssl_category());
}

TEST_CASE("a stream that ends within TLS is seen as cut off") {
  tls_pair t;
  t.play(t.shake_hands());
  t.a.close();
  char c = 0;
  outcome<std::size_t> got;
  t.tls_b.async_read_some(asio::buffer(&c, 1), got.handler());
  t.until([&] { return got.done(); });
  CHECK(got.ec == asio::ssl::error::stream_truncated);
}

TEST_CASE("WebSocket over mutual TLS") {
  tls_pair t;
  t.play([&]() -> asio::awaitable<void> {
    co_await t.shake_hands();
    websocket::stream<tls_stream&> a(t.tls_a), b(t.tls_b);
    co_await (a.async_handshake("peer", "/", asio::use_awaitable) &&
              b.async_accept(asio::use_awaitable));
    const std::string sent(100000, 'w');
    beast::flat_buffer buffer;
    co_await (a.async_write(asio::buffer(sent), asio::use_awaitable) &&
              b.async_read(buffer, asio::use_awaitable));
    CHECK(beast::buffers_to_string(buffer.data()) == sent);
  }());
}
