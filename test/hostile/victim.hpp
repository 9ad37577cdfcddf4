// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "hostile/report.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace test {

/// The bytes of a guarded block, which are also those of a grant between two of them.
inline constexpr std::size_t guarded_block = 4096;
/// The bytes that the victim grants to a peer at a time.
inline constexpr std::uint64_t victim_grants = 1 << 20;
/// A message that begins with this text makes the victim request memory of its peer.
inline constexpr std::string_view borrow_command = "borrow";
/// A message that begins with this text makes the victim receive as many messages at a time as the
/// connection has receives.
inline constexpr std::string_view receives_command = "receives";

/// The environment of the hidden test case that is the victim.
std::vector<std::string> victim_variables(const shared_report& r);

} // namespace test
