// SPDX-License-Identifier: BSL-1.0
#include "../report/histogram.hpp"
#include "../report/results.hpp"

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace test::perf_histogram_tests {

using perf::histogram;

bool near(double a, double b, double within = 1e-9) { return std::abs(a - b) <= within * b; }

TEST_CASE("an empty histogram has zeros", "[perf]") {
  const histogram h;
  CHECK(h.count() == 0);
  CHECK(h.least() == 0);
  CHECK(h.most() == 0);
  CHECK(h.mean() == 0);
  CHECK(h.quantile(0.5) == 0);
}

TEST_CASE("short durations are exact", "[perf]") {
  histogram h;
  for (std::uint64_t value = 0; value < 128; ++value)
    h.add(value);
  CHECK(h.least() == 0);
  CHECK(h.most() == 127);
  for (std::uint64_t rank = 1; rank <= 128; ++rank)
    CHECK(h.quantile(double(rank) / 128) == rank - 1);
}

TEST_CASE("a quantile is within 1/64 of the truth", "[perf]") {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> power(0, 39);
  histogram h;
  std::vector<std::uint64_t> all;
  for (int i = 0; i < 20000; ++i) {
    all.push_back(std::uint64_t(std::exp2(power(random))));
    h.add(all.back());
  }
  std::sort(all.begin(), all.end());
  for (const double share : {0.0001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999}) {
    const auto rank = std::size_t(std::ceil(share * double(all.size())));
    const double truth = double(all[rank - 1]);
    CHECK(std::abs(double(h.quantile(share)) - truth) <= truth / 64);
  }
  CHECK(h.quantile(1) == all.back());
  CHECK(h.least() == all.front());
  CHECK(h.most() == all.back());
}

TEST_CASE("the longest durations share a counter, and the greatest is exact", "[perf]") {
  histogram h;
  const std::uint64_t longest = ~std::uint64_t(0) / 2;
  h.add(longest);
  CHECK(h.quantile(0.5) == longest);
  h.add(std::uint64_t(1) << 43);
  CHECK(h.quantile(1) == longest);
  CHECK(h.least() == std::uint64_t(1) << 43);
}

TEST_CASE("the quantile of few durations is one of them", "[perf]") {
  histogram h;
  for (const std::uint64_t value : {1000u, 2000u, 100000u})
    h.add(value);
  CHECK(h.quantile(0.999) == 100000);
  CHECK(near(double(h.quantile(0.5)), 2000, 1 / 64.0));
  h.clear();
  CHECK(h.count() == 0);
}

TEST_CASE("the figures of a round trip are half of it, and those of an operation the whole",
          "[perf]") {
  histogram h;
  h.add(100);
  h.add(300);
  const auto half = figures_of(h, perf::kind::send), whole = figures_of(h, perf::kind::read);
  CHECK(half.count == 2);
  CHECK(near(half.least, 0.05));
  CHECK(near(half.mean, 0.1));
  CHECK(near(half.most, 0.15));
  CHECK(near(whole.least, 0.1));
  CHECK(near(whole.mean, 0.2));
  CHECK(near(whole.p999, 0.3));
}

} // namespace test::perf_histogram_tests
