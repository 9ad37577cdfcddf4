// SPDX-License-Identifier: BSL-1.0
// Frames of a peer that says anything. A source of lies has `byte()`, and `below(n)`, a number
// below n: bytes of a fuzzer, or random numbers.
#pragma once

#include "party.hpp"
#include "stream_party.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

namespace protocol_test {

/// Lies at random.
class random_lies {
public:
  explicit random_lies(std::uint32_t seed) : random_(seed) {}

  std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }
  std::uint32_t below(std::uint32_t n) {
    return n == 0 ? 0 : static_cast<std::uint32_t>(random_() % n);
  }

private:
  std::mt19937 random_;
};

/// Encodes a frame correctly, except that `how` may make one byte wrong.
template <class Source>
std::vector<std::byte> encoded(const frame_header& h, const payload_bytes& payload,
                               std::uint8_t how, Source& in) {
  std::vector<std::byte> result = frame_of(h, payload);
  if ((how & 0xf0) == 0xf0)
    result[in.byte() % result.size()] ^= static_cast<std::byte>(in.byte());
  return result;
}

/// A frame that is nearly correct, so that it passes the first checks.
template <class Source>
std::vector<std::byte> a_frame(Source& in, const party& p) {
  static constexpr frame_type types[] = {
      frame_type::message,  frame_type::data,     frame_type::offer,    frame_type::written,
      frame_type::lent,     frame_type::returned, frame_type::credits,  frame_type::taken,
      frame_type::refused,  frame_type::request,  frame_type::granted,  frame_type::denied,
      frame_type::renew,    frame_type::renewed,  frame_type::ended,    frame_type::release,
      frame_type::shutdown, frame_type::goodbye,  frame_type::gathered, frame_type::recall,
      frame_type::yielded,  frame_type::resized};
  frame_header h;
  h.type = types[in.below(std::size(types))];
  const std::uint8_t how = in.byte();
  const credits& flow = p.link.flow();
  h.credits = static_cast<std::uint16_t>((how & 1) != 0 ? flow.peer_receives() - flow.available()
                                                        : in.below(3));
  h.id = in.byte();
  if ((how & 2) != 0)
    h.id |= static_cast<std::uint32_t>(in.byte()) << 16;
  payload_bytes payload{};
  const remote_buffer memory{in.byte(), 1U + in.below(4000), in.byte()};
  const std::chrono::microseconds lease =
      (how & 4) != 0 ? no_lease : std::chrono::microseconds(in.byte());
  const auto rights = static_cast<remote_rights>(1 + in.below(7));
  switch (h.type) {
  case frame_type::message:
    h.length = in.below(112);
    [[fallthrough]];
  case frame_type::written:
    h.flags = frame_header::has_immediate;
    h.id = 0;
    break;
  case frame_type::data:
    h.length = 1;
    h.id = 0;
    break;
  case frame_type::gathered: {
    h.id = 0;
    for (std::uint32_t count = in.below(4); count != 0 && h.length <= 24; --count) {
      const std::uint32_t length = in.below(9);
      encode({length, in.byte() % 2 == 0 ? std::optional<std::uint32_t>(in.byte()) : std::nullopt},
             &payload[h.length]);
      h.length += static_cast<std::uint32_t>(gathered_size(length));
    }
    break;
  }
  case frame_type::offer:
    h.length = offer_payload::size;
    encode(offer_payload{memory}, payload);
    break;
  case frame_type::lent:
    h.length = loan_payload::size;
    encode(loan_payload{memory, lease, in.byte(), rights}, payload);
    break;
  case frame_type::returned:
    h.length = tag_payload::size;
    encode(tag_payload{in.byte()}, payload);
    break;
  case frame_type::granted:
    h.length = grant_payload::size;
    encode(grant_payload{memory, lease, in.byte(), rights}, payload);
    break;
  case frame_type::request:
    h.length = request_payload::size;
    encode(request_payload{memory.size, lease, rights}, payload);
    break;
  case frame_type::renew:
  case frame_type::renewed:
    h.length = lease_payload::size;
    encode(lease_payload{lease, in.byte()}, payload);
    break;
  case frame_type::refused:
  case frame_type::denied:
  case frame_type::ended:
    h.immediate = 1 + in.below(7);
    break;
  case frame_type::resized:
    h.immediate = (how & 6) == 6 ? in.below(90) : 80 + in.below(500);
    [[fallthrough]];
  case frame_type::credits:
  case frame_type::shutdown:
  case frame_type::goodbye:
    h.id = 0;
    break;
  default:
    break;
  }
  return encoded(h, payload, how, in);
}

/// The same for a stream. `offers`: those of the peer before.
template <class Source>
std::vector<std::byte> a_stream_frame(Source& in, const stream_test::party& p,
                                      std::uint32_t& offers) {
  static constexpr frame_type types[] = {
      frame_type::data,     frame_type::data,     frame_type::offer,    frame_type::offer,
      frame_type::taken,    frame_type::refused,  frame_type::withdraw, frame_type::withdrawn,
      frame_type::shutdown, frame_type::goodbye,  frame_type::credits,  frame_type::dropped,
      frame_type::query,    frame_type::progress, frame_type::resized,  frame_type::no_data};
  frame_header h;
  h.type = types[in.below(std::size(types))];
  const std::uint8_t how = in.byte();
  const credits& flow = p.link.flow();
  h.credits = static_cast<std::uint16_t>((how & 1) != 0 ? flow.peer_receives() - flow.available()
                                                        : in.below(3));
  payload_bytes payload{};
  switch (h.type) {
  case frame_type::data:
    h.length = 1 + in.below(64);
    h.immediate = (how & 6) == 6 ? in.below(500) : 0;
    break;
  case frame_type::resized:
    h.immediate = (how & 6) == 6 ? in.below(90) : 80 + in.below(500);
    break;
  case frame_type::offer: {
    h.length = offer_payload::size;
    h.id = (how & 2) != 0 ? in.below(16) : offers++;
    const std::uint64_t size = 1U + in.below(4000);
    const std::uint64_t more = (how & 12) == 12 ? std::uint64_t(in.byte()) << 32 : 0;
    encode(offer_payload{{in.byte(), size + more, in.byte()}}, payload);
    break;
  }
  case frame_type::progress:
    h.immediate = in.below(600);
    break;
  case frame_type::withdrawn:
  case frame_type::dropped:
    h.immediate = in.below(600);
    [[fallthrough]];
  case frame_type::taken:
  case frame_type::withdraw:
    h.id = in.below(16);
    break;
  case frame_type::refused:
    h.id = in.below(16);
    h.immediate = (how & 2) != 0 ? 1 + in.below(7) : static_cast<std::uint32_t>(refusal::closed);
    break;
  default:
    break;
  }
  return encoded(h, payload, how, in);
}

} // namespace protocol_test
