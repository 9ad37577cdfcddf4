// SPDX-License-Identifier: BSL-1.0
#include "core/little_endian.hpp"

#include "link/frame.hpp"

#include <limits>

namespace asio_rdma::detail {
namespace {

constexpr std::uint64_t no_lease_wire = std::numeric_limits<std::uint64_t>::max();

/// The fields that the header of a frame type may have besides credits.
struct shape {
  bool known = false;
  bool any_length = false;
  std::uint32_t length = 0;
  std::uint8_t flags = 0; // allowed
  bool id = false;
  bool reason = false;
  bool bytes = false;
};

constexpr shape shape_of(frame_type t) noexcept {
  constexpr std::uint8_t immediate = frame_header::has_immediate;
  switch (t) {
  case frame_type::message:
    return {.known = true, .any_length = true, .flags = immediate};
  case frame_type::gathered:
    return {.known = true, .any_length = true};
  case frame_type::data:
    return {.known = true, .any_length = true, .bytes = true};
  case frame_type::offer:
    return {.known = true, .length = offer_payload::size, .flags = immediate, .id = true};
  case frame_type::written:
    return {.known = true, .flags = immediate};
  case frame_type::lent:
    return {.known = true, .length = loan_payload::size, .id = true};
  case frame_type::returned:
    return {.known = true, .length = tag_payload::size, .id = true};
  case frame_type::taken:
  case frame_type::release:
  case frame_type::withdraw:
  case frame_type::recall:
  case frame_type::yielded:
    return {.known = true, .id = true};
  case frame_type::withdrawn:
  case frame_type::dropped:
    return {.known = true, .id = true, .bytes = true};
  case frame_type::progress:
  case frame_type::resized:
    return {.known = true, .bytes = true};
  case frame_type::refused:
  case frame_type::denied:
  case frame_type::ended:
    return {.known = true, .id = true, .reason = true};
  case frame_type::request:
    return {.known = true, .length = request_payload::size, .id = true};
  case frame_type::granted:
    return {.known = true, .length = grant_payload::size, .id = true};
  case frame_type::renew:
  case frame_type::renewed:
    return {.known = true, .length = lease_payload::size, .id = true};
  case frame_type::credits:
  case frame_type::shutdown:
  case frame_type::goodbye:
  case frame_type::query:
  case frame_type::no_data:
    return {.known = true};
  }
  return {};
}

constexpr std::array<shape, frame_types> shapes = [] {
  std::array<shape, frame_types> result;
  for (std::size_t t = 0; t != frame_types; ++t)
    result[t] = shape_of(static_cast<frame_type>(t));
  return result;
}();
constexpr shape unknown;

bool valid_reason(std::uint32_t r) noexcept {
  return r >= static_cast<std::uint32_t>(refusal::size) &&
         r <= static_cast<std::uint32_t>(refusal::closed);
}

std::uint64_t to_wire(std::chrono::microseconds lease) noexcept {
  return lease == no_lease ? no_lease_wire : static_cast<std::uint64_t>(lease.count());
}

bool decode_lease(std::uint64_t wire, std::chrono::microseconds& result) noexcept {
  if (wire == no_lease_wire) {
    result = no_lease;
    return true;
  }
  if (wire > static_cast<std::uint64_t>(longest_lease.count()))
    return false;
  result = std::chrono::microseconds(static_cast<std::int64_t>(wire));
  return true;
}

bool decode_rights(std::uint32_t wire, remote_rights& result) noexcept {
  result = static_cast<remote_rights>(wire);
  return wire != 0 && wire <= static_cast<std::uint32_t>(remote_rights::all);
}

/// Whether the range is not empty and does not wrap around.
bool valid(const remote_buffer& memory) noexcept {
  return memory.size != 0 &&
         memory.size - 1 <= std::numeric_limits<std::uint64_t>::max() - memory.address;
}

} // namespace

error_code to_error(refusal r) noexcept {
  switch (r) {
  case refusal::size:
    return error::peer_message_limit;
  case refusal::memory:
    return error::peer_out_of_memory;
  case refusal::rights:
    return error::rights_refused;
  case refusal::quota:
    return error::remote_memory_limit;
  case refusal::revoked:
    return error::lease_revoked;
  case refusal::expired:
    return error::lease_expired;
  case refusal::closed:
    return asio::error::broken_pipe;
  }
  return error::protocol_violation;
}

frame_bytes encode(const frame_header& h) noexcept {
  frame_bytes result;
  std::byte* const p = result.data();
  put(p, static_cast<std::uint8_t>(h.type));
  put(p + 1, h.flags);
  put(p + 2, h.credits);
  put(p + 4, h.length);
  put(p + 8, h.id);
  put(p + 12, h.immediate);
  return result;
}

error_code decode(std::span<const std::byte> frame, frame_header& result) noexcept {
  if (frame.size() < frame_header::size)
    return error::protocol_violation;
  const std::byte* const p = frame.data();
  frame_header h;
  h.type = static_cast<frame_type>(std::to_integer<std::uint8_t>(p[0]));
  h.flags = std::to_integer<std::uint8_t>(p[1]);
  h.credits = get<std::uint16_t>(p + 2);
  h.length = get<std::uint32_t>(p + 4);
  h.id = get<std::uint32_t>(p + 8);
  h.immediate = get<std::uint32_t>(p + 12);
  const auto type = static_cast<std::size_t>(h.type);
  const shape& s = type < frame_types ? shapes[type] : unknown;
  const bool immediate = (h.flags & frame_header::has_immediate) != 0;
  if (!s.known || h.length != frame.size() - frame_header::size ||
      (!s.any_length && h.length != s.length) || (h.flags & ~s.flags) != 0 ||
      (!s.id && h.id != 0) || (s.reason && !valid_reason(h.immediate)) ||
      (!s.reason && !s.bytes && !immediate && h.immediate != 0) ||
      (h.type == frame_type::written && !immediate) ||
      (h.type == frame_type::data && h.length == 0))
    return error::protocol_violation;
  result = h;
  return {};
}

access to_access(remote_rights r) noexcept {
  access result = access::local_read;
  if ((r & remote_rights::read) != remote_rights::none)
    result = result | access::remote_read;
  if ((r & remote_rights::write) != remote_rights::none)
    result = result | access::remote_write;
  if ((r & remote_rights::atomic) != remote_rights::none)
    result = result | access::remote_atomic;
  return result;
}

remote_rights to_rights(access a) noexcept {
  remote_rights result = remote_rights::none;
  if (has(a, access::remote_read))
    result = result | remote_rights::read;
  if (has(a, access::remote_write))
    result = result | remote_rights::write;
  if (has(a, access::remote_atomic))
    result = result | remote_rights::atomic;
  return result;
}

void encode(const offer_payload& p, payload_bytes& to) noexcept {
  put(&to[0], p.memory.address);
  put(&to[8], p.memory.size);
  put(&to[16], p.memory.rkey);
  put(&to[20], std::uint32_t(0));
}

error_code decode(std::span<const std::byte> bytes, offer_payload& result) noexcept {
  if (bytes.size() != offer_payload::size || !all_zero(bytes.subspan(20)))
    return error::protocol_violation;
  const std::byte* const p = bytes.data();
  result.memory = {get<std::uint64_t>(p), get<std::uint64_t>(p + 8), get<std::uint32_t>(p + 16)};
  return valid(result.memory) ? error_code() : error::protocol_violation;
}

void encode(const request_payload& p, payload_bytes& to) noexcept {
  put(&to[0], p.bytes);
  put(&to[8], to_wire(p.lease));
  put(&to[16], static_cast<std::uint32_t>(p.rights));
  put(&to[20], std::uint32_t(0));
}

error_code decode(std::span<const std::byte> bytes, request_payload& result) noexcept {
  if (bytes.size() != request_payload::size || !all_zero(bytes.subspan(20)))
    return error::protocol_violation;
  const std::byte* const p = bytes.data();
  result.bytes = get<std::uint64_t>(p);
  const bool good = result.bytes != 0 && decode_lease(get<std::uint64_t>(p + 8), result.lease) &&
                    decode_rights(get<std::uint32_t>(p + 16), result.rights);
  return good ? error_code() : error::protocol_violation;
}

void encode(const grant_payload& p, payload_bytes& to) noexcept {
  put(&to[0], p.memory.address);
  put(&to[8], p.memory.size);
  put(&to[16], to_wire(p.lease));
  put(&to[24], p.grant);
  put(&to[28], p.memory.rkey);
  put(&to[32], static_cast<std::uint32_t>(p.rights));
  put(&to[36], std::uint32_t(0));
}

error_code decode(std::span<const std::byte> bytes, grant_payload& result) noexcept {
  if (bytes.size() != grant_payload::size || !all_zero(bytes.subspan(36)))
    return error::protocol_violation;
  const std::byte* const p = bytes.data();
  result.memory = {get<std::uint64_t>(p), get<std::uint64_t>(p + 8), get<std::uint32_t>(p + 28)};
  result.grant = get<std::uint32_t>(p + 24);
  const bool good = valid(result.memory) &&
                    decode_lease(get<std::uint64_t>(p + 16), result.lease) &&
                    decode_rights(get<std::uint32_t>(p + 32), result.rights);
  return good ? error_code() : error::protocol_violation;
}

void encode(const loan_payload& p, payload_bytes& to) noexcept {
  put(&to[0], p.memory.address);
  put(&to[8], p.memory.size);
  put(&to[16], to_wire(p.lease));
  put(&to[24], p.tag);
  put(&to[32], p.memory.rkey);
  put(&to[36], static_cast<std::uint32_t>(p.rights));
}

error_code decode(std::span<const std::byte> bytes, loan_payload& result) noexcept {
  if (bytes.size() != loan_payload::size)
    return error::protocol_violation;
  const std::byte* const p = bytes.data();
  result.memory = {get<std::uint64_t>(p), get<std::uint64_t>(p + 8), get<std::uint32_t>(p + 32)};
  result.tag = get<std::uint64_t>(p + 24);
  const bool good = valid(result.memory) &&
                    decode_lease(get<std::uint64_t>(p + 16), result.lease) &&
                    decode_rights(get<std::uint32_t>(p + 36), result.rights);
  return good ? error_code() : error::protocol_violation;
}

void encode(const tag_payload& p, payload_bytes& to) noexcept { put(&to[0], p.tag); }

error_code decode(std::span<const std::byte> bytes, tag_payload& result) noexcept {
  if (bytes.size() != tag_payload::size)
    return error::protocol_violation;
  result.tag = get<std::uint64_t>(bytes.data());
  return {};
}

void encode(const lease_payload& p, payload_bytes& to) noexcept {
  put(&to[0], to_wire(p.lease));
  put(&to[8], p.grant);
  put(&to[12], std::uint32_t(0));
}

error_code decode(std::span<const std::byte> bytes, lease_payload& result) noexcept {
  if (bytes.size() != lease_payload::size || !all_zero(bytes.subspan(12)) ||
      !decode_lease(get<std::uint64_t>(bytes.data()), result.lease))
    return error::protocol_violation;
  result.grant = get<std::uint32_t>(bytes.data() + 8);
  return {};
}

void encode(const gathered_header& h, std::byte* to) noexcept {
  put(to, h.length | (h.immediate ? gathered_header::has_immediate : 0));
  put(to + 4, h.immediate.value_or(0));
}

error_code decode(std::span<const std::byte> bytes, gathered_header& result) noexcept {
  if (bytes.size() < gathered_header::size)
    return error::protocol_violation;
  const auto first = get<std::uint32_t>(bytes.data());
  const auto immediate = get<std::uint32_t>(bytes.data() + 4);
  result.length = first & ~gathered_header::has_immediate;
  result.immediate.reset();
  if (result.length != first)
    result.immediate = immediate;
  const std::uint64_t all = gathered_size(result.length);
  const std::size_t end = gathered_header::size + result.length;
  if ((!result.immediate && immediate != 0) || all > bytes.size() ||
      !all_zero(bytes.subspan(end, all - end)))
    return error::protocol_violation;
  return {};
}

} // namespace asio_rdma::detail
