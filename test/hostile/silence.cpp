// SPDX-License-Identifier: BSL-1.0
// Peers that fall silent.
#include "hostile/siege.hpp"

#include <deque>

namespace test::silence_tests {
namespace {

using kind = detail::handshake::kind;

/// The requests that have no answer yet. Fewer than the acceptor's handshakes: otherwise good
/// clients of the same address would wait behind requests, for a time that depends on the number of
/// requests (`acceptor_options::patience`).
constexpr std::size_t most_unanswered = 32;

/// So many peers send requests, and do not go on when they are accepted.
void fall_silent_in_the_handshake(std::size_t count) {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < count; ++i) {
      bare_peer& p =
          peers.emplace_back(i % 2 == 0 ? s.report()->messages_port : s.report()->bytes_port,
                             bare_peer::shape::small());
      if (i >= most_unanswered)
        peers[i - most_unanswered].wait_for_event();
      p.request(p.hello(i % 2 == 0 ? kind::message : kind::stream));
    }
    s.served();
  }
  s.check();
}

} // namespace

TEST_CASE("silence: connectors that do not go on after their requests") {
  fall_silent_in_the_handshake(repetitions(40));
}

TEST_CASE("silence: 1000 connectors that do not go on after their requests", "[.long]") {
  fall_silent_in_the_handshake(1000);
}

TEST_CASE("silence: peers that send nothing after the handshake") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < 40; ++i) {
      bare_peer& p =
          peers.emplace_back(i % 2 == 0 ? s.report()->messages_port : s.report()->bytes_port,
                             bare_peer::shape::small());
      const detail::handshake h = p.hello(i % 2 == 0 ? kind::message : kind::stream);
      const auto bytes = encode(h);
      CHECK(p.connect(bytes_view(bytes).first(h.size())));
    }
    s.served();
  }
  s.check();
}

TEST_CASE("silence: nodes that do not introduce themselves") {
  siege s;
  {
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < 40; ++i) {
      bare_peer& p = peers.emplace_back(s.report()->nodes_port, bare_peer::shape::small());
      CHECK(p.connect(kind::message));
    }
    s.served();
  }
  s.check();
}

} // namespace test::silence_tests
