// SPDX-License-Identifier: BSL-1.0
// Operations that follow each other on a context that several threads may run. Steps of
// asio::async_read and async_write follow without turns of the context, and nothing waits for them.
// Handlers that start the next operation follow with few looks at Asio's reactor, one in each turn.
#include "catch.hpp"
#include "device/asio/asio_support.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <sys/epoll.h>
#include <thread>
#include <vector>

namespace {

thread_local std::size_t looks = 0;

} // namespace

// The linker replaces epoll_wait by this function in all objects of the program (--wrap).
extern "C" int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);
extern "C" int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  ++looks;
  return __real_epoll_wait(epoll, events, most, timeout);
}

namespace test::asio_steps_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::stream;

constexpr std::size_t many = 200;

/// Streams of a context that several threads may run. Their peers are in another context.
struct streams {
  struct connected {
    stream here, peer;

    /// Writes bytes and waits until all but some have arrived and not been read.
    void send(std::size_t n, std::size_t read_meanwhile = 0) {
      const std::vector<char> bytes(n, 'x');
      for (std::size_t done = 0; done < n;)
        done += peer.write_some(asio::buffer(&bytes[done], n - done));
      // On iWARP the accepting side may not send before it has seen the connector's first frame.
      auto& of_peers = static_cast<asio::io_context&>(
          asio::query(peer.get_executor(), asio::execution::context));
      const auto end = std::chrono::steady_clock::now() + 10s;
      while (here.available() + read_meanwhile != n && std::chrono::steady_clock::now() < end) {
        of_peers.restart();
        of_peers.poll();
        std::this_thread::yield();
      }
      REQUIRE(here.available() + read_meanwhile == n);
    }
  };

  explicit streams(std::size_t n) {
    acceptor listener(io_of_peers);
    connector initiator(io);
    listener.open({device_address(dev), 0});
    for (std::size_t i = 0; i != n; ++i) {
      connected& c = all.emplace_back(connected{stream(io), stream(io_of_peers)});
      c.here.open(pool);
      c.peer.open(pool);
      test::connection accept, connect;
      listener.async_accept(c.peer, accept.handler());
      initiator.async_connect(c.here, listener.local_endpoint(), connect.handler());
      std::thread other([&] { until(io, [&] { return connect.done(); }); });
      until(io_of_peers, [&] { return accept.done(); });
      other.join();
    }
    io.restart();
    for (connected& c : all) // so their handlers begin in the order of the completions
      REQUIRE(c.here.native_handle()->recv_cq == all[0].here.native_handle()->recv_cq);
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io, io_of_peers{1};
  std::deque<connected> all;
};

/// Reads as many bytes as there are, one in each step. `steps` counts those that have ended.
template <class Handler>
void read_bytewise(stream& from, std::vector<char>& to, std::size_t& steps, Handler handler) {
  asio::async_read(
      from, asio::buffer(to),
      [&to, &steps](error_code ec, std::size_t n) -> std::size_t {
        steps = n;
        return ec || n == to.size() ? 0 : 1;
      },
      std::move(handler));
}

/// Runs the context until an operation of `many` steps has moved all bytes. Checks that this takes
/// few turns.
void check_turns(asio::io_context& io, const std::optional<std::size_t>& moved) {
  std::size_t turns = 0;
  for (; !moved && turns < 10 * many; ++turns)
    io.run_one_for(10s);
  CHECK(moved == many);
  CHECK(turns < many / 10);
}

/// Runs the context on two threads, in one of which a handler waits. Checks what it waited for.
void check_waited(asio::io_context& io, std::promise<std::future_status>& waited) {
  auto work = asio::make_work_guard(io);
  std::thread one([&] { io.run(); }), two([&] { io.run(); });
  CHECK(waited.get_future().get() == std::future_status::ready);
  work.reset();
  one.join();
  two.join();
}

/// Reads a byte, and the handler begins the next read.
struct chain {
  explicit chain(stream& s) : from(s) {}

  void read() {
    from.async_read_some(asio::buffer(&byte, 1), [this](const error_code& ec, std::size_t) {
      errors += ec ? 1u : 0u; // Catch's macros are for one thread
      ++handlers;
      then();
    });
  }

  stream& from;
  char byte = 0;
  std::size_t handlers = 0, errors = 0;
  std::function<void()> then = [this] {
    read();
  };
};

/// Reads a byte in its second step, which begins within the first, by asio::async_read.
struct read_after_dispatch {
  stream& from;
  char& to;
  int step = 0;

  template <class Self>
  void operator()(Self& self, error_code ec = {}, std::size_t = 0) {
    switch (step++) {
    case 0:
      return asio::dispatch(from.get_executor(), std::move(self));
    case 1:
      return asio::async_read(from, asio::buffer(&to, 1), std::move(self));
    default:
      self.complete(ec);
    }
  }
};

} // namespace

TEST_CASE("steps that complete at once take few turns of a context of several threads") {
  streams s(1);
  s.all[0].send(many);
  std::vector<char> got(many);
  std::size_t steps = 0;
  std::optional<std::size_t> read;
  read_bytewise(s.all[0].here, got, steps, [&](error_code ec, std::size_t n) {
    CHECK(!ec);
    read = n;
  });
  check_turns(s.io, read);
}

TEST_CASE("steps of a write that complete at once take few turns, too") {
  streams s(1);
  const std::vector<char> bytes(many, 'x');
  std::optional<std::size_t> written;
  asio::async_write(
      s.all[0].here, asio::buffer(bytes),
      [&](error_code ec, std::size_t n) -> std::size_t { return ec || n == many ? 0 : 1; },
      [&](error_code ec, std::size_t n) {
        CHECK(!ec);
        written = n;
      });
  check_turns(s.io, written);
}

TEST_CASE("steps do not overtake an operation that completed before") {
  streams s(2);
  std::vector<char> got(2);
  std::size_t steps = 0;
  char other = 0;
  std::string order;
  const auto read = [&] {
    read_bytewise(s.all[0].here, got, steps, [&](error_code, std::size_t) { order += 'a'; });
  };
  const auto note = [&](error_code, std::size_t) {
    order += 'b';
  };
  SECTION("which has the context's executor") {
    s.all[1].here.async_read_some(asio::buffer(&other, 1), note);
    read();
    s.all[0].send(2, 1); // the first step has the first byte
    s.all[1].send(2, 1);
  }
  SECTION("which has a strand") {
    s.all[1].here.async_read_some(asio::buffer(&other, 1),
                                  asio::bind_executor(asio::make_strand(s.io), note));
    read();
    s.all[1].send(2, 1);
    s.all[0].send(2, 1);
  }
  until(s.io, [&] { return order.size() == 2; });
  CHECK(order == "ba");
}

TEST_CASE("a handler may wait for a step of another operation that it cancels") {
  streams s(2);
  stream& waiting = s.all[1].here;
  // It has read a byte and waits for the next one, so it is in a later step.
  std::vector<char> unread(2), got(2);
  std::size_t steps = 0, others = 0;
  std::promise<error_code> cancelled;
  s.all[1].send(1);
  read_bytewise(waiting, unread, steps,
                [&](error_code ec, std::size_t) { cancelled.set_value(ec); });
  until(s.io, [&] { return steps == 1; });

  s.all[0].send(2);
  std::promise<std::future_status> waited;
  auto end = cancelled.get_future();
  read_bytewise(s.all[0].here, got, others, [&](error_code, std::size_t) {
    waiting.cancel();
    waited.set_value(end.wait_for(10s));
  });
  s.io.restart();
  check_waited(s.io, waited);
  CHECK(end.get() == asio::error::operation_aborted);
}

TEST_CASE("a handler may wait for a composed operation that it starts") {
  streams s(1);
  s.all[0].send(3);
  std::vector<char> got(2);
  std::size_t steps = 0;
  char last = 0;
  std::promise<void> read;
  std::promise<std::future_status> waited;
  read_bytewise(s.all[0].here, got, steps, [&](error_code, std::size_t) {
    auto handler = asio::bind_executor(s.io, [&](error_code) { read.set_value(); });
    asio::async_compose<decltype(handler), void(error_code)>(
        read_after_dispatch{s.all[0].here, last}, handler);
    waited.set_value(read.get_future().wait_for(10s));
  });
  check_waited(s.io, waited);
  CHECK(last == 'x');
}

TEST_CASE("a handler may run the context until steps of other operations have ended") {
  streams s(3);
  std::vector<char> got(2);
  std::array<std::vector<char>, 2> others{std::vector<char>(2), std::vector<char>(2)};
  std::array<std::size_t, 3> steps{};
  std::size_t ended = 0;
  std::optional<std::size_t> within; // that handler
  for (std::size_t i = 0; i != 2; ++i)
    read_bytewise(s.all[i + 1].here, others[i], steps[i],
                  [&](error_code, std::size_t) { ++ended; });
  s.all[0].send(2);
  read_bytewise(s.all[0].here, got, steps[2], [&](error_code, std::size_t) {
    for (std::size_t i = 0; i != 2; ++i)
      s.all[i + 1].send(2, 1); // both first steps complete, so the second is handed out
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (ended != 2 && std::chrono::steady_clock::now() < end)
      s.io.run_one_for(100ms);
    within = ended;
  });
  until(s.io, [&] { return within.has_value(); });
  CHECK(*within == 2);
}

TEST_CASE("handlers that start the next operation share a look at the reactor") {
  streams s(1);
  s.all[0].send(many);
  chain c(s.all[0].here);
  c.read();
  looks = 0;
  SECTION("by run") {
    while (c.handlers != many)
      s.io.run_one_for(10s);
    CHECK(looks < many / 8);
  }
  SECTION("and run_one runs one handler") {
    for (std::size_t before = 0; before != many; before = c.handlers) {
      s.io.run_one_for(10s);
      REQUIRE(c.handlers <= before + 1);
    }
  }
  CHECK(c.errors == 0);
}

TEST_CASE("after turns that find nothing, a loop that waits for its peer has one turn at a time") {
  streams s(1);
  s.all[0].send(many);
  chain c(s.all[0].here);
  c.read();
  until(s.io, [&] { return c.handlers == many; });
  for (std::size_t i = 1; i != 10; ++i) {
    s.io.poll();
    s.all[0].send(1, 1);
    while (c.handlers != many + i)
      s.io.run_one_for(10s);
    CHECK(s.io.poll() < 4); // a few turns that find nothing
  }
  CHECK(c.errors == 0);
}

TEST_CASE("handlers begin in order while turns are queued") {
  constexpr std::size_t chains = 5;
  const int threads = GENERATE(1, 2);
  CAPTURE(threads);
  streams s(chains);
  for (streams::connected& c : s.all)
    c.send(many);
  std::string order, wanted;
  std::mutex guards_order;
  std::deque<chain> all;
  for (std::size_t i = 0; i != chains; ++i) {
    chain& c = all.emplace_back(s.all[i].here);
    c.then = [&, i] {
      {
        const std::lock_guard lock(guards_order);
        order += static_cast<char>('0' + i);
      }
      if (c.handlers != many)
        c.read(); // completes at once, after the reads of the other chains
    };
  }
  for (std::size_t i = 0; i != many; ++i)
    wanted += "01234";
  asio::post(s.io, [&] {
    for (chain& c : all)
      c.read();
  });
  run_by_threads(s.io, threads);
  if (threads == 2) { // both may begin a handler at the same time
    std::sort(order.begin(), order.end());
    std::sort(wanted.begin(), wanted.end());
  }
  CHECK(order == wanted);
  for (const chain& c : all)
    CHECK(c.errors == 0);
}

TEST_CASE("a handler that blocks while turns are queued delays no other one") {
  streams s(2);
  for (streams::connected& c : s.all)
    c.send(many);
  const std::size_t at = GENERATE(range(1u, 40u)); // in groups of turns of each size
  CAPTURE(at);
  chain c(s.all[0].here);
  char byte = 0;
  std::promise<void> other;
  std::promise<std::future_status> waited;
  c.then = [&] {
    if (c.handlers != at)
      return c.read();
    s.all[1].here.async_read_some(asio::buffer(&byte, 1),
                                  [&](const error_code&, std::size_t) { other.set_value(); });
    waited.set_value(other.get_future().wait_for(10s));
  };
  c.read();
  check_waited(s.io, waited);
  CHECK(c.errors == 0);
}

} // namespace test::asio_steps_tests
