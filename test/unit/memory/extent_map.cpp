// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include "memory/extent_map.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

using asio_rdma::detail::extent_map;

namespace {

/// The taken pages, in a simple model.
class model {
public:
  explicit model(std::uint32_t pages) : taken_(pages) {}

  bool take(std::uint32_t first, std::uint32_t pages) {
    if (first > taken_.size() || pages > taken_.size() - first)
      return false;
    for (std::uint32_t p = first; p < first + pages; ++p) {
      if (taken_[p])
        return false;
      taken_[p] = true;
    }
    return true;
  }
  void give(std::uint32_t first, std::uint32_t pages) {
    std::fill_n(taken_.begin() + first, pages, false);
  }
  std::uint32_t longest_free() const {
    std::uint32_t longest = 0, run = 0;
    for (const bool t : taken_) {
      run = t ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  }
  std::uint32_t used() const {
    return static_cast<std::uint32_t>(std::count(taken_.begin(), taken_.end(), true));
  }

private:
  std::vector<bool> taken_;
};

} // namespace

TEST_CASE("pages can all be taken, and taken again when they are returned") {
  const std::uint32_t pages = GENERATE(1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 511u, 512u, 100000u);
  extent_map map(pages);
  CHECK(map.allocate(pages + 1) == extent_map::none);
  for (int round = 0; round < 2; ++round) {
    CHECK(map.allocate(pages) == 0);
    CHECK(map.pages_used() == pages);
    CHECK(map.allocate(1) == extent_map::none);
    map.release(0);
    CHECK(map.pages_used() == 0);
  }
}

TEST_CASE("neighbours that are returned in any order become one run") {
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    extent_map map(16);
    std::vector<std::uint32_t> runs;
    for (int i = 0; i < 4; ++i)
      runs.push_back(map.allocate(4));
    for (const std::size_t i : order)
      map.release(runs[i]);
    REQUIRE(map.allocate(16) == 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("with any sequence of takes and returns, pages are taken once and any run that is free "
          "is found") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u, 4u);
  INFO("seed " << seed);
  constexpr std::uint32_t pages = 700;
  std::mt19937_64 random(seed);
  extent_map map(pages);
  model what(pages);
  std::map<std::uint32_t, std::uint32_t> runs; // first page, length
  std::geometric_distribution<std::uint32_t> small(0.2), large(0.01);
  for (int step = 0; step < 20000; ++step) {
    const bool fill = random() % 2000 < 1000 + (step / 500 % 2 != 0 ? 300u : 0u);
    if (fill) {
      const std::uint32_t n = 1 + (random() % 4 != 0 ? small(random) : large(random));
      const std::uint32_t first = map.allocate(n);
      if (first == extent_map::none) {
        REQUIRE(what.longest_free() < n);
      } else {
        REQUIRE(what.take(first, n));
        runs[first] = n;
      }
    } else if (!runs.empty()) {
      const auto i = std::next(runs.begin(), static_cast<std::ptrdiff_t>(random() % runs.size()));
      map.release(i->first);
      what.give(i->first, i->second);
      runs.erase(i);
    }
    REQUIRE(map.pages_used() == what.used());
  }
  for (const auto& [first, length] : runs)
    map.release(first);
  CHECK(map.allocate(pages) == 0);
}
