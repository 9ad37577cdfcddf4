// SPDX-License-Identifier: BSL-1.0
// Blocks of a pool that are larger than its arenas.
#include "catch.hpp"
#include "core/size_classes.hpp"
#include "unit/memory/plain_arenas.hpp"

#include <asio_rdma/log.hpp>
#include <boost/asio/io_context.hpp>

#include "memory/slow_allocation.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace {

using namespace asio_rdma;

constexpr std::size_t mega = std::size_t(1) << 20;

} // namespace

TEST_CASE("arenas double up to 8 MiB, or a part of all") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.limit = 4096 * mega;
  const memory_pool pool = arenas.pool(options);
  std::size_t before = 0;
  std::vector<registered_buffer> all;
  while (before < 2048 * mega) {
    all.push_back(pool.allocate(mega));
    const std::size_t now = pool.statistics().bytes_registered;
    const std::size_t grown = now - before;
    if (grown != 0 && before != 0) {
      CAPTURE(before);
      CHECK(grown == std::min(before, std::max(8 * mega, detail::round_up(before / 32, 2 * mega))));
    }
    before = now;
  }
}

TEST_CASE("a large block has an arena of its size") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.limit = 100 * mega;
  const memory_pool pool = arenas.pool(options);
  registered_buffer large = pool.allocate(41 * mega);
  CHECK(pool.statistics().bytes_registered == 42 * mega);
  CHECK(pool.allocate(mega).size() == mega); // of the rest
  CHECK(arenas.made == 1);
  error_code ec;
  CHECK(pool.allocate(60 * mega, ec).empty());
  CHECK(ec == error::pool_limit);
  CHECK(pool.allocate(58 * mega, ec).size() == 58 * mega); // up to the limit
  CHECK(pool.statistics().bytes_registered == options.limit);
  large = {};
  CHECK(pool.allocate(40 * mega, ec).size() == 40 * mega);
  CHECK(arenas.made == 2);
  CHECK(pool.allocate(70 * mega, ec).size() == 70 * mega); // in place of both
  CHECK(arenas.made == 3);
  CHECK(pool.trim() == 70 * mega);
}

TEST_CASE("a large block for which there is no memory leaves nothing") {
  test::plain_arenas arenas;
  arenas.largest = 40 * mega;
  const memory_pool pool = arenas.pool();
  error_code ec;
  CHECK(pool.allocate(41 * mega, ec).empty());
  CHECK(ec == error::memory_limit);
  CHECK(pool.statistics().bytes_registered == 0);
  CHECK(pool.statistics().bytes_in_use == 0);
}

TEST_CASE("other threads use the pool while a large arena is registered") {
  test::plain_arenas arenas;
  std::atomic<bool> entered = false, may_return = false;
  const memory_pool pool{detail::memory_pool_ptr(new detail::memory_pool_impl(
      memory_pool_options(),
      [&](std::size_t bytes, error_code&) -> std::unique_ptr<detail::memory_arena> {
        if (bytes > 32 * mega) {
          entered = true;
          entered.notify_all();
          may_return.wait(false);
        }
        return std::make_unique<test::plain_arenas::arena>(arenas, bytes);
      }))};
  asio::io_context io;
  const auto slow =
      detail::slow_allocations::of(io).start<detail::slow_allocation>(pool, 400 * mega);
  REQUIRE(slow);
  entered.wait(false);
  CHECK_FALSE(slow->is_done());
  std::vector<registered_buffer> all;
  while (pool.statistics().arenas < 4)
    all.push_back(pool.allocate(mega));
  CHECK(detail::allocate_present(pool, 33 * mega).empty());
  CHECK(pool.statistics().bytes_in_use == (400 + all.size()) * mega);
  all.clear();
  CHECK(pool.trim() != 0);
  may_return = true;
  may_return.notify_all();
  while (!slow->is_done())
    std::this_thread::yield();
  error_code ec;
  registered_buffer block = slow->take(ec);
  CHECK_FALSE(ec);
  CHECK(block.size() == 400 * mega);
  CHECK(pool.statistics().bytes_in_use == 400 * mega);
  block = {};
  CHECK(detail::allocate_present(pool, 400 * mega).size() == 400 * mega);
  CHECK(arenas.alive == 1);
}

TEST_CASE("a thread waits for the memory that another one deregisters") {
  std::atomic<bool> entered = false, lacks = false;
  test::plain_arenas arenas;
  memory_pool_options options;
  options.limit = 2 * mega;
  const memory_pool pool = arenas.pool(options);
  CHECK(pool.allocate(mega).size() == mega);
  arenas.deregisters = [&] {
    if (entered.exchange(true))
      return;
    entered.notify_all();
    lacks.wait(false);
  };
  set_log([&](const log_record& r) {
    if (r.event != log_event::memory)
      return;
    lacks = true;
    lacks.notify_all();
  });
  std::thread other([&] { CHECK(pool.trim() == 2 * mega); });
  entered.wait(false);
  CHECK(pool.statistics().bytes_registered == options.limit);
  error_code ec;
  const registered_buffer block = pool.allocate(mega, ec);
  other.join();
  set_log(nullptr);
  CHECK_FALSE(ec);
  CHECK(block.size() == mega);
  CHECK(pool.statistics().bytes_registered == options.limit);
}

TEST_CASE("a context that no other thread may use allocates large blocks itself") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  asio::io_context io(BOOST_ASIO_CONCURRENCY_HINT_UNSAFE);
  auto& allocations = detail::slow_allocations::of(io);
  CHECK(allocations.start<detail::slow_allocation>(pool, 40 * mega) == nullptr);
  CHECK(arenas.made == 0);
}

TEST_CASE("the threads of a context register so many bytes in a period, and no more") {
  using namespace std::chrono_literals;
  using detail::slow_allocations;
  using clock = std::chrono::steady_clock;
  constexpr std::size_t most = slow_allocations::most_a_period;
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  CHECK(pool.allocate(mega).size() == mega); // the first arena has 2 MiB
  asio::io_context io;
  auto& allocations = slow_allocations::of(io);
  const bool memory_is_there = GENERATE(false, true);
  CAPTURE(memory_is_there);
  if (memory_is_there)
    CHECK(pool.allocate(most).size() == most);
  const std::size_t bytes = memory_is_there ? mega : 4 * mega;
  CHECK_FALSE(allocations.admits(pool, most + 1));
  CHECK_FALSE(allocations.admits(pool, bytes, most));
  const auto begin = clock::now();
  std::size_t admitted = 0;
  while (allocations.admits(pool, bytes))
    admitted += bytes;
  const auto periods = (clock::now() - begin) / slow_allocations::period;
  CHECK(admitted >= most);
  CHECK(admitted <= most * static_cast<std::size_t>(2 + periods));
  bool again = false; // the time for these bytes passes
  while (!again && clock::now() < begin + 20s)
    again = allocations.admits(pool, bytes);
  CHECK(again);
  CHECK(clock::now() - begin >= slow_allocations::period / 16);
}

TEST_CASE("the bytes that an allocation would register") {
  test::plain_arenas arenas;
  memory_pool_options options;
  options.limit = 64 * mega;
  const memory_pool pool = arenas.pool(options);
  const auto registers = [&](std::size_t bytes) {
    return pool.impl()->bytes_to_prepare(bytes);
  };
  CHECK(registers(100'000) == 2 * mega); // the first arena
  std::vector<registered_buffer> all;
  all.push_back(pool.allocate(mega));
  CHECK(registers(mega) == mega); // present
  CHECK(registers(mega + 1) == 2 * mega);
  CHECK(registers(7 * mega) == 8 * mega); // whole huge pages
  CHECK(registers(11 * mega) == 12 * mega);
  all.push_back(pool.allocate(11 * mega));
  CHECK(pool.statistics().bytes_registered == 14 * mega);
  CHECK(registers(2 * mega) == 8 * mega);
  all.push_back(pool.allocate(48 * mega));
  CHECK(registers(2 * mega) == 2 * mega);                     // what the limit leaves
  CHECK(registers(3 * mega) == static_cast<std::size_t>(-1)); // others are deregistered first
  test::plain_arenas of_part;
  const memory_pool part = of_part.pool(options, pool);
  CHECK(part.impl()->bytes_to_prepare(mega) == mega);
  CHECK(part.impl()->bytes_to_prepare(3 * mega) == static_cast<std::size_t>(-1));
}

TEST_CASE("a cancelled allocation is not made, and does not count") {
  test::plain_arenas arenas;
  std::atomic<bool> entered = false, may_return = false;
  const memory_pool pool{detail::memory_pool_ptr(new detail::memory_pool_impl(
      memory_pool_options(),
      [&](std::size_t bytes, error_code&) -> std::unique_ptr<detail::memory_arena> {
        entered = true;
        entered.notify_all();
        may_return.wait(false);
        return std::make_unique<test::plain_arenas::arena>(arenas, bytes);
      }))};
  asio::io_context io;
  auto& allocations = detail::slow_allocations::of(io);
  const auto start = [&] {
    return allocations.start<detail::slow_allocation>(pool, 10 * mega);
  };
  const auto first = start();
  REQUIRE(first);
  entered.wait(false);
  auto cancelled = start();
  const auto last = start();
  REQUIRE((cancelled && last));
  CHECK(allocations.bytes_waiting(pool) == 20 * mega);
  const std::weak_ptr<detail::slow_allocation> watched = cancelled;
  allocations.cancel(*cancelled);
  cancelled.reset();
  CHECK(watched.expired());
  CHECK(allocations.bytes_waiting(pool) == 10 * mega);
  may_return = true;
  may_return.notify_all();
  while (!last->is_done())
    std::this_thread::yield();
  CHECK(first->is_done());
  CHECK(arenas.made == 2);
}

TEST_CASE("a short allocation does not wait for long ones") {
  test::plain_arenas arenas;
  std::atomic<int> entered = 0;
  std::atomic<bool> may_return = false;
  const memory_pool pool{detail::memory_pool_ptr(new detail::memory_pool_impl(
      memory_pool_options(),
      [&](std::size_t bytes, error_code&) -> std::unique_ptr<detail::memory_arena> {
        if (bytes > 32 * mega) {
          ++entered;
          may_return.wait(false);
        }
        return std::make_unique<test::plain_arenas::arena>(arenas, bytes);
      }))};
  asio::io_context io;
  auto& allocations = detail::slow_allocations::of(io);
  std::vector<std::shared_ptr<detail::slow_allocation>> all;
  for (int i = 0; i < 3; ++i)
    all.push_back(allocations.start<detail::slow_allocation>(pool, 40 * mega));
  while (entered != 2) // both threads for these
    std::this_thread::yield();
  const auto short_one = allocations.start<detail::slow_allocation>(pool, mega);
  REQUIRE(short_one);
  while (!short_one->is_done())
    std::this_thread::yield();
  CHECK_FALSE(all[2]->has_begun());
  may_return = true;
  may_return.notify_all();
}
