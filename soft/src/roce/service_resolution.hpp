// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <optional>
#include <span>

namespace soft::roce {

/// The messages by which a program learns the queue pair of a listener for datagrams: service id
/// resolution. Each is a management datagram of 256 bytes.
/// Source: InfiniBand specification, sections 12.11 and 13.4.3; the private data of a request
/// begins with the IP addresses, annex A11
inline constexpr std::size_t resolution_size = 256;
using resolution_message = std::array<std::byte, resolution_size>;

/// Bytes of the program's own data.
inline constexpr std::size_t resolution_request_data = 180, resolution_reply_data = 136;

/// The service id of a UDP port of librdmacm.
constexpr std::uint64_t service_of(std::uint16_t port) noexcept { return 0x01110000u | port; }

struct resolution_request {
  std::uint64_t transaction = 0;
  std::uint32_t id = 0;
  std::uint64_t service = 0;
  std::uint16_t source_port = 0;
  ibv_gid source{}, destination{}; ///< A GID of an IPv4 address is that address mapped to IPv6.
  std::array<std::byte, resolution_request_data> data{};
};

enum class resolution_status : std::uint8_t { success = 0, unsupported = 1, rejected = 2 };
inline constexpr std::uint8_t most_resolution_status = 5;

struct resolution_reply {
  std::uint64_t transaction = 0;
  std::uint32_t id = 0;
  std::uint64_t service = 0;
  std::uint8_t status = 0; ///< At most `most_resolution_status`.
  std::uint32_t qp_num = 0, q_key = 0;
  std::array<std::byte, resolution_reply_data> data{};
};

/// Precondition of a request: both addresses are of IPv4, or none.
resolution_message encode(const resolution_request& r) noexcept;
resolution_message encode(const resolution_reply& r) noexcept;

/// Read a message. No result: it has another size, is of another kind, or a reserved field or an
/// address is wrong.
std::optional<resolution_request> decode_request(std::span<const std::byte> bytes) noexcept;
std::optional<resolution_reply> decode_reply(std::span<const std::byte> bytes) noexcept;

} // namespace soft::roce
