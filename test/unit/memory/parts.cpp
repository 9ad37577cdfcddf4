// SPDX-License-Identifier: BSL-1.0
//
// Pools that take their memory from the limit of another one (`memory_pool::in_own_domain`), on
// memory that no device knows.
#include <catch.hpp>

#include "unit/memory/plain_arenas.hpp"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace test::parts_tests {

using namespace asio_rdma;
using namespace asio_rdma::detail;

namespace {

constexpr std::size_t kilo = 1024;

/// A pool with parts.
struct divided {
  explicit divided(std::size_t limit) : options(memory_pool_options().set_limit(limit)) {}

  memory_pool part() { return of_parts.pool(options, whole); }
  /// The bytes to which the limit applies.
  std::size_t registered() const { return whole.statistics().bytes_registered; }

  memory_pool_options options;
  plain_arenas of_whole, of_parts; // these outlive the pools
  memory_pool whole = of_whole.pool(options);
};

} // namespace

TEST_CASE("a part takes no more than it needs") {
  divided d(64 * kilo * kilo);
  const memory_pool part = d.part();
  part.reserve(288 * kilo);
  CHECK(part.statistics().bytes_registered == 288 * kilo);
  CHECK(d.registered() == 288 * kilo);
  CHECK(d.whole.statistics().bytes_in_use == 288 * kilo);
  CHECK(d.whole.statistics().arenas == 0);
  std::vector<registered_buffer> idle;
  for (int i = 0; i != 32; ++i)
    idle.push_back(part.allocate(8 * kilo));
  idle.push_back(part.allocate(32 * kilo));
  CHECK(part.statistics().arenas == 1); // all fits in the reserved memory
  CHECK(part.impl()->used() == d.registered());
  CHECK(part.allocate(100'000).size() == 100'000);
  CHECK(d.registered() <= 288 * kilo + 100 * kilo);
}

TEST_CASE("a part keeps an arena without use if little is registered") {
  const bool much = GENERATE(false, true);
  divided d((much ? 32 : 64) * kilo * kilo);
  const memory_pool part = d.part();
  const registered_buffer idle = part.allocate(100);
  registered_buffer large = part.allocate(5'000'000);
  const registered_buffer slice = large.slice(5, 1);
  large = {};
  CHECK(d.of_parts.alive == 2);
  CHECK(part.find(slice.data(), 1));
  for (int i = 0; i != 3; ++i)
    CHECK(part.allocate(4'000'000).size() == 4'000'000);
  CHECK(d.of_parts.made == (much ? 5 : 3)); // beside that of the slice
}

TEST_CASE("a part keeps at most one slab of a size without a block in use") {
  divided d(32 * kilo * kilo);
  const memory_pool part = d.part();
  std::vector<registered_buffer> all;
  for (int i = 0; i != 1000; ++i)
    all.push_back(part.allocate(16 * kilo));
  CHECK(d.registered() >= 16'000 * kilo);
  std::mt19937 random(1);
  while (!all.empty()) {
    std::swap(all[random() % all.size()], all.back());
    all.pop_back();
  }
  CHECK(part.statistics().blocks_in_use == 0);
  CHECK(d.registered() <= (8 + 1) * kilo * kilo); // an arena has up to 1 MiB
  CHECK(part.allocate(16 * kilo).size() == 16 * kilo);
  part.trim();
  CHECK(d.of_parts.alive == 0);
  CHECK(d.registered() == 0);
}

TEST_CASE("the limit applies to a pool and its parts together") {
  divided d(1024 * kilo);
  const memory_pool first = d.part(), second = d.part();
  CHECK(first.limit() == 1024 * kilo);
  error_code ec;
  registered_buffer a = first.allocate(600 * kilo);
  CHECK(second.allocate(600 * kilo, ec).empty());
  CHECK(ec == error::pool_limit);
  CHECK(d.whole.allocate(600 * kilo, ec).empty());
  CHECK(ec == error::pool_limit);
  CHECK(second.allocate(300 * kilo).size() == 300 * kilo);
  a = {};
  CHECK(second.allocate(600 * kilo).size() == 600 * kilo);
  CHECK(d.registered() == 0);

  // The whole keeps arenas, until a part needs their bytes.
  registered_buffer of_whole = d.whole.allocate(200 * kilo);
  d.whole.allocate(700 * kilo);
  CHECK(d.of_whole.alive == 1);
  CHECK(first.allocate(900 * kilo, ec).empty());
  CHECK(ec == error::pool_limit);
  of_whole = {};
  CHECK(first.allocate(900 * kilo).size() == 900 * kilo);
  CHECK(d.of_whole.alive == 0);
}

TEST_CASE("an arena that cannot be made takes nothing from the limit") {
  divided d(1024 * kilo);
  const memory_pool part = d.part();
  d.of_parts.largest = 100 * kilo;
  error_code ec;
  CHECK(part.allocate(200 * kilo, ec).empty());
  CHECK(ec == error::memory_limit);
  CHECK(d.registered() == 0);
  CHECK(part.allocate(90 * kilo).size() == 90 * kilo);
}

TEST_CASE("a pool lives as long as the last block of a part") {
  divided d(1024 * kilo);
  registered_buffer last = d.part().allocate(100);
  d.whole = {};
  std::memset(last.data(), 1, last.size());
  CHECK(d.of_parts.alive == 1);
  last = {};
  CHECK(d.of_parts.alive == 0);
}

TEST_CASE("parts of one pool are used by several threads") {
  divided d(4096 * kilo);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  const memory_pool shared = d.part();
  for (unsigned t = 0; t != 4; ++t)
    threads.emplace_back([&d, &wrong, t,
                          pool = t % 2 == 0 ? shared
                                 : t == 1   ? d.part()
                                            : d.whole] {
      std::mt19937 random(t);
      std::vector<registered_buffer> mine;
      for (int i = 0; i != 3000; ++i) {
        error_code ec;
        registered_buffer b =
            pool.allocate(1 + random() % (random() % 4 == 0 ? 500'000 : 20'000), ec);
        if (ec) {
          wrong += ec != error::pool_limit ? 1 : 0;
          mine.clear();
          continue;
        }
        std::memset(b.data(), static_cast<int>(t), b.size());
        mine.push_back(std::move(b));
        wrong += d.registered() > 4096 * kilo ? 1 : 0;
        if (random() % 3 == 0) {
          std::swap(mine[random() % mine.size()], mine.back());
          const auto* const last = static_cast<const unsigned char*>(mine.back().data());
          wrong += last[mine.back().size() - 1] != t ? 1 : 0;
          mine.pop_back();
        }
      }
    });
  for (std::thread& t : threads)
    t.join();
  CHECK(wrong == 0);
  shared.trim();
  d.whole.trim();
  CHECK(d.registered() == 0);
  CHECK(d.of_parts.alive == 0);
  CHECK(d.of_whole.alive == 0);
}

} // namespace test::parts_tests
