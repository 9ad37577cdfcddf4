// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/link/remote_rights.hpp>
#include <asio_rdma/error.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace asio_rdma::detail {

/// The type of a frame. Frames with a type up to `gathered` may stay in their receive until the
/// peer's application takes them. All other frames are consumed at once. docs/protocol.md has the
/// rules.
enum class frame_type : std::uint8_t {
  message = 1,  ///< A whole message.
  data = 2,     ///< Bytes of a stream.
  offer = 3,    ///< Bytes to be read from the sender's memory (`offer_payload`).
  written = 4,  ///< Immediate data of an RDMA WRITE before it.
  lent = 5,     ///< Unsolicited access to the sender's memory (`loan_payload`).
  returned = 6, ///< A grant of the receiver, handed back to it (`tag_payload`).
  gathered = 7, ///< Several whole messages (`gathered_header`).

  credits = 16,   ///< The header only.
  taken = 17,     ///< The offer has been read.
  refused = 18,   ///< The offer will not be read; the reason is in the header.
  request = 19,   ///< Asks for memory (`request_payload`).
  granted = 20,   ///< Answers a request (`grant_payload`).
  denied = 21,    ///< Refuses a `request` or a `renew`; the reason is in the header.
  renew = 22,     ///< Asks for a longer lease (`lease_payload`).
  renewed = 23,   ///< Answers `renew` (`lease_payload`).
  ended = 24,     ///< A grant has been revoked.
  release = 25,   ///< The peer no longer needs the grant.
  shutdown = 26,  ///< No stream data follows.
  goodbye = 27,   ///< Only `credits` may follow.
  withdraw = 28,  ///< Asks the peer to stop reading the offer.
  withdrawn = 29, ///< Answers `withdraw`: the number of bytes read is in the header.
  dropped = 30,   ///< Like `withdrawn`, without a `withdraw`; nothing that follows will be read
                  ///< either.
  query = 31,     ///< Asks how many bytes of the stream the application has taken.
  progress = 32,  ///< Answers `query`: the number, modulo 2^32, is in the header.
  resized = 33,   ///< Receives whose credits are returned later have the size in the header.
  no_data = 34,   ///< The sender of this frame drops further bytes of the stream.
  recall = 35,    ///< Asks the peer to begin nothing more on a grant, and to answer `yielded`.
  yielded = 36    ///< Answers `recall`: the accesses of the sender have ended.
};

constexpr std::size_t frame_types = 37; ///< The highest type plus one.

/// The reason of a refusal: the `immediate` of `refused`, `denied` and `ended`.
enum class refusal : std::uint32_t {
  size = 1,    ///< More bytes than the side accepts at a time.
  memory = 2,  ///< No memory is available.
  rights = 3,  ///< The owner does not grant these rights.
  quota = 4,   ///< The limit of bytes or grants for one peer is reached.
  revoked = 5, ///< The owner has revoked the grant.
  expired = 6, ///< The lease has expired.
  closed = 7   ///< This side is closing.
};

/// The error that the local user gets for a refusal.
error_code to_error(refusal r) noexcept;

/// The header of every frame, little-endian:
///
///   0  type   1  flags   2  credits returned (16)   4  length (32)   8  id (32)   12  immediate
///   (32)
///
/// Fields that a type does not use are zero.
struct frame_header {
  static constexpr std::size_t size = 16;
  static constexpr std::uint8_t has_immediate = 1; ///< The flag of `message`, `offer` and
                                                   ///< `written`.

  frame_type type = frame_type::credits;
  std::uint8_t flags = 0;
  std::uint16_t credits = 0;
  std::uint32_t length = 0; ///< Bytes of payload after the header.
  std::uint32_t id = 0;
  std::uint32_t immediate = 0; ///< Immediate data, a reason, or a number of bytes.

  friend bool operator==(const frame_header&, const frame_header&) = default;
};

using frame_bytes = std::array<std::byte, frame_header::size>;

frame_bytes encode(const frame_header& h) noexcept;

/// Decodes and checks a whole received frame, header and payload: the type, the length against the
/// received bytes and against the type, and that unused fields are zero. Errors:
/// `error::protocol_violation`.
error_code decode(std::span<const std::byte> frame, frame_header& result) noexcept;

// --- Payloads of fixed size -------------------------------------------------------------------

/// A lease without an end.
constexpr std::chrono::microseconds no_lease = std::chrono::microseconds::max();
/// The longest finite lease, about 35 years, so that adding it to a clock does not overflow.
constexpr std::chrono::microseconds longest_lease{std::int64_t(1) << 50};
/// The nearest lease that a frame can carry.
constexpr std::chrono::microseconds fitting(std::chrono::microseconds lease) noexcept {
  return lease == no_lease ? no_lease
                           : std::clamp(lease, std::chrono::microseconds::zero(), longest_lease);
}

/// 0 address (64)  8 length (64)  16 rkey (32)  20 zero
struct offer_payload {
  static constexpr std::size_t size = 24;
  remote_buffer memory;
};

/// 0 bytes (64)  8 lease (64)  16 rights (32)  20 zero. The lease is in microseconds; 0 means the
/// owner's default and all ones mean `no_lease`.
struct request_payload {
  static constexpr std::size_t size = 24;
  std::uint64_t bytes = 0;
  std::chrono::microseconds lease{};
  remote_rights rights = remote_rights::none;
};

/// 0 address (64)  8 length (64)  16 lease (64)  24 grant (32)  28 rkey (32)  32 rights (32)  36
/// zero
struct grant_payload {
  static constexpr std::size_t size = 40;
  remote_buffer memory;
  std::chrono::microseconds lease{};
  std::uint32_t grant = 0;
  remote_rights rights = remote_rights::none;
};

/// 0 address (64)  8 length (64)  16 lease (64)  24 tag (64)  32 rkey (32)  36 rights (32)
struct loan_payload {
  static constexpr std::size_t size = 40;
  remote_buffer memory;
  std::chrono::microseconds lease{};
  std::uint64_t tag = 0;
  remote_rights rights = remote_rights::none;
};

/// 0 tag (64)
struct tag_payload {
  static constexpr std::size_t size = 8;
  std::uint64_t tag = 0;
};

/// 0 lease (64)  8 grant (32)  12 zero
struct lease_payload {
  static constexpr std::size_t size = 16;
  std::chrono::microseconds lease{};
  std::uint32_t grant = 0;
};

/// Precedes each message of a `gathered` frame. 0 length (31 bits); the highest bit is set if there
/// is immediate data  4 immediate (32). Zeros follow the message, up to a multiple of 8 bytes.
struct gathered_header {
  static constexpr std::size_t size = 8;
  static constexpr std::uint32_t has_immediate = std::uint32_t(1) << 31;
  std::uint32_t length = 0;
  std::optional<std::uint32_t> immediate;
};
/// The messages of a `gathered` frame, at most.
constexpr std::uint32_t most_gathered = 32;
/// Bytes of the frame that a message needs, with its header and the zeros.
constexpr std::uint64_t gathered_size(std::uint64_t message) noexcept {
  return gathered_header::size + (message + 7) / 8 * 8;
}

constexpr std::size_t max_fixed_payload = grant_payload::size;
static_assert(loan_payload::size <= max_fixed_payload);
using payload_bytes = std::array<std::byte, max_fixed_payload>;

void encode(const offer_payload& p, payload_bytes& to) noexcept;
void encode(const request_payload& p, payload_bytes& to) noexcept;
void encode(const grant_payload& p, payload_bytes& to) noexcept;
void encode(const loan_payload& p, payload_bytes& to) noexcept;
void encode(const tag_payload& p, payload_bytes& to) noexcept;
void encode(const lease_payload& p, payload_bytes& to) noexcept;
/// Writes `gathered_header::size` bytes.
void encode(const gathered_header& h, std::byte* to) noexcept;

/// Decode a payload of the type's size and check every byte. Errors: `error::protocol_violation`.
error_code decode(std::span<const std::byte> bytes, offer_payload& result) noexcept;
error_code decode(std::span<const std::byte> bytes, request_payload& result) noexcept;
error_code decode(std::span<const std::byte> bytes, grant_payload& result) noexcept;
error_code decode(std::span<const std::byte> bytes, loan_payload& result) noexcept;
error_code decode(std::span<const std::byte> bytes, tag_payload& result) noexcept;
error_code decode(std::span<const std::byte> bytes, lease_payload& result) noexcept;
/// Decodes and checks the header of the first message of `bytes`, and that the whole message and
/// its zeros are there. Errors: `error::protocol_violation`.
error_code decode(std::span<const std::byte> bytes, gathered_header& result) noexcept;

} // namespace asio_rdma::detail
