// SPDX-License-Identifier: BSL-1.0
#include "results.hpp"

#include "histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace perf {

latency_figures figures_of(const histogram& h, kind k) {
  const double scale = is_half_round_trip(k) ? 0.5e-3 : 1e-3;
  const auto us = [&](double nanoseconds) {
    return nanoseconds * scale;
  };
  return {h.count(),
          us(double(h.least())),
          us(h.mean()),
          us(double(h.quantile(0.5))),
          us(double(h.quantile(0.99))),
          us(double(h.quantile(0.999))),
          us(double(h.most()))};
}

bool results::has_problems() const {
  return std::any_of(rows.begin(), rows.end(), [](const row& r) { return !r.problem.empty(); });
}

std::string rounded(double value) {
  char text[40];
  // 9.995 and more is written as 10.0.
  const int power = value > 1e-9 ? int(std::floor(std::log10(value * 1.0005))) : 2;
  std::snprintf(text, sizeof text, "%.*f", std::clamp(2 - power, 0, 9), value);
  return text;
}

} // namespace perf
