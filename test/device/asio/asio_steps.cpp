// SPDX-License-Identifier: BSL-1.0
// The steps of composed operations on a context that several threads may run: they follow each
// other without turns of the context, and nothing waits for them.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/compose.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

namespace test::asio_steps_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::stream;

constexpr std::size_t byte_count = 200;

/// Reads a number of bytes, one in each step.
struct read_bytes {
  stream& from;
  char* to;
  std::size_t wanted;
  std::size_t& steps;
  std::size_t so_far = 0;

  template <class Self>
  void operator()(Self& self, error_code ec = {}, std::size_t n = 0) {
    so_far += n;
    ++steps;
    if (ec || so_far == wanted)
      return self.complete(ec, so_far);
    from.async_read_some(asio::buffer(to + so_far, 1), std::move(self));
  }
};

template <class Token>
auto async_read_bytes(stream& from, std::vector<char>& to, std::size_t& steps, Token&& token) {
  return asio::async_compose<Token, void(error_code, std::size_t)>(
      read_bytes{from, to.data(), to.size(), steps}, token, from);
}

/// Is queued in the context, and then reads a byte, as a later step.
struct read_after_post {
  stream& from;
  char* to;
  int step = 0;

  template <class Self>
  void operator()(Self& self, error_code ec = {}, std::size_t = 0) {
    switch (step++) {
    case 0:
      return asio::post(from.get_executor(), std::move(self));
    case 1:
      return from.async_read_some(asio::buffer(to, 1), std::move(self));
    default:
      self.complete(ec);
    }
  }
};

template <class Token>
auto async_read_after_post(stream& from, char* to, Token&& token) {
  return asio::async_compose<Token, void(error_code)>(read_after_post{from, to}, token, from);
}

/// Writes bytes and waits until they have arrived.
void send(stream& from, stream& to, std::size_t n) {
  const std::size_t before = to.available();
  const std::vector<char> bytes(n, 'x');
  for (std::size_t done = 0; done < n;)
    done += from.write_some(asio::buffer(&bytes[done], n - done));
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (to.available() != before + n && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  REQUIRE(to.available() == before + n);
}

} // namespace

TEST_CASE("steps that complete at once take few turns of a context of several threads") {
  two_contexts t({}, {}, 2);
  send(t.b, *t.a, byte_count);
  std::vector<char> got(byte_count);
  std::optional<std::size_t> read;
  std::size_t steps = 0;
  async_read_bytes(*t.a, got, steps, [&](error_code ec, std::size_t n) {
    CHECK(!ec);
    read = n;
  });
  t.io_a->restart();
  std::size_t turns = 0;
  for (; !read && turns < 10 * byte_count; ++turns)
    t.io_a->run_one_for(10s);
  CHECK(read == byte_count);
  CHECK(turns < byte_count / 10);
}

TEST_CASE("a handler may wait for a step of another composed operation that it cancels") {
  two_contexts first({}, {}, 2);
  asio::io_context& io = *first.io_a;
  // The second stream is in the same context.
  stream waiting(io), other(first.io_b);
  waiting.open(first.pool);
  other.open(first.pool);
  acceptor listener(first.io_b);
  connector initiator(io);
  listener.open({device_address(first.dev), 0});
  test::connection accepted, connected;
  listener.async_accept(other, accepted.handler());
  initiator.async_connect(waiting, listener.local_endpoint(), connected.handler());
  std::thread manager([&] { until(io, [&] { return connected.done(); }); });
  until(first.io_b, [&] { return accepted.done(); });
  manager.join();

  // It has read a byte and waits for the next one, so its operation is that of a later step.
  std::vector<char> unread(2), got(2);
  std::size_t steps = 0, steps_of_other = 0;
  std::promise<error_code> cancelled;
  send(other, waiting, 1);
  async_read_bytes(waiting, unread, steps,
                   [&](error_code ec, std::size_t) { cancelled.set_value(ec); });
  io.restart();
  until(io, [&] { return steps == 2; });

  send(first.b, *first.a, 2);
  std::promise<std::future_status> waited;
  auto end = cancelled.get_future();
  auto work = asio::make_work_guard(io);
  async_read_bytes(*first.a, got, steps_of_other, [&](error_code, std::size_t) {
    waiting.cancel();
    waited.set_value(end.wait_for(10s));
  });
  io.restart();
  std::thread one([&] { io.run(); }), two([&] { io.run(); });
  CHECK(waited.get_future().get() == std::future_status::ready);
  work.reset();
  one.join();
  two.join();
  CHECK(end.get() == asio::error::operation_aborted);
}

TEST_CASE("a handler may run the context until a composed operation has ended") {
  two_contexts t({}, {}, 2);
  send(t.b, *t.a, 3);
  std::vector<char> got(2);
  char last = 0;
  bool inner = false;
  std::size_t steps = 0;
  std::optional<bool> ended; // within the handler
  async_read_bytes(*t.a, got, steps, [&](error_code, std::size_t) {
    async_read_after_post(*t.a, &last, [&](error_code ec) { inner = !ec; });
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (!inner && std::chrono::steady_clock::now() < end)
      t.io_a->run_one_for(100ms);
    ended = inner;
  });
  t.io_a->restart();
  until(*t.io_a, [&] { return ended.has_value(); });
  CHECK(*ended);
  CHECK(last == 'x');
}

} // namespace test::asio_steps_tests
