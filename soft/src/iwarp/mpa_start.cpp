// SPDX-License-Identifier: BSL-1.0
#include "iwarp/mpa_start.hpp"

#include "iwarp/big_endian.hpp"

#include <algorithm>
#include <cassert>
#include <string_view>

namespace soft::iwarp {
namespace {

constexpr std::string_view request_key = "MPA ID Req Frame";
constexpr std::string_view reply_key = "MPA ID Rep Frame";
static_assert(request_key.size() == start_frame::key_size);
static_assert(reply_key.size() == start_frame::key_size);

// The flags, RFC 5044, section 7.1.1, and RFC 6581, section 6
constexpr unsigned markers_flag = 0x80;
constexpr unsigned crc_flag = 0x40;
constexpr unsigned reject_flag = 0x20;
constexpr unsigned enhanced_flag = 0x10;

// The control bits of the enhanced data, RFC 6581, section 9
constexpr unsigned peer_to_peer_bit = 0x8000;       // in the word of IRD
constexpr unsigned zero_length_fulpdu_bit = 0x4000; // in the word of IRD
constexpr unsigned rdma_write_bit = 0x8000;         // in the word of ORD
constexpr unsigned rdma_read_bit = 0x4000;          // in the word of ORD
constexpr unsigned value_mask = 0x3fff;

constexpr std::size_t flags_at = 16;
constexpr std::size_t revision_at = 17;
constexpr std::size_t length_at = 18;

std::string_view key_of(bool reply) noexcept { return reply ? reply_key : request_key; }

} // namespace

const char* describe(start_error e) noexcept {
  switch (e) {
  case start_error::none:
    return "no error";
  case start_error::key:
    return "MPA: unexpected frame key";
  case start_error::revision:
    return "MPA: unsupported revision";
  case start_error::private_data_length:
    return "MPA: more than 512 bytes of private data";
  case start_error::enhanced_data_length:
    return "MPA: enhanced data missing";
  case start_error::rejected:
    return "MPA: request rejected";
  case start_error::markers:
    return "MPA: the peer requires markers";
  case start_error::reply_mismatch:
    return "MPA: revision or enhanced flag of the reply differs from the request";
  case start_error::insufficient_ird:
    return "MPA: insufficient IRD resources";
  case start_error::no_matching_rtr:
    return "MPA: no matching RTR option";
  }
  return "MPA: unknown error";
}

bool start_frame::set_private_data(std::span<const std::byte> data) noexcept {
  if (data.size() > max_private_data())
    return false;
  std::ranges::copy(data, data_.begin());
  data_size_ = data.size();
  return true;
}

start_bytes encode(const start_frame& f) noexcept {
  assert(!f.enhanced || f.revision == 2);
  assert(f.private_data().size() <= f.max_private_data());
  start_bytes to;
  std::byte* const p = to.bytes.data();
  std::ranges::transform(key_of(f.reply), p, [](char c) { return static_cast<std::byte>(c); });
  p[flags_at] =
      static_cast<std::byte>((f.markers ? markers_flag : 0) | (f.crc ? crc_flag : 0) |
                             (f.rejected ? reject_flag : 0) | (f.enhanced ? enhanced_flag : 0));
  p[revision_at] = static_cast<std::byte>(f.revision);
  std::size_t size = start_frame::header_size;
  if (f.enhanced) {
    const unsigned ird = (f.ird & value_mask) | (f.peer_to_peer ? peer_to_peer_bit : 0) |
                         (has(f.rtr, rtr_kinds::zero_length_fulpdu) ? zero_length_fulpdu_bit : 0);
    const unsigned ord = (f.ord & value_mask) |
                         (has(f.rtr, rtr_kinds::rdma_write) ? rdma_write_bit : 0) |
                         (has(f.rtr, rtr_kinds::rdma_read) ? rdma_read_bit : 0);
    put_big_endian(p + size, static_cast<std::uint16_t>(ird));
    put_big_endian(p + size + 2, static_cast<std::uint16_t>(ord));
    size += start_frame::enhanced_size;
  }
  std::ranges::copy(f.private_data(), p + size);
  to.size = size + f.private_data().size();
  put_big_endian(p + length_at, static_cast<std::uint16_t>(to.size - start_frame::header_size));
  return to;
}

start_reader::result start_reader::feed(std::span<const std::byte> bytes) noexcept {
  std::size_t taken = 0;
  while (state_ == status::more && taken != bytes.size()) {
    const std::size_t n = std::min(bytes.size() - taken, want_ - have_);
    std::ranges::copy(bytes.subspan(taken, n), bytes_.begin() + static_cast<std::ptrdiff_t>(have_));
    taken += n;
    const std::size_t before = have_;
    have_ += n;
    const std::string_view key = key_of(reply_);
    for (std::size_t i = before; i < std::min(have_, key.size()); ++i)
      if (bytes_[i] != static_cast<std::byte>(key[i]))
        return {fail(start_error::key), taken};
    if (have_ == start_frame::header_size)
      state_ = header_complete();
    else if (have_ == want_)
      state_ = frame_complete();
  }
  return {state_, taken};
}

start_reader::status start_reader::fail(start_error e) noexcept {
  error_ = e;
  return state_ = status::failed;
}

start_reader::status start_reader::header_complete() noexcept {
  const auto flags = std::to_integer<unsigned>(bytes_[flags_at]);
  frame_.reply = reply_;
  frame_.markers = (flags & markers_flag) != 0;
  frame_.crc = (flags & crc_flag) != 0;
  frame_.rejected = reply_ && (flags & reject_flag) != 0;
  frame_.revision = std::to_integer<std::uint8_t>(bytes_[revision_at]);
  // The bit is reserved in revision 1.
  frame_.enhanced = frame_.revision == 2 && (flags & enhanced_flag) != 0;
  const std::size_t length = get_big_endian<std::uint16_t>(bytes_.data() + length_at);
  if (frame_.revision != 1 && frame_.revision != 2)
    return fail(start_error::revision);
  if (length > start_frame::max_data)
    return fail(start_error::private_data_length);
  if (frame_.enhanced && length < start_frame::enhanced_size) {
    if (!frame_.rejected)
      return fail(start_error::enhanced_data_length);
    frame_.enhanced = false; // siw rejects a request with its own flags and without data
  }
  want_ = start_frame::header_size + length;
  return length == 0 ? frame_complete() : status::more;
}

start_reader::status start_reader::frame_complete() noexcept {
  std::span<const std::byte> data(bytes_.data() + start_frame::header_size,
                                  want_ - start_frame::header_size);
  if (frame_.enhanced) {
    const unsigned ird = get_big_endian<std::uint16_t>(data.data());
    const unsigned ord = get_big_endian<std::uint16_t>(data.data() + 2);
    const auto kind = [](unsigned word, unsigned bit, rtr_kinds k) {
      return (word & bit) != 0 ? k : rtr_kinds::none;
    };
    frame_.ird = static_cast<std::uint16_t>(ird & value_mask);
    frame_.ord = static_cast<std::uint16_t>(ord & value_mask);
    frame_.peer_to_peer = (ird & peer_to_peer_bit) != 0;
    frame_.rtr = kind(ird, zero_length_fulpdu_bit, rtr_kinds::zero_length_fulpdu) |
                 kind(ord, rdma_write_bit, rtr_kinds::rdma_write) |
                 kind(ord, rdma_read_bit, rtr_kinds::rdma_read);
    data = data.subspan(start_frame::enhanced_size);
  }
  frame_.set_private_data(data);
  return status::done;
}

} // namespace soft::iwarp
