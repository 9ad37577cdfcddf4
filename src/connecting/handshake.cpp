// SPDX-License-Identifier: BSL-1.0
#include "core/little_endian.hpp"

#include "connecting/handshake.hpp"
#include "core/described_error.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

namespace asio_rdma::detail {
namespace {

constexpr std::array<char, 4> record_magic{'A', 'R', 'D', 'M'};
constexpr std::array<char, 4> verdict_magic{'A', 'R', 'D', 'V'};
constexpr std::uint16_t address_flag = 1;
constexpr std::uint32_t low_24_bits = 0xffffff;

bool begins_with(std::span<const std::byte> bytes, const std::array<char, 4>& magic) noexcept {
  const auto same = [](std::byte b, char c) {
    return b == static_cast<std::byte>(c);
  };
  const std::size_t n = std::min(bytes.size(), magic.size());
  return std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n), magic.begin(),
                    magic.begin() + static_cast<std::ptrdiff_t>(n), same);
}

// 0 and 1 are the management queue pairs; the highest number is for multicast.
bool may_be_connected_to(std::uint32_t number) noexcept {
  return number > 1 && number < low_24_bits;
}

const char* name_of(handshake::kind k) noexcept {
  return k == handshake::kind::message  ? "a connection"
         : k == handshake::kind::stream ? "a stream"
                                        : "a bare queue pair";
}

// The text of `error::incompatible_peer`.
std::string difference(std::span<const std::byte> record, std::optional<handshake::kind> own) {
  if (record.size() < handshake::prefix_size || !begins_with(record, record_magic))
    return "the peer does not speak this library's protocol (is it a bare queue pair, or another "
           "program?)";
  const unsigned version = std::to_integer<unsigned>(record[4]);
  if (version != handshake::version)
    return "the peer has version " + std::to_string(version) +
           " of the protocol and this side version " + std::to_string(handshake::version) +
           " (use the same release of the library at both ends)";
  if (record.size() > handshake::prefix_size && own) {
    const auto kind = static_cast<handshake::kind>(record[5]);
    if (kind != *own && kind <= handshake::kind::stream)
      return std::string("the peer has ") + name_of(kind) + " and this side " + name_of(*own) +
             " (use the same kind of object at both ends)";
  }
  return "the handshakes of the two sides do not fit (their receives, their RDMA READs, or the "
         "types of "
         "their queue pairs)";
}

bool decode_address(const std::byte* from, handshake_address& part) noexcept {
  queue_pair_address& a = part.address;
  a.number = get<std::uint32_t>(from);
  a.packet_number = get<std::uint32_t>(from + 4);
  std::memcpy(a.gid.raw, from + 8, sizeof(a.gid.raw));
  a.lid = get<std::uint16_t>(from + 24);
  const auto mtu = std::to_integer<unsigned>(from[26]);
  const auto type = std::to_integer<unsigned>(from[27]);
  a.mtu = static_cast<ibv_mtu>(mtu);
  part.type = static_cast<ibv_qp_type>(type);
  return may_be_connected_to(a.number) && a.packet_number <= low_24_bits &&
         (a.lid != 0 || !all_zero({from + 8, sizeof(a.gid.raw)})) && mtu >= IBV_MTU_256 &&
         mtu <= IBV_MTU_4096 && (type == IBV_QPT_RC || type == IBV_QPT_UC) &&
         all_zero({from + 28, 4});
}

constexpr std::size_t data_size_at = 20;

bool parse(std::span<const std::byte> bytes, handshake& result) noexcept {
  if (bytes.size() < handshake::base_size || !is_handshake_prefix(bytes))
    return false;
  const std::byte* const p = bytes.data();
  const auto kind = std::to_integer<std::uint8_t>(p[5]);
  const auto flags = get<std::uint16_t>(p + 6);
  const auto atomics = std::to_integer<unsigned>(p[17]);
  const auto data_size = std::to_integer<std::size_t>(p[data_size_at]);
  if (kind > static_cast<std::uint8_t>(handshake::kind::stream) || (flags & ~address_flag) != 0 ||
      atomics > IBV_ATOMIC_GLOB || !all_zero(bytes.subspan(data_size_at + 1, 3)))
    return false;
  handshake h;
  h.what = static_cast<handshake::kind>(kind);
  h.receives = get<std::uint32_t>(p + 8);
  h.receive_size = get<std::uint32_t>(p + 12);
  h.max_reads = std::to_integer<std::uint8_t>(p[16]);
  h.atomics = static_cast<ibv_atomic_cap>(atomics);
  h.promise = get<std::uint16_t>(p + 18);
  if (flags == address_flag) {
    if (data_size != 0 || bytes.size() < handshake::full_size ||
        !decode_address(p + 24, h.address.emplace()))
      return false;
    h.address->address.max_reads = h.max_reads;
  } else if (data_size > bytes.size() - handshake::base_size ||
             !all_zero(bytes.subspan(handshake::base_size + data_size))) {
    return false;
  }
  result = h;
  return true;
}

} // namespace

handshake_bytes encode(const handshake& h) noexcept {
  handshake_bytes result{};
  std::byte* const p = result.data();
  std::memcpy(p, record_magic.data(), record_magic.size());
  put(p + 4, handshake::version);
  put(p + 5, static_cast<std::uint8_t>(h.what));
  put(p + 6, h.address ? address_flag : std::uint16_t(0));
  put(p + 8, h.receives);
  put(p + 12, h.receive_size);
  put(p + 16, h.max_reads);
  put(p + 17, static_cast<std::uint8_t>(h.atomics));
  put(p + 18, h.promise);
  if (h.address) {
    const queue_pair_address& a = h.address->address;
    put(p + 24, a.number);
    put(p + 28, a.packet_number);
    std::memcpy(p + 32, a.gid.raw, sizeof(a.gid.raw));
    put(p + 48, a.lid);
    put(p + 50, static_cast<std::uint8_t>(a.mtu));
    put(p + 51, static_cast<std::uint8_t>(h.address->type));
  }
  return result;
}

error_code decode(std::span<const std::byte> bytes, handshake& result) noexcept {
  return parse(bytes, result) ? error_code() : incompatible(bytes);
}

std::vector<std::byte> with_data(std::vector<std::byte> record, std::span<const std::byte> data) {
  assert(record.size() == handshake::base_size && data.size() <= handshake::most_data);
  record[data_size_at] = static_cast<std::byte>(data.size());
  record.insert(record.end(), data.begin(), data.end());
  return record;
}

bool is_record(std::span<const std::byte> bytes) noexcept {
  handshake h;
  return parse(bytes, h) && !h.address;
}

std::span<const std::byte> program_data(std::span<const std::byte> bytes) noexcept {
  if (!is_record(bytes))
    return bytes;
  return bytes.subspan(handshake::base_size, std::to_integer<std::size_t>(bytes[data_size_at]));
}

bool is_handshake_prefix(std::span<const std::byte> bytes) noexcept {
  return begins_with(bytes, record_magic) &&
         (bytes.size() <= record_magic.size() || bytes[4] == std::byte(handshake::version));
}

error_code incompatible(std::span<const std::byte> record,
                        std::optional<handshake::kind> own) noexcept {
  return describe(error::incompatible_peer, [&] { return difference(record, own); });
}

std::array<std::byte, verdict_size> encode(verdict v) noexcept {
  std::array<std::byte, verdict_size> result{};
  std::memcpy(result.data(), verdict_magic.data(), verdict_magic.size());
  result[4] = static_cast<std::byte>(v);
  return result;
}

error_code decode(std::span<const std::byte, verdict_size> bytes, verdict& result) noexcept {
  if (!begins_with(bytes, verdict_magic) || bytes[4] > static_cast<std::byte>(verdict::failed) ||
      !all_zero(bytes.subspan<5>()))
    return error::incompatible_peer;
  result = static_cast<verdict>(bytes[4]);
  return {};
}

refusal_bytes encode_refusal(std::span<const std::byte> own_record) noexcept {
  refusal_bytes result{};
  const auto first = encode(verdict::incompatible);
  const auto own = own_record.first(std::min(own_record.size(), handshake::base_size));
  std::copy(own.begin(), own.end(), std::copy(first.begin(), first.end(), result.begin()));
  return result;
}

bool decode_refusal(std::span<const std::byte> bytes, handshake::kind own,
                    error_code& result) noexcept {
  verdict v{};
  if (bytes.size() < verdict_size || decode(bytes.first<verdict_size>(), v) ||
      v != verdict::incompatible)
    return false;
  const auto record = bytes.subspan(verdict_size);
  const bool has_record =
      record.size() >= handshake::prefix_size && begins_with(record, record_magic);
  result = has_record ? incompatible(record, own) : error_code(error::incompatible_peer);
  return true;
}

// --- The steps -------------------------------------------------------------------------------

exchange_steps::exchange_steps(const handshake& local, error_code why)
    : local_(local), result_(why), output_(encode(local)) {}

asio::const_buffer exchange_steps::output() const noexcept {
  return concluded_ ? asio::buffer(verdict_) : asio::buffer(output_);
}

asio::mutable_buffer exchange_steps::input() noexcept {
  const std::size_t expected = concluded_ ? verdict_size : handshake::full_size;
  return asio::buffer(input_.data() + received_, expected - received_);
}

void exchange_steps::on_written(const error_code& ec) {
  assert(next_ == action::write);
  if (ec && !result_)
    result_ = ec;
  next_ = ec || !in_step_ ? action::finish : action::read;
}

void exchange_steps::on_read(const error_code& ec, std::size_t bytes) {
  assert(next_ == action::read && bytes <= input().size());
  received_ += bytes;
  if (ec) {
    if (!result_)
      result_ = ec;
    next_ = action::finish;
  } else if (!concluded_) {
    // A peer of another protocol or version may never send that many bytes.
    if (!is_handshake_prefix({input_.data(), std::min(received_, handshake::prefix_size)})) {
      in_step_ = false;
      conclude(verdict::incompatible, incompatible(std::span(input_).first(received_)));
    } else if (received_ == handshake::full_size) {
      on_record();
    }
  } else if (received_ == verdict_size) {
    on_verdict();
  }
}

void exchange_steps::on_record() {
  received_ = 0;
  if (const error_code ec = decode(input_, peer_))
    conclude(verdict::incompatible, ec);
  else if (!local_.address || !peer_.address)
    conclude(verdict::unsupported, asio::error::operation_not_supported);
  else if (peer_.what != local_.what || peer_.address->type != local_.address->type)
    conclude(verdict::incompatible, incompatible(input_, local_.what));
  else
    next_ = action::connect;
}

void exchange_steps::on_connected(const error_code& ec) {
  assert(next_ == action::connect && !connected_);
  connected_ = !ec;
  conclude(!ec                              ? verdict::ready
           : ec == error::incompatible_peer ? verdict::incompatible
                                            : verdict::failed,
           ec);
}

void exchange_steps::conclude(verdict v, const error_code& ec) {
  assert(!concluded_ && (v == verdict::ready) == !ec);
  if (!result_)
    result_ = ec;
  verdict_ = encode(v);
  concluded_ = true;
  next_ = action::write;
}

void exchange_steps::on_verdict() {
  verdict v{};
  error_code ec = decode(std::span(input_).first<verdict_size>(), v);
  if (!ec && v == verdict::incompatible)
    ec = error::incompatible_peer;
  else if (!ec && v == verdict::unsupported)
    ec = asio::error::operation_not_supported;
  else if (!ec && v == verdict::failed)
    ec = error::rejected;
  if (!result_)
    result_ = ec;
  next_ = action::finish;
}

} // namespace asio_rdma::detail
