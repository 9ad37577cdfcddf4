// SPDX-License-Identifier: BSL-1.0
//
// The work of every operation does not use the heap.
#include <catch.hpp>

#include "device/lifetime/life_counted_heap.hpp"
#include "unit/memory/plain_arenas.hpp"

#include <boost/asio/io_context.hpp>

#include <array>

using namespace asio_rdma;

namespace {

/// The number of heap allocations after some warm-up.
template <class Work>
std::size_t allocations_of(Work&& work) {
  for (int i = 0; i < 10; ++i)
    work();
  const std::size_t before = test::allocations;
  for (int i = 0; i < 1000; ++i)
    work();
  return test::allocations - before;
}

} // namespace

TEST_CASE("the steady state uses no heap") {
  test::plain_arenas arenas;
  const memory_pool pool = arenas.pool();
  const registered_buffer kept = pool.allocate(1000);

  CHECK(allocations_of([&] {
          std::array<registered_buffer, 100> all;
          std::size_t bytes = 1;
          for (registered_buffer& b : all)
            b = pool.allocate(bytes += 700);
        }) == 0);
  CHECK(allocations_of([&] { static_cast<void>(pool.allocate(200000)); }) == 0);
  CHECK(allocations_of([&] {
          const registered_buffer part = kept.slice(10, 20), copy = part;
          static_cast<void>(pool.find(copy.data(), copy.size()));
        }) == 0);
  CHECK(allocations_of([&] {
          const buffer_access a = kept.first(10).try_write_access(),
                              b = kept.slice(10).try_read_access();
          buffer_access c;
          static_cast<void>(c.try_begin_write(kept));
        }) == 0);
}

TEST_CASE("waiting for access uses Asio's recycled memory") {
  test::plain_arenas arenas;
  const registered_buffer buffer = arenas.pool().allocate(1000);
  asio::io_context io{1};
  std::size_t most = 0;
  struct loop {
    void operator()(error_code, [[maybe_unused]] const buffer_access& a) {
      if (--left == 500)
        at_half = test::allocations;
      if (left == 0) {
        extra = test::allocations - at_half;
        return;
      }
      // The next wait is for the end of this access.
      auto next = [this](error_code ec, const buffer_access& granted) {
        (*this)(ec, granted);
      };
      whole.async_write_access(context, next);
    }
    const registered_buffer& whole;
    asio::io_context::executor_type context;
    std::size_t& extra;
    int left = 1000;
    std::size_t at_half = 0;
  } l{buffer, io.get_executor(), most};
  l(error_code(), buffer.try_write_access());
  io.run();
  CHECK(l.left == 0);
  CHECK(most == 0);
}
