// SPDX-License-Identifier: BSL-1.0
#include "streams.hpp"

#include "iwarp/big_endian.hpp"
#include "iwarp/rdmap_payload.hpp"

#include <algorithm>

namespace soft::iwarp::test {
namespace {

constexpr std::string_view digits = "0123456789abcdef";

} // namespace

bytes hex(std::string_view text) {
  bytes result;
  unsigned value = 0;
  bool half = false;
  for (const char c : text) {
    const auto digit = digits.find(c);
    if (digit == std::string_view::npos)
      continue;
    value = value << 4 | static_cast<unsigned>(digit);
    if (half)
      result.push_back(static_cast<std::byte>(value & 0xff));
    half = !half;
  }
  return result;
}

std::string to_hex(std::span<const std::byte> from) {
  std::string result;
  for (const std::byte b : from) {
    result += digits[std::to_integer<std::size_t>(b >> 4)];
    result += digits[std::to_integer<std::size_t>(b & std::byte{0xf})];
  }
  return result;
}

void append(bytes& to, std::span<const std::byte> more) {
  to.insert(to.end(), more.begin(), more.end());
}

bytes pattern(std::size_t size, std::uint64_t seed) {
  random_engine random(seed);
  bytes result(size);
  for (auto& b : result)
    b = static_cast<std::byte>(random() & 0xff);
  return result;
}

std::uint64_t number(random_engine& random, std::uint64_t least, std::uint64_t most) {
  return least + random() % (most - least + 1);
}

bytes fpdu(std::span<const std::byte> ulpdu, bool crc) {
  bytes result(2);
  put_big_endian(result.data(), static_cast<std::uint16_t>(ulpdu.size()));
  append(result, ulpdu);
  result.resize(result.size() + padding_of(ulpdu.size()));
  std::array<std::byte, crc32c::size> trailer{};
  if (crc) {
    crc32c c;
    c.update(result);
    c.encode(trailer.data());
  }
  append(result, trailer);
  return result;
}

bytes fpdu(const segment_header& h, std::span<const std::byte> payload, bool crc) {
  std::array<std::byte, max_fpdu_header> header{};
  segment_header sized = h;
  sized.length = static_cast<std::uint32_t>(payload.size());
  const std::size_t size = encode(sized, header);
  bytes ulpdu(header.begin() + ulpdu_length_size,
              header.begin() + static_cast<std::ptrdiff_t>(size));
  append(ulpdu, payload);
  return fpdu(ulpdu, crc);
}

bytes fpdus(fpdu_writer& writer, const outgoing_message& m, std::span<const std::byte> payload) {
  bytes result;
  outgoing_segment s;
  if (!writer.start(m))
    return result;
  while (writer.next(s)) {
    const auto part = payload.subspan(s.offset, s.length);
    // Two parts, to show that their number does not matter.
    const std::array<std::span<const std::byte>, 2> parts = {part.first(s.length / 3),
                                                             part.subspan(s.length / 3)};
    writer.seal(s, parts);
    append(result, s.header());
    append(result, part);
    append(result, s.trailer());
  }
  return result;
}

sample random_sample(random_engine& random) {
  sample s;
  s.message.op = static_cast<opcode>(number(random, 0, opcodes - 1));
  const opcode_traits& t = traits(s.message.op);
  const std::size_t size = number(
      random, t.least, std::min<std::uint64_t>(t.most, number(random, 0, 3) == 0 ? 3000 : 90));
  s.message.length = static_cast<std::uint32_t>(size);
  s.message.stag = t.tagged ? sink_stag : t.invalidates ? static_cast<std::uint32_t>(random()) : 0;
  s.message.tagged_offset = t.tagged ? number(random, 0, sink_size - size) : 0;
  s.payload = pattern(size, random());
  return s;
}

begin_result memory_sink::begin_segment(const segment_header& h, placement& to) noexcept {
  if (not_now != 0) {
    --not_now;
    return begin_result::not_now();
  }
  begun.push_back(h);
  if (begin_failure)
    return begin_result::fail(*begin_failure);
  if (discard)
    return begin_result::discard();
  std::span<std::byte> memory;
  if (h.tagged()) {
    if (h.length != 0 && h.stag != sink_stag)
      return begin_result::fail(ddp_error(ddp_tagged_code::invalid_stag));
    if (h.length != 0 && (h.tagged_offset > sink_size || h.length > sink_size - h.tagged_offset))
      return begin_result::fail(ddp_error(ddp_tagged_code::base_or_bounds_violation));
    memory = std::span(tagged).subspan(h.length == 0 ? 0 : h.tagged_offset);
  } else {
    bytes& buffer = untagged_[static_cast<std::size_t>(h.queue())];
    if (h.first)
      buffer.assign(untagged_size, std::byte{0});
    memory = std::span(buffer).subspan(std::min<std::size_t>(h.message_offset, buffer.size()));
  }
  while (!memory.empty()) {
    const auto piece = memory.first(std::min(part, memory.size()));
    if (!to.add(piece))
      break;
    memory = memory.subspan(piece.size());
  }
  return begin_result::place();
}

failure memory_sink::end_segment(const segment_header& h) noexcept {
  ended.push_back(h);
  if (end_failure)
    return end_failure;
  if (h.last) {
    bytes payload;
    if (!h.tagged() && !discard) {
      payload = untagged_[static_cast<std::size_t>(h.queue())];
      payload.resize(h.message_offset + h.length);
    }
    messages.push_back({h.op, h.stag, payload});
  }
  return {};
}

} // namespace soft::iwarp::test
