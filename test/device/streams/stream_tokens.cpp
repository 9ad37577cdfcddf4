// SPDX-License-Identifier: BSL-1.0
// Asio's own algorithms and completion tokens on a stream, with its type requirements enabled.
#define BOOST_ASIO_ENABLE_HANDLER_TYPE_REQUIREMENTS
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffered_stream.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>

#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace test::stream_tokens_tests {
namespace {

using namespace asio::experimental::awaitable_operators;
using asio_rdma::stream;

static_assert(std::is_same_v<stream::lowest_layer_type, stream>);
static_assert(std::is_same_v<stream::rebind_executor<asio::io_context::executor_type>::other,
                             asio_rdma::basic_stream<asio::io_context::executor_type>>);
static_assert(std::is_nothrow_move_constructible_v<stream>);
static_assert(!std::is_copy_constructible_v<stream>);
static_assert(asio_rdma::connectable<stream>);

/// A user's own protocol: a line is sent, and a line is received.
struct ask_op {
  stream& s;
  const std::string& question;
  std::string& answer;
  int step = 0;

  template <class Self>
  void operator()(Self& self, error_code ec = {}, std::size_t n = 0) {
    if (ec)
      return self.complete(ec, n);
    switch (step++) {
    case 0:
      return asio::async_write(s, asio::buffer(question), std::move(self));
    case 1:
      return asio::async_read_until(s, asio::dynamic_buffer(answer), '\n', std::move(self));
    default:
      self.complete({}, n);
    }
  }
};

template <class Token>
auto async_ask(stream& s, const std::string& question, std::string& answer, Token&& token) {
  return asio::async_compose<Token, void(error_code, std::size_t)>(ask_op{s, question, answer},
                                                                   token, s);
}

} // namespace

TEST_CASE("a composed operation of one's own, and lines") {
  stream_pair t;
  std::string answer;
  outcome<std::size_t> asked;
  const std::string question = "what\n";
  async_ask(t.a, question, answer, asked.handler());
  t.play([&]() -> asio::awaitable<void> {
    std::string line;
    co_await asio::async_read_until(t.b, asio::dynamic_buffer(line), '\n', asio::use_awaitable);
    CHECK(line == "what\n");
    co_await asio::async_write(t.b, asio::buffer(std::string("that\nmore")), asio::use_awaitable);
  }());
  t.until([&] { return asked.done(); });
  CHECK(asked.value == 5);
  CHECK(answer.starts_with("that\n"));
}

TEST_CASE("futures, while another thread runs the context") {
  stream_pair t;
  t.io.restart();
  auto work = asio::make_work_guard(t.io);
  std::thread runs([&] { t.io.run(); });
  const std::string sent(50000, 'f');
  std::string got(sent.size(), ' ');
  auto wrote = asio::async_write(t.a, asio::buffer(sent), asio::use_future);
  auto read = asio::async_read(t.b, asio::buffer(got), asio::use_future);
  CHECK(wrote.get() == sent.size());
  CHECK(read.get() == sent.size());
  CHECK(got == sent);
  work.reset();
  t.io.stop();
  runs.join();
}

TEST_CASE("deferred, as_tuple and read_at_least") {
  stream_pair t;
  t.play([&]() -> asio::awaitable<void> {
    constexpr auto tuple = asio::experimental::as_tuple(asio::use_awaitable);
    char memory[100];
    auto later = t.a.async_write_some(asio::buffer("0123456789", 10), asio::deferred);
    CHECK(t.b.available() == 0);
    co_await std::move(later)(asio::use_awaitable);
    const auto [ec, n] =
        co_await asio::async_read(t.b, asio::buffer(memory), asio::transfer_at_least(5), tuple);
    CHECK(!ec);
    CHECK(n == 10);
    t.a.shutdown(asio::socket_base::shutdown_send);
    const auto [end, none] = co_await t.b.async_read_some(asio::buffer(memory), tuple);
    CHECK(end == asio::error::eof);
    CHECK(none == 0);
  }());
}

TEST_CASE("a read that loses against a timer has taken nothing") {
  stream_pair t;
  asio::steady_timer timer(t.io, std::chrono::milliseconds(1));
  char memory[10];
  bool over = false;
  error_code read_ec;
  asio::experimental::make_parallel_group(
      [&](auto token) { return t.b.async_read_some(asio::buffer(memory), token); },
      [&](auto token) { return timer.async_wait(token); })
      .async_wait(asio::experimental::wait_for_one(),
                  [&](std::array<std::size_t, 2>, error_code ec, std::size_t, error_code) {
                    over = true;
                    read_ec = ec;
                  });
  t.until([&] { return over; });
  CHECK(read_ec == asio::error::operation_aborted);
  t.a.write_some(asio::buffer("abc", 3));
  CHECK(t.b.read_some(asio::buffer(memory)) == 3);
}

TEST_CASE("a buffered stream") {
  stream_pair t;
  asio::buffered_stream<stream&> a(t.a), b(t.b);
  t.play([&]() -> asio::awaitable<void> {
    for (int i = 0; i < 100; ++i)
      co_await asio::async_write(a, asio::buffer("ab", 2), asio::use_awaitable);
    co_await a.async_flush(asio::use_awaitable);
    std::string got(200, ' ');
    co_await asio::async_read(b, asio::buffer(got), asio::use_awaitable);
    CHECK(got.substr(198) == "ab");
  }());
}

TEST_CASE("a stream of another executor") {
  stream_pair t;
  asio_rdma::basic_stream<asio::io_context::executor_type> plain(t.io);
  plain.open(t.pool);
  CHECK(plain.is_open());
  stream any(std::move(plain));
  CHECK(any.is_open());
}

TEST_CASE(
    "streams, an acceptor and a connector with a default token, which the program does not name") {
  using awaiting_stream = asio::use_awaitable_t<>::as_default_on_t<stream>;
  stream_pair t;
  auto listener = asio::use_awaitable.as_default_on(std::move(t.listener));
  auto initiator = asio::use_awaitable.as_default_on(std::move(t.initiator));
  CHECK(listener.is_open());
  const auto serve = [&]() -> asio::awaitable<void> {
    // Its other forms, of which none is called here, are well-formed, too.
    [[maybe_unused]] const auto others = [&](stream_options o, accept_options how) {
      return std::tuple(listener.async_accept<awaiting_stream>(t.pool),
                        listener.async_accept<awaiting_stream>(t.pool, o),
                        listener.async_accept<awaiting_stream>(t.pool, o, how),
                        listener.async_accept<awaiting_stream>(t.io, t.pool, {}),
                        listener.async_accept<awaiting_stream>(t.io, t.pool, o),
                        listener.async_accept<awaiting_stream>(t.io, t.pool, o, how));
    };
    auto s = co_await listener.async_accept<awaiting_stream>(t.pool, {});
    std::string line;
    co_await asio::async_read_until(s, asio::dynamic_buffer(line), '\n');
    CHECK(line == "what\n");
    co_await s.async_wait(stream::wait_write);
    co_await asio::async_write(s, asio::buffer(line));
    const registered_buffer piece = co_await s.async_receive();
    CHECK(piece.size() == 3);
    // The other form, with an existing object.
    awaiting_stream other(t.io, t.pool);
    const connection_info info = co_await listener.async_accept(other);
    CHECK(info.remote == other.remote_endpoint());
    auto third = co_await listener.async_accept<awaiting_stream>(asio::make_strand(t.io), t.pool);
    CHECK(third.is_open());
    auto fourth = co_await listener.async_accept<awaiting_stream>(t.pool);
    CHECK(fourth.is_open());
  };
  const auto call = [&]() -> asio::awaitable<void> {
    awaiting_stream s(t.io, t.pool);
    co_await initiator.async_connect(s, listener.local_endpoint());
    co_await s.async_write_some(asio::buffer("what\n", 5));
    char memory[5];
    co_await s.async_read_some(asio::buffer(memory, 1));
    co_await s.async_receive(asio::buffer(memory, 1));
    const std::size_t rest = co_await asio::async_read(s, asio::buffer(memory, 3));
    CHECK(rest == 3);
    co_await s.async_send(asio::buffer("abc", 3));
    awaiting_stream other(t.io, t.pool);
    const std::vector<asio::ip::tcp::endpoint> endpoints(1, listener.local_endpoint());
    co_await initiator.async_connect(other, endpoints);
    awaiting_stream third(t.io, t.pool), fourth(t.io, t.pool);
    co_await initiator.async_connect(third, listener.local_endpoint());
    co_await initiator.async_connect(fourth, listener.local_endpoint());
  };
  t.play([&]() -> asio::awaitable<void> {
    co_await (serve() && call());
  }());
}

TEST_CASE("a connected stream becomes one with a default token") {
  stream_pair t;
  auto a = asio::use_awaitable.as_default_on(std::move(t.a));
  CHECK_FALSE(t.a.is_open());
  using tuple_token = asio::experimental::as_tuple_t<asio::use_awaitable_t<>>;
  tuple_token::as_default_on_t<asio_rdma::basic_stream<asio::io_context::executor_type>> closed(
      t.io.get_executor());
  t.play([&]() -> asio::awaitable<void> {
    co_await a.async_write_some(asio::buffer("abc", 3));
    const auto [ec, none] = co_await closed.async_write_some(asio::buffer("abc", 3));
    CHECK(ec == asio::error::bad_descriptor);
    CHECK(none == 0);
  }());
  char memory[10];
  CHECK(t.b.read_some(asio::buffer(memory)) == 3);
}

TEST_CASE("a stream takes the first endpoint of a range that answers") {
  asio::io_context io(1);
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  const auto to = [&](const asio::ip::tcp::endpoint& e) {
    return asio::ip::tcp::endpoint(device_address(dev), e.port());
  };
  asio::ip::tcp::endpoint nobody;
  {
    acceptor other(io, {device_address(dev), 0});
    nobody = to(other.local_endpoint());
  }
  acceptor listener(io, {device_address(dev), 0});
  connector initiator(io);
  const std::vector<asio::ip::tcp::endpoint> endpoints{nobody, nobody,
                                                       to(listener.local_endpoint()), nobody};
  stream a(io), b(io);
  a.open(pool);
  b.open(pool);
  test::connection accepted, connected;
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, endpoints, connected.handler());
  test::until(io, [&] { return accepted.done() && connected.done(); });
  REQUIRE(connected.succeeded());
  REQUIRE(accepted.succeeded());
  CHECK(a.remote_endpoint() == endpoints[2]);
  char c = 0;
  outcome<std::size_t> read, write;
  a.async_write_some(asio::buffer("c", 1), write.handler());
  b.async_read_some(asio::buffer(&c, 1), read.handler());
  test::until(io, [&] { return read.done() && write.done(); });
  CHECK(c == 'c');
  // If no endpoint answers, the last failure is reported, and the stream is not connected.
  stream lone(io);
  lone.open(pool);
  test::connection refused;
  initiator.async_connect(lone, std::vector{nobody, nobody}, refused.handler());
  test::until(io, [&] { return refused.done(); });
  CHECK(refused.ec == error::peer_not_listening);
  CHECK_THROWS(lone.remote_endpoint());
}

} // namespace test::stream_tokens_tests
