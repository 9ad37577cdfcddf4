// SPDX-License-Identifier: BSL-1.0
// Peers that lie while they connect or join: the record and the verdict of an exchange, and the
// messages of nodes.
#include "catch.hpp"
#include "connecting/handshake.hpp"
#include "protocol/simulation.hpp"

#include <asio_rdma/detail/global/global_message.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using simulation::must;

struct totals {
  std::size_t steps = 0, worlds = 0, lies = 0, connected = 0, refused = 0, read = 0, unread = 0;
};

class world {
public:
  world(std::uint32_t seed, totals& t) : random_(seed), total_(t) { ++total_.worlds; }

  void play(std::size_t most) {
    for (std::size_t end = total_.steps + 1 + below(static_cast<std::uint32_t>(most));
         total_.steps < end;) {
      if (below(2) == 0)
        exchange();
      else
        node_message();
    }
  }

private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  bool lies(std::span<std::byte> bytes) {
    if (bytes.empty() || below(3) != 0)
      return false;
    ++total_.lies;
    for (std::uint32_t n = 1 + below(4); n != 0; --n)
      bytes[below(static_cast<std::uint32_t>(bytes.size()))] =
          below(2) == 0 ? std::byte(0xff) : static_cast<std::byte>(random_());
    return true;
  }

  handshake side() {
    handshake h;
    h.what = static_cast<handshake::kind>(below(3));
    h.receives = 5 + below(100);
    h.receive_size = 56 + below(10'000);
    h.max_reads = static_cast<std::uint8_t>(below(17));
    h.address.emplace();
    h.address->address.number = 17 + below(100);
    h.address->address.lid = 1;
    return h;
  }

  /// An honest side exchanges records and verdicts with a liar.
  void exchange() {
    exchange_steps steps(side());
    const handshake_bytes record = encode(side());
    const auto word = encode(static_cast<verdict>(below(4)));
    std::vector<std::byte> said(record.begin(), record.end());
    said.insert(said.end(), word.begin(), word.end());
    const bool lied = lies(said);
    std::size_t at = 0;
    for (int n = 0; steps.next() != exchange_steps::action::finish; ++n) {
      ++total_.steps;
      must(n < 200, "an exchange has an end");
      if (steps.next() == exchange_steps::action::write) {
        must(steps.output().size() != 0, "there is something to write");
        steps.on_written({});
      } else if (steps.next() == exchange_steps::action::connect) {
        steps.on_connected(below(16) == 0 ? error_code(asio::error::eof) : error_code());
      } else {
        const asio::mutable_buffer to = steps.input();
        const std::size_t bytes =
            std::min<std::size_t>({to.size(), said.size() - at, std::size_t(1) + below(64)});
        std::memcpy(to.data(), said.data() + at, bytes);
        at += bytes;
        steps.on_read(bytes == 0 ? error_code(asio::error::eof) : error_code(), bytes);
      }
    }
    must(lied || steps.result() || steps.connected(), "without an error the sides are connected");
    (steps.result() ? total_.refused : total_.connected) += 1;
  }

  /// A message that is read is the one that was sent, byte by byte.
  void node_message() {
    ++total_.steps;
    global_message m;
    m.what = static_cast<global_message::kind>(1 + below(10));
    m.node = static_cast<node_id>(1 + below(1000));
    m.incarnation = random_();
    m.id = below(1000);
    m.value = below(5000);
    m.alignment = 8;
    if (m.what == global_message::kind::join || m.what == global_message::kind::welcome)
      m.segments.assign(below(4), {4096, 4096, 1});
    std::vector<std::byte> bytes = encode(m);
    lies(bytes);
    if (below(8) == 0)
      bytes.resize(below(200));
    global_message again;
    const bool is_read = decode(bytes, again);
    (is_read ? total_.read : total_.unread) += 1;
    if (is_read) {
      must(std::ranges::equal(encode(again), bytes), "a message that was read is what was sent");
      must(again.segments.size() <= global_message::max_segments, "segments have a limit");
    }
  }

  std::mt19937_64 random_;
  totals& total_;
};

} // namespace

TEST_CASE("an exchange, and the messages of a join, end or are read rightly though the peer lies") {
  const auto t = simulation::simulate<world, totals>(200'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds from seed " << simulation::first_seed()
               << ": " << t.lies << " lies, " << t.connected << " connected, " << t.refused
               << " refused, " << t.read << " messages read, " << t.unread << " not");
  CHECK(t.lies > t.steps / 100);
  CHECK(t.connected > 0);
  CHECK(t.refused > 0);
  CHECK(t.read > 0);
  CHECK(t.unread > 0);
}
