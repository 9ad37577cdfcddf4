// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace soft::iwarp::test {

/// Feeds input to the start readers and to the FPDU reader. The first byte selects CRC and the
/// habits of the sink; the rest is the byte stream. Aborts if a reader breaks its contract: if it
/// writes outside of the memory that the sink has provided, takes more bytes than it was given, or
/// takes bytes while it is stopped. Returns 0.
///
/// With libfuzzer.cpp and -fsanitize=fuzzer it is a libFuzzer target.
int fuzz_iwarp(const std::uint8_t* data, std::size_t size);

} // namespace soft::iwarp::test
