// SPDX-License-Identifier: BSL-1.0
#include "iwarp/ddp.hpp"

#include "iwarp/big_endian.hpp"

#include <array>
#include <cassert>

namespace soft::iwarp {
namespace {

// DDP's control field, RFC 5041, section 4.1
constexpr unsigned tagged_flag = 0x80;
constexpr unsigned last_flag = 0x40;
constexpr unsigned ddp_version_mask = 0x03;

// RDMAP's control field, RFC 5040, section 4.1
constexpr unsigned rdmap_version_shift = 6;
constexpr unsigned opcode_mask = 0x0f;

constexpr std::array<opcode_traits, opcodes> table = {{
    {.tagged = true}, // RDMA Write
    {.queue = queue_number::read_request, .least = read_request_size, .most = read_request_size},
    {.tagged = true}, // RDMA Read Response
    {},               // Send
    {.invalidates = true},
    {.solicited = true},
    {.invalidates = true, .solicited = true},
    {.queue = queue_number::terminate, .least = terminate_control_size, .most = max_terminate_size},
    {.least = immediate_data_size, .most = immediate_data_size},
    {.least = immediate_data_size, .most = immediate_data_size, .solicited = true},
    {.queue = queue_number::read_request,
     .least = atomic_request_size,
     .most = atomic_request_size},
    {.queue = queue_number::atomic_response,
     .least = atomic_response_size,
     .most = atomic_response_size},
    {.invalidates = true}, // the immediate data takes the place
    {.invalidates = true, .solicited = true},
}};

} // namespace

const opcode_traits& traits(opcode op) noexcept { return table[static_cast<std::size_t>(op)]; }

std::size_t encode(const segment_header& h, std::span<std::byte, max_fpdu_header> to) noexcept {
  const opcode_traits& t = traits(h.op);
  const std::size_t ulpdu = ddp_header_size(h.op) + h.length;
  assert(ulpdu <= 0xffff);
  std::byte* const p = to.data();
  put_big_endian(p, static_cast<std::uint16_t>(ulpdu));
  p[2] =
      static_cast<std::byte>((t.tagged ? tagged_flag : 0) | (h.last ? last_flag : 0) | ddp_version);
  p[3] = static_cast<std::byte>(unsigned(rdmap_version) << rdmap_version_shift |
                                static_cast<unsigned>(h.op));
  put_big_endian(p + 4, t.tagged || t.invalidates ? h.stag : 0);
  if (t.tagged) {
    put_big_endian(p + 8, h.tagged_offset);
    return ulpdu_length_size + tagged_header_size;
  }
  put_big_endian(p + 8, static_cast<std::uint32_t>(t.queue));
  put_big_endian(p + 12, h.msn);
  put_big_endian(p + 16, h.message_offset);
  return ulpdu_length_size + untagged_header_size;
}

failure check_control(std::span<const std::byte, fpdu_control_size> control,
                      std::size_t& header_size) noexcept {
  const std::size_t ulpdu = get_big_endian<std::uint16_t>(control.data());
  const auto ddp = std::to_integer<unsigned>(control[2]);
  const auto rdmap = std::to_integer<unsigned>(control[3]);
  const bool tagged = (ddp & tagged_flag) != 0;
  const std::size_t size = tagged ? tagged_header_size : untagged_header_size;

  // An FPDU without any control field is not a DDP segment at all.
  if (ulpdu < fpdu_control_size - ulpdu_length_size)
    return mpa_error(mpa_error_code::marker_and_length_mismatch);
  if ((ddp & ddp_version_mask) != ddp_version)
    return tagged ? ddp_error(ddp_tagged_code::invalid_ddp_version)
                  : ddp_error(ddp_untagged_code::invalid_ddp_version);
  if (rdmap >> rdmap_version_shift != rdmap_version)
    return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::invalid_rdmap_version);
  const std::size_t op = rdmap & opcode_mask;
  if (op >= opcodes || table[op].tagged != tagged)
    return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::unexpected_opcode);
  if (ulpdu < size)
    return mpa_error(mpa_error_code::marker_and_length_mismatch);
  header_size = ulpdu_length_size + size;
  return {};
}

failure decode(std::span<const std::byte> fpdu_header, segment_header& result) noexcept {
  assert(fpdu_header.size() >= ulpdu_length_size + tagged_header_size);
  const std::byte* const p = fpdu_header.data();
  segment_header h;
  h.op = static_cast<opcode>(std::to_integer<unsigned>(p[3]) & opcode_mask);
  h.last = (std::to_integer<unsigned>(p[2]) & last_flag) != 0;
  const opcode_traits& t = traits(h.op);
  const std::size_t size = ddp_header_size(h.op);
  assert(fpdu_header.size() >= ulpdu_length_size + size);
  h.length = static_cast<std::uint32_t>(get_big_endian<std::uint16_t>(p) - size);
  if (t.tagged || t.invalidates)
    h.stag = get_big_endian<std::uint32_t>(p + 4);
  if (t.tagged) {
    h.tagged_offset = get_big_endian<std::uint64_t>(p + 8);
  } else {
    const auto queue = get_big_endian<std::uint32_t>(p + 8);
    h.msn = get_big_endian<std::uint32_t>(p + 12);
    h.message_offset = get_big_endian<std::uint32_t>(p + 16);
    if (queue >= queues)
      return ddp_error(ddp_untagged_code::invalid_qn);
    if (queue != static_cast<std::uint32_t>(t.queue))
      return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::unexpected_opcode);
  }
  result = h;
  return {};
}

} // namespace soft::iwarp
