// SPDX-License-Identifier: BSL-1.0
// The table of checks.
#pragma once

#include "session.hpp"

#include <span>

namespace trial {

struct check {
  const char* name;
  const char* row; ///< Of docs/adapters.md; empty if the check belongs to none.
  const char* what;
  check_function run;
};

std::span<const check> device_checks(); ///< The device and its queue pairs.
std::span<const check> link_checks();   ///< Connections, streams, global memory.
std::span<const check> end_checks();    ///< How links end.
std::span<const check> habit_checks();  ///< Rows of docs/adapters.md: what adapters do.
std::span<const check> limit_checks();  ///< Rows of docs/adapters.md: what adapters have.
std::span<const check> speed_checks();  ///< Measurements.

} // namespace trial
