// SPDX-License-Identifier: BSL-1.0
// Peers that offer memory for the victim to read: too much, none, or without answering.
#include "device/support/long_run.hpp"
#include "hostile/siege.hpp"

#include <deque>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace test::offers_tests {
namespace {

using namespace detail;
using kind = handshake::kind;
using namespace std::chrono_literals;

constexpr const char* port_variable = "HOSTILE_PORT";
constexpr const char* sizes_variable = "HOSTILE_SIZES";
constexpr const char* limit_variable = "HOSTILE_LIMIT"; // of the victim's pool, in MiB

/// The offers of the peers that stop.
enum class sizes {
  huge,  ///< Four messages, each of two fifths of the limit of the victim's pool.
  all,   ///< Messages that together leave as little of it as long messages may.
  many,  ///< Many messages of one connection.
  large, ///< Four messages of one connection, which together exceed half of the limit.
};

bool offer(bare_peer& p, const remote_buffer& memory, std::uint32_t id = 0) {
  frame_header h = frame(frame_type::offer, id);
  h.credits = p.take_owed();
  return p.send(h, payload_of(offer_payload{memory}));
}

/// Streams that offer this memory each, and take nothing.
std::deque<bare_peer> offering_streams(siege& s, std::size_t count,
                                       std::vector<std::byte>& memory) {
  std::deque<bare_peer> peers;
  for (std::size_t i = 0; i < count; ++i) {
    bare_peer& p = peers.emplace_back(s.report()->bytes_port, bare_peer::shape::small());
    REQUIRE(p.connect(kind::stream));
    REQUIRE(offer(p, p.lend(memory.data(), memory.size())));
  }
  return peers;
}

} // namespace

TEST_CASE("offers: lengths up to 2^64 and addresses at the ends") {
  siege s;
  for (const kind what : {kind::message, kind::stream})
    for (const std::uint64_t bytes :
         {std::uint64_t(0), std::uint64_t(1), std::uint64_t(1) << 31, std::uint64_t(1) << 32,
          std::uint64_t(1) << 63, ~std::uint64_t(0)})
      for (const std::uint64_t address : {std::uint64_t(0), ~std::uint64_t(0)}) {
        bare_peer p(what == kind::stream ? s.report()->bytes_port : s.report()->messages_port);
        REQUIRE(p.connect(what));
        remote_buffer memory = p.lent();
        memory.size = bytes;
        if (address != 0)
          memory.address = address;
        offer(p, memory);
        p.receive(50ms); // `refused`, or the end of the connection
      }
  s.check();
}

TEST_CASE("offers: more at a time than the victim has receives") {
  siege s;
  for (const kind what : {kind::message, kind::stream}) {
    bare_peer p(what == kind::stream ? s.report()->bytes_port : s.report()->messages_port);
    REQUIRE(p.connect(what));
    for (std::uint32_t id = 0; id < 100 && offer(p, p.lent(), id); ++id)
      while (p.receive(0ms))
        continue;
  }
  s.check();
}

TEST_CASE("offers: keys of no memory") {
  siege s;
  for (std::uint32_t i = 0; i < 10; ++i) {
    bare_peer p(s.report()->messages_port);
    REQUIRE(p.connect(kind::message));
    remote_buffer memory = p.lent();
    memory.size = 1 << 20;
    memory.rkey += 0x100 * (i + 1);
    offer(p, memory);
    p.receive(200ms);
  }
  s.check();
}

TEST_CASE("a peer that offers memory and does not run", "[.offers]") {
  const int port = child_process::variable(port_variable);
  if (port < 0)
    return;
  shared_report report(child_process::variable("HOSTILE_REPORT"));
  const auto limit = static_cast<std::size_t>(child_process::variable(limit_variable)) << 20;
  // Devices of the kernel keep registered pages in memory, of which the lab has little. All offers
  // are of the same pages.
  const std::size_t most = limit / 5 * 2;
  void* const memory =
      ::mmap(nullptr, most, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::deque<bare_peer> peers;
  const auto hold = [&](std::size_t bytes) {
    bare_peer& p = peers.emplace_back(static_cast<std::uint32_t>(port));
    REQUIRE(p.connect(kind::message));
    REQUIRE(offer(p, p.lend(memory, bytes)));
  };
  const auto hold_at_a_time = [&](std::uint32_t count, std::size_t bytes) {
    bare_peer& p = peers.emplace_back(static_cast<std::uint32_t>(port));
    REQUIRE(p.connect(kind::message));
    REQUIRE(p.send(frame(frame_type::message), as_bytes(receives_command)));
    for (std::uint32_t id = 0; id < count; ++id)
      REQUIRE(offer(p, p.lend(memory, bytes), id));
  };
  switch (static_cast<sizes>(child_process::variable(sizes_variable))) {
  case sizes::huge:
    for (int i = 0; i < 4; ++i)
      hold(most);
    break;
  case sizes::all:
    for (int i = 0; i < 32; ++i)
      hold(limit / 32);
    for (std::size_t bytes = limit / 64; bytes >= 2 << 20; bytes /= 2)
      hold(bytes);
    // Short messages may leave a sixteenth. These leave more, for the receives of all these peers.
    for (std::size_t left = limit / 16; left > 24 << 20; left -= 1 << 20)
      hold(1 << 20);
    for (int i = 0; i < 12; ++i)
      hold(1 << 16);
    break;
  case sizes::many:
    hold_at_a_time(16, limit / 64);
    break;
  case sizes::large:
    hold_at_a_time(4, limit / 16 * 3);
    break;
  }
  report->measure = 1;
  std::this_thread::sleep_for(30s); // it is stopped, and then killed
}

/// The process of those peers, which has offered and been stopped.
class stopped_peers {
public:
  stopped_peers(siege& s, sizes which)
      : process_(
            "a peer that offers memory and does not run",
            {variable(port_variable, s.report()->messages_port),
             variable("HOSTILE_REPORT", static_cast<std::uint32_t>(report_.descriptor())),
             variable(limit_variable, static_cast<std::uint32_t>(s.report()->pool_limit >> 20)),
             variable(sizes_variable, static_cast<std::uint32_t>(which))}) {
    s.until([&] { return report_->measure == 1 || process_.has_ended(); }, "the offers");
    REQUIRE_FALSE(process_.has_ended()); // it has failed otherwise
    process_.stop();
    if (which == sizes::all) // most of what long messages may have
      s.until([&] { return s.report()->pooled > s.report()->pool_limit / 4 * 3; },
              "the memory for the offers");
  }
  void end() {
    process_.kill();
    process_.wait();
  }

private:
  static std::string variable(const char* name, std::uint32_t value) {
    return std::string(name) + "=" + std::to_string(value);
  }

  shared_report report_;
  child_process process_;
};

// Devices of the kernel answer the READs of a stopped process. Its messages are then sent back to
// it, and it does not take them.
TEST_CASE("offers: long messages of peers that stop") {
  siege s;
  stopped_peers peers(s, sizes::huge);
  s.served(4); // they connect and send messages, so there is memory for them
  CHECK(s.report()->most_pooled <= s.report()->pool_limit / 16 * 15);
  peers.end();
  s.check();
  // Registering the memory at once would stop the victim for almost a second, with all its threads.
  // On devices of the kernel the messages are small; there `check` judges, as the lab is slower.
  CHECK((is_sanitized || is_kernels(open_device()) || s.report()->gap_ns <= 500'000'000));
}

TEST_CASE("offers: long messages that leave others as little as they may") {
  siege s;
  stopped_peers peers(s, sizes::all);
  s.served(8);
  // Long messages leave an eighth, and short ones a sixteenth, which receives may use.
  CHECK(s.report()->most_pooled <= s.report()->pool_limit / 32 * 31);
  peers.end();
  s.check();
}

TEST_CASE("offers: more messages than a connection reads at a time") {
  if (is_kernels(open_device()))
    return not_on_this_device("a READ that a stopped process does not answer");
  const auto which = GENERATE(sizes::many, sizes::large);
  siege s;
  const std::uint64_t limit = s.report()->pool_limit;
  stopped_peers peers(s, which);
  s.served(4);
  std::this_thread::sleep_for(500ms); // memory for a long message is allocated by another thread
  // Four of sixteen messages (`pulls`), or half of the limit (`pull_bytes`); besides messages that
  // were read before the process was stopped.
  CHECK(s.report()->most_pooled > limit / 64 * (which == sizes::many ? 4 : 12));
  CHECK(s.report()->most_pooled < limit / 64 * (which == sizes::many ? 10 : 40));
  peers.end();
  s.check();
}

TEST_CASE("offers: streams that take no bytes") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("an offer of a stream");
  siege s;
  const std::uint64_t before = s.report()->pooled;
  {
    constexpr std::size_t count = 4;
    std::vector<std::byte> memory(std::size_t(16) << 20);
    const std::deque<bare_peer> peers = offering_streams(s, count, memory);
    s.served(4);
    // Bytes that are read ahead, and those that the victim has written and the peer does not take.
    CHECK(s.report()->most_pooled < before + count * (6 << 20));
  }
  s.check();
}

// A stream reads offered bytes ahead. These READs are answered, so no deadline ends the streams.
TEST_CASE("offers: streams that take no bytes, while long messages have their part") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("an offer of a stream");
  siege s;
  stopped_peers others(s, sizes::huge);
  const bool kernels = is_kernels(open_device()); // which answer for a stopped process
  if (!kernels)
    s.until([&] { return s.report()->pooled > s.report()->pool_limit / 4 * 3; },
            "two long messages");
  const std::uint64_t before = s.report()->pooled;
  {
    const std::size_t count = repetitions(100);
    std::vector<std::byte> memory(1 << 20);
    const std::deque<bare_peer> peers = offering_streams(s, count, memory);
    s.served(4);
    const std::uint64_t now = s.report()->pooled;
    // Besides its receives, a stream has what it has written and the peer has not taken.
    CHECK((kernels || now < before + count * (512 << 10)));
  }
  others.end();
  // On rxe the context has computed for 190 to 370 ms, the most of these tests.
  s.check(kernels ? 2 : 1);
}

} // namespace test::offers_tests
