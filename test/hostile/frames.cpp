// SPDX-License-Identifier: BSL-1.0
// Peers whose handshake is right, and whose frames are wrong.
#include "hostile/siege.hpp"

#include <asio_rdma/detail/global/global_message.hpp>

#include <algorithm>

namespace test::frames_tests {
namespace {

using namespace detail;
using kind = handshake::kind;

/// A number that is often at a limit.
std::uint64_t any_number(std::mt19937& random) {
  constexpr std::uint64_t limits[] = {0,
                                      1,
                                      16,
                                      0xffff,
                                      0x10000,
                                      0x7fffffff,
                                      0xffffffff,
                                      std::uint64_t(1) << 32,
                                      std::uint64_t(1) << 50,
                                      std::uint64_t(1) << 63,
                                      ~std::uint64_t(0)};
  return below(random, 3) == 0 ? below(random, 4096) : limits[below(random, std::size(limits))];
}

/// The length of a type's payload, if it is fixed.
std::size_t payload_size(frame_type t) {
  switch (t) {
  case frame_type::offer:
    return offer_payload::size;
  case frame_type::lent:
    return loan_payload::size;
  case frame_type::returned:
    return tag_payload::size;
  case frame_type::request:
    return request_payload::size;
  case frame_type::granted:
    return grant_payload::size;
  case frame_type::renew:
  case frame_type::renewed:
    return lease_payload::size;
  default:
    return 0;
  }
}

/// A frame of any type with any values. Most pass the first checks.
byte_vector any_frame(std::mt19937& random, bare_peer& p) {
  frame_header h;
  h.type = static_cast<frame_type>(below(random, 16) == 0 ? below(random, 256)
                                                          : below(random, frame_types));
  h.credits =
      below(random, 8) == 0 ? static_cast<std::uint16_t>(any_number(random)) : p.take_owed();
  h.id = below(random, 2) == 0 ? 0 : static_cast<std::uint32_t>(any_number(random));
  if (h.type == frame_type::message || h.type == frame_type::data)
    h.length = below(random, 600);
  else if (h.type == frame_type::gathered)
    h.length = below(random, 20) * 8;
  else
    h.length = static_cast<std::uint32_t>(payload_size(h.type));
  if (below(random, 4) == 0)
    h.immediate = static_cast<std::uint32_t>(any_number(random));
  if (below(random, 8) == 0)
    h.flags = static_cast<std::uint8_t>(below(random, 4));
  const frame_bytes head = encode(h);
  byte_vector result(head.begin(), head.end());
  for (std::uint32_t i = 0; i < h.length; i += 8)
    for (std::uint64_t word = any_number(random), n = 8; n != 0; --n, word >>= 8)
      result.push_back(static_cast<std::byte>(word & 0xff));
  result.resize(frame_header::size + h.length);
  if (below(random, 8) == 0)
    result.resize(below(random, 8192));
  return result;
}

/// A frame that an honest peer could send.
byte_vector good_frame(std::mt19937& random, bare_peer& p, kind what, std::uint32_t& number) {
  frame_header h;
  h.credits = p.take_owed();
  byte_vector payload;
  const std::uint32_t which = below(random, 4);
  if (which == 0 && p.of_victim().max_reads != 0) {
    h.type = frame_type::offer;
    h.id = number++;
    payload = payload_of(offer_payload{p.lent()});
  } else if (which == 1 && what == kind::message) {
    h.type = frame_type::request;
    h.id = number++;
    payload = payload_of(
        request_payload{100 + below(random, 4000), std::chrono::seconds(1), remote_rights::all});
  } else {
    h.type = what == kind::stream ? frame_type::data : frame_type::message;
    payload.resize(1 + below(random, 1000), std::byte(7));
  }
  h.length = static_cast<std::uint32_t>(payload.size());
  const frame_bytes head = encode(h);
  byte_vector result(head.begin(), head.end());
  result.insert(result.end(), payload.begin(), payload.end());
  return result;
}

void converse(bare_peer& p, std::mt19937& random, kind what) {
  std::uint32_t number = 0;
  p.connect(what);
  for (int n = 0; n < 12 && !p.ended(); ++n) {
    while (p.receive(std::chrono::milliseconds(0)))
      continue;
    byte_vector f =
        below(random, 3) == 0 ? any_frame(random, p) : good_frame(random, p, what, number);
    if (below(random, 6) == 0 && !f.empty())
      f[below(random, f.size())] ^= static_cast<std::byte>(1U << below(random, 8));
    p.send(bytes_view(f));
  }
}

} // namespace

TEST_CASE("frames: a connection's peer changes frames, and sends any") {
  siege s;
  std::mt19937 random = seeded(2);
  repeat(repetitions(80), s.report()->messages_port,
         [&](bare_peer& p, std::size_t) { converse(p, random, kind::message); });
  s.check();
}

TEST_CASE("frames: a stream's peer changes frames, and sends any") {
  siege s;
  std::mt19937 random = seeded(3);
  repeat(repetitions(80), s.report()->bytes_port,
         [&](bare_peer& p, std::size_t) { converse(p, random, kind::stream); });
  s.check();
}

TEST_CASE("frames: a node's messages are changed") {
  siege s;
  std::mt19937 random = seeded(4);
  repeat(repetitions(80), s.report()->nodes_port, [&](bare_peer& p, std::size_t i) {
    p.connect(kind::message);
    global_message join;
    join.node = 100 + static_cast<node_id>(i % 1000);
    join.incarnation = 1 + i;
    join.segments = {p.lent()};
    for (int n = 0; n < 8 && !p.ended(); ++n) {
      global_message m;
      m.what = static_cast<global_message::kind>(1 + below(random, 10));
      m.id = static_cast<std::uint32_t>(random());
      m.segment = below(random, 4) == 0 ? 1 : 0;
      m.value = any_number(random);
      m.alignment = m.what == global_message::kind::allocate ? 8 : 0;
      byte_vector bytes = encode(n == 0 ? join : m);
      if (below(random, 4) == 0)
        bytes[below(random, bytes.size())] ^= static_cast<std::byte>(1U << below(random, 8));
      if (below(random, 16) == 0)
        bytes.resize(below(random, 400));
      frame_header h = frame(frame_type::message);
      while (p.receive(std::chrono::milliseconds(1)))
        continue;
      h.credits = p.take_owed();
      p.send(h, bytes);
    }
  });
  s.check();
}

} // namespace test::frames_tests
