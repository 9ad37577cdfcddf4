// SPDX-License-Identifier: BSL-1.0
// Peers that use the memory that they are granted wrongly, or that grant none.
#include "hostile/siege.hpp"

#include <algorithm>
#include <deque>

namespace test::hostile_leases_tests {
namespace {

using namespace detail;
using kind = handshake::kind;
using namespace std::chrono_literals;

struct granted_memory {
  remote_buffer memory;
  std::uint32_t grant = 0;
};

bool request_memory(bare_peer& p, std::uint64_t bytes, std::uint32_t id = 0) {
  frame_header h = frame(frame_type::request, id);
  h.credits = p.take_owed();
  return p.send(
      h, payload_of(request_payload{bytes, 10s, remote_rights::read | remote_rights::write}));
}

granted_memory borrow(bare_peer& p, std::uint32_t id = 0) {
  REQUIRE(request_memory(p, guarded_block, id));
  const auto answer = p.receive(frame_type::granted);
  REQUIRE(answer);
  grant_payload g;
  REQUIRE_FALSE(decode(bytes_view(*answer).subspan(frame_header::size), g));
  return {g.memory, g.grant};
}

} // namespace

TEST_CASE("leases: a grant does not reach beyond its bytes, nor beyond its end") {
  siege s;
  for (const int how : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(how);
    bare_peer p(s.report()->messages_port);
    REQUIRE(p.connect(kind::message));
    const granted_memory mine = borrow(p), good = borrow(p, 1);
    remote_buffer at = mine.memory;
    REQUIRE(p.reaches(at.first(64), good.memory));
    at.size = 64;
    switch (how) {
    case 0:
      at.address += guarded_block;
      break;
    case 1:
      at.address -= 64;
      break;
    case 2:
      at.address += guarded_block - 32;
      break;
    case 3:
      at.address = s.report()->guarded_address;
      break;
    case 4:
      at.address = s.report()->guarded_address;
      at.rkey = s.report()->guarded_key;
      break;
    default:
      p.send(frame(frame_type::release, mine.grant));
      // The victim ends the key soon.
      s.until([&] { return !p.reaches(at, good.memory); }, "the end of a released key");
    }
    CHECK_FALSE(p.reaches(at, good.memory));
  }
  CHECK(s.report()->fatal == 0); // the peer's fault
  s.check();
}

TEST_CASE("leases: guessed keys reach nothing") {
  siege s;
  std::mt19937 random = seeded(5);
  repeat(repetitions(40), s.report()->messages_port, [&](bare_peer& p, std::size_t i) {
    REQUIRE(p.connect(kind::message));
    const granted_memory mine = borrow(p);
    remote_buffer at{i % 2 == 0 ? s.report()->guarded_address.load() : mine.memory.address, 64,
                     mine.memory.rkey};
    at.rkey = i % 4 == 3 ? below(random, ~std::uint32_t(0))
                         : mine.memory.rkey + below(random, 4096) - 2048;
    if (at.rkey == mine.memory.rkey)
      ++at.rkey;
    CHECK_FALSE(p.reaches(at, mine.memory));
  });
  s.check();
}

TEST_CASE("leases: released, returned and renewed twice, and yielded without a recall") {
  siege s;
  for (const frame_type last : {frame_type::release, frame_type::returned, frame_type::renew,
                                frame_type::yielded, frame_type::ended}) {
    CAPTURE(int(last));
    bare_peer p(s.report()->messages_port);
    REQUIRE(p.connect(kind::message));
    const granted_memory mine = borrow(p);
    if (last != frame_type::yielded)
      p.send(frame(frame_type::release, mine.grant));
    for (int twice = 0; twice < 2; ++twice) {
      byte_vector payload;
      if (last == frame_type::returned)
        payload = payload_of(tag_payload{7});
      if (last == frame_type::renew)
        payload = payload_of(lease_payload{1s, mine.grant});
      p.send(frame(last, mine.grant), payload);
    }
    p.receive(50ms);
  }
  s.check();
}

TEST_CASE("leases: requests beyond every limit") {
  siege s;
  for (const std::uint64_t bytes :
       {std::uint64_t(0), std::uint64_t(1) << 20, std::uint64_t(1) << 40, std::uint64_t(1) << 63,
        ~std::uint64_t(0)}) {
    bare_peer p(s.report()->messages_port);
    REQUIRE(p.connect(kind::message));
    for (std::uint32_t i = 0; i < 8 && request_memory(p, bytes, i); ++i)
      p.receive(10ms);
  }
  s.check();
}

// The victim receives no regions, so it keeps what its peers hand back. There are enough peers to
// fill its pool if each has one grant for each receive.
TEST_CASE("leases: memory that is handed back and requested again and again stays in the limits") {
  siege s;
  for (const std::uint64_t bytes : {victim_grants, std::uint64_t(4096)}) {
    CAPTURE(bytes);
    const std::uint64_t most = std::min<std::uint64_t>(victim_grants / bytes, 16);
    std::deque<bare_peer> peers;
    for (std::uint64_t left = s.report()->pool_limit; left != 0;) {
      bare_peer& p = peers.emplace_back(s.report()->messages_port);
      REQUIRE(p.connect(kind::message));
      // Each region that was handed back holds a receive. Three are left for the requests.
      const std::uint32_t rounds = p.first_credits() - 3;
      std::uint64_t granted = 0, quota = 0;
      for (std::uint32_t i = 0; i < rounds && request_memory(p, bytes, i); ++i) {
        const auto answer = p.receive(5s);
        frame_header h;
        REQUIRE(answer);
        REQUIRE_FALSE(decode(*answer, h));
        grant_payload g;
        if (h.type == frame_type::denied) {
          quota += h.immediate == std::uint32_t(refusal::quota) ? 1U : 0U;
        } else if (h.type == frame_type::granted) {
          REQUIRE_FALSE(decode(bytes_view(*answer).subspan(frame_header::size), g));
          REQUIRE(p.send(frame(frame_type::returned, g.grant), payload_of(tag_payload{i})));
          ++granted;
        }
      }
      CHECK(granted == most);
      CHECK(quota == rounds - most);
      left -= std::min<std::uint64_t>(left, rounds * victim_grants);
    }
    s.served();
    bare_peer other(s.report()->messages_port);
    REQUIRE(other.connect(kind::message));
    CHECK(request_memory(other, victim_grants));
    CHECK(other.receive(frame_type::granted));
    CHECK(s.report()->most_pooled < s.report()->pool_limit / 4);
  }
  s.check();
}

TEST_CASE("leases: a peer that grants nothing, grants twice, or grants memory of others") {
  siege s;
  for (const int how : {0, 1, 2, 3}) {
    CAPTURE(how);
    const std::uint64_t before = s.report()->borrowed;
    bool asked = false;
    {
      bare_peer p(s.report()->messages_port);
      REQUIRE(p.connect(kind::message));
      p.send(frame(frame_type::message), as_bytes(borrow_command));
      const auto request = p.receive(frame_type::request);
      REQUIRE(request);
      asked = true;
      frame_header h;
      REQUIRE_FALSE(decode(*request, h));
      grant_payload g{p.lent(), 10s, 7, remote_rights::read | remote_rights::write};
      if (how == 2)
        g.memory = {s.report()->guarded_address, 4096, s.report()->guarded_key};
      if (how == 3)
        g.memory.size = std::uint64_t(1) << 63;
      for (int n = how == 0 ? 0 : how == 1 ? 2 : 1; n != 0; --n)
        p.send(frame(frame_type::granted, h.id), payload_of(g));
      p.receive(100ms);
      p.receive(100ms);
    }
    s.until([&] { return !asked || s.report()->borrowed > before; }, "the end of a request");
  }
  s.check();
}

} // namespace test::hostile_leases_tests
