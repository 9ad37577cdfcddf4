// SPDX-License-Identifier: BSL-1.0
// Peers that send as much as they can, and take nothing.
#include "hostile/siege.hpp"

#include <array>
#include <deque>

namespace test::floods_tests {
namespace {

using namespace detail;
using kind = handshake::kind;
using namespace std::chrono_literals;

frame_header returning(bare_peer& p, frame_type type, std::uint32_t id = 0) {
  frame_header h = frame(type, id);
  h.credits = p.take_owed();
  return h;
}

} // namespace

TEST_CASE("floods: peers that return no credits") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (int i = 0; i < 16; ++i) {
      const kind what = i % 2 == 0 ? kind::message : kind::stream;
      bare_peer& p = peers.emplace_back(what == kind::stream ? s.report()->bytes_port
                                                             : s.report()->messages_port);
      REQUIRE(p.connect(what));
      const byte_vector payload(4000, std::byte(1));
      // As many as an honest peer may send.
      for (std::uint32_t n = 4; n < p.first_credits(); ++n)
        CHECK(
            p.send(frame(what == kind::stream ? frame_type::data : frame_type::message), payload));
    }
    s.served(4);
  }
  s.check();
}

TEST_CASE("floods: a closed stream's peer reports bytes that it cannot have taken") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (int i = 0; i < 4; ++i) {
      bare_peer& p = peers.emplace_back(s.report()->bytes_port,
                                        bare_peer::shape{.receives = 5, .longest_frame = 8192});
      REQUIRE(p.connect(kind::stream));
      const byte_vector payload(4000, std::byte(1));
      for (int n = 0; n < 8; ++n) // more than comes back without credits
        CHECK(p.send(frame(frame_type::data), payload));
      CHECK(p.send(frame(frame_type::shutdown)));
    }
    for (bare_peer& p : peers) {
      REQUIRE(p.receive(frame_type::query, std::chrono::seconds(20)));
      frame_header lie = frame(frame_type::progress);
      lie.immediate = 1 << 20;
      CHECK(p.send(lie));
      while (!p.ended() && p.receive(std::chrono::seconds(20)))
        continue;
      CHECK(p.ended());
    }
  }
  s.check();
}

TEST_CASE("floods: data that use the receives kept for control") {
  siege s;
  for (const kind what : {kind::message, kind::stream}) {
    bare_peer p(what == kind::stream ? s.report()->bytes_port : s.report()->messages_port);
    REQUIRE(p.connect(what));
    const byte_vector payload(100, std::byte(1));
    for (int n = 0;
         n < 200 &&
         p.send(frame(what == kind::stream ? frame_type::data : frame_type::message), payload);
         ++n)
      continue;
  }
  s.check();
}

TEST_CASE("floods: small messages, thirty-two in a frame") {
  siege s;
  bare_peer p(s.report()->messages_port);
  REQUIRE(p.connect(kind::message));
  byte_vector payload;
  for (std::uint32_t i = 0; i < most_gathered; ++i) {
    std::array<std::byte, gathered_header::size> header{};
    encode(gathered_header{1, std::nullopt}, header.data());
    payload.insert(payload.end(), header.begin(), header.end());
    payload.resize(payload.size() + 8);
    payload[payload.size() - 8] = std::byte('x');
  }
  std::uint64_t credit = p.first_credits() - 1;
  const auto take = [&](std::chrono::milliseconds patience) {
    for (auto answer = p.receive(patience); answer; answer = p.receive(0ms))
      if (frame_header h; !decode(*answer, h))
        credit += h.credits;
  };
  for (std::size_t sent = 0; sent < repetitions(300) && !p.ended();) {
    if (credit > 3) {
      --credit;
      ++sent;
      p.send(returning(p, frame_type::gathered), payload);
    } else if (p.owed() >= 2 && credit > 1) {
      --credit;
      p.return_credits();
    }
    take(credit > 3 ? 0ms : 100ms);
  }
  CHECK_FALSE(p.ended());
  s.check();
}

TEST_CASE("floods: requests for memory, whose answers are taken or not") {
  siege s;
  for (const bool takes : {true, false}) {
    bare_peer p(s.report()->messages_port);
    REQUIRE(p.connect(kind::message));
    for (std::uint32_t i = 0; i < repetitions(500) && !p.ended(); ++i) {
      while (takes && p.receive(1ms))
        continue;
      p.send(takes ? returning(p, frame_type::request, i) : frame(frame_type::request, i),
             payload_of(request_payload{64, 1s, remote_rights::read}));
    }
  }
  s.check();
}

TEST_CASE("floods: probes, questions and larger receives without end") {
  siege s;
  for (const frame_type type : {frame_type::credits, frame_type::query, frame_type::resized,
                                frame_type::shutdown, frame_type::goodbye}) {
    bare_peer p(s.report()->bytes_port);
    REQUIRE(p.connect(kind::stream));
    for (std::uint32_t i = 0; i < 300 && !p.ended(); ++i) {
      frame_header h = returning(p, type);
      h.immediate = type == frame_type::resized ? 9000 + i : 0;
      p.send(h);
      while (p.receive(0ms))
        continue;
    }
  }
  s.check();
}

} // namespace test::floods_tests
