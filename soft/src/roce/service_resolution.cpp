// SPDX-License-Identifier: BSL-1.0
#include "roce/service_resolution.hpp"

#include "iwarp/big_endian.hpp"
#include "roce/datagram.hpp"
#include "roce/network_header.hpp"

#include <algorithm>
#include <cstring>

namespace soft::roce {
namespace {

using iwarp::get_big_endian;
using iwarp::put_big_endian;

// The header of a management datagram: version 1, the class of the connection manager, its version
// 2, the method Send; a status of 0.
constexpr std::byte common[8] = {std::byte{1}, std::byte{7}, std::byte{2}, std::byte{3}};
constexpr std::size_t transaction_at = 8, attribute_at = 16, message_at = 24;
constexpr std::uint16_t request_attribute = 0x17, reply_attribute = 0x18;

// Of a request, from its beginning.
constexpr std::size_t id_at = message_at, request_partition_at = message_at + 4,
                      service_at = message_at + 8, addresses_at = message_at + 16,
                      request_data_at = addresses_at + 36;
// Of the addresses, from their beginning.
constexpr std::size_t ip_version_at = 1, port_at = 2, source_at = 4, destination_at = 20;
// Of a reply, from its beginning.
constexpr std::size_t status_at = message_at + 4, qp_num_at = message_at + 8,
                      reply_service_at = message_at + 12, reply_q_key_at = message_at + 20,
                      reply_data_at = message_at + 96;
static_assert(request_data_at + resolution_request_data == resolution_size &&
              reply_data_at + resolution_reply_data == resolution_size);

resolution_message begin(std::uint64_t transaction, std::uint16_t attribute,
                         std::uint32_t id) noexcept {
  resolution_message m{};
  std::copy(std::begin(common), std::end(common), m.begin());
  put_big_endian(m.data() + transaction_at, transaction);
  put_big_endian(m.data() + attribute_at, attribute);
  put_big_endian(m.data() + id_at, id);
  return m;
}

bool is_zero(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool is_message(std::span<const std::byte> bytes, std::uint16_t attribute) noexcept {
  return bytes.size() == resolution_size &&
         std::equal(std::begin(common), std::end(common), bytes.begin()) &&
         get_big_endian<std::uint16_t>(bytes.data() + attribute_at) == attribute &&
         is_zero(bytes.subspan(attribute_at + 2, 6));
}

// An IPv4 address lies in the last 4 of 16 bytes.
void put(std::byte* to, const ibv_gid& g) noexcept {
  if (is_ipv4(g))
    std::memcpy(to + 12, g.raw + 12, 4);
  else
    std::memcpy(to, g.raw, 16);
}

bool get(std::span<const std::byte, 16> from, bool v4, ibv_gid& g) noexcept {
  std::memcpy(g.raw, from.data(), 16);
  if (!v4)
    return !is_ipv4(g);
  g.raw[10] = g.raw[11] = 0xff;
  return is_zero(from.first<12>());
}

} // namespace

resolution_message encode(const resolution_request& r) noexcept {
  resolution_message m = begin(r.transaction, request_attribute, r.id);
  put_big_endian(m.data() + request_partition_at, default_partition);
  put_big_endian(m.data() + service_at, r.service);
  std::byte* const addresses = m.data() + addresses_at;
  addresses[ip_version_at] = is_ipv4(r.destination) ? std::byte{0x40} : std::byte{0x60};
  put_big_endian(addresses + port_at, r.source_port);
  put(addresses + source_at, r.source);
  put(addresses + destination_at, r.destination);
  std::copy(r.data.begin(), r.data.end(), m.begin() + request_data_at);
  return m;
}

resolution_message encode(const resolution_reply& r) noexcept {
  resolution_message m = begin(r.transaction, reply_attribute, r.id);
  m[status_at] = std::byte{r.status};
  put_big_endian(m.data() + qp_num_at, r.qp_num << 8);
  put_big_endian(m.data() + reply_service_at, r.service);
  put_big_endian(m.data() + reply_q_key_at, r.q_key);
  std::copy(r.data.begin(), r.data.end(), m.begin() + reply_data_at);
  return m;
}

std::optional<resolution_request> decode_request(std::span<const std::byte> bytes) noexcept {
  if (!is_message(bytes, request_attribute))
    return std::nullopt;
  const std::byte* const m = bytes.data();
  const std::byte* const addresses = m + addresses_at;
  const bool v4 = addresses[ip_version_at] == std::byte{0x40};
  resolution_request r;
  if (get_big_endian<std::uint16_t>(m + request_partition_at) != default_partition ||
      get_big_endian<std::uint16_t>(m + request_partition_at + 2) != 0 ||
      addresses[0] != std::byte{0} || (!v4 && addresses[ip_version_at] != std::byte{0x60}) ||
      !get(std::span<const std::byte, 16>(addresses + source_at, 16), v4, r.source) ||
      !get(std::span<const std::byte, 16>(addresses + destination_at, 16), v4, r.destination))
    return std::nullopt;
  r.transaction = get_big_endian<std::uint64_t>(m + transaction_at);
  r.id = get_big_endian<std::uint32_t>(m + id_at);
  r.service = get_big_endian<std::uint64_t>(m + service_at);
  r.source_port = get_big_endian<std::uint16_t>(addresses + port_at);
  std::copy_n(m + request_data_at, r.data.size(), r.data.begin());
  return r;
}

std::optional<resolution_reply> decode_reply(std::span<const std::byte> bytes) noexcept {
  if (!is_message(bytes, reply_attribute))
    return std::nullopt;
  const std::byte* const m = bytes.data();
  const auto qp_num = get_big_endian<std::uint32_t>(m + qp_num_at);
  if (std::to_integer<std::uint8_t>(m[status_at]) > most_resolution_status ||
      !is_zero(bytes.subspan(status_at + 1, 3)) || (qp_num & 0xff) != 0 ||
      !is_zero(bytes.subspan(reply_q_key_at + 4, reply_data_at - reply_q_key_at - 4)))
    return std::nullopt;
  resolution_reply r;
  r.transaction = get_big_endian<std::uint64_t>(m + transaction_at);
  r.id = get_big_endian<std::uint32_t>(m + id_at);
  r.service = get_big_endian<std::uint64_t>(m + reply_service_at);
  r.status = std::to_integer<std::uint8_t>(m[status_at]);
  r.qp_num = qp_num >> 8;
  r.q_key = get_big_endian<std::uint32_t>(m + reply_q_key_at);
  std::copy_n(m + reply_data_at, r.data.size(), r.data.begin());
  return r;
}

} // namespace soft::roce
