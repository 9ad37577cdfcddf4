// SPDX-License-Identifier: BSL-1.0
// Functions that block, of streams whose context other threads run, or nobody.
#include "catch.hpp"
#include "pairs.hpp"
#include "stream_support.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>

#include <future>
#include <thread>

namespace {

using namespace test;

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

/// Sends back what comes, until the peer sends no more.
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

/// The number of rounds in which what was sent came back.
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

TEST_CASE("blocking functions go on beside handlers that nobody runs") {
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

TEST_CASE("blocking functions go on beside a thread that runs the context") {
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

// None of these operations has anything that the device would tell of, so if they waited for the
// thread to look around the time limit would be over.
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

TEST_CASE("a handler that blocks gets what another thread of the context completes") {
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
