// SPDX-License-Identifier: BSL-1.0
// Numbers of bytes as text: 64, 4K, 1:1G.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perf {

/// The largest size that can be measured.
inline constexpr std::uint64_t largest_size = std::uint64_t(1) << 30;

/// Bytes: a number, which K, M or G may follow (1024, 1024², 1024³). Throws `std::invalid_argument`
/// for another text, for 0, and for more than `most`.
std::uint64_t parse_bytes(std::string_view text, std::uint64_t most = largest_size);

/// A list of sizes, separated by commas. Each is a number of bytes, or a range FIRST:LAST[:FACTOR],
/// whose sizes grow by the factor (4) and end with LAST. The result ascends, without repetitions.
/// Throws `std::invalid_argument`.
std::vector<std::uint64_t> parse_sizes(std::string_view text);

/// The shortest exact text: 1536 is "1536", 4096 is "4K".
std::string size_text(std::uint64_t bytes);

/// The parts of a list separated by `by`; an empty text has one empty part.
std::vector<std::string> split(std::string_view text, char by);

} // namespace perf
