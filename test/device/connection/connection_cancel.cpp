// SPDX-License-Identifier: BSL-1.0
// Sends and receives of messages that are cancelled, at each stage.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string_view>
#include <variant>

namespace {

using namespace test;

constexpr std::size_t eager = 600, lengthy = 100'000; // neither is copied into the frame's memory

asio::cancellation_type any_type() {
  return GENERATE(asio::cancellation_type::partial, asio::cancellation_type::total,
                  asio::cancellation_type::terminal);
}

/// A message to be sent from memory of one kind.
struct letter {
  enum class kind { plain, owned, view };

  letter(talk& t, kind k, std::size_t bytes, std::uint32_t s)
      : what(k), seed(s), plain(pattern(bytes, s)), owned(filled(t.pool, bytes, s)) {}

  void send(talk& t) {
    auto h = asio::bind_cancellation_slot(cancel.slot(), result.handler());
    if (what == kind::plain)
      t.a.async_send(asio::buffer(plain), h);
    else if (what == kind::owned)
      t.a.async_send(owned, h);
    else
      t.a.async_send(const_buffer(owned), h);
  }
  /// Overwrites a plain message. Call it when the message has been cancelled.
  void overwrite() { std::fill(plain.begin(), plain.end(), std::uint8_t(0xee)); }

  kind what;
  std::uint32_t seed;
  std::vector<std::uint8_t> plain;
  registered_buffer owned;
  asio::cancellation_signal cancel;
  sent result;
};

letter::kind any_kind() {
  return GENERATE(letter::kind::plain, letter::kind::owned, letter::kind::view);
}

/// Receives as many messages as there are seeds, and compares them.
void expect(talk& t, const std::vector<std::pair<std::size_t, std::uint32_t>>& messages) {
  for (const auto& [bytes, seed] : messages) {
    CAPTURE(bytes, seed);
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    REQUIRE(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, seed));
  }
}

void send(talk& t, std::size_t bytes, std::uint32_t seed, sent& s) {
  t.a.async_send(asio::buffer(pattern(bytes, seed)), s.handler());
}

void wait_for_frames(talk& t, std::uint64_t more) {
  const std::uint64_t before = t.b.statistics().frames_received;
  t.until([&] { return t.b.statistics().frames_received >= before + more; });
}

/// A wait for a message, into memory of one kind.
struct taker {
  enum class kind { owning, plain, owned, view };

  taker(talk& t, kind k) : what(k), plain(lengthy), owned(t.pool.allocate(lengthy)) {}

  void receive(talk& t) {
    const auto slot = cancel.slot();
    if (what == kind::owning)
      t.b.async_receive(asio::bind_cancellation_slot(slot, whole.handler()));
    else if (what == kind::plain)
      t.b.async_receive(asio::buffer(plain), asio::bind_cancellation_slot(slot, size.handler()));
    else if (what == kind::owned)
      t.b.async_receive(owned, asio::bind_cancellation_slot(slot, size.handler()));
    else
      t.b.async_receive(mutable_buffer(owned), asio::bind_cancellation_slot(slot, size.handler()));
  }
  bool done() const { return whole.done() || size.done(); }
  int calls() const { return whole.calls + size.calls; }
  error_code ec() const { return whole.done() ? whole.ec : size.ec; }
  std::size_t bytes() const { return whole.done() ? whole.value.size() : size.value; }
  const void* data() const {
    return whole.done()          ? whole.value.payload.data()
           : what == kind::plain ? plain.data()
                                 : owned.data();
  }
  bool has(std::size_t n, std::uint32_t seed) const {
    return calls() == 1 && !ec() && bytes() == n && is_pattern(data(), n, seed);
  }

  kind what;
  std::vector<std::uint8_t> plain;
  registered_buffer owned;
  asio::cancellation_signal cancel;
  outcome<message> whole;
  sent size;
};

taker::kind any_taker() {
  return GENERATE(taker::kind::owning, taker::kind::plain, taker::kind::owned, taker::kind::view);
}

} // namespace

// --- Receives --------------------------------------------------------------------------------

TEST_CASE("a receive that is cancelled before anything comes takes nothing") {
  talk t;
  const auto type = any_type();
  taker cancelled(t, any_taker()), other(t, taker::kind::owning);
  const std::size_t bytes = GENERATE(eager, lengthy);
  cancelled.receive(t);
  other.receive(t);
  CHECK(in_use(cancelled.owned) == (cancelled.what == taker::kind::owned));
  cancelled.cancel.emit(type);
  t.until([&] { return cancelled.done(); });
  CHECK(cancelled.ec() == asio::error::operation_aborted);
  CHECK(!in_use(cancelled.owned));
  sent s;
  send(t, bytes, 1, s);
  t.until([&] { return other.done() && s.done(); });
  CHECK(other.has(bytes, 1));
  CHECK(cancelled.calls() == 1);
  CHECK(t.lives());
}

TEST_CASE("a receive that is cancelled while its message is being read takes nothing") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    taker cancelled(t, any_taker());
    taker other(t, GENERATE(taker::kind::owning, taker::kind::owned));
    sent s, behind;
    send(t, lengthy, 1, s);
    send(t, eager, 2, behind);
    wait_for_frames(t, 2);
    const bool both = GENERATE(false, true);
    cancelled.receive(t); // posts the READ, whose completion is polled when the context runs
    if (both)
      other.receive(t);
    cancelled.cancel.emit(type);
    t.until([&] { return cancelled.done(); });
    CHECK(cancelled.ec() == asio::error::operation_aborted);
    if (!both)
      other.receive(t);
    t.until([&] { return other.done() && s.done() && behind.done(); });
    CHECK(other.has(lengthy, 1));
    CHECK(s.succeeded());
    CHECK(behind.succeeded());
    expect(t, {{eager, 2}});
    CHECK(cancelled.calls() == 1);
    t.until([&] { return !in_use(cancelled.owned); });
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("cancelled receives in the middle of several leave the others in order") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    std::deque<taker> takers;
    std::deque<sent> sends;
    const unsigned which =
        GENERATE(0b000001u, 0b000010u, 0b001000u, 0b010101u, 0b101010u, 0b011110u);
    const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::terminal);
    const taker::kind kind = any_taker();
    CAPTURE(which, static_cast<int>(type), static_cast<int>(kind));
    constexpr std::uint32_t count = 6;
    const auto size_of = [](std::uint32_t n) {
      return n % 4 == 3 ? eager : lengthy - n;
    };
    for (std::uint32_t i = 0; i < count; ++i)
      send(t, size_of(i), i, sends.emplace_back());
    wait_for_frames(t, count);
    for (std::uint32_t i = 0; i < count; ++i)
      takers.emplace_back(t, kind).receive(t);
    for (std::uint32_t i = 0; i < count; ++i)
      if ((which >> i & 1) != 0)
        takers[i].cancel.emit(type);
    t.until([&] {
      return std::all_of(takers.begin(), takers.end(), [](const taker& x) { return x.done(); });
    });
    std::uint32_t next = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      CAPTURE(i, next);
      // A receive whose message was already complete is not cancelled: it has its message.
      if ((which >> i & 1) != 0 && takers[i].ec()) {
        CHECK(takers[i].ec() == asio::error::operation_aborted);
        CHECK(takers[i].calls() == 1);
      } else {
        CHECK(takers[i].has(size_of(next), next));
        ++next;
      }
    }
    for (; next < count; ++next)
      expect(t, {{size_of(next), next}});
    t.until([&] {
      return std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.done(); });
    });
    CHECK(std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.succeeded(); }));
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("cancel ends every wait, and nothing is lost") {
  talk t;
  const memory target(t.pd, 4096, most_rights(t.dev));
  REQUIRE(t.lives());
  taker waits(t, any_taker());
  outcome<message> second;
  outcome<std::uint32_t> immediate, told;
  outcome<std::variant<registered_buffer, remote_region>> region, lent;
  sent s, goes_on, written;
  t.b.async_send(asio::buffer(pattern(lengthy, 5)), goes_on.handler()); // a send is no wait
  send(t, lengthy, 1, s);
  wait_for_frames(t, 1);
  waits.receive(t); // its message is being read
  t.b.async_receive(second.handler());
  t.b.async_receive_immediate(immediate.handler());
  t.b.async_receive_region(region.handler());
  t.b.cancel();
  t.until([&] { return waits.done() && second.done() && immediate.done() && region.done(); });
  CHECK(waits.ec() == asio::error::operation_aborted);
  CHECK(second.ec == asio::error::operation_aborted);
  CHECK(immediate.ec == asio::error::operation_aborted);
  CHECK(region.ec == asio::error::operation_aborted);
  expect(t, {{lengthy, 1}});
  outcome<message> at_a;
  outcome<void> lends;
  t.a.async_receive(at_a.handler());
  t.a.async_write(asio::buffer("x", 1), target.remote(), 7u, written.handler());
  t.a.async_send_region(t.pool.allocate(64), lends.handler());
  t.b.async_receive_immediate(told.handler());
  t.b.async_receive_region(lent.handler());
  t.until([&] {
    return s.done() && at_a.done() && goes_on.done() && told.done() && lent.done() &&
           written.done() && lends.done();
  });
  CHECK(s.succeeded());
  CHECK(goes_on.succeeded());
  CHECK(at_a.succeeded());
  CHECK(told.value == 7);
  CHECK(lent.succeeded());
}

// --- Sends -----------------------------------------------------------------------------------

TEST_CASE("a send that waits for the peer's receives is taken back") {
  connection_options few;
  few.receives = 8;
  talk t({}, few);
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    letter victim(t, any_kind(), GENERATE(eager, lengthy), 99);
    const bool later = GENERATE(false, true);
    std::array<sent, 10> before;
    sent behind;
    for (std::uint32_t i = 0; i < before.size(); ++i)
      send(t, 100, i, before[i]);
    victim.send(t);
    send(t, lengthy, 50, behind);
    if (later)
      t.until([&] { return t.a.statistics().credit_waits != 0 && before[0].done(); });
    CHECK(in_use(victim.owned) == (victim.what == letter::kind::owned));
    victim.cancel.emit(type);
    victim.overwrite();
    CHECK(!in_use(victim.owned));
    t.until([&] { return victim.result.done(); });
    CHECK(victim.result.ec == asio::error::operation_aborted);
    for (std::uint32_t i = 0; i < before.size(); ++i)
      expect(t, {{100, i}});
    expect(t, {{lengthy, 50}});
    t.until([&] {
      return behind.done() &&
             std::all_of(before.begin(), before.end(), [](const sent& s) { return s.done(); });
    });
    CHECK(behind.succeeded());
    CHECK(std::all_of(before.begin(), before.end(), [](const sent& s) { return s.succeeded(); }));
    CHECK(victim.result.calls == 1);
  }
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("a send that has begun arrives; where the library keeps its memory it ends at once, but "
          "by total") {
  talk t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  {
    const auto type = any_type();
    const letter::kind kind = GENERATE(letter::kind::plain, letter::kind::owned);
    const std::size_t bytes = GENERATE(eager, lengthy);
    enum class stage { posted, there, being_read };
    const stage when = GENERATE(stage::posted, stage::there, stage::being_read);
    CAPTURE(static_cast<int>(type), static_cast<int>(kind), bytes, static_cast<int>(when));
    letter victim(t, kind, bytes, 99);
    sent before, behind;
    outcome<message> first, second;
    send(t, 100, 1, before);
    victim.send(t);
    send(t, 100, 2, behind);
    if (when != stage::posted)
      t.until([&] { return behind.done(); }); // an eager victim completes too
    t.b.async_receive(first.handler());
    if (when == stage::being_read)
      t.b.async_receive(second.handler());
    victim.cancel.emit(type);
    const bool was_complete = bytes == eager && when != stage::posted;
    const bool goes_on = was_complete || type == asio::cancellation_type::total;
    CHECK(in_use(victim.owned) == (kind == letter::kind::owned && !was_complete));
    if (!goes_on) {
      t.until([&] { return victim.result.done(); });
      CHECK(victim.result.ec == asio::error::operation_aborted);
    }
    victim.overwrite();
    if (when != stage::being_read)
      t.b.async_receive(second.handler());
    t.until([&] { return first.done() && second.done(); });
    REQUIRE(second.succeeded());
    REQUIRE(second.value.size() == bytes);
    CHECK(is_pattern(second.value.payload.data(), bytes, 99));
    expect(t, {{100, 2}});
    t.until([&] { return before.done() && behind.done() && !in_use(victim.owned); });
    CHECK(before.succeeded());
    CHECK(behind.succeeded());
    t.until([&] { return victim.result.done(); });
    CHECK((victim.result.succeeded() || !goes_on));
    CHECK(victim.result.calls == 1);
  }
  CHECK(t.lives());
  // A copy is kept until the peer has acknowledged reading it. That wait is no work.
  const auto work = asio::make_work_guard(t.io);
  t.until([&] { return t.pool.statistics().blocks_in_use == blocks; });
}

TEST_CASE("a view that is being sent continues, or ends with the connection") {
  talk t;
  REQUIRE(t.lives());
  const auto type = any_type();
  const std::size_t bytes = GENERATE(eager, lengthy);
  const bool there = GENERATE(false, true);
  CAPTURE(static_cast<int>(type), bytes, there);
  letter victim(t, letter::kind::view, bytes, 99);
  sent behind;
  outcome<message> r;
  outcome<void> ended, ended_there;
  t.a.async_wait_disconnect(ended.handler());
  t.b.async_wait_disconnect(ended_there.handler());
  victim.send(t);
  send(t, 100, 2, behind);
  if (there && bytes == lengthy) {
    t.until([&] { return behind.done(); });
    t.b.async_receive(r.handler());
  }
  victim.cancel.emit(type);
  if (type != asio::cancellation_type::terminal) {
    if (!there || bytes == eager)
      t.b.async_receive(r.handler());
    t.until([&] { return victim.result.done() && r.done(); });
    CHECK(victim.result.succeeded());
    REQUIRE(r.succeeded());
    CHECK(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, 99));
    expect(t, {{100, 2}});
    CHECK(t.lives());
    CHECK(!ended.done());
    return;
  }
  t.until(
      [&] { return victim.result.done() && behind.done() && ended.done() && ended_there.done(); });
  CHECK(victim.result.calls == 1);
  // The device may have completed before the cancellation.
  CHECK((!victim.result.ec || victim.result.ec == asio::error::operation_aborted));
  CHECK((!behind.ec || behind.ec == asio::error::operation_aborted));
  CHECK(ended.ec == asio::error::operation_aborted);
  CHECK(ended_there.ec == asio::error::connection_reset);
  // The message arrives whole, or not at all.
  if (!r.done()) {
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
  }
  if (!r.ec && r.value.size() == bytes)
    CHECK(is_pattern(r.value.payload.data(), bytes, 99));
  else if (!r.ec)
    CHECK(is_pattern(r.value.payload.data(), 100, 2));
}

// --- Both, at random -------------------------------------------------------------------------

namespace {

/// Sends and receives, some of which are cancelled soon after their start.
class unsteady {
public:
  explicit unsteady(std::uint32_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 6; ++i) {
      send();
      receive();
    }
    t_.until([this] { return sends_over_ == count && receiving_ == 0; });
    // A message whose send succeeded has arrived; a cancelled one may have.
    for (std::uint32_t n = 0; n < count; ++n) {
      CAPTURE(n);
      CHECK((!succeeded_[n] || arrived_[n]));
    }
  }
  std::uint32_t wrong = 0, cancelled_sends = 0, cancelled_receives = 0, arrived = 0;
  std::size_t blocks() const { return t_.pool.statistics().blocks_in_use; }
  talk& both() { return t_; }

private:
  static constexpr std::uint32_t count = 1500;

  static std::size_t size_of(std::uint32_t n) {
    return 4 + (n % 5 == 4 ? n * 97 % 60'000 : n * 31 % 3000);
  }

  void sometime(asio::cancellation_signal& s) {
    if (random_() % 2 != 0)
      return s.emit(random_() % 2 == 0 ? asio::cancellation_type::partial
                                       : asio::cancellation_type::total);
    asio::post(t_.io, [this, &s] { sometime(s); });
  }

  void send() {
    if (next_ == count)
      return;
    const std::uint32_t n = next_++;
    letter& l = letters_.emplace_back(t_, static_cast<letter::kind>(random_() % 3), size_of(n), n);
    std::memcpy(l.plain.data(), &n, 4);
    std::memcpy(l.owned.data(), &n, 4);
    const auto h = [this, n, &l](error_code ec, std::size_t) {
      succeeded_[n] = !ec;
      cancelled_sends += ec ? 1u : 0u;
      wrong += ec && ec != asio::error::operation_aborted ? 1u : 0u;
      l.plain.clear();
      l.owned = {};
      ++sends_over_;
      send();
      if (sends_over_ == count)
        t_.a.async_close([](error_code) {});
    };
    auto bound = asio::bind_cancellation_slot(l.cancel.slot(), h);
    if (l.what == letter::kind::plain)
      t_.a.async_send(asio::buffer(l.plain), bound);
    else if (l.what == letter::kind::owned)
      t_.a.async_send(l.owned, bound);
    else
      t_.a.async_send(const_buffer(l.owned), bound);
    if (random_() % 3 == 0)
      sometime(l.cancel);
  }

  void receive() {
    ++receiving_;
    taker& k = takers_.emplace_back(t_, static_cast<taker::kind>(random_() % 4));
    const auto over = [this, &k](error_code ec, const void* data, std::size_t bytes) {
      --receiving_;
      if (ec) {
        ++cancelled_receives;
        wrong += ec != asio::error::operation_aborted && ec != asio::error::eof ? 1u : 0u;
      } else {
        take(static_cast<const std::uint8_t*>(data), bytes);
      }
      k.owned = {};
      k.plain.clear();
      if (ec != asio::error::eof)
        receive();
    };
    const auto slot = k.cancel.slot();
    const auto into = [over](const void* data) {
      return [over, data](error_code ec, std::size_t n) {
        over(ec, data, n);
      };
    };
    if (k.what == taker::kind::owning)
      t_.b.async_receive(asio::bind_cancellation_slot(
          slot, [over](error_code ec, const message& m) { over(ec, m.payload.data(), m.size()); }));
    else if (k.what == taker::kind::plain)
      t_.b.async_receive(asio::buffer(k.plain),
                         asio::bind_cancellation_slot(slot, into(k.plain.data())));
    else if (k.what == taker::kind::owned)
      t_.b.async_receive(k.owned, asio::bind_cancellation_slot(slot, into(k.owned.data())));
    else
      t_.b.async_receive(mutable_buffer(k.owned),
                         asio::bind_cancellation_slot(slot, into(k.owned.data())));
    if (random_() % 3 == 0)
      sometime(k.cancel);
  }

  void take(const std::uint8_t* data, std::size_t bytes) {
    std::uint32_t n = count;
    if (bytes >= 4)
      std::memcpy(&n, data, 4);
    const bool right = n < count && n >= expected_ && bytes == size_of(n) &&
                       std::equal(data + 4, data + bytes, pattern(bytes, n).begin() + 4);
    wrong += right ? 0u : 1u;
    if (!right)
      return;
    expected_ = n + 1;
    arrived_[n] = true;
    ++arrived;
  }

  std::mt19937 random_;
  talk t_;
  std::list<letter> letters_;
  std::list<taker> takers_;
  std::array<bool, count> succeeded_{}, arrived_{};
  std::uint32_t next_ = 0, sends_over_ = 0, receiving_ = 0, expected_ = 0;
};

} // namespace

TEST_CASE("messages arrive whole and in order, with any cancellations") {
  const auto seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  unsteady u(seed);
  u.run();
  CHECK(u.wrong == 0);
  CHECK(u.cancelled_sends > 20);
  CHECK(u.cancelled_receives > 20);
  u.both().a.close();
  u.both().b.close();
  drain(u.both().io);
  CHECK(u.blocks() == 0); // though the signals still exist
}
