// SPDX-License-Identifier: BSL-1.0
// The memory of a node to which other nodes connect repeatedly.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace {

using namespace test;

std::atomic<std::ptrdiff_t> blocks{0}, bytes{0}; // of the heap, in use

} // namespace

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  void* const p = std::malloc(size == 0 ? 1 : size);
  blocks += p == nullptr ? 0 : 1;
  bytes += std::ptrdiff_t(malloc_usable_size(p));
  return p;
}
void* operator new(std::size_t size) {
  if (void* const p = operator new(size, std::nothrow))
    return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  blocks -= p == nullptr ? 0 : 1;
  bytes -= std::ptrdiff_t(malloc_usable_size(p));
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }

TEST_CASE("further connections of a node leave nothing behind") {
  world w;
  const auto connect = [&](int times) {
    for (int i = 0; i < times; ++i) {
      global_memory further(w.io, w.guest);
      REQUIRE(w.join(further).value == host_id);
    }
  };
  connect(20);
  const std::ptrdiff_t before = blocks;
  constexpr int times = 200;
  connect(times);
  // The host is notified later that a connection has ended.
  w.until([&] { return blocks < before + times; });
  CHECK(w.read(root_of(host_id)).succeeded()); // by the first connection
}

TEST_CASE("nodes that have left cost bytes") {
  world w;
  constexpr node_id first = 100;
  const auto join_and_leave = [&](node_id id) {
    global_memory node(w.io, w.pool, id);
    node.host(4096);
    REQUIRE(w.join(node).value == host_id);
  };
  const auto join_all = [&](int times) {
    for (int i = 0; i < times; ++i)
      join_and_leave(node_id(first + i));
  };
  join_all(20);
  const std::ptrdiff_t before = bytes;
  constexpr int times = 200;
  constexpr std::ptrdiff_t each = 512;
  join_all(times);
  // The host is notified later that a node has left.
  w.until([&] { return bytes < before + times * each; });
  // A node that comes again takes the place of the former one.
  const std::ptrdiff_t again = bytes;
  for (int i = 0; i < times; ++i)
    join_and_leave(first);
  w.until([&] { return bytes < again + 20 * each; });
  const error_code left = w.ask<std::uint64_t>([&](auto h) {
                             w.host.async_read(remote_ptr<std::uint64_t>(first, 0, 64), h);
                           }).ec;
  CHECK(left);
  CHECK(left != error::node_unknown);
  CHECK(left != error::remote_range);
}
