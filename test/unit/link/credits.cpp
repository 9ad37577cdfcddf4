// SPDX-License-Identifier: BSL-1.0

#include "link/credits.hpp"
#include <boost/container/static_vector.hpp>

#include "catch.hpp"
#include "link/receive_shares.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

using asio_rdma::detail::credits;
using asio_rdma::detail::receive_shares;

/// One of the link's own receives is posted again.
void repost(credits& c) {
  c.freed();
  c.granted();
}

/// The receives that a link shares: another link may take and give back `rival_left` more, and the
/// pool has no memory for a receive `losses_left` times.
struct sharing {
  receive_shares shares;
  std::uint32_t rival_left, losses_left;
  std::uint32_t rival_has = 0;
};

/// Posts a receive again, for a link whose receives may be shared.
void repost(credits& c, std::optional<sharing>& with, bool loses = false) {
  if (!with)
    return repost(c);
  c.freed();
  with->shares.give_back(c.below_promise());
  if (loses) {
    --with->losses_left;
    with->shares.lost();
  }
}

void top_up(credits& c, sharing& with) {
  while (c.wants() && with.shares.take(c.below_promise()))
    c.granted();
}

/// Two sides with their links, and all state that decides the possible next steps.
struct world {
  enum frame : std::uint8_t { data, control, alone };
  struct flying {
    frame what;
    std::uint16_t returned;
  };
  struct side {
    credits flow;
    std::uint32_t data_left, control_left; // yet to be sent
    // In flight to the other side. The vector allocates nothing, as the search copies it often.
    boost::container::static_vector<flying, 16> out;
    bool takes; // whether its application takes data
    std::optional<sharing> with = {};
  };
  std::array<side, 2> sides;

  std::string key() const {
    std::string k;
    for (const side& s : sides) {
      for (const std::uint32_t n : {s.flow.available(), s.flow.owed(), s.flow.held(),
                                    s.flow.with_peer(), s.data_left, s.control_left})
        k.push_back(static_cast<char>(n));
      if (s.with)
        for (const std::uint32_t n :
             {s.flow.share(), s.with->shares.unclaimed(), s.with->shares.given(),
              s.with->shares.missing(), s.with->rival_has, s.with->rival_left, s.with->losses_left})
          k.push_back(static_cast<char>(n));
      for (const flying& f : s.out) {
        k.push_back(static_cast<char>(f.what + 1));
        k.push_back(static_cast<char>(f.returned));
      }
      k.push_back(static_cast<char>(0x7f));
    }
    return k;
  }
};

constexpr std::uint32_t receives_shared = 12;

struct searched {
  std::size_t states = 0, ends = 0;
  std::size_t overruns = 0;      // a frame that finds no receive, or a broken count
  std::size_t stuck_control = 0; // an end state in which control waits
  std::size_t stuck_data = 0;    // an end in which data waits though the application took all
  std::size_t endless = 0;       // a cycle of states
  std::size_t grown = 0;         // a share beyond the promise
};

/// All sequences of steps of two sides, to their ends.
class search {
public:
  explicit search(const world& start) { visit(start); }
  searched found;

private:
  /// Sends in the order of the link: control first, then data, then credits alone.
  static bool send(world& w, std::size_t who, world::frame what) {
    world::side& s = w.sides[who];
    if (what == world::control && s.control_left != 0 && s.flow.may_send_control())
      --s.control_left;
    else if (what == world::data && s.data_left != 0 && s.flow.may_send_data())
      --s.data_left;
    else if (what != world::alone || !s.flow.should_return())
      return false;
    s.out.push_back({what, s.flow.spend()});
    return true;
  }

  /// The oldest frame from `who` arrives.
  bool arrive(world& w, std::size_t who, bool loses = false) {
    world::side& from = w.sides[who];
    world::side& to = w.sides[1 - who];
    if (from.out.empty() || (loses && (!may_lose(to) || from.out.front().what == world::data)))
      return false;
    const world::flying f = from.out.front();
    from.out.erase(from.out.begin());
    bool good = to.flow.arrived(f.returned);
    if (f.what == world::data)
      good = to.flow.hold() && good;
    else
      repost(to.flow, to.with, loses);
    if (to.with)
      top_up(to.flow, *to.with);
    found.overruns += good ? 0 : 1;
    return true;
  }

  static bool take(world& w, std::size_t who, bool loses = false) {
    world::side& s = w.sides[who];
    if (!s.takes || s.flow.held() == 0 || (loses && !may_lose(s)))
      return false;
    s.flow.release();
    repost(s.flow, s.with, loses);
    if (s.with)
      top_up(s.flow, *s.with);
    return true;
  }

  static bool may_lose(const world::side& s) { return s.with && s.with->losses_left != 0; }

  /// The pool has memory again.
  static bool find(world& w, std::size_t who) {
    world::side& s = w.sides[who];
    if (!s.with || s.with->shares.missing() == 0)
      return false;
    s.with->shares.found();
    top_up(s.flow, *s.with);
    return true;
  }

  /// The other link takes a receive, or gives one back.
  static bool rival(world& w, std::size_t who, bool takes) {
    world::side& s = w.sides[who];
    if (!s.with || (takes ? s.with->rival_left == 0 : s.with->rival_has == 0))
      return false;
    if (takes && !s.with->shares.take(false))
      return false;
    s.with->rival_left -= takes ? 1 : 0;
    s.with->rival_has += takes ? 1 : 0;
    s.with->rival_has -= takes ? 0 : 1;
    if (!takes)
      s.with->shares.give_back(false);
    return true;
  }

  void check(const world& w) {
    for (std::size_t i = 0; i < 2; ++i) {
      const world::side& s = w.sides[i];
      const world::side& o = w.sides[1 - i];
      // Each receive of s is counted exactly once.
      std::size_t n = s.flow.held() + s.flow.owed() + o.flow.available() + o.out.size();
      for (const world::flying& f : s.out)
        n += f.returned;
      if (n != s.flow.share() || o.out.size() > s.flow.with_peer())
        ++found.overruns;
      if (!s.with) {
        found.overruns += s.flow.share() != s.flow.receives();
        continue;
      }
      // No more shared receives are given than exist, and a link has all that it has claimed,
      // unless some are missing.
      const receive_shares& shares = s.with->shares;
      found.grown += s.flow.share() > shares.promise();
      const std::uint32_t others = shares.promise() + s.with->rival_has;
      if (shares.given() != s.flow.share() + others || s.flow.share() > s.flow.receives() ||
          shares.given() + shares.missing() > receives_shared ||
          (shares.missing() == 0 && s.flow.below_promise()))
        ++found.overruns;
    }
  }

  void visit(const world& w) {
    const std::string key = w.key();
    if (!done_.insert(key).second) {
      found.endless += path_.count(key);
      return;
    }
    path_.insert(key);
    ++found.states;
    check(w);
    bool moved = false;
    for (std::size_t who = 0; who < 2; ++who) {
      const auto branch = [&](auto step) {
        world next = w;
        if (step(next)) {
          moved = true;
          visit(next);
        }
      };
      branch([&](world& n) { return send(n, who, world::control); });
      branch([&](world& n) { return send(n, who, world::data); });
      branch([&](world& n) { return send(n, who, world::alone); });
      for (const bool either : {false, true}) {
        branch([&](world& n) { return arrive(n, who, either); });
        branch([&](world& n) { return take(n, who, either); });
        branch([&](world& n) { return rival(n, who, either); });
      }
      branch([&](world& n) { return find(n, who); });
    }
    if (!moved) {
      ++found.ends;
      for (std::size_t i = 0; i < 2; ++i) {
        const world::side& s = w.sides[i];
        found.stuck_control += s.control_left != 0;
        found.stuck_data += s.data_left != 0 && w.sides[1 - i].takes;
      }
    }
    path_.erase(key);
  }

  std::unordered_set<std::string> done_, path_;
};

} // namespace

TEST_CASE("credits: counts follow the frames") {
  credits c(8, 6);
  CHECK(c.available() == 6);
  CHECK(c.spend() == 0);
  CHECK(c.available() == 5);
  REQUIRE(c.arrived(1));
  CHECK(c.available() == 6);
  CHECK(c.with_peer() == 7);
  REQUIRE(c.hold());
  CHECK(c.held() == 1);
  CHECK(c.owed() == 0);
  c.release();
  repost(c);
  CHECK(c.owed() == 1);
  CHECK(c.spend() == 1);
  CHECK(c.owed() == 0);
  CHECK(c.with_peer() == 8);
}

TEST_CASE("credits: a peer that counts wrongly is found") {
  SECTION("more returned than spent") {
    credits c(8, 6);
    CHECK(!c.arrived(1));
    c.spend();
    CHECK(!c.arrived(2));
  }
  SECTION("more frames than it has credits for") {
    credits c(5, 5);
    for (int i = 0; i < 5; ++i)
      REQUIRE(c.arrived(0));
    CHECK(!c.arrived(0));
  }
  SECTION("data on the reserve") {
    credits c(5, 5);
    for (int i = 0; i < 2; ++i) {
      REQUIRE(c.arrived(0));
      REQUIRE(c.hold());
    }
    REQUIRE(c.arrived(0));
    CHECK(!c.hold());
  }
}

TEST_CASE(
    "credits: the reserve is for control frames, its last credit for frames that return credits") {
  credits c(5, 5);
  c.spend();
  CHECK(c.may_send_data());
  c.spend();
  CHECK(!c.may_send_data());
  c.spend();
  CHECK(c.may_send_control());
  c.spend();
  CHECK(!c.may_send_control());
  CHECK(!c.should_return());
  REQUIRE(c.arrived(0));
  repost(c);
  CHECK(c.may_send_control());
  CHECK(!c.should_return());
  REQUIRE(c.arrived(0));
  repost(c);
  CHECK(c.should_return());
  CHECK(c.spend() == 2);
  CHECK(!c.may_send_control());
}

TEST_CASE("credits: a frame of its own returns credits when half are owed") {
  credits c(16, 16);
  for (int i = 0; i < 7; ++i) {
    REQUIRE(c.arrived(0));
    repost(c);
    CHECK(!c.should_return());
  }
  REQUIRE(c.arrived(0));
  repost(c);
  CHECK(c.should_return());
}

TEST_CASE("credits: nothing is stuck, overrun or endless, in any order") {
  struct row {
    std::uint32_t receives[2], data[2], control[2];
    bool takes[2];
  };
  std::vector<row> rows;
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      rows.push_back({{5, 5}, {3, 3}, {2, 2}, {first, second}});
      rows.push_back({{5, 5}, {6, 1}, {1, 2}, {first, second}});
      rows.push_back({{5, 6}, {3, 0}, {5, 1}, {first, second}});
      rows.push_back({{6, 5}, {0, 4}, {6, 0}, {first, second}});
    }
  // Both sides could spend their last credits at once.
  rows.push_back({{5, 5}, {2, 2}, {4, 4}, {false, false}});
  std::size_t states = 0;
  for (const row& r : rows) {
    world w{{world::side{
                 credits(r.receives[0], r.receives[1]), r.data[0], r.control[0], {}, r.takes[0]},
             world::side{
                 credits(r.receives[1], r.receives[0]), r.data[1], r.control[1], {}, r.takes[1]}}};
    const searched s = search(w).found;
    INFO("receives " << r.receives[0] << '/' << r.receives[1] << " data " << r.data[0] << '/'
                     << r.data[1] << " control " << r.control[0] << '/' << r.control[1] << " takes "
                     << r.takes[0] << r.takes[1] << " states " << s.states);
    CHECK(s.ends != 0);
    CHECK(s.overruns == 0);
    CHECK(s.stuck_control == 0);
    CHECK(s.stuck_data == 0);
    CHECK(s.endless == 0);
    states += s.states;
  }
  CHECK(states > 100'000);
}

TEST_CASE("credits: nothing is stuck, overrun or endless, in any order, with shared receives") {
  struct row {
    std::uint32_t data[2], control[2];
    bool takes[2];
    std::uint32_t most, rival, losses;
  };
  std::vector<row> rows;
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      rows.push_back({{4, 1}, {1, 1}, {first, second}, 7, 1, 0});
      rows.push_back({{5, 0}, {0, 2}, {first, second}, 6, 2, 1});
      rows.push_back({{2, 3}, {2, 0}, {first, second}, 7, 0, 2});
    }
  std::size_t states = 0, grown = 0;
  for (const row& r : rows) {
    // The second side shares: its link, another link, and two unclaimed receives.
    sharing with{receive_shares(receives_shared, 5), r.rival, r.losses};
    REQUIRE(with.shares.join());
    REQUIRE(with.shares.join());
    world w{{world::side{credits(5, 5, r.most, 5), r.data[0], r.control[0], {}, r.takes[0]},
             world::side{credits(r.most, 5, 5, 5), r.data[1], r.control[1], {}, r.takes[1], with}}};
    const searched s = search(w).found;
    INFO("data " << r.data[0] << '/' << r.data[1] << " control " << r.control[0] << '/'
                 << r.control[1] << " takes " << r.takes[0] << r.takes[1] << " most " << r.most
                 << " rival " << r.rival << " losses " << r.losses << " states " << s.states);
    CHECK(s.ends != 0);
    CHECK(s.overruns == 0);
    CHECK(s.stuck_control == 0);
    CHECK(s.stuck_data == 0);
    CHECK(s.endless == 0);
    states += s.states;
    grown += s.grown;
  }
  CHECK(states > 100'000);
  CHECK(grown > 0);
}
