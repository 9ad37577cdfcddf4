// SPDX-License-Identifier: BSL-1.0
#include "fuzz_roce.hpp"

#include "roce/datagram.hpp"
#include "roce/invariant_crc.hpp"
#include "roce/service_resolution.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace soft::roce::test {
namespace {

using view = std::span<const std::byte>;

void require(bool holds, const char* what) noexcept {
  if (holds)
    return;
  std::fprintf(stderr, "fuzz_roce: %s\n", what);
  std::abort();
}

// A copy of the exact size lets AddressSanitizer see reads beyond the end.
struct exact {
  explicit exact(view from) : bytes(std::make_unique<std::byte[]>(from.size())), size(from.size()) {
    std::ranges::copy(from, bytes.get());
  }
  view whole() const { return {bytes.get(), size}; }
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size;
};

bool is_same(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}
bool is_same(const route& a, const route& b) {
  return is_same(a.source, b.source) && is_same(a.destination, b.destination) &&
         a.traffic_class == b.traffic_class && a.hop_limit == b.hop_limit &&
         a.flow_label == b.flow_label && a.bytes == b.bytes;
}
bool is_same(const datagram& a, const datagram& b) {
  return is_same(a.way, b.way) && a.from == b.from && a.to == b.to && a.q_key == b.q_key &&
         a.solicited == b.solicited && a.immediate == b.immediate && a.payload == b.payload;
}

// The network header with the length and the checksum that fit the rest.
void correct_network_header(std::span<std::byte> all) {
  if (all.size() < min_datagram_header || all.size() > max_route_bytes)
    return;
  route r;
  const bool v4 = (std::to_integer<unsigned>(all[0]) & 1) != 0;
  for (ibv_gid* const g : {&r.source, &r.destination}) {
    std::memcpy(g->raw, all.data() + (g == &r.source ? 8 : 24), 16);
    if (v4) {
      std::fill_n(g->raw, 10, std::uint8_t{0});
      g->raw[10] = g->raw[11] = 0xff;
    } else {
      g->raw[0] |= 1;
    }
  }
  r.traffic_class = std::to_integer<std::uint8_t>(all[1]);
  r.bytes = static_cast<std::uint16_t>(all.size() - 40 + 12);
  std::ranges::copy(encode(r), all.begin());
}

void read_datagram(view all) {
  view payload;
  const auto d = decode(all, payload);
  if (!d)
    return;
  require(payload.size() == d->payload && d->payload <= max_datagram_payload, "a payload's size");
  require(payload.data() >= all.data() + min_datagram_header &&
              payload.data() + payload.size() <= all.data() + all.size(),
          "a payload is outside of its datagram");
  const datagram_frame f = encode(*d);
  require(f.header_size + payload.size() + f.padding == all.size(), "the size of a datagram");
  std::vector<std::byte> again(f.before().begin(), f.before().end());
  again.insert(again.end(), payload.begin(), payload.end());
  again.resize(again.size() + f.padding);
  view same_payload;
  const auto same = decode(again, same_payload);
  require(same && is_same(*same, *d) && std::ranges::equal(same_payload, payload),
          "a datagram changes when it is encoded again");
}

bool is_own(const ibv_gid& g) { return (g.raw[15] & 1) != 0; }

// Packets of other machines. The network header is that of the input; over IPv6 the CRC is right.
void read_packet(std::span<std::byte> all) {
  constexpr std::size_t crc_size = invariant_crc::size;
  if (all.size() < 52 + crc_size)
    return;
  correct_network_header(all.first(all.size() - crc_size));
  const auto way = decode(all.first<40>());
  if (!way)
    return;
  if (!is_ipv4(way->source)) {
    invariant_crc crc(all.first<52>(), 1);
    crc.update(all.subspan(52, all.size() - 52 - crc_size));
    std::ranges::copy(crc.encode(), all.end() - crc_size);
  }
  view payload, same_payload;
  const auto d = decode_packet(*way, 1, all, is_own, payload);
  if (!d)
    return;
  require(is_own(d->way.destination) && !is_own(d->way.source), "a packet's addresses");
  const auto same = decode(all.first(all.size() - crc_size), same_payload);
  require(same && is_same(*same, *d) && same_payload.data() == payload.data() &&
              same_payload.size() == payload.size(),
          "a packet is another datagram for another process");
}

void read_messages(view all) {
  // Each byte of a message has one meaning.
  if (const auto r = decode_request(all))
    require(std::ranges::equal(encode(*r), all), "a request changes when it is encoded again");
  if (const auto r = decode_reply(all)) {
    require(r->status <= most_resolution_status, "the status of a reply");
    require(std::ranges::equal(encode(*r), all), "a reply changes when it is encoded again");
  }
}

// A right message with the changes of the input: pairs of an offset and a byte.
resolution_message changed(resolution_message m, view changes) {
  for (; changes.size() >= 2; changes = changes.subspan(2))
    m[std::to_integer<std::size_t>(changes[0])] = changes[1];
  return m;
}

} // namespace

int fuzz_roce(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  exact input(std::as_bytes(std::span(data + 1, size - 1)));
  switch (data[0] % 5) {
  case 0:
    correct_network_header({input.bytes.get(), input.size});
    break;
  case 4:
    read_packet({input.bytes.get(), input.size});
    return 0;
  case 1:
    read_messages(exact(changed(encode(resolution_request{}), input.whole())).whole());
    return 0;
  case 2:
    read_messages(exact(changed(encode(resolution_reply{}), input.whole())).whole());
    return 0;
  default:
    break;
  }
  read_datagram(input.whole());
  read_messages(input.whole());
  return 0;
}

} // namespace soft::roce::test
