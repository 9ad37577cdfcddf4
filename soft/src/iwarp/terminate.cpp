// SPDX-License-Identifier: BSL-1.0
#include "iwarp/terminate.hpp"

#include "iwarp/big_endian.hpp"

#include <algorithm>

namespace soft::iwarp {
namespace {

// The header control bits, in the third byte.
constexpr unsigned length_valid = 0x80;  // M
constexpr unsigned ddp_included = 0x40;  // D
constexpr unsigned rdma_included = 0x20; // R
// The same bits in the order of siw.
constexpr unsigned swapped_length_valid = 0x01;
constexpr unsigned swapped_ddp_included = 0x02;
constexpr unsigned swapped_rdma_included = 0x04;

constexpr std::size_t ddp_at = terminate_control_size + ulpdu_length_size;

bool quotes_headers(const protocol_error& e) noexcept {
  if (e.layer == error_layer::llp || e.type == 0) // type 0 of RDMAP and DDP: local catastrophic
    return false;
  return e != ddp_error(ddp_tagged_code::invalid_ddp_version) &&
         e != ddp_error(ddp_untagged_code::invalid_ddp_version);
}

std::size_t ddp_size(std::byte control) noexcept {
  return (std::to_integer<unsigned>(control) & 0x80) != 0 ? tagged_header_size
                                                          : untagged_header_size;
}

bool is_read_request(std::byte control) noexcept {
  return (std::to_integer<unsigned>(control) & 0x0f) ==
         static_cast<unsigned>(opcode::rdma_read_request);
}

} // namespace

terminate::terminate(const protocol_error& error, std::span<const std::byte> fpdu_header,
                     std::span<const std::byte> read_request) noexcept
    : error_(error) {
  unsigned flags = 0;
  const bool has_control = fpdu_header.size() >= fpdu_control_size;
  if (has_control && quotes_headers(error) &&
      fpdu_header.size() >= ulpdu_length_size + ddp_size(fpdu_header[2])) {
    flags = length_valid | ddp_included;
    length_ = true;
    ddp_size_ = ddp_size(fpdu_header[2]);
    std::ranges::copy(fpdu_header.first(ulpdu_length_size + ddp_size_),
                      bytes_.begin() + terminate_control_size);
    size_ = ddp_at + ddp_size_;
    if (read_request.size() == read_request_size && is_read_request(fpdu_header[3]) &&
        error.layer == error_layer::rdmap &&
        error.type == static_cast<std::uint8_t>(rdmap_error_type::remote_protection)) {
      flags |= rdma_included;
      rdma_size_ = read_request_size;
      std::ranges::copy(read_request, bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
      size_ += read_request_size;
    }
  }
  bytes_[0] = static_cast<std::byte>(static_cast<unsigned>(error.layer) << 4 | (error.type & 0xfU));
  bytes_[1] = static_cast<std::byte>(error.code);
  bytes_[2] = static_cast<std::byte>(flags);
}

std::optional<terminate> terminate::decode(std::span<const std::byte> payload) noexcept {
  if (payload.size() < terminate_control_size)
    return std::nullopt;
  terminate t;
  t.size_ = std::min(payload.size(), max_terminate_size);
  std::ranges::copy(payload.first(t.size_), t.bytes_.begin());

  const auto first = std::to_integer<unsigned>(payload[0]);
  const auto flags = std::to_integer<unsigned>(payload[2]);
  const bool swapped =
      (flags & (length_valid | ddp_included | rdma_included)) == 0 &&
      (flags & (swapped_length_valid | swapped_ddp_included | swapped_rdma_included)) != 0;
  const auto has = [&](unsigned bit, unsigned swapped_bit) {
    return (flags & (swapped ? swapped_bit : bit)) != 0;
  };
  t.error_.layer = static_cast<error_layer>(swapped ? first & 0xf : first >> 4);
  t.error_.type = static_cast<std::uint8_t>(swapped ? first >> 4 : first & 0xf);
  t.error_.code = std::to_integer<std::uint8_t>(payload[1]);

  const bool ddp = has(ddp_included, swapped_ddp_included);
  const bool length = has(length_valid, swapped_length_valid);
  if (!(length || ddp) || t.size_ < ddp_at)
    return t;
  t.length_ = length;
  if (!ddp || t.size_ < ddp_at + fpdu_control_size - ulpdu_length_size)
    return t;
  const std::size_t size = ddp_size(t.bytes_[ddp_at]);
  if (t.size_ < ddp_at + size)
    return t;
  t.ddp_size_ = size;
  if (has(rdma_included, swapped_rdma_included) && t.size_ >= ddp_at + size + read_request_size)
    t.rdma_size_ = t.size_ - ddp_at - size;
  return t;
}

std::optional<std::uint16_t> terminate::segment_length() const noexcept {
  if (!length_)
    return std::nullopt;
  return get_big_endian<std::uint16_t>(bytes_.data() + terminate_control_size);
}

std::span<const std::byte> terminate::ddp_header() const noexcept {
  return {bytes_.data() + ddp_at, ddp_size_};
}

std::span<const std::byte> terminate::rdma_header() const noexcept {
  return {bytes_.data() + ddp_at + ddp_size_, rdma_size_};
}

} // namespace soft::iwarp
