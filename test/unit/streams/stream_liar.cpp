// SPDX-License-Identifier: BSL-1.0
// A stream whose peer lies at any time.
#include "protocol/liar.hpp"

#include "catch.hpp"

#include <deque>

namespace {

using namespace protocol_test;
using stream_party = stream_test::party;
using stream_test::a_read;
using stream_test::a_write;

class world final : world_with_liar<stream_party> {
public:
  world(std::uint32_t seed, liar_totals& t) : world_with_liar(seed, t) {
    frame_options l[2];
    for (auto& o : l) {
      o.receives = 5 + below(12);
      o.receive_size = o.peer_receive_size = 80;
      o.max_receive_size = below(3) == 0 ? 0 : 80 + below(400);
      o.sends = 1 + below(8);
    }
    l[0].peer_receives = l[1].receives;
    l[1].peer_receives = l[0].receives;
    l[0].speaks_first = l[1].waits_for_peer = true;
    receives_ = l[0].receives;
    sends_ = l[0].sends;
    stream_limits o{1 + below(6), 32 + below(1500), 32 + below(300)};
    o.offer_from = 100 + below(600);
    o.offers = 1 + below(4);
    o.direct_from = 1 + below(400);
    o.inbox = {50 + below(2000), 20 + below(600)};
    o.reads = below(3) != 0;
    read_ahead_ = o.inbox.read_ahead;
    for (std::size_t i = 0; i < 2; ++i) {
      parties_[i] = std::make_unique<stream_party>(l[i], o);
      parties_[i]->refuses_key = parties_[i]->refuses_memory = parties_[i]->has_little_memory =
          parties_[i]->holds_back = parties_[i]->refuses_growth = [this] {
            return below(32) == 0;
          };
    }
  }

  void play(std::size_t most) {
    const std::size_t end = 1 + below(static_cast<std::uint32_t>(most));
    for (std::size_t s = 0; s != end && !honest().failure; ++s) {
      ++total_.steps;
      step(liar().failure ? 0 : below(2)); // a side that has found a fault does nothing more
      check();
    }
    must(!honest().failure || honest().failure == error::protocol_violation,
         "a lie is a violation");
    must(!honest().failure || lied_, "the honest side is ended by a lie only");
    total_.violations += honest().failure ? 1U : 0U;
    total_.survived += lied_ && !honest().failure ? 1U : 0U;
    finish(0);
    finish(1);
  }

private:
  std::vector<std::byte> invented() override { return a_stream_frame(source_, honest(), offers_); }

  void step(std::size_t who) {
    stream_party& p = *parties_[who];
    switch (below(10)) {
    case 0:
    case 1:
      return hear();
    case 2:
    case 3:
    case 4:
      return say();
    case 5:
      p.complete_send();
      p.idle(below(2) == 0);
      return;
    case 6:
      p.complete_pull();
      return;
    case 7:
      return write(who);
    case 8:
      return read(who);
    default:
      other(who);
    }
  }

  void write(std::size_t who) {
    auto& all = writes_[who];
    while (!all.empty() && (all.front().ended || all.front().cancelled))
      all.pop_front();
    if (all.size() > 4)
      return;
    a_write& w = all.emplace_back(1 + below(700), static_cast<stream_write::kind>(below(3)));
    w.data.resize(w.bytes);
    parties_[who]->write(w);
  }
  void read(std::size_t who) {
    auto& all = reads_[who];
    while (!all.empty() && (all.front().ended || all.front().cancelled))
      all.pop_front();
    if (all.size() > 4)
      return;
    a_read& r = all.emplace_back(1 + below(700), static_cast<stream_read::kind>(below(3)));
    r.direct = r.what == stream_read::kind::copy && below(2) == 0;
    parties_[who]->read(r);
  }
  void other(std::size_t who) {
    stream_party& p = *parties_[who];
    const std::uint32_t what = below(200);
    if (what == 0)
      p.link.close();
    else if (what == 1)
      p.bytes.shut_down_writes();
    else if (what == 2)
      p.bytes.shut_down_reads();
    else if (what < 30)
      p.bytes.ask();
    else if (what < 60 && !writes_[who].empty())
      p.cancel(writes_[who].back());
    else if (what < 90 && !reads_[who].empty())
      p.cancel(reads_[who].back());
    p.run();
  }

  void check() {
    const stream_party& p = honest();
    std::uint64_t ahead = 0;
    for (const auto& [index, bytes] : p.chunks)
      ahead += bytes.size();
    must(ahead <= read_ahead_, "bytes that are read ahead keep to the limit");
    must(p.link.flow().held() <= receives_, "held receives are no more than the posted ones");
    must(p.unsent.size() <= sends_, "outstanding frames keep to the limit");
  }

  void finish(std::size_t who) {
    stream_party& p = *parties_[who];
    p.refuses_key = p.refuses_memory = p.has_little_memory = nullptr;
    p.stop(asio::error::connection_reset);
    while (p.bytes.available() != 0)
      p.read(reads_[who].emplace_back(1000));
    for (const auto& w : writes_[who])
      must(w.ended || w.cancelled, "every write ends when the link has stopped");
    for (const auto& r : reads_[who])
      must(r.ended || r.cancelled, "every read ends when the link has stopped");
    must(p.keys.empty() && p.blocks.empty() && p.chunks.empty(), "nothing is kept");
  }

  std::deque<a_write> writes_[2];
  std::deque<a_read> reads_[2];
  std::uint32_t offers_ = 0, receives_ = 0, sends_ = 0;
  std::uint64_t read_ahead_ = 0;
};

} // namespace

TEST_CASE("a stream keeps its limits and ends its operations though its peer lies") {
  check_lies(simulation::simulate<world, liar_totals>(300'000));
}
