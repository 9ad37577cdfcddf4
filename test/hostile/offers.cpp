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
constexpr const char* fill_variable = "HOSTILE_FILL";

bool offer(bare_peer& p, const remote_buffer& memory, std::uint32_t id = 0) {
  frame_header h = frame(frame_type::offer, id);
  h.credits = p.take_owed();
  return p.send(h, payload_of(offer_payload{memory}));
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
  // Devices of the kernel keep registered pages in memory, of which the lab has little.
  const std::size_t most = is_kernels(open_device()) ? 32 << 20 : 400 << 20;
  void* const memory =
      ::mmap(nullptr, most, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::deque<bare_peer> peers;
  const auto hold = [&](std::size_t bytes) {
    bare_peer& p = peers.emplace_back(static_cast<std::uint32_t>(port));
    REQUIRE(p.connect(kind::message));
    REQUIRE(offer(p, p.lend(memory, bytes)));
  };
  if (child_process::variable(fill_variable) <= 0) {
    for (int i = 0; i < 4; ++i)
      hold(most);
  } else { // together they leave as little as long messages may
    for (int i = is_kernels(open_device()) ? 4 : 32; i != 0; --i)
      hold(32 << 20);
    for (std::size_t bytes = 16 << 20; bytes >= 2 << 20; bytes /= 2)
      hold(bytes);
    for (int i = 0; i < 40; ++i)
      hold(1 << 20);
    for (int i = 0; i < 12; ++i)
      hold(1 << 16);
  }
  report->measure = 1;
  std::this_thread::sleep_for(30s); // it is stopped, and then killed
}

/// The process of those peers, which has offered and been stopped.
class stopped_peers {
public:
  enum class sizes { huge, all };

  stopped_peers(siege& s, sizes which)
      : process_("a peer that offers memory and does not run",
                 {variable(port_variable, s.report()->messages_port),
                  variable("HOSTILE_REPORT", static_cast<std::uint32_t>(report_.descriptor())),
                  variable(fill_variable, which == sizes::all ? 1 : 0)}) {
    s.until([&] { return report_->measure == 1 || process_.has_ended(); }, "the offers");
    REQUIRE_FALSE(process_.has_ended()); // it has failed otherwise
    process_.stop();
    const std::uint64_t part = s.report()->pool_limit / 8 * 7;
    if (which == sizes::all && !is_kernels(open_device())) // which answer for a stopped process
      s.until([&] { return s.report()->pooled + (1 << 17) >= part || process_.has_ended(); },
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
  stopped_peers peers(s, stopped_peers::sizes::huge);
  s.served(4); // they connect and send messages, so there is memory for them
  peers.end();
  s.check();
  // Registering the memory at once would stop the victim for almost a second, with all its threads.
  // On devices of the kernel the messages are small; there `check` judges, as the lab is slower.
  CHECK((is_sanitized || is_kernels(open_device()) || s.report()->gap_ns <= 250'000'000));
}

TEST_CASE("offers: long messages that leave others as little as they may", "[.long]") {
  siege s;
  stopped_peers peers(s, stopped_peers::sizes::all);
  s.served(8);
  peers.end();
  s.check();
}

// A stream reads offered bytes ahead. These READs are answered, so no deadline ends the streams.
TEST_CASE("offers: streams that take no bytes, while long messages have their part") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("an offer of a stream");
  siege s;
  stopped_peers others(s, stopped_peers::sizes::huge);
  const bool kernels = is_kernels(open_device()); // which answer for a stopped process
  if (!kernels)
    s.until([&] { return s.report()->pooled > s.report()->pool_limit / 4 * 3; },
            "two long messages");
  const std::uint64_t before = s.report()->pooled;
  {
    const std::size_t count = repetitions(150);
    std::vector<std::byte> memory(1 << 20);
    std::deque<bare_peer> peers;
    for (std::size_t i = 0; i < count; ++i) {
      bare_peer& p = peers.emplace_back(s.report()->bytes_port, bare_peer::shape::small());
      REQUIRE(p.connect(kind::stream));
      REQUIRE(offer(p, p.lend(memory.data(), memory.size())));
    }
    s.served(4);
    const std::uint64_t now = s.report()->pooled;
    // Besides its receives, a stream has what it has written and the peer has not taken.
    CHECK((kernels || now < before + count * (512 << 10)));
  }
  others.end();
  s.check();
}

} // namespace test::offers_tests
