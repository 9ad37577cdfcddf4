// SPDX-License-Identifier: BSL-1.0
#include "roce/network_header.hpp"

#include "iwarp/big_endian.hpp"

#include <algorithm>
#include <cstring>

namespace soft::roce {
namespace {

using iwarp::get_big_endian;
using iwarp::put_big_endian;

constexpr std::size_t ipv4_at = 20, ipv4_size = 20;
constexpr std::byte udp{17};
constexpr std::uint16_t dont_fragment = 0x4000;
constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// RFC 1071. The sum over a header with a right checksum is 0.
std::uint16_t checksum(const std::byte* ipv4) noexcept {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i != ipv4_size; i += 2)
    sum += get_big_endian<std::uint16_t>(ipv4 + i);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~(sum + (sum >> 16)));
}

std::optional<route> decode_ipv6(const std::byte* h) noexcept {
  const auto first = get_big_endian<std::uint32_t>(h);
  if (first >> 28 != 6 || h[6] != udp)
    return std::nullopt;
  route r;
  r.traffic_class = static_cast<std::uint8_t>(first >> 20);
  r.flow_label = first & 0xfffff;
  r.bytes = get_big_endian<std::uint16_t>(h + 4);
  r.hop_limit = std::to_integer<std::uint8_t>(h[7]);
  std::memcpy(r.source.raw, h + 8, 16);
  std::memcpy(r.destination.raw, h + 24, 16);
  if (is_ipv4(r.source) || is_ipv4(r.destination))
    return std::nullopt;
  return r;
}

std::optional<route> decode_ipv4(const std::byte* h) noexcept {
  const auto total = get_big_endian<std::uint16_t>(h + 2);
  const auto fragment = get_big_endian<std::uint16_t>(h + 6);
  if (h[0] != std::byte{0x45} || total < ipv4_size || (fragment & ~dont_fragment) != 0 ||
      h[9] != udp || checksum(h) != 0)
    return std::nullopt;
  route r;
  r.traffic_class = std::to_integer<std::uint8_t>(h[1]);
  r.bytes = static_cast<std::uint16_t>(total - ipv4_size);
  r.hop_limit = std::to_integer<std::uint8_t>(h[8]);
  for (ibv_gid* const g : {&r.source, &r.destination})
    std::copy(std::begin(mapped), std::end(mapped), g->raw);
  std::memcpy(r.source.raw + 12, h + 12, 4);
  std::memcpy(r.destination.raw + 12, h + 16, 4);
  return r;
}

} // namespace

bool is_ipv4(const ibv_gid& g) noexcept {
  return std::equal(std::begin(mapped), std::end(mapped), g.raw);
}

bool is_of_a_host(const ibv_gid& g) noexcept {
  if (is_ipv4(g))
    return g.raw[12] != 0 && g.raw[12] < 224;
  return g.raw[0] != 0xff &&
         std::any_of(std::begin(g.raw), std::end(g.raw), [](std::uint8_t b) { return b != 0; });
}

network_header encode(const route& r) noexcept {
  network_header whole{};
  if (!is_ipv4(r.destination)) {
    put_big_endian(whole.data(),
                   6u << 28 | std::uint32_t(r.traffic_class) << 20 | (r.flow_label & 0xfffff));
    put_big_endian(whole.data() + 4, r.bytes);
    whole[6] = udp;
    whole[7] = std::byte{r.hop_limit};
    std::memcpy(whole.data() + 8, r.source.raw, 16);
    std::memcpy(whole.data() + 24, r.destination.raw, 16);
    return whole;
  }
  std::byte* const h = whole.data() + ipv4_at;
  h[0] = std::byte{0x45};
  h[1] = std::byte{r.traffic_class};
  put_big_endian(h + 2, static_cast<std::uint16_t>(r.bytes + ipv4_size));
  put_big_endian(h + 6, dont_fragment);
  h[8] = std::byte{r.hop_limit};
  h[9] = udp;
  std::memcpy(h + 12, r.source.raw + 12, 4);
  std::memcpy(h + 16, r.destination.raw + 12, 4);
  put_big_endian(h + 10, checksum(h));
  return whole;
}

std::optional<route> decode(std::span<const std::byte, 40> header) noexcept {
  const bool is_v4 = std::all_of(header.begin(), header.begin() + ipv4_at,
                                 [](std::byte b) { return b == std::byte{0}; });
  auto r = is_v4 ? decode_ipv4(header.data() + ipv4_at) : decode_ipv6(header.data());
  if (r && (!is_of_a_host(r->source) || !is_of_a_host(r->destination)))
    r.reset();
  return r;
}

} // namespace soft::roce
