// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

/// The CRC32c of a sequence of bytes that is given in pieces. The implementation uses the SSE4.2
/// instruction if the processor has it.
/// Source: RFC 5044, section 4.4, which has the digests of iSCSI
class crc32c {
public:
  /// Bytes of an encoded CRC.
  static constexpr std::size_t size = 4;

  /// Appends bytes to the sequence.
  void update(std::span<const std::byte> bytes) noexcept;

  /// The CRC of all bytes since construction or the last `reset`.
  std::uint32_t value() const noexcept { return ~state_; }

  /// Starts a new sequence.
  void reset() noexcept { state_ = initial; }

  /// Writes the CRC as an FPDU carries it: `size` bytes, the least significant byte first.
  void encode(std::byte* to) const noexcept;

  /// Compares `size` bytes of an FPDU with the CRC.
  bool matches(const std::byte* encoded) const noexcept;

private:
  static constexpr std::uint32_t initial = 0xffffffff;
  std::uint32_t state_ = initial;
};

namespace detail {

/// The two implementations, for tests. Each returns the state after `bytes`; the first state is all
/// ones, and the CRC is the complement of the last state.
std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept;
/// Precondition: `crc32c_has_instruction()`.
std::uint32_t crc32c_by_instruction(std::uint32_t state, std::span<const std::byte> bytes) noexcept;
bool crc32c_has_instruction() noexcept;

} // namespace detail
} // namespace soft::iwarp
