// SPDX-License-Identifier: BSL-1.0
// A connection whose peer lies at any time: messages, long messages, leases, recalls and the
// goodbye.
#include "protocol/liar.hpp"

#include "catch.hpp"

namespace {

using namespace protocol_test;

class world final : world_with_liar<party> {
public:
  world(std::uint32_t seed, liar_totals& t) : world_with_liar(seed, t) {
    frame_options l[2];
    for (auto& o : l) {
      o.receives = 5 + below(12);
      o.receive_size = o.peer_receive_size = 128;
      o.sends = 1 + below(8);
      o.max_receive_size = below(2) == 0 ? 0 : 128 + below(2500);
    }
    if (below(3) == 0) {
      l[0].promise = l[1].peer_promise = 5 + below(l[0].receives - 4);
      l[0].max_receive_size = 0; // shared receives do not grow
    }
    l[0].peer_receives = l[1].receives;
    l[1].peer_receives = l[0].receives;
    l[0].speaks_first = l[1].waits_for_peer = true;
    messages_.limit = 2500;
    messages_.offers = 1 + below(6);
    messages_.pulls = 1 + below(4);
    messages_.pull_bytes = below(5000);
    messages_.gather = below(3) == 0 ? 0 : 8 + below(400);
    messages_.small = below(200);
    grants_.rights = remote_rights::all;
    grants_.bytes = 200;
    grants_.grants = 1 + below(6);
    receives_ = l[0].receives;
    sends_ = l[0].sends;
    for (std::size_t i = 0; i < 2; ++i) {
      parties_[i] = std::make_unique<party>(l[i], messages_, grants_);
      parties_[i]->honest_peer = false;
      parties_[i]->most_read = messages_.pull_bytes;
      parties_[i]->goes_straight = parties_[i]->refuses_growth = [this] {
        return below(4) != 0;
      };
      parties_[i]->run();
    }
  }

  void play(std::size_t most) {
    const std::size_t end = 1 + below(static_cast<std::uint32_t>(most));
    for (std::size_t s = 0; s != end && !honest().failure; ++s) {
      ++total_.steps;
      step();
      check();
    }
    must(!honest().failure || honest().failure == error::protocol_violation,
         "a lie is a violation");
    must(!honest().failure || lied_, "the honest side is ended by a lie only");
    total_.violations += honest().failure ? 1U : 0U;
    total_.survived += lied_ && !honest().failure ? 1U : 0U;
    // These check that every operation, key, grant and receive ends.
    honest().die(asio::error::connection_reset);
    liar().die(asio::error::connection_reset);
  }

private:
  std::vector<std::byte> invented() override { return a_frame(source_, honest()); }

  void step() {
    const chooser pick = [this](std::uint32_t n) {
      return below(n);
    };
    // A side that has found the other at fault does nothing more.
    party& some = liar().failure || below(2) == 0 ? honest() : liar();
    switch (below(14)) {
    case 0:
    case 1:
      return hear();
    case 2:
    case 3:
    case 4:
      return say();
    case 5:
      some.complete_send();
      return;
    case 6:
    case 7:
      some.local_step(pick);
      return;
    case 8:
      if (below(400) == 0)
        some.link.close();
      if (below(4) == 0)
        for (auto& p : parties_)
          p->pass_time(std::chrono::microseconds(std::uint64_t(1) << below(20)));
      if (honest().shared)
        honest().shared->act(pick);
      for (auto& p : parties_)
        p->run();
      return;
    default:
      some.act(pick);
    }
  }

  void check() {
    const party& p = honest();
    must(p.pulls.size() <= messages_.pulls, "outstanding READs keep to the limit");
    must(p.link.flow().held() <= receives_, "held receives are no more than the posted ones");
    must(p.unsent.size() <= sends_, "outstanding frames keep to the limit");
    must(p.grants.bytes() <= grants_.bytes && p.grants.grants() <= grants_.grants,
         "grants keep to the limits");
    std::uint64_t requested = 0;
    for (const auto& [grant, bytes] : p.requested)
      requested += bytes;
    must(p.inbox.dropping() || (requested <= grants_.bytes && p.requested.size() <= grants_.grants),
         "requested memory keeps to the limits until it is received");
    must(p.grant_keys.size() + p.making.size() <= grants_.grants + p.grants.live(),
         "keys are those of grants");
  }

  message_options messages_;
  grant_limits grants_;
  std::uint32_t receives_, sends_;
};

} // namespace

TEST_CASE("a connection keeps its limits and ends its operations though its peer lies") {
  check_lies(simulation::simulate<world, liar_totals>(300'000));
}
