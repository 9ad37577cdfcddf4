// SPDX-License-Identifier: BSL-1.0
// Runs checks, each side in a process of its own: a check that hangs or crashes fails, and the
// others follow. The main process opens no device.
#pragma once

#include "report.hpp"

#include <cstdint>
#include <string>

namespace trial {

struct run_options {
  side_options side;
  std::string peer;        ///< Host of the far sides; empty: this machine.
  std::string port;        ///< TCP port of the peer.
  std::string only;        ///< Name of the only check to run besides `open`; empty: all.
  double check_limit = 20; ///< Seconds of a check without its measurements.
  double limit = 600;      ///< Seconds of the trial.
};

/// The check with that name; null if there is none.
const check* find_check(const std::string& name);
/// The names of all checks.
std::string all_names();

/// Runs the checks, and prints a line for each. All of them use the same device of this machine.
report run(run_options options);

/// Runs the far sides of the checks of any number of peers, until the process is ended. All peers
/// that reach this machine by the same address meet the same device. Throws if it cannot listen.
[[noreturn]] void serve(const run_options& options);

} // namespace trial
