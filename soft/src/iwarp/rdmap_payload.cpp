// SPDX-License-Identifier: BSL-1.0
#include "iwarp/rdmap_payload.hpp"

#include "iwarp/big_endian.hpp"

namespace soft::iwarp {
namespace {

constexpr std::uint32_t atomic_opcode_mask = 0xf;

} // namespace

std::array<std::byte, read_request::size> encode(const read_request& r) noexcept {
  std::array<std::byte, read_request::size> to;
  std::byte* const p = to.data();
  put_big_endian(p, r.sink_stag);
  put_big_endian(p + 4, r.sink_offset);
  put_big_endian(p + 12, r.length);
  put_big_endian(p + 16, r.source_stag);
  put_big_endian(p + 20, r.source_offset);
  return to;
}

std::array<std::byte, atomic_request::size> encode(const atomic_request& r) noexcept {
  std::array<std::byte, atomic_request::size> to;
  std::byte* const p = to.data();
  put_big_endian(p, static_cast<std::uint32_t>(r.op));
  put_big_endian(p + 4, r.request_id);
  put_big_endian(p + 8, r.stag);
  put_big_endian(p + 12, r.offset);
  put_big_endian(p + 20, r.add_or_swap);
  put_big_endian(p + 28, r.add_or_swap_mask);
  put_big_endian(p + 36, r.compare);
  put_big_endian(p + 44, r.compare_mask);
  return to;
}

std::array<std::byte, atomic_response::size> encode(const atomic_response& r) noexcept {
  std::array<std::byte, atomic_response::size> to;
  put_big_endian(to.data(), r.request_id);
  put_big_endian(to.data() + 4, r.original);
  return to;
}

std::array<std::byte, immediate_data::size> encode(const immediate_data& r) noexcept {
  std::array<std::byte, immediate_data::size> to;
  put_big_endian(to.data(), r.value);
  return to;
}

void decode(std::span<const std::byte, read_request::size> bytes, read_request& result) noexcept {
  const std::byte* const p = bytes.data();
  result.sink_stag = get_big_endian<std::uint32_t>(p);
  result.sink_offset = get_big_endian<std::uint64_t>(p + 4);
  result.length = get_big_endian<std::uint32_t>(p + 12);
  result.source_stag = get_big_endian<std::uint32_t>(p + 16);
  result.source_offset = get_big_endian<std::uint64_t>(p + 20);
}

failure decode(std::span<const std::byte, atomic_request::size> bytes,
               atomic_request& result) noexcept {
  const std::byte* const p = bytes.data();
  const auto op = static_cast<atomic_opcode>(get_big_endian<std::uint32_t>(p) & atomic_opcode_mask);
  if (op != atomic_opcode::fetch_add && op != atomic_opcode::compare_swap)
    return rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::unexpected_opcode);
  result.op = op;
  result.request_id = get_big_endian<std::uint32_t>(p + 4);
  result.stag = get_big_endian<std::uint32_t>(p + 8);
  result.offset = get_big_endian<std::uint64_t>(p + 12);
  result.add_or_swap = get_big_endian<std::uint64_t>(p + 20);
  result.add_or_swap_mask = get_big_endian<std::uint64_t>(p + 28);
  result.compare = get_big_endian<std::uint64_t>(p + 36);
  result.compare_mask = get_big_endian<std::uint64_t>(p + 44);
  return {};
}

void decode(std::span<const std::byte, atomic_response::size> bytes,
            atomic_response& result) noexcept {
  result.request_id = get_big_endian<std::uint32_t>(bytes.data());
  result.original = get_big_endian<std::uint64_t>(bytes.data() + 4);
}

void decode(std::span<const std::byte, immediate_data::size> bytes,
            immediate_data& result) noexcept {
  result.value = get_big_endian<std::uint64_t>(bytes.data());
}

std::uint64_t result_of(const atomic_request& r, std::uint64_t original) noexcept {
  if (r.op == atomic_opcode::compare_swap) {
    if (((r.compare ^ original) & r.compare_mask) != 0)
      return original;
    return (original & ~r.add_or_swap_mask) | (r.add_or_swap & r.add_or_swap_mask);
  }
  // Without the top bit of each field no carry leaves a field. The top bits are added without a
  // carry, which is an exclusive or.
  const std::uint64_t top = r.add_or_swap_mask;
  return ((original & ~top) + (r.add_or_swap & ~top)) ^ ((original ^ r.add_or_swap) & top);
}

} // namespace soft::iwarp
