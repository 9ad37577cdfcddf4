// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

/// A check of CLI11 for a number: `CLI::Range` takes NaN.
inline std::string refuse_nan(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "not a number" : "";
}
