// SPDX-License-Identifier: BSL-1.0
// asio::ssl::stream over a stream, with a certificate of each side, and HTTP on top.
#include "catch.hpp"
#include "device/streams/stream_web.hpp"
#include "device/support/tls_identity.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/ssl.hpp>

#include <string>
#include <thread>

namespace test::stream_tls_tests {
namespace {

using namespace asio::experimental::awaitable_operators;
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

TEST_CASE("HTTP over mutual TLS, and its shutdown") {
  tls_pair t;
  const std::size_t large = std::size_t(4) << 20;
  const auto server = [&]() -> asio::awaitable<void> {
    co_await serve(t.tls_b, large);
    co_await t.tls_b.async_shutdown(asio::use_awaitable);
  };
  const auto client = [&]() -> asio::awaitable<void> {
    co_await ask_all(t.tls_a, large);
    co_await t.tls_a.async_shutdown(asio::use_awaitable);
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await t.shake_hands();
    co_await (server() && client());
  }());
}

TEST_CASE("mutual TLS without handlers") {
  tls_pair t;
  const std::string text = text_of_size(300000);
  std::string got(text.size(), ' ');
  error_code of_peer;
  std::thread peer([&] {
    try {
      t.tls_b.handshake(asio::ssl::stream_base::server);
      asio::read(t.tls_b, asio::buffer(got));
      asio::write(t.tls_b, asio::buffer(got));
      t.tls_b.shutdown();
    } catch (const system_error& e) {
      of_peer = e.code();
    }
  });
  error_code ec;
  t.tls_a.handshake(asio::ssl::stream_base::client, ec);
  CHECK(ec == error_code());
  asio::write(t.tls_a, asio::buffer(text), ec);
  CHECK(ec == error_code());
  std::string back(text.size(), ' ');
  asio::read(t.tls_a, asio::buffer(back), ec);
  CHECK(ec == error_code());
  t.tls_a.shutdown(ec);
  CHECK(ec == error_code());
  peer.join();
  CHECK(of_peer == error_code());
  CHECK(back == text);
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

} // namespace test::stream_tls_tests
