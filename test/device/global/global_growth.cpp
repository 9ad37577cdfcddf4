// SPDX-License-Identifier: BSL-1.0
// The memory of a node to which other nodes connect repeatedly.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

using namespace test;

std::atomic<std::ptrdiff_t> blocks{0}; // blocks of the heap in use

} // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* const p = std::malloc(bytes == 0 ? 1 : bytes);
  blocks += p == nullptr ? 0 : 1;
  return p;
}
void* operator new(std::size_t bytes) {
  if (void* const p = operator new(bytes, std::nothrow))
    return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  blocks -= p == nullptr ? 0 : 1;
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
