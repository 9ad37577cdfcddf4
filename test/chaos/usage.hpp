// SPDX-License-Identifier: BSL-1.0
// Memory, descriptors and objects of the server that is never killed, while it has no clients.
#pragma once

#include "chaos/ledger.hpp"
#include "device/support/long_run.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>

namespace chaos {

struct usage {
  static constexpr std::uint64_t most_growth = 16 << 20;

  usage() = default;
  explicit usage(const entry& e) : resident(e.resident) {
    std::copy(e.objects.begin(), e.objects.end(), objects.begin());
  }

  /// Whether no count is higher than at first, and the resident memory is higher by at most
  /// `most_growth`. Sanitizers keep freed memory.
  bool is_within(const usage& first) const {
    for (std::size_t i = 0; i < objects.size(); ++i)
      if (objects[i] > first.objects[i])
        return false;
    return test::is_sanitized || resident <= first.resident + most_growth;
  }
  void print(const char* when) const {
    constexpr const char* names[] = {
        "domains",     "regions", "windows",    "completion queues", "shared receive queues",
        "queue pairs", "ids",     "descriptors"};
    static_assert(std::size(names) == kinds_of_objects);
    std::printf("kept server without clients, %s: %llu KiB resident", when,
                static_cast<unsigned long long>(resident >> 10));
    for (std::size_t i = 0; i < objects.size(); ++i)
      std::printf(", %llu %s", static_cast<unsigned long long>(objects[i]), names[i]);
    std::printf("\n");
  }

  std::array<std::uint64_t, kinds_of_objects> objects{};
  std::uint64_t resident = 0;
};

} // namespace chaos
