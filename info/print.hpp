// SPDX-License-Identifier: BSL-1.0
// The findings, as lines for people and as JSON for programs.
#pragma once

#include "facts.hpp"
#include "finding.hpp"

#include <string>

namespace info {

/// A line for each finding, and a last one with the sum.
std::string to_text(const facts& f, const findings& all);
/// One object, on one line.
std::string to_json(const facts& f, const findings& all);
/// The command as the user of `f` types it: by sudo if it needs root.
std::string command_of(const facts& f, const remedy& r);

} // namespace info
