// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>

namespace trial {

using clock_type = std::chrono::steady_clock;

inline double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}

} // namespace trial
