// SPDX-License-Identifier: BSL-1.0
// Blocking functions of streams whose context other threads run, or no thread runs.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/pairs.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

namespace test::stream_blocking_tests {
namespace {

using bytes = std::vector<std::uint8_t>;

/// Two streams on a context that several threads may run.
struct shared_pair {
  shared_pair() : pool(pd) {
    a.open(pool);
    b.open(pool);
    connect_by_manager(*this);
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool;
  asio::io_context io;
  acceptor listener{io};
  connector initiator{io};
  asio_rdma::stream a{io}, b{io};
};

/// Two streams, each on its own context. No thread runs the contexts after connecting.
struct apart {
  apart() : pool(pd) {
    a.open(pool);
    b.open(pool);
    connect_by_manager(*this);
    a.non_blocking(true);
  }
  ~apart() {
    a.close();
    b.close();
    std::thread peer([this] { run(there); });
    run(here);
    peer.join();
  }
  void until(const std::function<bool()>& condition) {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > patience)
        throw std::runtime_error("timed out waiting for the condition");
      for (asio::io_context* io : {&here, &there}) {
        io->restart();
        io->poll();
      }
    }
  }
  /// On iWARP the context sends it once the connector's first frame has arrived.
  void send_hello() {
    asio::write(b, asio::buffer("hello", 5));
    run(there);
  }
  static void run(asio::io_context& io) {
    io.restart();
    io.run();
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool;
  asio::io_context here{1}, there{1};
  acceptor listener{there};
  connector initiator{here};
  asio_rdma::stream a{here}, b{there};
};

/// Repeats a call that would block, and returns its final error.
template <class Call>
error_code spin(Call&& call) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  error_code ec = asio::error::would_block;
  while (ec == asio::error::would_block && std::chrono::steady_clock::now() < patience)
    call(ec);
  return ec;
}

/// Sends all bytes back, until the peer sends no more.
struct echo {
  explicit echo(asio_rdma::stream& s)
      : thread([this, &s] {
          bytes got(4096);
          while (const std::size_t n = s.read_some(asio::buffer(got), ec))
            asio::write(s, asio::buffer(got.data(), n));
        }) {}

  error_code ec;
  std::thread thread;
};

/// The number of rounds in which the echo was right.
std::uint32_t talk_to_echo(asio_rdma::stream& s, std::uint32_t rounds) {
  std::uint32_t right = 0;
  bytes got(200);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    const bytes sent = pattern(got.size(), i);
    asio::write(s, asio::buffer(sent));
    asio::read(s, asio::buffer(got));
    right += got == sent;
  }
  s.shutdown(asio::socket_base::shutdown_send);
  return right;
}

} // namespace

TEST_CASE("blocking functions need no thread that runs the context") {
  stream_pair t;
  t.io.stop();
  echo peer(t.b);
  CHECK(talk_to_echo(t.a, 3000) == 3000);
  peer.thread.join();
  CHECK(peer.ec == asio::error::eof);
}

TEST_CASE("blocking functions continue beside handlers that no thread runs") {
  shared_pair t;
  outcome<void> writable;
  t.a.async_wait(asio::socket_base::wait_write, writable.handler());
  echo peer(t.b);
  CHECK(talk_to_echo(t.a, 3000) == 3000);
  peer.thread.join();
  CHECK(peer.ec == asio::error::eof);
  CHECK_FALSE(writable.done());
  t.until([&] { return writable.done(); });
  CHECK(writable.succeeded());
}

TEST_CASE("blocking functions continue beside a thread that runs the context") {
  shared_pair t;
  auto work = asio::make_work_guard(t.io);
  std::thread runner([&] {
    t.io.restart();
    t.io.run();
  });
  echo peer(t.b);
  CHECK(talk_to_echo(t.a, 3000) == 3000);
  peer.thread.join();
  CHECK(peer.ec == asio::error::eof);
  work.reset();
  t.io.stop();
  runner.join();
}

// The device reports nothing for these operations. If they waited until the blocked thread polls,
// the time limit would be exceeded.
TEST_CASE("a thread that blocks keeps no handler waiting") {
  shared_pair t;
  std::size_t n = 0;
  std::uint8_t byte = 0;
  std::thread blocked([&] { n = t.b.read_some(asio::buffer(&byte, 1)); });
  std::uint32_t writable = 0;
  constexpr std::uint32_t rounds = 20000;
  for (std::uint32_t i = 0; i < rounds; ++i) {
    outcome<void> o;
    t.a.async_wait(asio::socket_base::wait_write, o.handler());
    t.until([&] { return o.done(); });
    writable += o.succeeded();
  }
  CHECK(writable == rounds);
  byte = 7;
  asio::write(t.a, asio::buffer(&byte, 1));
  blocked.join();
  CHECK(n == 1);
}

TEST_CASE("a handler that blocks gets the result of an operation that another thread of the "
          "context completes") {
  shared_pair t;
  auto work = asio::make_work_guard(t.io);
  t.io.restart();
  std::thread runner([&] { t.io.run(); });
  std::promise<std::future_status> waited;
  asio::post(t.io, [&] {
    auto writable = t.a.async_wait(asio::socket_base::wait_write, asio::use_future);
    waited.set_value(writable.wait_for(std::chrono::seconds(30)));
  });
  std::thread second([&] { t.io.run(); });
  CHECK(waited.get_future().get() == std::future_status::ready);
  work.reset();
  t.io.stop();
  runner.join();
  second.join();
}

TEST_CASE("blocking functions do not stop a context that has nothing to do") {
  shared_pair t;
  t.io.restart();
  t.io.poll();
  t.io.restart();
  std::uint8_t byte = 7;
  asio::write(t.a, asio::buffer(&byte, 1));
  CHECK(t.b.read_some(asio::buffer(&byte, 1)) == 1);
  CHECK_FALSE(t.io.stopped());
  outcome<void> writable;
  t.a.async_wait(asio::socket_base::wait_write, writable.handler());
  t.io.run();
  CHECK(writable.succeeded());
  CHECK(t.io.stopped());
}

TEST_CASE("non-blocking functions need no thread that runs the context") {
  apart t;
  char got[8];
  std::size_t n = 0;
  const auto read = [&](error_code& ec) {
    n = t.a.read_some(asio::buffer(got), ec);
  };
  const auto wait = [&](error_code& ec) {
    t.a.wait(asio::socket_base::wait_read, ec);
  };
  const auto wait_for_end = [&](error_code& ec) {
    t.a.wait(asio::socket_base::wait_error, ec);
  };
  const auto count = [&](error_code& ec) {
    n = t.a.available();
    ec = n == 0 ? error_code(asio::error::would_block) : error_code();
  };
  error_code ec;
  read(ec);
  CHECK(ec == asio::error::would_block);

  SECTION("reading") {
    std::thread peer([&] { t.send_hello(); });
    CHECK(spin(read) == error_code());
    CHECK(n == 5);
    peer.join();
  }
  SECTION("waiting") {
    std::thread peer([&] { t.send_hello(); });
    CHECK(spin(wait) == error_code());
    CHECK(t.a.read_some(asio::buffer(got)) == 5);
    peer.join();
  }
  SECTION("counting") {
    std::thread peer([&] { t.send_hello(); });
    CHECK(spin(count) == error_code());
    CHECK(n == 5);
    peer.join();
  }
  SECTION("writing") {
    const bytes some(4096);
    std::uint64_t written = 0, taken = 0;
    const auto write = [&](error_code& e) {
      written += t.a.write_some(asio::buffer(some), e);
    };
    for (ec = {}; !ec;)
      write(ec);
    CHECK(ec == asio::error::would_block);
    const std::uint64_t first = written;
    std::thread peer([&] {
      bytes memory(4096);
      error_code end;
      while (!end)
        taken += t.b.read_some(asio::buffer(memory), end);
      t.b.close();
      t.run(t.there);
    });
    for (ec = {}; !ec && written < 4 * first;)
      ec = spin(write);
    CHECK(ec == error_code());
    t.a.shutdown(asio::socket_base::shutdown_send);
    CHECK(spin(read) == asio::error::eof);
    peer.join();
    CHECK(taken == written);
  }
  SECTION("the peer closes") {
    const bool waits = GENERATE(false, true);
    std::thread peer([&] {
      t.b.close();
      t.run(t.there);
    });
    if (waits)
      CHECK(spin(wait_for_end) == error_code());
    CHECK(spin(read) == asio::error::eof);
    peer.join();
  }
  SECTION("the peer resets") {
    std::thread peer([&] {
      t.b.set_option(asio::socket_base::linger(true, 0));
      t.b.close();
      t.run(t.there);
    });
    CHECK(spin(read) == asio::error::connection_reset);
    peer.join();
  }
}

namespace {

/// An operation of the library's own whose disposal throws, on any thread.
template <class Exception>
struct throwing final : detail::operation {
  explicit throwing(std::function<void()> f) : operation(&run), before(std::move(f)) {
    internal = true;
  }
  void complete_on(detail::completion_queue_impl& on) {
    detail::operation_list done;
    done.push_back(*this);
    on.operation_starting();
    on.complete(done);
  }
  static void run(operation* base, detail::disposal) {
    auto& self = *static_cast<throwing*>(base);
    ++self.calls;
    self.before();
    throw Exception();
  }

  std::function<void()> before;
  int calls = 0;
};

/// Has no base class, like a forced unwind.
struct unwinding {};

struct failure : std::exception {};

/// Completes another operation, in time for the next poll of the queue.
struct leading final : detail::operation {
  explicit leading(std::function<void()> f) : operation(&run), then(std::move(f)) {
    internal = true;
  }
  static void run(operation* base, detail::disposal) {
    auto& self = *static_cast<leading*>(base);
    ++self.calls;
    self.then();
  }

  std::function<void()> then;
  int calls = 0;
};

} // namespace

TEMPLATE_TEST_CASE("a blocking function that an exception leaves has no operation any more", "",
                   failure, unwinding) {
  stream_pair t;
  const bool reads = GENERATE(true, false), ended = GENERATE(false, true);
  CAPTURE(reads, ended);
  detail::completion_queue_impl& queue = *t.b.impl()->target_queue_pair()->completion_queue();
  char c = 0;
  sent pending; // of other operations, which continue
  t.a.async_read_some(asio::buffer(&c, 1), pending.handler());
  throwing<TestType> second([&] {
    if (ended) // the function has its result when the exception is thrown
      t.b.shutdown(asio::socket_base::shutdown_receive);
  });
  leading first([&] { second.complete_on(queue); });
  detail::operation_list done;
  done.push_back(first);
  queue.operation_starting();
  queue.complete(done);
  error_code ec;
  bool threw = false;
  try {
    if (reads)
      t.b.read_some(asio::buffer(&c, 1), ec);
    else
      t.b.wait(asio::socket_base::wait_read, ec);
  } catch (const TestType&) {
    threw = true;
  }
  CHECK(first.calls == 1);
  CHECK(second.calls == 1);
  // Of two failures the function's own result is reported; an unwinding continues.
  CHECK(threw == (!ended || std::is_same_v<TestType, unwinding>));
  if (!threw)
    CHECK(ec == (reads ? error_code(asio::error::eof) : error_code()));
  sent read, write, answer;
  t.b.async_read_some(asio::buffer(&c, 1), read.handler());
  t.a.async_write_some(asio::buffer("x", 1), write.handler());
  t.b.async_write_some(asio::buffer("y", 1), answer.handler());
  t.until([&] { return read.done() && write.done() && answer.done() && pending.done(); });
  CHECK(read.ec == (ended ? error_code(asio::error::eof) : error_code()));
  CHECK(write.succeeded());
  CHECK(answer.succeeded());
  CHECK(pending.succeeded());
  t.a.close();
  t.b.close();
  drain(t.io);
  for (const sent* s : {&read, &write, &answer, &pending})
    CHECK(s->calls == 1);
}

} // namespace test::stream_blocking_tests
