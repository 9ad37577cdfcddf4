// SPDX-License-Identifier: BSL-1.0
//
// The instructions and allocations of an operation, on the null device under callgrind:
//   valgrind --tool=callgrind bench_overhead RESULTS.json
// Each case runs with two numbers of operations, and callgrind writes a profile of each, marked
// "CASE 0" and "CASE 1": the difference excludes the cost of setting up. `benchmarks/run overhead`
// does the arithmetic.
#include "cases.hpp"
#include "null_device.hpp"

#include <boost/version.hpp>
#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {
std::uint64_t allocations = 0;
} // namespace

// The functions that operator new and std::aligned_alloc call; Asio recycles memory by the latter.
// glibc's own functions keep these names if they are replaced.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
}

namespace {

using namespace bench::overhead;

#ifdef __clang__
constexpr const char compiler[] = "clang";
#else
constexpr const char compiler[] = "gcc";
#endif

constexpr std::uint64_t lengths[] = {10'000, 20'000};

struct totals {
  std::uint64_t allocations, requests, calls;
};

totals measure(memory& m, const test_case& c, std::uint64_t length) {
  const null_device::counters& device = null_device::counts();
  const totals before{allocations, device.send_requests, device.post_send_calls};
  c.run(m, length);
  return {allocations - before.allocations, device.send_requests - before.requests,
          device.post_send_calls - before.calls};
}

} // namespace

int main(int argc, char* argv[]) {
  if (argc != 2) {
    std::cerr << "usage: valgrind --tool=callgrind bench_overhead RESULTS.json\n";
    return 2;
  }
  memory m;
  std::ofstream results(argv[1]);
  results << "{\"built\": \"" << compiler << ' ' << __VERSION__ << ", Boost " << BOOST_LIB_VERSION
          << "\",\n\"operations\": [" << lengths[0] << ", " << lengths[1] << "], \"cases\": {\n";
  std::vector<test_case> cases = sends();
  for (test_case& c : links())
    cases.push_back(std::move(c));
  for (const test_case& c : cases) {
    c.run(m, window);
    totals t[2];
    for (unsigned i = 0; i < 2; ++i) {
      const std::string label = c.name + ' ' + std::to_string(i);
      CALLGRIND_ZERO_STATS;
      t[i] = measure(m, c, lengths[i]);
      CALLGRIND_DUMP_STATS_AT(label.c_str());
    }
    results << "  \"" << c.name << "\": {\"allocations\": " << t[1].allocations - t[0].allocations
            << ", \"send_requests\": " << t[1].requests - t[0].requests
            << ", \"post_send_calls\": " << t[1].calls - t[0].calls << '}'
            << (&c == &cases.back() ? "\n" : ",\n");
  }
  results << "}}\n";
  if (!results.flush()) {
    std::cerr << "bench_overhead: cannot write " << argv[1] << '\n';
    return 1;
  }
  return 0;
}
