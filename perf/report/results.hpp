// SPDX-License-Identifier: BSL-1.0
// The results of a run, and their forms: a table, JSON, a picture.
#pragma once

#include "../request.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace perf {

class histogram;

/// Microseconds: of half a round trip, or of a whole operation (`is_half_round_trip`).
struct latency_figures {
  std::uint64_t count = 0;
  double least = 0, mean = 0, p50 = 0, p99 = 0, p999 = 0, most = 0;
};
/// The figures of a histogram of whole round trips or operations.
latency_figures figures_of(const histogram& h, kind k);

struct bandwidth_figures {
  std::uint64_t operations = 0;
  double seconds = 0;
  std::uint32_t window = 1;
  std::uint64_t size = 1;

  double operations_per_second() const { return double(operations) / seconds; }
  double bytes_per_second() const { return operations_per_second() * double(size); }
};

/// The results of a kind in a mode with a size.
struct row {
  kind what = kind::send;
  mode how = mode::event;
  std::uint64_t size = 1;
  std::optional<latency_figures> latency;
  std::optional<bandwidth_figures> bandwidth;
  std::string problem; ///< Why a figure is missing; empty if none is.
};

/// Properties of a side, as names and values, in the order in which they are shown.
using facts = std::vector<std::pair<std::string, std::string>>;

struct results {
  std::string version;
  int machines = 1; ///< With one, both sides are processes of it.
  double seconds = 0;
  facts here, there;
  std::vector<row> rows;

  bool has_problems() const;
};

/// For people. Notes below the table say which figures are not as their names suggest.
std::string to_table(const results& r);
std::string to_json(const results& r);
/// Bars of the median latency and of the bandwidth: a row of pictures for each mode.
std::string to_svg(const results& r);

/// Three significant digits.
std::string rounded(double value);

} // namespace perf
