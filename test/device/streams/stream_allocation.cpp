// SPDX-License-Identifier: BSL-1.0
//
// No heap allocation for a read or a write of a stream, once it has warmed up.
#include <catch.hpp>

#include "device/lifetime/life_counted_heap.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <utility>
#include <vector>

namespace test::stream_allocation_tests {
namespace {

constexpr std::size_t warm_up = 2000;
constexpr std::size_t writes = 30'000;

// Waiting for the next check of the peer would allocate, so no check is due.
stream_options never_looking() {
  stream_options o;
  o.keep_alive = std::chrono::milliseconds(0);
  o.linger = std::chrono::minutes(10);
  return o;
}

// One direction: bytes copied into a small frame, copied into the pool, and lent; read into the
// reader's own memory, and received with their memory.
struct flow {
  stream_pair& s;
  registered_buffer registered{s.pool.allocate(20'000)};
  std::array<std::byte, 3000> plain{};
  std::array<std::byte, 5000> into{};
  std::size_t written = 0, failed = 0, before = 0, after = 0, reads = 0;
  std::uint64_t sent = 0, taken = 0;

  void write() {
    if (written == warm_up)
      before = allocations;
    const auto source = written % 3 == 0 ? asio::const_buffer(plain.data(), 64)
                        : written % 3 == 1
                            ? asio::const_buffer(plain.data(), plain.size())
                            : asio::const_buffer(registered.data(), registered.size());
    asio::async_write(s.a, asio::buffer(source), [this](error_code ec, std::size_t n) {
      failed += ec ? 1u : 0u;
      sent += n;
      if (++written < warm_up + writes)
        write();
      else
        end();
    });
  }
  void one_taken(const error_code& ec, std::size_t n) {
    failed += ec ? 1u : 0u;
    taken += n;
    end();
    if (!ec)
      take();
  }
  void take() {
    if (++reads % 2 == 0)
      s.b.async_read_some(asio::buffer(into),
                          [this](error_code ec, std::size_t n) { one_taken(ec, n); });
    else
      s.b.async_receive(
          [this](error_code ec, const registered_buffer& piece) { one_taken(ec, piece.size()); });
  }
  void end() {
    if (written == warm_up + writes && taken == sent)
      after = allocations;
  }
};

// How many blocks of which size are in use at a time depends on the device's speed. The pool
// allocates when there are more than before.
void warm_up_pool(const memory_pool& pool) {
  std::vector<registered_buffer> blocks;
  for (std::size_t n = 64; n <= std::size_t(256) * 1024; n += std::max<std::size_t>(64, n / 8))
    for (int i = 0; i < 40; ++i)
      blocks.push_back(pool.allocate(n));
}

// The first wait for the peer to take bytes sets a timer, which allocates.
void wait_for_reader(stream_pair& s) {
  const std::array<std::byte, 3000> some{};
  std::size_t written = 0;
  s.a.non_blocking(true);
  for (error_code ec; !ec;)
    written += s.a.write_some(asio::buffer(some), ec);
  s.a.non_blocking(false);
  std::vector<std::byte> got(written);
  asio::read(s.b, asio::buffer(got));
}

std::size_t registrations = 0;

} // namespace

// libibverbs' function, with a counter.
#undef ibv_reg_mr
extern "C" {
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* data, std::size_t bytes, int access) {
  static const auto of_verbs =
      reinterpret_cast<decltype(&ibv_reg_mr)>(dlsym(RTLD_NEXT, "ibv_reg_mr"));
  ++registrations;
  return of_verbs(pd, data, bytes, access);
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* data, std::size_t bytes, std::uint64_t iova,
                         unsigned access) {
  static const auto of_verbs =
      reinterpret_cast<decltype(&ibv_reg_mr_iova2)>(dlsym(RTLD_NEXT, "ibv_reg_mr_iova2"));
  ++registrations;
  return of_verbs(pd, data, bytes, iova, access);
}
}

TEST_CASE("writes and reads of a stream allocate nothing") {
  stream_pair s(never_looking(), never_looking());
  warm_up_pool(s.pool);
  wait_for_reader(s);
  flow f{s};
  f.take();
  f.write();
  s.until([&] { return f.after != 0 || f.failed != 0; });
  CHECK(f.failed == 0);
  CHECK(f.taken == f.sent);
  CHECK(f.after - f.before == 0);
}

TEST_CASE("a long write allocates as its registrations do, and nothing else") {
  stream_pair s(never_looking(), never_looking());
  constexpr std::size_t size = std::size_t(1) << 20, exchanges = 300;
  const registered_buffer registered = s.pool.allocate(size);
  std::vector<std::byte> into(size);
  const auto exchange = [&] {
    outcome<std::size_t> write, read;
    s.a.async_write_some(registered, write.handler());
    asio::async_read(s.b, asio::buffer(into), read.handler());
    s.until([&] { return write.done() && read.done(); });
    return write.succeeded() && read.succeeded();
  };
  const auto one = [&] {
    memory_region(s.pd, into.data(), size, access::remote_read);
  };
  std::size_t failed = 0;
  for (std::size_t i = 0; i < exchanges; ++i) {
    failed += !exchange();
    one();
  }
  const std::size_t before_one = allocations;
  one();
  const std::size_t by_one = allocations - before_one;
  const std::size_t before = allocations, registered_before = registrations;
  for (std::size_t i = 0; i < exchanges; ++i)
    failed += !exchange();
  CHECK(failed == 0);
  if (s.dev.confines_windows() || !streams_offer(s.dev))
    CHECK(registrations == registered_before);
  else
    CHECK(registrations - registered_before >= exchanges);
  // The pool may grow once more, which allocates less than once for each exchange.
  const std::size_t by_all = by_one * (registrations - registered_before);
  CHECK(allocations - before >= by_all);
  CHECK(allocations - before < by_all + exchanges / 10);
}

TEST_CASE("a stream's echo by coroutines allocates nothing") {
  stream_pair s(never_looking(), never_looking());
  std::size_t before = 0, after = 0, over = 0;
  const auto rethrow = [&](const std::exception_ptr& e) {
    ++over;
    if (e)
      std::rethrow_exception(e);
  };
  const auto play = [&](asio::awaitable<void> of_a, asio::awaitable<void> of_b) {
    over = 0;
    asio::co_spawn(s.io, std::move(of_b), rethrow);
    asio::co_spawn(s.io, std::move(of_a), rethrow);
    s.until([&] { return over == 2; });
  };
  // More at once than the echo ever has pending: both sides write, and only then read.
  const auto burst = [](stream& of) -> asio::awaitable<void> {
    std::array<std::byte, 64> bytes{};
    for (std::size_t n = 0; n < 8; ++n)
      co_await asio::async_write(of, asio::buffer(bytes), asio::use_awaitable);
    for (std::size_t n = 0; n < 8; ++n)
      co_await asio::async_read(of, asio::buffer(bytes), asio::use_awaitable);
  };
  const auto echo = [&]() -> asio::awaitable<void> {
    std::array<std::byte, 64> bytes{};
    for (std::size_t n = 0; n < warm_up + writes; ++n) {
      co_await asio::async_read(s.b, asio::buffer(bytes), asio::use_awaitable);
      co_await asio::async_write(s.b, asio::buffer(bytes), asio::use_awaitable);
    }
  };
  const auto call = [&]() -> asio::awaitable<void> {
    std::array<std::byte, 64> bytes{};
    for (std::size_t n = 0; n < warm_up + writes; ++n) {
      if (n == warm_up)
        before = allocations;
      if (n == warm_up + writes - 1) // the end of a coroutine may allocate
        after = allocations;
      co_await asio::async_write(s.a, asio::buffer(bytes), asio::use_awaitable);
      co_await asio::async_read(s.a, asio::buffer(bytes), asio::use_awaitable);
    }
  };
  play(burst(s.a), burst(s.b));
  play(call(), echo());
  CHECK(after - before == 0);
}

} // namespace test::stream_allocation_tests
