// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "iwarp/ddp.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace soft::iwarp {

/// The payload of an RDMA Read Request. Source: RFC 5040, section 4.4
struct read_request {
  static constexpr std::size_t size = read_request_size;

  std::uint32_t sink_stag = 0;
  std::uint64_t sink_offset = 0;
  std::uint32_t length = 0; ///< Bytes to read.
  std::uint32_t source_stag = 0;
  std::uint64_t source_offset = 0;

  friend bool operator==(const read_request&, const read_request&) = default;
};

/// The operation of an atomic request. Source: RFC 7306, section 5.2.1
enum class atomic_opcode : std::uint8_t { fetch_add = 0x0, compare_swap = 0x2 };

/// The payload of an Atomic Request. Source: RFC 7306, section 5.2.1
struct atomic_request {
  static constexpr std::size_t size = atomic_request_size;

  atomic_opcode op = atomic_opcode::fetch_add;
  std::uint32_t request_id = 0; ///< Repeated by the response.
  std::uint32_t stag = 0;
  std::uint64_t offset = 0;
  std::uint64_t add_or_swap = 0;
  /// Of `fetch_add`: a set bit is the most significant bit of a field that is added separately; 0
  /// adds all 64 bits. Of `compare_swap`: the bits that are replaced.
  std::uint64_t add_or_swap_mask = 0;
  std::uint64_t compare = 0;
  std::uint64_t compare_mask = 0; ///< The bits that are compared; of `fetch_add`: all.

  friend bool operator==(const atomic_request&, const atomic_request&) = default;
};

/// The payload of an Atomic Response. Source: RFC 7306, section 5.2.2
struct atomic_response {
  static constexpr std::size_t size = atomic_response_size;

  std::uint32_t request_id = 0;
  std::uint64_t original = 0; ///< The remote value before the operation.

  friend bool operator==(const atomic_response&, const atomic_response&) = default;
};

/// The payload of Immediate Data: 8 bytes without a meaning to RDMAP.
/// Source: RFC 7306, section 6.2
struct immediate_data {
  static constexpr std::size_t size = immediate_data_size;

  std::uint64_t value = 0;

  friend bool operator==(const immediate_data&, const immediate_data&) = default;
};

/// Encode a payload in network byte order.
std::array<std::byte, read_request::size> encode(const read_request& r) noexcept;
std::array<std::byte, atomic_request::size> encode(const atomic_request& r) noexcept;
std::array<std::byte, atomic_response::size> encode(const atomic_response& r) noexcept;
std::array<std::byte, immediate_data::size> encode(const immediate_data& r) noexcept;

/// Decode a payload of the type's size. `fpdu_reader` checks the size of a received message.
void decode(std::span<const std::byte, read_request::size> bytes, read_request& result) noexcept;
void decode(std::span<const std::byte, atomic_response::size> bytes,
            atomic_response& result) noexcept;
void decode(std::span<const std::byte, immediate_data::size> bytes,
            immediate_data& result) noexcept;

/// Decodes a payload of the type's size. The reserved bits are ignored.
/// Errors: unexpected opcode, if the atomic operation is unassigned. Source: RFC 7306, section
/// 5.2.1, rule 4
failure decode(std::span<const std::byte, atomic_request::size> bytes,
               atomic_request& result) noexcept;

/// The value that the operation leaves in remote memory. Both values are in host byte order.
/// Source: RFC 7306, sections 5.1.1 and 5.1.2
std::uint64_t result_of(const atomic_request& r, std::uint64_t original) noexcept;

} // namespace soft::iwarp
