// SPDX-License-Identifier: BSL-1.0
// Long writes of registered memory of sides that offer nothing: they are sent in frames, and copied
// while they would wait.
#include "stream_offering.hpp"

#include "catch.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <random>
#include <vector>

namespace {

using namespace stream_test;

constexpr std::uint64_t mib = 1 << 20;

/// The default options of a stream.
frame_options usual_link() {
  frame_options l;
  l.max_receive_size = 262160;
  return l;
}

stream_limits without_offers(stream_limits o = {}) {
  o.reads = false;
  o.at_once = 240;
  return o;
}

/// A write of any memory, as `asio::async_write` makes it of plain memory: what has not been taken
/// is written again.
struct a_long_write {
  party& by;
  std::uint64_t left;
  a_write* last = nullptr;

  bool ended() const { return left == 0; }
};

/// Two sides whose programs write registered memory, or the same bytes of plain memory.
struct programs : two {
  programs(const frame_options& l, const stream_limits& o, bool registered)
      : two(l, o), registered_(registered) {
    settle();
  }

  a_long_write& write(party& p, std::uint64_t n) {
    a_long_write& w = all_.emplace_back(a_long_write{p, n});
    go_on(w);
    return w;
  }
  void both_write(std::uint64_t n) {
    write(a, n);
    write(b, n);
    run();
  }
  /// Lets everything happen that needs no application.
  void run() {
    for (bool more = true; more;) {
      settle();
      more = false;
      for (a_long_write& w : all_)
        more |= go_on(w);
    }
  }
  /// Reads at most `n` bytes. Returns how many.
  std::uint64_t read(party& p, std::uint64_t n) {
    a_read& r = reads.emplace_back(n);
    p.read(r);
    run();
    p.cancel(r);
    return r.done;
  }
  void both_read(std::uint64_t n) {
    for (party* const p : {&a, &b})
      for (std::uint64_t left = n; left != 0;)
        left -= read(*p, left);
  }
  std::vector<bool> ended() const {
    std::vector<bool> result;
    for (const a_long_write& w : all_)
      result.push_back(w.ended());
    return result;
  }
  bool all_ended() const {
    return std::all_of(all_.begin(), all_.end(), [](const a_long_write& w) { return w.ended(); });
  }
  /// Whether the writes of the side that makes write `i` wait because blocks, which may be partly
  /// filled, do not take the next one.
  bool is_full(std::size_t i, const stream_limits& o) const {
    const party& by = all_[i].by;
    const auto next = std::find_if(all_.begin(), all_.end(), [&](const a_long_write& w) {
      return &w.by == &by && !w.ended();
    });
    return next->last->bytes - next->last->done > (o.blocks - by.blocks.size()) * o.block_size;
  }
  /// Both sides' receives grow.
  void grow() {
    for (int i = 0; i < 40; ++i) {
      both_write(300'000);
      both_read(300'000);
    }
    REQUIRE(a.link.peer_payload() == 262144);
  }

private:
  bool go_on(a_long_write& w) {
    if (w.ended() || (w.last != nullptr && !w.last->ended))
      return false;
    if (w.last != nullptr)
      w.left -= w.last->done;
    if (w.ended())
      return true;
    const bool lends = registered_ && w.left > 240 && w.by.bytes.lends(w.left, true);
    a_write& op =
        writes.emplace_back(w.left, lends ? stream_write::kind::lend : stream_write::kind::copy);
    op.whole = registered_;
    op.data.resize(w.left);
    w.last = &op;
    w.by.write(op);
    return true;
  }

  bool registered_;
  std::deque<a_long_write> all_;
};

struct scene {
  const char* name;
  void (*before)(programs&);
  std::uint64_t bytes;
  frame_options link = usual_link();
  stream_limits limits = without_offers();
};

frame_options shared_link() {
  frame_options l = usual_link();
  l.promise = l.peer_promise = 6;
  l.max_receive_size = 0;
  return l;
}

frame_options many_receives() {
  frame_options l = usual_link();
  l.receives = l.peer_receives = 1024;
  l.receive_size = l.peer_receive_size = 16384;
  return l;
}

stream_limits few_sends() {
  stream_limits o = without_offers();
  o.blocks = 2;
  return o;
}

void small_writes(programs& t, int count) {
  for (int i = 0; i < count; ++i)
    t.both_write(16);
}

const scene scenes[] = {
    {"nothing before", [](programs&) {}, mib},
    {"16 bytes were read",
     [](programs& t) {
       t.both_write(16);
       t.both_read(16);
     },
     mib},
    {"12 small writes were read",
     [](programs& t) {
       for (int i = 0; i < 12; ++i) {
         t.both_write(16);
         t.both_read(16);
       }
     },
     mib},
    {"16 bytes are unread", [](programs& t) { t.both_write(16); }, mib - 16},
    {"12 small writes are unread", [](programs& t) { small_writes(t, 12); }, 1'000'000},
    {"the receives have grown, 11 small writes are unread",
     [](programs& t) {
       t.grow();
       small_writes(t, 11);
     },
     900'000},
    {"the receives have grown, and take a half", [](programs& t) { t.grow(); }, 6 * mib},
    {"shared receives", [](programs&) {}, mib, shared_link()},
    {"a long write is unread but for its end",
     [](programs& t) {
       t.both_write(6 * mib);
       t.both_read(6 * mib - 70'000);
     },
     900'000},
    {"many receives, with 7 MiB unread", [](programs& t) { t.both_write(7 * mib); }, 10 * mib,
     many_receives()},
    {"a small send buffer", [](programs&) {}, 500'000, usual_link(), few_sends()},
};

} // namespace

TEST_CASE("both sides make long writes of registered memory before they read") {
  const scene& s = GENERATE(from_range(std::begin(scenes), std::end(scenes)));
  CAPTURE(s.name, s.bytes);
  programs t(s.link, s.limits, true);
  s.before(t);
  t.both_write(s.bytes);
  CHECK(t.all_ended());
  t.both_read(t.b.bytes.available());
}

TEST_CASE("registered memory that the send buffer cannot take waits as plain memory does") {
  const auto [bytes, small] =
      GENERATE(table<std::uint64_t, bool>({{900'000, true}, {6 * mib, false}}));
  const bool registered = GENERATE(true, false);
  CAPTURE(bytes, registered);
  programs t(usual_link(), small ? few_sends() : without_offers(), registered);
  t.both_write(bytes);
  CHECK(t.ended() == std::vector<bool>{false, false});
}

TEST_CASE("registered memory waits only if plain memory would") {
  std::size_t waited = 0, copied = 0;
  for (std::uint32_t world = 0; world < 3000; ++world) {
    std::mt19937 random(world);
    const auto below = [&random](std::uint32_t n) {
      return static_cast<std::uint32_t>(random() % n);
    };
    frame_options l = link_of(5 + below(12));
    l.sends = 1 + below(16);
    l.max_receive_size = below(2) * 1000;
    stream_limits o = without_offers(limits());
    o.block_size = 1000;
    o.blocks = 1 + below(6);
    programs registered(l, o, true), plain(l, o, false);
    for (int step = 0; step < 12; ++step) {
      const std::uint32_t who = below(2), what = below(3);
      const std::uint64_t n = 1 + below(below(2) == 0 ? 100 : 4000);
      for (programs* const t : {&registered, &plain}) {
        party& p = who == 0 ? t->a : t->b;
        if (what == 0)
          t->read(p, n);
        else
          t->write(p, n);
        t->run();
      }
      const auto has = registered.ended(), could = plain.ended();
      for (std::size_t i = 0; i < has.size(); ++i) {
        CAPTURE(world, step, i);
        REQUIRE((has[i] || !could[i] || registered.is_full(i, o)));
        waited += !has[i];
      }
    }
    for (const auto* const p : {&registered.a, &registered.b})
      copied += p->copied_lent;
  }
  CHECK(waited > 0);
  CHECK(copied > 0);
}

TEST_CASE("a lent write that waits is copied when nothing of it is under way") {
  two t(8, without_offers(limits())); // 4 blocks of 100 bytes
  const std::uint64_t waits = GENERATE(400u, 401u);
  a_write& w = t.lend(500 + waits);
  REQUIRE(t.lengths() == std::vector<std::uint32_t>(5, frame)); // as many as the peer's receives
  while (t.a.deliver_to(t.b))
    continue;
  for (int i = 0; i < 4; ++i)
    t.a.complete_send();
  CHECK(t.a.copied_lent == 0);
  t.settle();
  CHECK(w.ended == (waits == 400));
  CHECK(t.a.copied_lent == (waits == 400 ? 4 : 0));
  t.read(1);
  t.settle();
  CHECK_FALSE(t.a.failure);
  t.read(99); // a receive is returned
  t.read(100);
  t.settle();
  CHECK(w.ended);
}

TEST_CASE("a lent write that waits stays in place if it must, or if there is no memory") {
  two t(8, without_offers(limits()));
  a_write& w = t.writes.emplace_back(800, stream_write::kind::lend);
  w.data.resize(800);
  SECTION("it must") { w.in_place = true; }
  SECTION("no memory") {
    t.a.refuses_memory = [] {
      return true;
    };
  }
  t.a.write(w);
  t.settle();
  CHECK_FALSE(w.ended);
  CHECK(t.a.blocks.empty());
  std::uint64_t read = 0;
  while (read != 800) {
    read += t.read(800).done;
    t.settle();
  }
  CHECK(w.ended);
  CHECK_FALSE(w.ec);
  CHECK(w.done == 800);
}

TEST_CASE("a long lent write in frames that is cancelled reports the bytes that were written") {
  two t(8, without_offers(limits()));
  const bool begun = GENERATE(true, false);
  a_write& w = t.lend(1000); // of which 500 are in frames; the rest is more than the blocks hold
  if (begun)
    t.settle();
  SECTION("by the program") { t.a.cancel(w); }
  SECTION("by a shutdown") {
    t.a.bytes.shut_down_writes();
    t.a.run();
  }
  CHECK_FALSE(w.cancelled);
  CHECK(w.ended == begun); // otherwise the device has its memory
  t.settle();
  CHECK(w.ended);
  CHECK(w.ec);
  CHECK(w.done == t.b.bytes.available());
  CHECK(w.done == 500);
}

TEST_CASE("a lent write that is cancelled when a part of its rest was copied reports that part") {
  two t(8, without_offers(limits()));
  int asked = 0;
  t.a.refuses_memory = [&] {
    return ++asked > 2;
  };
  a_write& w = t.lend(900); // 500 bytes are in frames
  t.settle();
  CHECK(t.a.copied_lent == 2);
  CHECK_FALSE(w.ended);
  t.a.cancel(w);
  CHECK_FALSE(w.cancelled);
  CHECK(w.ended);
  CHECK(w.ec);
  CHECK(w.done == 700);
  std::uint64_t read = 0;
  while (read != 700) {
    read += t.read(1000).done;
    t.settle();
  }
}
