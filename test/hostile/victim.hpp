// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "hostile/report.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace test {

/// The bytes of a guarded block, which are also those of a grant between two of them.
inline constexpr std::size_t guarded_block = 4096;
/// A message that begins with this text makes the victim request memory of its peer.
inline constexpr std::string_view borrow_command = "borrow";
/// A message that begins with this text makes the victim receive as many messages at a time as the
/// connection has receives.
inline constexpr std::string_view receives_command = "receives";

/// The environment of the hidden test case that is the victim.
std::vector<std::string> victim_variables(const shared_report& r);

} // namespace test
