// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace soft::roce::test {

/// Reads input as a datagram of a queue pair, as a packet of another machine, and as messages of
/// service id resolution. The first byte selects the kind and what is changed in the rest: nothing,
/// the fields of a network header or a packet that depend on others, or a right message, by pairs
/// of an offset and a byte. Aborts if a decoder breaks its contract: its result does not fit the
/// bytes, or is another one once it is encoded again. Returns 0.
///
/// With libfuzzer.cpp and -fsanitize=fuzzer it is a libFuzzer target.
int fuzz_roce(const std::uint8_t* data, std::size_t size);

} // namespace soft::roce::test
