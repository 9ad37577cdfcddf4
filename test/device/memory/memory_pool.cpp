// SPDX-License-Identifier: BSL-1.0
//
// The pool of registered memory: its registrations, and the device's checks of its keys.
#include "catch.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>

namespace test::memory_pool_tests {
namespace {

constexpr std::size_t kilo = 1024;

memory_pool_options of_kilobytes(std::size_t first, std::size_t limit) {
  memory_pool_options options;
  options.first_arena = first * kilo;
  options.limit = limit * kilo;
  return options;
}

void put(const registered_buffer& b, std::string_view text) {
  std::memcpy(b.data(), text.data(), text.size());
}
std::string text(const registered_buffer& b) {
  return {static_cast<const char*>(b.data()), b.size()};
}

/// The address and key of the buffer for a peer.
remote_buffer remote(const registered_buffer& b) {
  return b.region()->remote(static_cast<std::uint64_t>(static_cast<char*>(b.data()) -
                                                       static_cast<char*>(b.region()->data())),
                            b.size());
}

} // namespace

TEST_CASE("buffers of a pool carry messages") {
  pair p;
  const memory_pool pool(p.pd);
  CHECK(pool.get_protection_domain() == p.pd);
  for (const std::size_t bytes : {1u, 100u, 5000u, 300000u}) {
    const registered_buffer from = pool.allocate(bytes), to = pool.allocate(bytes);
    from.zero();
    put(from.slice(bytes / 2), "x");
    sent s;
    got r;
    p.b.async_receive(to, r.handler());
    p.a.async_send(from, s.handler());
    p.until([&] { return s.done() && r.done(); });
    CHECK(s.succeeded());
    CHECK(r.succeeded());
    CHECK(r.value.bytes == bytes);
    CHECK(text(to) == text(from));
  }

  // Gathered from slices, scattered to slices.
  const registered_buffer from = pool.allocate(12), to = pool.allocate(12);
  put(from, "abcdefghijkl");
  to.zero();
  sent s;
  got r;
  p.b.async_receive(std::array{to.slice(6), to.first(6)}, r.handler());
  p.a.async_send(std::array{from.slice(8), from.slice(2, 0), from.first(8)}, s.handler());
  p.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(text(to.slice(6)) + text(to.first(6)) == "ijklabcdefgh");
}

TEST_CASE("memory that is found in the pool need not be registered") {
  pair p;
  const memory_pool pool(p.pd);
  const registered_buffer b = pool.allocate(4096);
  put(b.slice(100), "found");
  const auto view = pool.find(static_cast<char*>(b.data()) + 100, 5);
  REQUIRE(view);
  sent s;
  got r;
  p.b.async_receive(p.mb.buffer(), r.handler());
  p.a.async_send(*view, s.handler());
  p.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(p.mb.text(0, 5) == "found");
  CHECK(!pool.find(p.mb.data(), 5));
}

TEST_CASE("the device enforces the rights of a pool") {
  pair p(impatient());
  memory_pool_options options;
  SECTION("a remote write to a pool that is not open to peers") {
    options.rights = access::local_write; // on iWARP this lets peers write to a region
    const registered_buffer b = memory_pool(p.pd, options).allocate(64);
    put(b, "intact");
    sent s;
    outcome<void> gone; // the only result of a refused write on iWARP
    p.a.async_wait_disconnect(gone.handler());
    p.a.async_write(p.ma.buffer(0, 6), remote(b), s.handler());
    p.until([&] { return s.done() && gone.done(); });
    CHECK(text(b.first(6)) == "intact");
  }
  SECTION("a remote read from a pool that is not open to it") {
    if (p.dev.type() == transport::iwarp)
      return not_on_this_device("siw does not ask for this right");
    options.rights = access::local_write;
    const registered_buffer b = memory_pool(p.pd, options).allocate(64);
    put(b, "secret");
    sent s;
    p.a.async_read(p.ma.buffer(0, 6), remote(b), s.handler());
    p.until([&] { return s.done(); });
    CHECK(s.ec);
    CHECK(p.ma.text(0, 6) == std::string(6, '\0'));
  }
  SECTION("a receive into a pool that may only be read") {
    options.rights = access::local_read;
    const registered_buffer b = memory_pool(p.pd, options).allocate(64);
    put(b, "intact");
    sent s;
    got r;
    p.b.async_receive(b, r.handler());
    p.a.async_send(p.ma.buffer(0, 6), s.handler());
    p.until([&] { return r.done(); });
    CHECK(r.ec);
    CHECK(text(b.first(6)) == "intact");
  }
  SECTION("a remote write and a remote read if the pool permits them") {
    options.rights = all_rights;
    const registered_buffer b = memory_pool(p.pd, options).allocate(64);
    put(b.slice(6), "there");
    p.ma.put(0, "hello");
    sent w, r;
    p.a.async_write(p.ma.buffer(0, 5), remote(b), w.handler());
    p.a.async_read(p.ma.buffer(100, 5), remote(b.slice(6)), r.handler());
    p.until([&] { return w.done() && r.done(); });
    CHECK(w.succeeded());
    CHECK(r.succeeded());
    CHECK(text(b.first(5)) == "hello");
    CHECK(p.ma.text(100, 5) == "there");
  }
}

TEST_CASE("a key of another pool's domain is refused by the device") {
  pair p(impatient());
  const protection_domain other(p.dev);
  const registered_buffer b = memory_pool(other, {}).allocate(4096); // too long for inline
  sent s;
  got r;
  p.b.async_receive(p.mb.buffer(), r.handler());
  p.a.async_send(b, s.handler());
  p.until([&] { return s.done(); });
  CHECK(s.ec);
}

TEST_CASE("each arena is one registration, and the last owner of the pool ends all registrations") {
  const device dev = open_device();
  const resource_check check;
  faults::injector faults(dev.native_handle());
  const auto registrations = [&faults] {
    const faults::counters c = faults.counts();
    return c[faults::call::reg_mr] - c.refused_of(faults::call::reg_mr) - c[faults::call::dereg_mr];
  };
  registered_buffer survivor;
  {
    const protection_domain pd(dev);
    const memory_pool pool(pd, of_kilobytes(64, 1024));
    CHECK(registrations() == 0);
    std::vector<registered_buffer> all;
    error_code ec;
    for (;;) {
      registered_buffer b = pool.allocate(30000, ec);
      if (ec)
        break;
      all.push_back(std::move(b));
      REQUIRE(registrations() == pool.statistics().arenas);
    }
    CHECK(ec == error::pool_limit);
    CHECK(pool.statistics().bytes_registered == 1024 * kilo);
    CHECK(pool.trim() == 0);
    survivor = all.front();
    all.clear();
    CHECK(pool.trim() > 0);
    CHECK(pool.statistics().arenas == 1);
    CHECK(registrations() == 1);
  }
  // The buffer keeps its pool alive, the pool its domain, and the domain its device.
  CHECK(registrations() == 1);
  put(survivor, "still there");
  survivor = {};
  CHECK(registrations() == 0);
}

TEST_CASE("a registration that fails is an error, loses nothing, and may be tried again") {
  const device dev = open_device();
  const resource_check check;
  const protection_domain pd(dev);
  const memory_pool pool(pd, of_kilobytes(64, 1024));
  faults::injector faults(dev.native_handle());
  const registered_buffer first = pool.allocate(64 * kilo);
  const memory_pool_statistics before = pool.statistics();
  error_code ec;
  SECTION("for the limit on locked memory") {
    faults.fail(faults::call::reg_mr, ENOMEM, {1, faults::forever});
    CHECK(pool.allocate(100, ec).empty());
    CHECK(ec == error::memory_limit);
    CHECK(pool.allocate(100 * kilo, ec).empty());
    CHECK(ec == error::memory_limit);
    CHECK_THROWS_AS(pool.allocate(100), system_error);
    pool.reserve(512 * kilo, ec);
    CHECK(ec == error::memory_limit);
  }
  SECTION("for another reason") {
    faults.fail(faults::call::reg_mr, EIO, {1, faults::forever});
    CHECK(pool.allocate(100, ec).empty());
    CHECK(ec == errc::io_error);
  }
  CHECK(pool.statistics().blocks_in_use == before.blocks_in_use);
  CHECK(pool.statistics().bytes_registered == before.bytes_registered);
  faults.clear();
  CHECK(pool.allocate(100).size() == 100);
  CHECK(pool.allocate(100 * kilo).size() == 100 * kilo);
}

TEST_CASE("a growth that is too large for the system becomes a smaller one") {
  const device dev = open_device();
  const protection_domain pd(dev);
  const memory_pool pool(pd, of_kilobytes(1024, 8192));
  faults::injector faults(dev.native_handle());
  faults.fail(faults::call::reg_mr, ENOMEM);
  CHECK(pool.allocate(100).size() == 100);
  CHECK(pool.statistics().bytes_registered < 1024 * kilo);
}

TEST_CASE("huge pages are used if the system has them, otherwise a message is logged") {
  const device dev = open_device();
  const protection_domain pd(dev);
  int said = 0;
  memory_pool_options options = of_kilobytes(2048, 16 * 1024);
  options.log = [&said](std::string_view message) {
    ++said;
    CHECK_THAT(std::string(message), Catch::Matchers::Contains("nr_hugepages"));
  };
  const memory_pool pool(pd, options);
  const registered_buffer a = pool.allocate(2048 * kilo), b = pool.allocate(2048 * kilo);
  const memory_pool_statistics s = pool.statistics();
  CHECK(s.arenas == 2);
  CHECK(said == (s.bytes_huge == s.bytes_registered ? 0 : 1));
  CHECK(reinterpret_cast<std::uintptr_t>(a.region()->data()) % (2048 * kilo) == 0);
}

TEST_CASE("memory of the user's own is kept and released like the pool's") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  std::uint64_t deregistered_at_free = 0;
  int freed = 0;
  {
    registered_buffer b;
    {
      const std::shared_ptr<char> own(new char[4096](), [&](char* m) {
        ++freed;
        deregistered_at_free = faults.counts()[faults::call::dereg_mr];
        delete[] m;
      });
      b = registered_buffer(memory_region(p.pd, own.get(), 4096), own);
      CHECK(b.data() == own.get());
    }
    CHECK(b.size() == 4096);
    CHECK(freed == 0);
    b = b.slice(1000, 10);
    const buffer_access writes = b.try_write_access();
    CHECK(!b.try_read_access());
    sent s;
    got r;
    p.ma.put(0, "0123456789");
    p.b.async_receive(b, r.handler());
    p.a.async_send(p.ma.buffer(0, 10), s.handler());
    p.until([&] { return s.done() && r.done(); });
    CHECK(r.succeeded());
    CHECK(text(b) == "0123456789");
    b = {};
    CHECK(freed == 0); // the access keeps the memory
  }
  CHECK(freed == 1);
  CHECK(deregistered_at_free == 1);
}

TEST_CASE("threads make a pool grow and shrink") {
  const device dev = open_device();
  const resource_check check;
  const protection_domain pd(dev);
  const memory_pool pool(pd, of_kilobytes(64, 2048));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&pool, &wrong, t] {
      for (int round = 0; round < 20; ++round) {
        std::vector<registered_buffer> all;
        for (int i = 0; i < 8; ++i) {
          error_code ec;
          registered_buffer b = pool.allocate(i % 2 == 0 ? 100 * kilo : 1000, ec);
          if (ec) {
            wrong += ec != error::pool_limit;
            continue;
          }
          std::memset(b.data(), t, b.size());
          wrong += b.lkey() != pool.find(b.data(), b.size())->lkey();
          all.push_back(std::move(b));
        }
        for (const registered_buffer& b : all)
          wrong += static_cast<const char*>(b.data())[b.size() - 1] != static_cast<char>(t);
        all.clear();
        pool.trim();
      }
    });
  for (std::thread& t : threads)
    t.join();
  CHECK(wrong == 0);
  CHECK(pool.statistics().blocks_in_use == 0);
  pool.trim();
  CHECK(pool.statistics().arenas == 0);
}

} // namespace test::memory_pool_tests
