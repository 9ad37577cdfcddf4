// SPDX-License-Identifier: BSL-1.0
// Conversations by HTTP and WebSocket, over any stream.
#pragma once

#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace test {

namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;

inline std::string text_of_size(std::size_t n) {
  std::string s(n, ' ');
  for (std::size_t i = 0; i < n; ++i)
    s[i] = static_cast<char>('a' + (i * 2654435761u >> 16) % 26);
  return s;
}

// Answers requests for the targets /echo, /chunked and /large, until the client ends the
// connection.
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

/// Keep-alive, chunked bodies in both directions, and a large body; the server ends the connection.
template <class Stream>
asio::awaitable<void> ask_all(Stream& s, std::size_t large) {
  beast::flat_buffer buffer;
  for (int i = 0; i < 50; ++i) {
    const std::string question = "question " + std::to_string(i);
    const std::string answer = co_await ask(s, buffer, "/echo", question, false, false);
    CHECK(answer == question);
  }
  const std::string longer = text_of_size(300000);
  const std::string chunked = co_await ask(s, buffer, "/chunked", longer, true, false);
  CHECK(chunked == longer);
  const std::string whole = co_await ask(s, buffer, "/large", "", false, true);
  CHECK(whole == text_of_size(large));
  beast::error_code ec;
  http::response<http::string_body> none;
  co_await http::async_read(s, buffer, none, asio::redirect_error(asio::use_awaitable, ec));
  CHECK(ec == http::error::end_of_stream);
}

template <class WebSocket>
void compress(WebSocket& s) {
  websocket::permessage_deflate deflate;
  deflate.client_enable = deflate.server_enable = true;
  s.set_option(deflate);
}

/// Sends all messages back, until the peer closes.
template <class WebSocket>
asio::awaitable<void> echo_messages(WebSocket& s) {
  co_await s.async_accept(asio::use_awaitable);
  for (;;) {
    beast::flat_buffer buffer;
    beast::error_code ec;
    co_await s.async_read(buffer, asio::redirect_error(asio::use_awaitable, ec));
    if (ec == websocket::error::closed)
      break;
    CHECK(!ec);
    s.text(s.got_text());
    co_await s.async_write(buffer.data(), asio::use_awaitable);
  }
}

template <class WebSocket>
asio::awaitable<void> exchange_messages(WebSocket& s) {
  co_await s.async_handshake("peer", "/", asio::use_awaitable);
  for (const std::size_t n :
       {std::size_t(0), std::size_t(5), std::size_t(100000), std::size_t(5) << 20}) {
    const std::string text = text_of_size(n);
    co_await s.async_write(asio::buffer(text), asio::use_awaitable);
    beast::flat_buffer buffer;
    co_await s.async_read(buffer, asio::use_awaitable);
    CHECK(beast::buffers_to_string(buffer.data()) == text);
  }
  co_await s.async_close(websocket::close_code::normal, asio::use_awaitable);
}

} // namespace test
