// SPDX-License-Identifier: BSL-1.0
// The allocator of a segment.
#include "global/segment_allocator.hpp"

#include <catch.hpp>

#include <asio_rdma/detail/global/global_message.hpp>

#include <map>
#include <random>

using namespace asio_rdma;
using namespace asio_rdma::detail;

TEST_CASE("blocks lie in the segment, aligned, and do not overlap") {
  constexpr std::uint64_t begin = 64, end = 1 << 20;
  segment_allocator a(begin, end);
  std::map<std::uint64_t, std::uint64_t> live; // begin, end
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 5 < 3) {
      const std::uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 70000 : 300);
      const std::uint64_t alignment = std::uint64_t(1) << random() % 13;
      const auto at = a.allocate(bytes, alignment);
      if (!at) {
        ++refused;
        continue;
      }
      CHECK(*at % alignment == 0);
      CHECK(*at >= begin);
      CHECK(*at + bytes <= end);
      const auto next = live.lower_bound(*at);
      CHECK((next == live.end() || *at + bytes <= next->first));
      CHECK((next == live.begin() || std::prev(next)->second <= *at));
      live[*at] = *at + bytes;
    } else if (!live.empty()) {
      auto victim = live.begin();
      std::advance(victim, random() % std::min<std::size_t>(live.size(), 50));
      CHECK(a.free(victim->first));
      CHECK_FALSE(a.free(victim->first));
      live.erase(victim);
    }
  }
  CHECK(refused > 0); // it was full sometimes
  CHECK(a.blocks_in_use() == live.size());
}

TEST_CASE("a block that is kept is not freed") {
  segment_allocator a(0, 4096);
  const auto at = a.allocate(4096, 8);
  REQUIRE(at);
  a.keep(*at);
  CHECK_FALSE(a.free(*at));
  CHECK(a.blocks_in_use() == 1);
  a.keep(*at, false);
  CHECK(a.free(*at));
}

TEST_CASE("a segment is used to its end, and again") {
  segment_allocator a(0, 4096);
  std::vector<std::uint64_t> all;
  while (const auto at = a.allocate(64, 8))
    all.push_back(*at);
  CHECK(all.size() == 64);
  for (const std::uint64_t at : all)
    CHECK(a.free(at));
  for (std::size_t i = 0; i < 64; ++i)
    CHECK(a.allocate(50, 64));
  CHECK_FALSE(a.allocate(1, 1));
}

TEST_CASE("a freed block of a larger class is used when nothing else is left") {
  segment_allocator a(0, 4096);
  const auto whole = a.allocate(4096, 4096);
  REQUIRE(whole);
  CHECK_FALSE(a.allocate(1, 1));
  REQUIRE(a.free(*whole));
  CHECK(a.allocate(1, 4096) == 0);
}

TEST_CASE("memory that is not available is refused") {
  segment_allocator a(64, 4096);
  for (const std::uint64_t bytes : {std::uint64_t(0), std::uint64_t(4097), UINT64_MAX})
    CHECK_FALSE(a.allocate(bytes, 8));
  for (const std::uint64_t alignment : {std::uint64_t(0), std::uint64_t(3), std::uint64_t(8192)})
    CHECK_FALSE(a.allocate(8, alignment));
  CHECK_FALSE(a.free(64));
  segment_allocator huge(64, max_segment_bytes);
  CHECK(huge.allocate(max_segment_bytes / 2, 8));
  CHECK_FALSE(huge.allocate(max_segment_bytes, 8));
}
