// SPDX-License-Identifier: BSL-1.0
// Layers that own the stream below them, and layers that end it.
#include "catch.hpp"
#include "device/streams/stream_web.hpp"
#include "device/support/tls_identity.hpp"

#include <boost/asio/buffered_stream.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket/ssl.hpp>

#include <string>
#include <thread>

namespace test::stream_layers_tests {
namespace {

using namespace asio::experimental::awaitable_operators;
using tls_stream = asio::ssl::stream<asio_rdma::stream>;

} // namespace

TEST_CASE("WebSocket with permessage-deflate over mutual TLS, each layer the next one's owner") {
  stream_pair t;
  const identity of_a, of_b;
  asio::ssl::context context_a = context_of(of_a, of_b), context_b = context_of(of_b, of_a);
  websocket::stream<tls_stream> a(tls_stream(std::move(t.a), context_a));
  websocket::stream<tls_stream> b(tls_stream(std::move(t.b), context_b));
  compress(a);
  compress(b);
  t.play([&]() -> asio::awaitable<void> {
    co_await (a.next_layer().async_handshake(asio::ssl::stream_base::client, asio::use_awaitable) &&
              b.next_layer().async_handshake(asio::ssl::stream_base::server, asio::use_awaitable));
    co_await (echo_messages(b) && exchange_messages(a));
  }());
  CHECK(!beast::get_lowest_layer(a).is_open());
  CHECK(!beast::get_lowest_layer(b).is_open());
}

TEST_CASE("a buffered stream owns one") {
  stream_pair t;
  asio::buffered_stream<asio_rdma::stream> a(t.io), b(t.io);
  a.lowest_layer() = std::move(t.a);
  b.lowest_layer() = std::move(t.b);
  std::string line;
  const auto server = [&]() -> asio::awaitable<void> {
    co_await asio::async_read_until(b, asio::dynamic_buffer(line), '\n', asio::use_awaitable);
  };
  const auto client = [&]() -> asio::awaitable<void> {
    co_await asio::async_write(a, asio::buffer("one line\n", 9), asio::use_awaitable);
    co_await a.async_flush(asio::use_awaitable);
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await (server() && client());
  }());
  CHECK(line == "one line\n");
  CHECK(a.lowest_layer().is_open());
  a.close();
  CHECK(!a.lowest_layer().is_open());
}

TEST_CASE("a WebSocket's timeout ends the stream") {
  stream_pair t;
  websocket::stream<asio_rdma::stream> a(std::move(t.a)), b(std::move(t.b));
  a.set_option(websocket::stream_base::timeout{std::chrono::seconds(20),
                                               std::chrono::milliseconds(200),
                                               false}); // the last two: of idleness
  outcome<std::size_t> read;
  beast::flat_buffer buffer;
  t.play([&]() -> asio::awaitable<void> {
    co_await (a.async_handshake("peer", "/", asio::use_awaitable) &&
              b.async_accept(asio::use_awaitable));
  }());
  a.async_read(buffer, read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.ec == beast::error::timeout);
  CHECK(!beast::get_lowest_layer(a).is_open());
}

TEST_CASE("a WebSocket is closed without handlers") {
  stream_pair t;
  websocket::stream<asio_rdma::stream> a(std::move(t.a)), b(std::move(t.b));
  beast::error_code of_peer;
  std::string got;
  std::thread peer([&] {
    b.accept(of_peer);
    beast::flat_buffer buffer;
    if (!of_peer)
      b.read(buffer, of_peer);
    got = beast::buffers_to_string(buffer.data());
    if (!of_peer)
      b.read(buffer, of_peer);
  });
  beast::error_code ec;
  a.handshake("peer", "/", ec);
  CHECK(!ec);
  a.write(asio::buffer("text", 4), ec);
  CHECK(!ec);
  a.close(websocket::close_code::normal, ec);
  CHECK(!ec);
  peer.join();
  CHECK(of_peer == websocket::error::closed);
  CHECK(got == "text");
  CHECK(!beast::get_lowest_layer(a).is_open());
  CHECK(!beast::get_lowest_layer(b).is_open());
}

} // namespace test::stream_layers_tests
