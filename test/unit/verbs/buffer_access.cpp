// SPDX-License-Identifier: BSL-1.0
//
// Access to registered buffers for reading and writing, on memory that no device knows.
#include <catch.hpp>

#include "unit/memory/plain_arenas.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

using namespace asio_rdma;
namespace errc = boost::system::errc;

namespace {

struct ground {
  test::plain_arenas arenas;
  memory_pool pool = arenas.pool();
  registered_buffer buffer = pool.allocate(1000);
  asio::io_context io{1};
};

/// The result of async access.
struct asked {
  int calls = 0;
  error_code ec;
  buffer_access access;

  auto handler() {
    return [this](error_code e, buffer_access a) {
      ++calls;
      ec = e;
      access = std::move(a);
    };
  }
};

} // namespace

TEST_CASE_METHOD(ground, "access is granted to many readers or to one writer") {
  {
    const buffer_access a = buffer.try_read_access(), b = buffer.try_read_access();
    CHECK(a);
    CHECK(b);
    CHECK(!buffer.try_write_access());
    CHECK(buffer.try_read_access());
  }
  {
    const buffer_access w = buffer.try_write_access();
    CHECK(w);
    CHECK(!buffer.try_read_access());
    CHECK(!buffer.try_write_access());
    const registered_buffer same = buffer;
    CHECK(!same.try_read_access());
  }
  CHECK(buffer.try_write_access());
}

TEST_CASE_METHOD(ground, "only slices that overlap conflict") {
  const buffer_access w = buffer.slice(100, 100).try_write_access();
  CHECK(buffer.slice(0, 100).try_write_access());
  CHECK(buffer.slice(200).try_write_access());
  CHECK(!buffer.slice(199, 1).try_read_access());
  CHECK(!buffer.slice(100, 1).try_read_access());
  CHECK(!buffer.slice(0, 101).try_read_access());
  CHECK(!buffer.try_read_access());
  // Empty slices touch no byte, at any position.
  for (const std::size_t offset : {0u, 100u, 150u, 200u, 1000u})
    CHECK(buffer.slice(offset, 0).try_write_access());
  CHECK(registered_buffer().try_write_access());
}

TEST_CASE_METHOD(ground, "a conflicting operation reports the conflict and changes nothing") {
  buffer_access first, second;
  CHECK(!first.try_begin_read(buffer));
  CHECK(second.try_begin_write(buffer.slice(10, 10)) == error::buffer_in_use);
  CHECK(second.try_begin_write(buffer) == errc::device_or_resource_busy);
  CHECK(!second);
  CHECK(first);
  CHECK(!second.try_begin_read(buffer));
  first.reset();
  CHECK(!buffer.try_write_access());
  second.reset();
  CHECK(buffer.try_write_access());
}

TEST_CASE_METHOD(ground, "access moves with its object and keeps the memory") {
  buffer_access a = buffer.try_write_access();
  buffer_access b = std::move(a);
  CHECK(!a); // NOLINT(bugprone-use-after-move)
  CHECK(b);
  CHECK(!buffer.try_read_access());
  buffer_access c;
  c = std::move(b);
  CHECK(!buffer.try_read_access());
  c = buffer.slice(0, 0).try_read_access();
  CHECK(c);
  CHECK(buffer.try_read_access());

  c = buffer.try_read_access();
  buffer = {};
  CHECK(pool.statistics().blocks_in_use == 1);
  c.reset();
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE_METHOD(ground, "memory that was returned has no access left on it") {
  const void* const at = buffer.data();
  buffer_access a = buffer.try_write_access();
  buffer = {};
  a.reset();
  buffer = pool.allocate(1000);
  REQUIRE(buffer.data() == at);
  CHECK(buffer.try_write_access());
}

TEST_CASE("conflicts are those of a model that compares all ranges") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u);
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  ground g;
  struct one {
    std::size_t begin, end;
    bool writes;
    buffer_access access;
  };
  std::vector<one> all;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 100 < 55) {
      const std::size_t begin = random() % 1000;
      const std::size_t bytes =
          std::min<std::size_t>(random() % (random() % 8 == 0 ? 800 : 30), 1000 - begin);
      const bool writes = random() % 3 == 0;
      bool conflict = false;
      for (const one& o : all)
        conflict |= begin < o.end && o.begin < begin + bytes && bytes != 0 && (writes || o.writes);
      const registered_buffer part = g.buffer.slice(begin, bytes);
      buffer_access a = writes ? part.try_write_access() : part.try_read_access();
      REQUIRE(static_cast<bool>(a) == !conflict);
      if (a && bytes != 0)
        all.push_back({begin, begin + bytes, writes, std::move(a)});
    } else if (!all.empty()) {
      std::swap(all[random() % all.size()], all.back());
      all.pop_back();
    }
  }
  all.clear();
  CHECK(g.buffer.try_write_access());
}

TEST_CASE_METHOD(ground, "async access that is free is granted, but not from inside the function") {
  asked w;
  buffer.async_write_access(io.get_executor(), w.handler());
  CHECK(w.calls == 0);
  CHECK(!buffer.try_read_access()); // the waiting access already has it
  io.run();
  CHECK(w.calls == 1);
  CHECK(!w.ec);
  CHECK(w.access);
  CHECK(!buffer.try_read_access());
}

TEST_CASE_METHOD(
    ground, "async access waits for the end of the last access, and is not granted inside of it") {
  buffer_access a = buffer.try_read_access(), b = buffer.slice(5, 5).try_read_access();
  asked w;
  buffer.async_write_access(io.get_executor(), w.handler());
  io.poll();
  CHECK(!io.stopped()); // the wait is work
  a.reset();
  io.poll();
  CHECK(w.calls == 0);
  asio::post(io, [&] {
    b.reset();
    CHECK(w.calls == 0);
  });
  io.run();
  CHECK(w.calls == 1);
  CHECK(w.access);
}

TEST_CASE_METHOD(
    ground, "access is granted in the order of asking; no access passes one that it would delay") {
  buffer_access reads = buffer.try_read_access();
  asked w, r1, r2, elsewhere;
  buffer.first(100).async_write_access(io.get_executor(), w.handler());
  buffer.first(50).async_read_access(io.get_executor(), r1.handler());
  buffer.slice(50, 100).async_read_access(io.get_executor(), r2.handler());
  buffer.slice(500).async_read_access(io.get_executor(), elsewhere.handler());
  io.poll();
  CHECK(elsewhere.calls == 1);
  CHECK(w.calls + r1.calls + r2.calls == 0);
  CHECK(!buffer.first(1).try_read_access()); // behind the waiting writer
  CHECK(buffer.slice(100).try_read_access());
  reads.reset();
  io.poll();
  CHECK(w.calls == 1);
  CHECK(r1.calls + r2.calls == 0);
  w.access.reset();
  io.run();
  CHECK(r1.calls == 1);
  CHECK(r2.calls == 1);
  CHECK(r1.access);
}

TEST_CASE_METHOD(ground, "a cancelled wait ends and delays no access any more") {
  buffer_access reads = buffer.try_read_access();
  const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::partial,
                             asio::cancellation_type::terminal);
  asio::cancellation_signal signal;
  asked w, r;
  buffer.async_write_access(io.get_executor(),
                            asio::bind_cancellation_slot(signal.slot(), w.handler()));
  buffer.async_read_access(io.get_executor(), r.handler());
  io.poll();
  CHECK(w.calls + r.calls == 0);
  signal.emit(type);
  CHECK(w.calls == 0);
  io.run();
  CHECK(w.calls == 1);
  CHECK(w.ec == asio::error::operation_aborted);
  CHECK(!w.access);
  CHECK(r.calls == 1);
  CHECK(r.access);
  signal.emit(type); // too late for any effect
  reads.reset();
  r.access.reset();
  CHECK(buffer.try_write_access());
}

TEST_CASE_METHOD(ground, "a slot that was used keeps no memory") {
  asio::cancellation_signal signal;
  asked w;
  {
    buffer_access reads = buffer.try_read_access();
    buffer.async_write_access(io.get_executor(),
                              asio::bind_cancellation_slot(signal.slot(), w.handler()));
  }
  io.run();
  CHECK(w.access);
  w.access.reset();
  buffer = {};
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE_METHOD(ground,
                 "a handler runs on its own executor, on whichever thread the access ends") {
  buffer_access reads = buffer.try_read_access();
  asio::io_context other{1};
  auto strand = asio::make_strand(other);
  asked w;
  bool inside = false;
  buffer.async_write_access(
      io.get_executor(),
      asio::bind_executor(strand, [&, h = w.handler()](error_code ec, buffer_access a) mutable {
        inside = strand.running_in_this_thread();
        h(ec, std::move(a));
      }));
  std::thread([&] { reads.reset(); }).join();
  io.run();
  CHECK(w.calls == 0);
  other.run();
  CHECK(w.calls == 1);
  CHECK(inside);
}

TEST_CASE_METHOD(ground, "coroutines and futures wait for access") {
  buffer_access reads = buffer.try_read_access();
  auto future = buffer.async_read_access(io.get_executor(), asio::use_future);
  bool written = false;
  asio::co_spawn(
      io,
      [](registered_buffer b, bool& done) -> asio::awaitable<void> {
        const buffer_access a =
            co_await b.async_write_access(co_await asio::this_coro::executor, asio::use_awaitable);
        done = static_cast<bool>(a);
      }(buffer, written),
      asio::detached);
  io.poll();
  CHECK(!written);
  CHECK(future.get());
  reads.reset();
  io.run();
  CHECK(written);
}

TEST_CASE(
    "a context that is destroyed destroys the handlers that wait on it, and the others continue") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  registered_buffer buffer = pool.allocate(100);
  asio::io_context stays{1};
  auto goes = std::make_unique<asio::io_context>(1);
  const auto owned = std::make_shared<int>();
  buffer_access reads = buffer.try_read_access();
  int calls = 0;
  asked r;
  buffer.async_write_access(goes->get_executor(),
                            [&calls, owned, buffer](error_code, buffer_access) { ++calls; });
  buffer.async_read_access(stays.get_executor(), r.handler());
  stays.poll();
  CHECK(r.calls == 0); // behind the writer
  goes.reset();
  CHECK(owned.use_count() == 1);
  CHECK(calls == 0);
  stays.run();
  CHECK(r.calls == 1);
  reads.reset();
  r.access.reset();
  buffer = {};
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE("a wait that is cancelled after its context was destroyed stays destroyed") {
  const bool granted = GENERATE(false, true); // the wait has ended, but its handler was not called
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer buffer = pool.allocate(1000);
  asio::cancellation_signal signal;
  buffer_access first = buffer.try_write_access();
  asked w;
  auto io = std::make_unique<asio::io_context>(1);
  buffer.async_write_access(io->get_executor(),
                            asio::bind_cancellation_slot(signal.slot(), w.handler()));
  if (granted)
    first.reset();
  io.reset();
  signal.emit(asio::cancellation_type::terminal);
  CHECK(w.calls == 0);
  first.reset();
  CHECK(buffer.try_write_access());
}

TEST_CASE("a context that is destroyed before it reports a granted access releases the access") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer buffer = pool.allocate(100);
  auto goes = std::make_unique<asio::io_context>(1);
  buffer_access reads = buffer.try_read_access();
  buffer.async_write_access(goes->get_executor(), [](error_code, buffer_access) {});
  reads.reset();
  CHECK(!buffer.try_read_access());
  goes.reset();
  CHECK(buffer.try_write_access());
}

TEST_CASE(
    "threads read and write slices: no byte is read while it is written, all get their turn") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  constexpr std::size_t parts = 4, bytes = 64;
  const registered_buffer buffer = pool.allocate(parts * bytes);
  buffer.zero();
  asio::io_context io;
  constexpr int chains = 8, turns = 300;
  std::atomic<int> done{0}, torn{0};
  struct chain {
    const registered_buffer& whole;
    asio::io_context& context;
    std::atomic<int>& ended;
    std::atomic<int>& wrong;
    std::mt19937 random;
    int left = turns;

    void next() {
      if (left-- == 0) {
        ++ended;
        return;
      }
      const std::size_t first = random() % parts, n = 1 + random() % (parts - first);
      const registered_buffer part = whole.slice(first * bytes, n * bytes);
      if (random() % 3 == 0)
        part.async_write_access(context.get_executor(), [this, part](error_code, buffer_access a) {
          std::memset(part.data(), static_cast<int>(random() & 0xff), part.size());
          asio::post(context, [this, held = std::move(a)]() mutable {
            held.reset();
            next();
          });
        });
      else
        part.async_read_access(context.get_executor(),
                               [this, part, n](error_code, buffer_access a) {
                                 const auto* p = static_cast<const unsigned char*>(part.data());
                                 for (std::size_t i = 0; i < n * bytes; ++i)
                                   wrong += p[i] != p[i / bytes * bytes];
                                 a.reset();
                                 next();
                               });
    }
  };
  std::vector<chain> all;
  for (unsigned i = 0; i < chains; ++i)
    all.push_back({buffer, io, done, torn, std::mt19937(i)});
  for (chain& c : all)
    asio::post(io, [&c] { c.next(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&io] { io.run(); });
  for (std::thread& t : threads)
    t.join();
  CHECK(done == chains);
  CHECK(torn == 0);
  CHECK(buffer.try_write_access());
}

TEST_CASE("waits that are cancelled while others end their access end once") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer buffer = pool.allocate(64);
  for (int round = 0; round < 200; ++round) {
    asio::io_context io{1};
    buffer_access reads = buffer.try_read_access();
    asio::cancellation_signal signal;
    asked w;
    buffer.async_write_access(io.get_executor(),
                              asio::bind_cancellation_slot(signal.slot(), w.handler()));
    std::thread other([&] { reads.reset(); });
    signal.emit(asio::cancellation_type::total);
    io.run();
    other.join();
    REQUIRE(w.calls == 1);
    REQUIRE(static_cast<bool>(w.access) == !w.ec);
  }
}

TEST_CASE("a context is destroyed while another thread ends the access") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer buffer = pool.allocate(64);
  for (int round = 0; round < 200; ++round) {
    auto io = std::make_unique<asio::io_context>(1);
    buffer_access reads = buffer.try_read_access();
    const auto owned = std::make_shared<int>();
    buffer.async_write_access(io->get_executor(), [owned](error_code, buffer_access) {});
    std::thread other([&] { reads.reset(); });
    io.reset();
    other.join();
    REQUIRE(owned.use_count() == 1);
    REQUIRE(buffer.try_write_access());
  }
}
