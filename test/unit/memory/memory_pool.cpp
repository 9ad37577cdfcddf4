// SPDX-License-Identifier: BSL-1.0
//
// The pool's bookkeeping, on memory that no device knows.
#include <catch.hpp>

#include "unit/memory/plain_arenas.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/system/errc.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

using namespace asio_rdma;
using namespace asio_rdma::detail;
namespace errc = boost::system::errc;

static_assert(asio::is_const_buffer_sequence<registered_buffer>::value);
static_assert(asio::is_mutable_buffer_sequence<registered_buffer>::value);
static_assert(const_buffer_sequence<registered_buffer>);
static_assert(mutable_buffer_sequence<registered_buffer>);
static_assert(mutable_buffer_sequence<std::vector<registered_buffer>>);

#if defined(__SANITIZE_ADDRESS__)
#define ASIO_RDMA_TEST_POISON
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASIO_RDMA_TEST_POISON
#endif
#endif
#ifdef ASIO_RDMA_TEST_POISON
#include <sanitizer/asan_interface.h>
#endif

namespace {

std::uintptr_t address(const registered_buffer& b) {
  return reinterpret_cast<std::uintptr_t>(b.data());
}

/// Fills the buffer with a mark that differs from all other buffers' marks.
void mark(const registered_buffer& b, std::uint64_t value) {
  std::memset(b.data(), static_cast<int>(value & 0xff), b.size());
}
bool is_marked(const registered_buffer& b, std::uint64_t value) {
  const auto* p = static_cast<const unsigned char*>(b.data());
  return std::all_of(p, p + b.size(), [value](unsigned char c) { return c == (value & 0xff); });
}

} // namespace

TEST_CASE("a size class holds the size that it is chosen for, and the class below does not") {
  for (std::size_t i = 0; i < size_classes; ++i) {
    CHECK(class_of(class_bytes(i)) == i);
    CHECK(class_of(class_bytes(i) - 1) == i);
    if (i != 0)
      CHECK(class_of(class_bytes(i - 1) + 1) == i);
    CHECK(slab_bytes(i) % page_bytes == 0);
    CHECK(slab_bytes(i) >= 4 * class_bytes(i));
  }
  CHECK(class_of(1) == 0);
  CHECK(class_of(largest_small) == size_classes - 1);
  for (std::size_t a = 1; a <= page_bytes; a *= 2)
    for (std::size_t bytes = 1; bytes <= largest_small; bytes += 61) {
      const std::size_t size = class_bytes(class_of(bytes, a));
      REQUIRE(size >= bytes);
      REQUIRE(size % a == 0);
    }
}

TEST_CASE("buffers have the requested size and alignment, and a key") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  std::vector<registered_buffer> all;
  for (std::size_t a = 1; a <= memory_pool::max_alignment; a *= 2)
    for (const std::size_t bytes :
         {1u, 63u, 64u, 65u, 1000u, 4096u, 4097u, 65535u, 65536u, 65537u, 300000u}) {
      all.push_back(pool.allocate(bytes, a));
      const registered_buffer& b = all.back();
      REQUIRE(b.size() == bytes);
      REQUIRE(address(b) % a == 0);
      REQUIRE(address(b) % memory_pool::default_alignment == 0);
      REQUIRE(b.lkey() != 0);
      mark(b, all.size());
    }
  for (std::size_t i = 0; i < all.size(); ++i)
    REQUIRE(is_marked(all[i], i + 1));

  error_code ec;
  for (const std::size_t bad : {0u, 3u, 8192u, 65u}) {
    CHECK(pool.allocate(64, bad, ec).empty());
    CHECK(ec == asio::error::invalid_argument);
  }
}

TEST_CASE("a buffer of no bytes needs no memory") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  error_code ec = error::pool_limit;
  const registered_buffer b = pool.allocate(0, ec);
  CHECK(!ec);
  CHECK(b.empty());
  CHECK(arenas.asked == 0);
}

TEST_CASE(
    "the pool grows by doubling up to its limit; over it there is an error and nothing is lost") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = 64 * 1024;
  options.limit = 1000 * 1024; // not a multiple of the doublings
  const memory_pool pool = arenas.pool(options);
  std::vector<registered_buffer> all;
  std::vector<std::size_t> sizes;
  error_code ec;
  for (;;) {
    registered_buffer b = pool.allocate(page_bytes, page_bytes, ec);
    if (ec)
      break;
    all.push_back(std::move(b));
    const std::size_t bytes = pool.statistics().bytes_registered;
    if (sizes.empty() || sizes.back() != bytes)
      sizes.push_back(bytes);
  }
  CHECK(ec == error::pool_limit);
  CHECK(ec == errc::not_enough_memory);
  CHECK_THAT(ec.message(), Catch::Matchers::Contains("memory_pool_options::limit"));
  CHECK(sizes ==
        std::vector<std::size_t>{64 * 1024, 128 * 1024, 256 * 1024, 512 * 1024, 1000 * 1024});
  CHECK(all.size() == 1000 * 1024 / page_bytes); // to the last page
  CHECK(pool.statistics().blocks_in_use == all.size());
  CHECK_THROWS_AS(pool.allocate(1), system_error);
  CHECK_THROWS_AS(pool.allocate(options.limit + 1), system_error);

  const void* const last = all.back().data();
  all.pop_back();
  CHECK(pool.allocate(page_bytes, page_bytes).data() == last);
  all.clear();
  const memory_pool_statistics s = pool.statistics();
  CHECK(s.blocks_in_use == 0);
  CHECK(s.bytes_in_use == 0);
  CHECK(s.bytes_registered == 1000 * 1024);
}

TEST_CASE("memory that small blocks no longer use serves other sizes before the pool grows") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = options.limit = 1024 * 1024;
  const memory_pool pool = arenas.pool(options);
  for (const std::size_t bytes :
       {std::size_t(64), std::size_t(40960), std::size_t(1024) * 1024, std::size_t(512)}) {
    std::vector<registered_buffer> all;
    error_code ec;
    while (!ec)
      all.push_back(pool.allocate(bytes, ec));
    CHECK(all.size() > 1);
    if (bytes == options.limit)
      CHECK(all.size() == 2); // the last one failed
  }
  CHECK(arenas.made == 1);
}

TEST_CASE("a system that gives less than a doubling still gives the requested size") {
  test::plain_arenas arenas;
  arenas.largest = 300 * 1024;
  const memory_pool pool = arenas.pool();
  const registered_buffer a = pool.allocate(100), b = pool.allocate(300 * 1024);
  CHECK(!a.empty());
  CHECK(!b.empty());
  error_code ec;
  CHECK(pool.allocate(300 * 1024 + 1, ec).empty());
  CHECK(ec == error::memory_limit);
  const std::size_t blocks = pool.statistics().blocks_in_use;
  CHECK(blocks == 2);
}

TEST_CASE("reserved memory is there without growing") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  pool.reserve(5 * 1024 * 1024);
  CHECK(pool.statistics().bytes_registered >= 5 * 1024 * 1024);
  const std::size_t asked = arenas.asked;
  CHECK(pool.allocate(4 * 1024 * 1024).size() == 4 * 1024 * 1024);
  pool.reserve(1);
  CHECK(arenas.asked == asked);
  error_code ec;
  pool.reserve(memory_pool_options().limit + 1, ec);
  CHECK(ec == error::pool_limit);
}

TEST_CASE("trim gives back the arenas that are unused, and no others") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = 128 * 1024;
  const memory_pool pool = arenas.pool(options);
  registered_buffer a = pool.allocate(128 * 1024), b = pool.allocate(128 * 1024),
                    c = pool.allocate(100);
  CHECK(arenas.alive == 3);
  mark(a, 1);
  mark(c, 3);
  CHECK(pool.trim() == 0);
  b = {};
  CHECK(pool.trim() == 128 * 1024);
  CHECK(arenas.alive == 2);
  CHECK(is_marked(a, 1));
  CHECK(is_marked(c, 3));
  c = {};
  a = {};
  CHECK(pool.trim() == 384 * 1024);
  CHECK(arenas.alive == 0);
  CHECK(pool.statistics().bytes_registered == 0);
  CHECK(!pool.find(&arenas, 1));
  CHECK(pool.allocate(100).size() == 100);
}

TEST_CASE("find returns the key of the pool's memory, and nothing for other memory") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = 64 * 1024;
  const memory_pool pool = arenas.pool(options);
  std::vector<registered_buffer> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(pool.allocate(std::size_t(102400) << i));
  CHECK(arenas.alive > 3);
  for (const registered_buffer& b : all) {
    const auto found = pool.find(b.data(), b.size());
    REQUIRE(found);
    CHECK(found->data() == b.data());
    CHECK(found->size() == b.size());
    CHECK(found->lkey() == b.lkey());
    const auto part = pool.find(b.slice(b.size() - 1));
    REQUIRE(part);
    CHECK(part->size() == 1);
    CHECK(part->lkey() == b.lkey());
    // No range reaches beyond its arena, even if another arena follows.
    CHECK(!pool.find(b.data(), pool.statistics().bytes_registered));
  }
  const std::vector<char> other(100);
  CHECK(!pool.find(other.data(), other.size()));
  CHECK(!pool.find(nullptr, 1));
}

TEST_CASE("slices share the memory, and the last one returns it") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  registered_buffer whole = pool.allocate(100);
  auto* const data = static_cast<char*>(whole.data());
  const registered_buffer tail = whole.slice(60);
  CHECK(tail.data() == data + 60);
  CHECK(tail.size() == 40);
  CHECK(tail.lkey() == whole.lkey());
  CHECK(tail.shares_memory_with(whole));
  CHECK(!tail.shares_memory_with(pool.allocate(100)));
  const registered_buffer middle = tail.slice(10, 20);
  CHECK(middle.data() == data + 70);
  CHECK(middle.size() == 20);
  CHECK(whole.first(7).size() == 7);
  CHECK(whole.first(101).size() == 100);

  CHECK(whole.slice(100, 0).empty());
  CHECK(whole.slice(100).empty());
  error_code ec;
  const std::pair<std::size_t, std::size_t> bad[] = {
      {101, 0}, {100, 1}, {0, 101}, {60, 41}, {60, std::size_t(0) - 20}, {std::size_t(0) - 1, 1}};
  for (const auto& [offset, bytes] : bad) {
    CHECK(whole.slice(offset, bytes, ec).empty());
    CHECK(ec == errc::result_out_of_range);
    CHECK_THROWS_AS(whole.slice(offset, bytes), system_error);
  }
  CHECK_THROWS_AS(whole.slice(101), system_error);
  CHECK(middle.slice(20, 0, ec).empty());
  CHECK(!ec);

  CHECK(pool.statistics().blocks_in_use == 1);
  whole = {};
  CHECK(pool.statistics().blocks_in_use == 1);
  CHECK(pool.statistics().bytes_in_use == 100);
}

TEST_CASE("a buffer is a buffer sequence for Asio and for the device") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer b = pool.allocate(100);
  CHECK(asio::buffer_size(b) == 100);
  CHECK(asio::buffer_copy(b, asio::buffer("hello")) == 6);
  CHECK(std::memcmp(b.data(), "hello", 6) == 0);
  const mutable_buffer view = b;
  CHECK(view.data() == b.data());
  CHECK(view.lkey() == b.lkey());
  const asio_rdma::const_buffer read_only = b.slice(3);
  CHECK(read_only.size() == 97);
}

TEST_CASE("buffers are zeroed on request") {
  test::plain_arenas arenas;
  memory_pool_options options;
  const memory_pool pool = arenas.pool(options);
  registered_buffer b = pool.allocate(1000);
  mark(b, 7);
  b.slice(100, 50).zero();
  CHECK(is_marked(b.slice(100, 50), 0));
  CHECK(is_marked(b.slice(150), 7));
  CHECK(is_marked(b.first(100), 7));

  options.zeroed = true;
  const memory_pool zeroing = arenas.pool(options);
  for (int i = 0; i < 3; ++i)
    for (const std::size_t bytes : {100u, 100000u}) {
      const registered_buffer z = zeroing.allocate(bytes);
      REQUIRE(is_marked(z, 0));
      mark(z, 1);
    }
}

TEST_CASE("the pool lives on until the last buffer is returned") {
  test::plain_arenas arenas;
  registered_buffer small, large;
  {
    memory_pool pool = arenas.pool();
    const memory_pool same = pool;
    CHECK(same == pool);
    small = pool.allocate(100);
    large = pool.allocate(100000);
  }
  CHECK(arenas.alive == 1);
  mark(small, 1);
  mark(large, 2);
  small = {};
  CHECK(arenas.alive == 1);
  large = {};
  CHECK(arenas.alive == 0);
}

TEST_CASE(
    "with any allocations and returns, no two buffers share a byte and all memory comes back") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u);
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = 256 * 1024;
  options.limit = 8 * 1024 * 1024;
  const memory_pool pool = arenas.pool(options);
  struct taken {
    registered_buffer buffer;
    std::uint64_t mark;
  };
  std::map<std::uintptr_t, taken> all; // by address
  std::size_t bytes_in_use = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool more = random() % 100 < (step / 2000 % 2 == 0 ? 60u : 40u);
    if (more) {
      const std::size_t bytes = 1 + random() % (std::size_t(1) << (random() % 20));
      const std::size_t alignment = std::size_t(1) << (random() % 13);
      error_code ec;
      registered_buffer b = pool.allocate(bytes, alignment, ec);
      if (ec) {
        REQUIRE(ec == error::pool_limit);
        continue;
      }
      REQUIRE(address(b) % alignment == 0);
      REQUIRE(pool.find(b.data(), b.size()));
      const auto next = all.lower_bound(address(b));
      if (next != all.end())
        REQUIRE(address(b) + bytes <= next->first);
      if (next != all.begin())
        REQUIRE(std::prev(next)->first + std::prev(next)->second.buffer.size() <= address(b));
      static_cast<char*>(b.data())[0] = static_cast<char>(step);
      static_cast<char*>(b.data())[bytes - 1] = static_cast<char>(step);
      bytes_in_use += bytes;
      const std::uintptr_t key = address(b);
      all.emplace(key, taken{std::move(b), static_cast<std::uint64_t>(step)});
    } else if (!all.empty()) {
      const auto i = std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()));
      const registered_buffer& b = i->second.buffer;
      REQUIRE(static_cast<char*>(b.data())[0] == static_cast<char>(i->second.mark));
      REQUIRE(static_cast<char*>(b.data())[b.size() - 1] == static_cast<char>(i->second.mark));
      bytes_in_use -= b.size();
      all.erase(i);
    }
    if (step % 1000 == 0)
      pool.trim();
    const memory_pool_statistics s = pool.statistics();
    REQUIRE(s.blocks_in_use == all.size());
    REQUIRE(s.bytes_in_use == bytes_in_use);
    REQUIRE(s.bytes_registered <= options.limit);
    REQUIRE(s.arenas == static_cast<std::size_t>(arenas.alive));
  }
  all.clear();
  pool.trim();
  CHECK(arenas.alive == 0);
}

#ifdef ASIO_RDMA_TEST_POISON
TEST_CASE("AddressSanitizer knows which memory of the pool is unused") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  for (const std::size_t bytes : {100u, 5000u, 100000u}) {
    registered_buffer b = pool.allocate(bytes);
    auto* const data = static_cast<char*>(b.data());
    CHECK(!__asan_region_is_poisoned(data, bytes));
    CHECK(__asan_address_is_poisoned(data + bytes)); // not requested, if in the same block
    b = {};
    CHECK(__asan_address_is_poisoned(data));
    CHECK(__asan_address_is_poisoned(data + bytes - 1));
  }
}
#endif

TEST_CASE("threads share a pool, its buffers and their last references") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.first_arena = 256 * 1024;
  {
    const memory_pool pool = arenas.pool(options);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    const registered_buffer shared = pool.allocate(4096);
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&pool, &wrong, shared, t] {
        std::mt19937 random(t);
        std::vector<std::pair<registered_buffer, std::uint64_t>> mine;
        for (std::uint64_t step = 0; step < 3000; ++step) {
          if (random() % 2 == 0 || mine.empty()) {
            mine.emplace_back(pool.allocate(1 + random() % (random() % 8 == 0 ? 200000 : 2000)),
                              step);
            mark(mine.back().first, step);
            wrong += !pool.find(mine.back().first.data(), mine.back().first.size());
          } else {
            std::swap(mine[random() % mine.size()], mine.back());
            wrong += !is_marked(mine.back().first, mine.back().second);
            mine.pop_back();
          }
          const registered_buffer part = shared.slice(random() % 4096);
          if (step % 500 == 0)
            pool.trim();
          wrong += pool.statistics().blocks_in_use == 0;
        }
      });
    for (std::thread& t : threads)
      t.join();
    CHECK(wrong == 0);
    CHECK(pool.statistics().blocks_in_use == 1);
  }
  CHECK(arenas.alive == 0);
}
