// SPDX-License-Identifier: BSL-1.0
// Hostile members of a global memory.
#include "hostile/siege.hpp"

#include <asio_rdma/detail/global/global_message.hpp>

#include "global/global_memory_impl.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

namespace test::nodes_tests {
namespace {

using namespace detail;
using kind = global_message::kind;
using namespace std::chrono_literals;

/// A peer that speaks the protocol of nodes.
class node {
public:
  node(std::uint32_t port, node_id id, std::size_t segments = 1) : peer(port) {
    connected = peer.connect(handshake::kind::message);
    credit_ = peer.first_credits() - 1;
    global_message m;
    m.node = id;
    m.incarnation = id;
    for (std::size_t i = 0; i < segments; ++i)
      m.segments.push_back(peer.lent());
    connected = connected && say(m);
    const auto answer = connected ? hear() : std::nullopt;
    connected = answer && answer->what == kind::welcome && answer->segments.size() == 1;
    if (connected)
      segment = answer->segments.front();
  }

  /// Sends a message when there is a credit for it. False if there is none within a second.
  bool say(const global_message& m) { return send(frame_type::message, encode(m)); }
  /// The same with as many messages in one frame as a receive has room for. Returns their number.
  std::uint32_t say_many(const global_message& m) {
    const auto bytes = encode(m);
    const auto length = static_cast<std::uint32_t>(bytes.size());
    byte_vector one(gathered_size(length)), all;
    encode(gathered_header{length, std::nullopt}, one.data());
    std::copy(bytes.begin(), bytes.end(), one.begin() + gathered_header::size);
    std::uint32_t count = 0;
    for (; count < most_gathered &&
           frame_header::size + all.size() + one.size() <= peer.of_victim().receive_size;
         ++count)
      all.insert(all.end(), one.begin(), one.end());
    return send(frame_type::gathered, all) ? count : 0;
  }
  /// The next message. None if there is none within this time.
  std::optional<global_message> hear(std::chrono::milliseconds patience = 5s) {
    for (auto i = patience / 50ms; i != 0 && heard_.empty() && !peer.ended(); --i)
      collect(50ms);
    if (heard_.empty())
      return {};
    global_message result = std::move(heard_.front());
    heard_.pop_front();
    return result;
  }

  bare_peer peer;
  /// Waits for the end of the connection. False if it does not end within some seconds.
  bool hears_end() {
    for (int i = 0; i < 100 && !peer.ended(); ++i)
      collect(50ms);
    return peer.ended();
  }

  bool connected = false;
  bool returns = true; ///< Whether it returns credits.
  remote_buffer segment;

private:
  bool send(frame_type type, bytes_view payload) {
    collect(0ms);
    for (int i = 0; i < 100 && credit_ < 4 && !peer.ended(); ++i)
      collect(10ms);
    if (credit_ < 4)
      return false;
    --credit_;
    frame_header h = frame(type);
    h.credits = returns ? peer.take_owed() : std::uint16_t(0);
    return peer.send(h, payload);
  }
  void collect(std::chrono::milliseconds patience) {
    for (auto f = peer.receive(patience); f; f = peer.receive(0ms)) {
      frame_header h;
      if (decode(*f, h))
        continue;
      credit_ += h.credits;
      auto rest = bytes_view(*f).subspan(frame_header::size);
      global_message m;
      if (h.type == frame_type::message && decode(rest, m))
        heard_.push_back(std::move(m));
      gathered_header one;
      while (h.type == frame_type::gathered && !rest.empty() && !decode(rest, one)) {
        if (decode(rest.subspan(gathered_header::size, one.length), m))
          heard_.push_back(m);
        rest = rest.subspan(gathered_size(one.length));
      }
    }
    if (returns && peer.owed() >= 2 && credit_ > 1 && !peer.ended()) {
      --credit_;
      peer.return_credits();
    }
  }
  std::uint64_t credit_ = 0;
  std::deque<global_message> heard_;
};

global_message of(kind what, std::uint32_t id = 1) {
  global_message m;
  m.what = what;
  m.id = id;
  m.value = 64;
  m.alignment = what == kind::allocate ? 8 : 0;
  return m;
}

} // namespace

namespace {

void join_and_leave(std::size_t times) {
  siege s;
  for (std::size_t i = 0; i < times; ++i) {
    node n(s.report()->nodes_port, static_cast<node_id>(100 + i % 1000), i % 3);
    CHECK(n.connected);
  }
  s.check();
}

} // namespace

TEST_CASE("nodes: joins and leaves without end") { join_and_leave(repetitions(100)); }
TEST_CASE("nodes: 1000 joins and leaves", "[.long]") { join_and_leave(1000); }

TEST_CASE("nodes: 150,000 requests of a node that takes the answers", "[.long]") {
  siege s;
  {
    node n(s.report()->nodes_port, 93);
    REQUIRE(n.connected);
    global_message m = of(kind::free);
    m.value = 1; // of no block: allocations would take the segment's memory from good clients
    std::uint32_t sent = 0;
    for (; sent < 150'000 && n.say(m); ++sent)
      m.id = sent;
    CHECK(sent == 150'000);
  }
  s.check();
}

TEST_CASE("nodes: a node that requests memory, and takes no answer") {
  siege s;
  {
    node n(s.report()->nodes_port, 90);
    REQUIRE(n.connected);
    n.returns = false;
    std::uint32_t frames = 0;
    for (; frames < repetitions(1000) && n.say_many(of(kind::allocate)) != 0; ++frames)
      continue;
    // Of the requests in the victim's receives, few are taken: those that are answered, and
    // `most_answers` whose answers wait. A receive is returned when all of its requests are taken.
    CHECK(frames <= n.peer.first_credits() + 2);
    s.served();
  }
  s.check();
}

TEST_CASE("nodes: a node that requests descriptors without end") {
  siege s;
  {
    node n(s.report()->nodes_port, 91);
    REQUIRE(n.connected);
    constexpr std::size_t most = global_memory_impl::most_loans;
    std::size_t sent = 0, got = 0;
    global_message m = of(kind::descriptors);
    m.value = global_message::max_descriptors + 1;
    REQUIRE(n.say(m));
    const auto refusal = n.hear();
    REQUIRE(refusal);
    CHECK(refusal->status == global_message::result::invalid);
    m.value = 1;
    while (sent < most + 500) {
      const std::uint32_t more = n.say_many(m);
      REQUIRE(more != 0);
      sent += more;
    }
    for (; sent != 0; --sent) {
      const auto answer = n.hear();
      REQUIRE(answer);
      got += answer->status == global_message::result::ok ? 1U : 0U;
    }
    CHECK(got == most);
  }
  s.check();
}

TEST_CASE("nodes: hints to a node that takes none") {
  siege s;
  {
    node sleeper(s.report()->nodes_port, 88), waker(s.report()->nodes_port, 89);
    REQUIRE(sleeper.connected);
    REQUIRE(waker.connected);
    global_message m = of(kind::descriptors);
    m.value = 1;
    REQUIRE(sleeper.say(m));
    const auto lent = sleeper.hear();
    REQUIRE(lent);
    REQUIRE(lent->status == global_message::result::ok);
    sleeper.returns = false;
    m = of(kind::wake);
    m.value = lent->value;
    for (std::size_t i = 0; i < repetitions(100); ++i)
      REQUIRE(waker.say_many(m) != 0);
    // The answer to a later request: all hints have been sent or dropped.
    REQUIRE(waker.say(of(kind::descriptors)));
    REQUIRE(waker.hear());
    sleeper.returns = true;
    std::uint32_t hints = 0;
    while (const auto hint = sleeper.hear(500ms))
      hints += hint->what == kind::woken ? 1U : 0U;
    // Those for which it had credits, and `most_hints`.
    CHECK(hints <= bare_peer::shape().receives + global_memory_impl::most_hints);
    CHECK(hints >= global_memory_impl::most_hints);
  }
  s.check();
}

TEST_CASE("nodes: a node that frees what is no block, and hands over locks that it does not have") {
  siege s;
  {
    node n(s.report()->nodes_port, 91);
    REQUIRE(n.connected);
    for (const kind what : {kind::free, kind::wake, kind::woken})
      for (std::uint32_t i = 0; i < repetitions(60); ++i) {
        global_message m = of(what, i);
        m.value = 64 * i + 1; // never the block of another node: any member may free it
        n.say(m);
      }
  }
  s.check();
}

TEST_CASE("nodes: each message at the wrong time, of a node that takes no answer") {
  siege s;
  node_id id = 94;
  for (const kind what : {kind::join, kind::welcome, kind::refuse, kind::allocate, kind::allocated,
                          kind::free, kind::freed, kind::descriptors, kind::wake, kind::woken}) {
    CAPTURE(int(what));
    node n(s.report()->nodes_port, id++);
    REQUIRE(n.connected);
    n.returns = false;
    global_message m = of(what);
    if (what == kind::free)
      m.value = 1; // of no block: any member may free the block of another
    for (m.id = 0; m.id < repetitions(100) && n.say(m); ++m.id)
      continue;
    const bool is_request = what == kind::allocate || what == kind::free ||
                            what == kind::descriptors || what == kind::wake || what == kind::woken;
    CHECK((is_request ? !n.peer.ended() : n.hears_end()));
  }
  s.served();
  s.check();
}

TEST_CASE("nodes: rubbish in the words of a lock") {
  siege s;
  std::mt19937 random = seeded(6);
  node n(s.report()->nodes_port, 92);
  REQUIRE(n.connected);
  const std::uint64_t locked = s.report()->locked;
  for (std::size_t i = 0; i < repetitions(200) && !n.peer.ended(); ++i) {
    remote_buffer at = n.segment;
    at.address += s.report()->attacked_lock + below(random, 3) * 8;
    at.size = 8;
    const std::uint64_t words[] = {0, ~std::uint64_t(0), random(),
                                   remote_word(host_id, 0, below(random, segment_bytes)).bits(),
                                   remote_word(92, 0, below(random, 4096)).bits()};
    CHECK(n.peer.write(at, std::as_bytes(std::span(&words[below(random, std::size(words))], 1))) ==
          IBV_WC_SUCCESS);
    if (i % 16 == 0)
      n.say(of(kind::wake, 1));
  }
  s.until([&] { return s.report()->locked > locked + 10; }, "another lock");
  s.check();
}

TEST_CASE("nodes: writes beyond a segment reach nothing") {
  siege s;
  node_id id = 200; // the victim may know an earlier node for a while
  for (const std::uint64_t offset :
       {segment_bytes, segment_bytes - 4, ~std::uint64_t(0) - 63, std::uint64_t(1) << 40}) {
    node n(s.report()->nodes_port, id++);
    REQUIRE(n.connected);
    remote_buffer at = n.segment;
    at.address += offset;
    at.size = 64;
    CHECK_FALSE(n.peer.reaches(at, n.segment));
  }
  for (const bool guessed : {false, true}) {
    node n(s.report()->nodes_port, id++);
    REQUIRE(n.connected);
    remote_buffer at{s.report()->guarded_address, 64, n.segment.rkey};
    if (guessed)
      at.rkey = s.report()->guarded_key;
    CHECK_FALSE(n.peer.reaches(at, n.segment));
  }
  s.check();
}

} // namespace test::nodes_tests
