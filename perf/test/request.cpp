// SPDX-License-Identifier: BSL-1.0
#include "../request.hpp"

#include "catch.hpp"

#include <stdexcept>

namespace test::perf_request_tests {

using namespace perf;

TEST_CASE("a request is read as it was written", "[perf]") {
  for (const kind k : all_kinds)
    for (const mode m : all_modes)
      for (const metric of : all_metrics) {
        const request r{k, m, of, 4096, 64, 0.25};
        CHECK(parse_request(to_line(r), {}) == r);
      }
}

TEST_CASE("lines that are no requests are refused", "[perf]") {
  for (const char* line : {"",
                           "run",
                           "run send event latency 1 1",
                           "run send event latency 1 1 1 1",
                           "ran send event latency 1 1 1",
                           "run other event latency 1 1 1",
                           "run send fast latency 1 1 1",
                           "run send event speed 1 1 1",
                           "run send event latency 0 1 1",
                           "run send event latency -1 1 1",
                           "run send event latency 1073741825 1 1",
                           "run send event latency 99999999999999999999 1 1",
                           "run send event latency 1 0 1",
                           "run send event latency 1 1025 1",
                           "run send event latency 1 1 0",
                           "run send event latency 1 1 601",
                           "run send event latency 1 1 nan",
                           "run send event latency 1 1 inf",
                           "run send event latency 1x 1 1",
                           "run  send event latency 1 1 1"}) {
    INFO(line);
    CHECK_THROWS_AS(parse_request(line, {}), std::invalid_argument);
  }
}

TEST_CASE("a request above the server's limit is refused in words", "[perf]") {
  memory_limits limits;
  limits.size = 4096;
  CHECK_NOTHROW(parse_request("run send event latency 4096 1 1", limits));
  CHECK_THROWS_AS(parse_request("run send event latency 4097 1 1", limits), std::out_of_range);
}

TEST_CASE("the memory of a window is bounded", "[perf]") {
  const memory_limits limits{1 << 30, 1 << 20};
  request r{kind::write, mode::event, metric::bandwidth, 4096, 64, 1};
  CHECK(slots(r, limits) == 64);
  CHECK(window_in_force(r, limits) == 64);
  r.size = 1 << 16;
  CHECK(slots(r, limits) == 16);
  CHECK(window_in_force(r, limits) == 16);
  r.size = 1 << 30; // one slot for two operations
  CHECK(slots(r, limits) == 1);
  CHECK(window_in_force(r, limits) == 2);
  r.window = 1;
  CHECK(window_in_force(r, limits) == 1);
  r = {kind::tcp, mode::event, metric::bandwidth, 64, 64, 1};
  CHECK(window_in_force(r, limits) == 1);
  r = {kind::send, mode::event, metric::latency, 64, 64, 1};
  CHECK(window_in_force(r, limits) == 1);
}

} // namespace test::perf_request_tests
