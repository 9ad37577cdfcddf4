// SPDX-License-Identifier: BSL-1.0
//
// The CPU cost of a memory pool, of its buffers and of their access state. Needs no device: the
// bookkeeping does not depend on the registration.
#include <asio_rdma/memory_pool.hpp>

#include <benchmark/benchmark.h>

#include "memory/memory_pool_impl.hpp"

#include <cstdlib>
#include <memory>
#include <vector>

namespace {

using namespace asio_rdma;

struct plain_arena final : detail::memory_arena {
  explicit plain_arena(std::size_t bytes) {
    data = static_cast<char*>(std::aligned_alloc(detail::page_bytes, bytes));
    size = bytes;
    lkey = 1;
  }
  ~plain_arena() override { std::free(data); }
};

memory_pool make_pool() {
  return memory_pool(detail::memory_pool_ptr(new detail::memory_pool_impl(
      {}, [](std::size_t bytes, error_code&) -> std::unique_ptr<detail::memory_arena> {
        return std::make_unique<plain_arena>(bytes);
      })));
}

const memory_pool shared = make_pool();

void allocate_and_return(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    const registered_buffer b = shared.allocate(bytes);
    benchmark::DoNotOptimize(b.data());
  }
}
BENCHMARK(allocate_and_return)->Arg(64)->Arg(4096)->Arg(65536)->Arg(1 << 20);
BENCHMARK(allocate_and_return)->Arg(4096)->Threads(2);

// Blocks are released in another order than they were allocated, and their memory is not in the
// cache.
void allocate_many(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<registered_buffer> ring(1024);
  std::size_t next = 0;
  for (auto _ : state) {
    ring[next] = shared.allocate(bytes);
    next = (next + 389) % ring.size();
  }
}
BENCHMARK(allocate_many)->Arg(64)->Arg(4096)->Arg(65536);

void malloc_and_free(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* const p = std::malloc(bytes);
    benchmark::DoNotOptimize(p);
    std::free(p);
  }
}
BENCHMARK(malloc_and_free)->Arg(64)->Arg(4096)->Arg(65536);

void find(benchmark::State& state) {
  std::vector<registered_buffer> all;
  const memory_pool pool = make_pool();
  for (std::size_t bytes = 1 << 20;
       pool.statistics().arenas < static_cast<std::size_t>(state.range(0)); bytes *= 2)
    all.push_back(pool.allocate(bytes));
  for (auto _ : state)
    benchmark::DoNotOptimize(pool.find(all.front().data(), 100));
}
BENCHMARK(find)->Arg(1)->Arg(8);

void slice(benchmark::State& state) {
  const registered_buffer b = shared.allocate(4096);
  for (auto _ : state)
    benchmark::DoNotOptimize(b.slice(100, 200).data());
}
BENCHMARK(slice);

void try_access(benchmark::State& state) {
  const registered_buffer b = shared.allocate(4096);
  std::vector<buffer_access> others(static_cast<std::size_t>(state.range(0)));
  for (std::size_t i = 0; i < others.size(); ++i)
    static_cast<void>(others[i].try_begin_write(b.slice(i, 1)));
  const registered_buffer part = b.slice(2048, 1024);
  for (auto _ : state)
    benchmark::DoNotOptimize(static_cast<bool>(part.try_write_access()));
}
BENCHMARK(try_access)->Arg(0)->Arg(1)->Arg(1000);

} // namespace

BENCHMARK_MAIN();
