// SPDX-License-Identifier: BSL-1.0
// Remote memory: asked for, lent, handed back, renewed, released and taken back.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <variant>

namespace {

using namespace test;
using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

using region_outcome = outcome<remote_region>;
using arrival = outcome<std::variant<registered_buffer, remote_region>>;

constexpr access read_write = access::remote_read | access::remote_write;

connection_options giving(remote_memory_options m) {
  connection_options o;
  o.remote_memory = m;
  return o;
}

remote_memory_options megabyte() {
  remote_memory_options m;
  m.bytes = 1 << 20;
  return m;
}

/// A talk in which a may use memory of b.
struct lender : talk {
  explicit lender(const remote_memory_options& m = megabyte()) : talk({}, giving(m)) {
    b.async_receive_immediate(idle.handler());
  }

  remote_region request(std::uint64_t bytes, access rights = read_write,
                        std::chrono::microseconds lease = 0us) {
    region_outcome r;
    a.async_request_memory(bytes, rights, lease, r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    return r.value;
  }
  error_code refusal(std::uint64_t bytes, access rights = read_write) {
    region_outcome r;
    a.async_request_memory(bytes, rights, r.handler());
    until([&] { return r.done(); });
    CHECK(!r.value.is_open());
    return r.ec;
  }
  template <class Remote>
  error_code write(std::string_view text, const Remote& to) {
    sent s;
    a.async_write(asio::buffer(text), to, s.handler());
    until([&] { return s.done(); });
    return s.ec;
  }
  template <class Remote>
  std::string read(std::size_t bytes, const Remote& from) {
    std::string text(bytes, '?');
    sent s;
    a.async_read(asio::buffer(text), from, s.handler());
    until([&] { return s.done(); });
    return s.ec ? s.ec.message() : text;
  }
  registered_buffer take_back() {
    arrival r;
    b.async_receive_region(r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    return std::get<registered_buffer>(r.value);
  }
  remote_region lend(const registered_buffer& memory, access rights,
                     std::chrono::microseconds lease = std::chrono::microseconds::max()) {
    outcome<void> s;
    arrival r;
    b.async_send_region(memory, rights, lease, s.handler());
    a.async_receive_region(r.handler());
    until([&] { return s.done() && r.done(); });
    REQUIRE(s.ec == error_code());
    REQUIRE(r.ec == error_code());
    return std::get<remote_region>(r.value);
  }
  /// Whether messages go both ways.
  bool lives() {
    sent s[2];
    outcome<message> r[2];
    a.async_send(asio::buffer("to b"), s[0].handler());
    b.async_receive(r[0].handler());
    b.async_send(asio::buffer("to a"), s[1].handler());
    a.async_receive(r[1].handler());
    until([&] { return s[0].done() && r[0].done() && s[1].done() && r[1].done(); });
    return s[0].succeeded() && r[0].succeeded() && s[1].succeeded() && r[1].succeeded();
  }
  /// Uses the region's key, which must have ended. The device refuses, so the connection ends.
  template <class Start>
  void refused_by_device(Start&& start) {
    outcome<void> ended;
    sent s;
    a.async_wait_disconnect(ended.handler());
    start(s);
    until([&] { return s.done() && ended.done(); });
    CHECK(ended.ec);
    if (dev.type() != transport::iwarp) // there a write is not acknowledged
      CHECK(s.ec == make_error_code(IBV_WC_REM_ACCESS_ERR));
  }
  std::size_t in_use() const { return pool.statistics().blocks_in_use; }

  outcome<std::uint32_t> idle; ///< Keeps the context at work during waits that are no work.
  void wait(std::chrono::steady_clock::time_point until_then) {
    asio::steady_timer timer(io, until_then);
    bool over = false;
    timer.async_wait([&](error_code) { over = true; });
    until([&] { return over; });
  }
};

std::string text_of(const registered_buffer& b, std::size_t offset, std::size_t bytes) {
  return {static_cast<const char*>(b.data()) + offset, bytes};
}

bool all_are(const registered_buffer& b, char c) {
  const auto* p = static_cast<const char*>(b.data());
  return std::all_of(p, p + b.size(), [c](char x) { return x == c; });
}

/// Allocates the freed memory again, so that a write to it is noticed.
std::vector<registered_buffer> occupy(const memory_pool& pool, std::size_t bytes) {
  std::vector<registered_buffer> result;
  for (int i = 0; i < 8; ++i) {
    result.push_back(pool.allocate(bytes));
    std::memset(result.back().data(), '#', bytes);
  }
  return result;
}

} // namespace

TEST_CASE("memory of the peer is asked for, written, read and handed back") {
  lender t;
  const std::size_t before = t.in_use();
  {
    const remote_region r = t.request(8192);
    CHECK(r.size() == 8192);
    CHECK(r.rights() == read_write);
    CHECK(r.deadline() > std::chrono::steady_clock::now());
    CHECK(t.in_use() == before + 1);
    CHECK(t.read(4, r) == std::string(4, '\0'));
    CHECK(!t.write("second half", r.slice(4096)));
    CHECK(t.read(11, r.slice(4096)) == "second half");
    outcome<void> given;
    t.a.async_send_region(r, given.handler());
    const registered_buffer back = t.take_back();
    t.until([&] { return given.done(); });
    CHECK(given.ec == error_code());
    REQUIRE(back.size() == 8192);
    CHECK(text_of(back, 4096, 11) == "second half");
    CHECK(back.try_write_access());
    CHECK(t.write("late", r) == error::lease_expired);
    CHECK(r.deadline() == std::chrono::steady_clock::time_point::min());
    CHECK(t.lives());
  }
  CHECK(t.in_use() == before);
}

// The owner ends the key when it is notified. siw looks up the memory of each READ when it begins
// to answer.
TEST_CASE("reads of a region complete though the region is released, or handed back, meanwhile") {
  const bool hands_back = GENERATE(false, true);
  constexpr std::size_t bytes = 100'000, count = 8;
  lender t;
  remote_region r = t.request(bytes);
  const registered_buffer there = filled(t.pool, bytes, 5);
  sent wrote;
  t.a.async_write(there, r, wrote.handler());
  t.until([&] { return wrote.done(); });
  REQUIRE(wrote.succeeded());
  std::vector<sent> reads(count);
  std::vector<registered_buffer> into;
  for (sent& s : reads) {
    into.push_back(t.pool.allocate(bytes));
    t.a.async_read(into.back(), r, s.handler());
  }
  outcome<void> handed;
  if (hands_back)
    t.a.async_send_region(r, handed.handler());
  else
    r.reset();
  t.until([&] {
    return std::all_of(reads.begin(), reads.end(), [](const sent& s) { return s.done(); }) &&
           (!hands_back || handed.done());
  });
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(reads[i].succeeded());
    CHECK(is_pattern(into[i].data(), bytes, 5));
  }
  CHECK(handed.ec == error_code());
  CHECK(t.lives());
}

TEST_CASE("slices of remote memory: reversed, empty, one past the end, overlapping") {
  lender t;
  const remote_region r = t.request(100);
  error_code ec;
  CHECK(!r.slice(60, std::uint64_t(-20), ec).is_open()); // from 60 to 40
  CHECK(ec == errc::result_out_of_range);
  CHECK(!r.slice(101, ec).is_open());
  CHECK(ec == errc::result_out_of_range);
  CHECK(!r.slice(1, 100, ec).is_open());
  CHECK(ec == errc::result_out_of_range);
  CHECK_THROWS_AS(r.slice(0, 101), system_error);
  const remote_region empty = r.slice(100, ec);
  CHECK(!ec);
  CHECK(empty.size() == 0);
  CHECK(!t.write("", empty));
  CHECK(t.write("x", empty) == error::remote_range);
  CHECK(t.write("12345678901", r.slice(90)) == error::remote_range);
  CHECK(!t.write("aaaa", r.slice(10, 4))); // remote ranges have no owner here, so they may overlap
  CHECK(!t.write("bbbb", r.slice(12, 4)));
  CHECK(t.read(6, r.slice(10).slice(0, 6)) == "aabbbb");
  CHECK(t.lives());
}

TEST_CASE("rights are checked before anything is posted") {
  lender t;
  const remote_region readable = t.request(64, access::remote_read);
  const remote_region writable = t.request(64, access::remote_write);
  CHECK(t.write("x", readable) == error::rights_refused);
  CHECK(t.read(1, writable) == make_error_code(error::rights_refused).message());
  outcome<std::uint64_t> atomic;
  t.a.async_fetch_add(readable, 1, atomic.handler());
  t.until([&] { return atomic.done(); });
  CHECK((atomic.ec == error::rights_refused || atomic.ec == asio::error::operation_not_supported));
  CHECK(t.read(1, readable) == std::string(1, '\0'));
  CHECK(!t.write("x", writable));
  CHECK(t.lives());
}

TEST_CASE("atomic operations on remote memory") {
  remote_memory_options m = megabyte();
  m.rights = read_write | access::remote_atomic;
  lender t(m);
  if (!t.dev.has_atomics()) {
    CHECK(t.refusal(64, access::remote_atomic) == error::rights_refused);
    CHECK(t.lives());
    return;
  }
  const remote_region r = t.request(64, read_write | access::remote_atomic);
  outcome<std::uint64_t> added, again, misaligned;
  t.a.async_fetch_add(r.slice(8), 5, added.handler());
  t.a.async_compare_and_swap(r.slice(8), 5, 6, again.handler());
  t.a.async_fetch_add(r.slice(9), 5, misaligned.handler());
  t.until([&] { return added.done() && again.done() && misaligned.done(); });
  CHECK(added.succeeded());
  CHECK(added.value == 0);
  CHECK(again.succeeded());
  CHECK(again.value == 5);
  CHECK(misaligned.ec == error::misaligned);
  CHECK(t.lives());
}

TEST_CASE("the owner refuses with a reason, and gives again when there is room") {
  remote_memory_options m;
  m.bytes = 10000;
  m.grants = 2;
  m.rights = access::remote_write;
  lender t(m);
  CHECK(t.refusal(64) == error::rights_refused);
  CHECK(t.refusal(10001, access::remote_write) == error::remote_memory_limit);
  CHECK(t.refusal(0, access::remote_write) == asio::error::invalid_argument);
  CHECK(t.refusal(10, access::local_read) == asio::error::invalid_argument);
  std::optional<remote_region> first = t.request(9000, access::remote_write);
  CHECK(t.refusal(1001, access::remote_write) == error::remote_memory_limit);
  const remote_region second = t.request(1000, access::remote_write);
  CHECK(t.refusal(0x7000000000000000, access::remote_write) == error::remote_memory_limit);
  first.reset();
  const remote_region third = t.request(9000, access::remote_write);
  CHECK(t.refusal(1, access::remote_write) == error::remote_memory_limit);
  CHECK(t.lives());

  m.bytes = 100'000; // leaves the limit of grants
  lender two(m);
  const remote_region one = two.request(10, access::remote_write);
  const remote_region other = two.request(10, access::remote_write);
  CHECK(two.refusal(10, access::remote_write) == error::remote_memory_limit);
  CHECK(two.lives());

  lender none{remote_memory_options()};
  CHECK(none.refusal(1) == error::remote_memory_limit);
  CHECK(none.lives());
}

TEST_CASE("an access to memory that is the owner's again is refused by the device") {
  enum class kind { released, revoked, expired };
  const auto how = GENERATE(kind::released, kind::revoked, kind::expired);
  const bool reads = GENERATE(false, true);
  CAPTURE(static_cast<int>(how), reads);
  remote_memory_options m = megabyte();
  m.grace = 1ms;
  lender t(m);
  const registered_buffer text = t.pool.allocate(64);
  std::memset(text.data(), '!', text.size());
  const std::size_t before = t.in_use();
  remote_region r = t.request(4096, read_write, how == kind::expired ? 50ms : 0us);
  const remote_buffer key = r.buffer();
  if (how == kind::released) {
    r.reset();
  } else if (how == kind::revoked) {
    CHECK(t.b.revoke() == 1);
    CHECK(t.in_use() == before);
    CHECK(t.lives()); // a has received the notice
    CHECK(t.write("x", r) == error::lease_revoked);
  }
  t.until([&] { return t.in_use() == before; });
  const auto others = occupy(t.pool, 4096);
  REQUIRE(std::any_of(others.begin(), others.end(), [&](const registered_buffer& b) {
    return reinterpret_cast<std::uint64_t>(b.data()) == key.address;
  }));
  t.refused_by_device([&](sent& s) {
    if (reads)
      t.a.async_read(text, key, s.handler());
    else
      t.a.async_write(text, key, s.handler());
  });
  for (const registered_buffer& b : others)
    CHECK(all_are(b, '#'));
  CHECK(all_are(text, '!'));
}

TEST_CASE("an access beyond the granted range or rights is refused by the device") {
  enum class kind { before, behind, rights }; // `before`, `behind`: by one byte
  const auto how = GENERATE(kind::before, kind::behind, kind::rights);
  const bool reads = GENERATE(false, true);
  CAPTURE(static_cast<int>(how), reads);
  lender t;
  if (how == kind::rights && reads && t.dev.type() == transport::iwarp)
    return test::not_on_this_device("siw does not ask for this right");
  const registered_buffer text = t.pool.allocate(64), all = t.pool.allocate(4096);
  std::memset(text.data(), '!', text.size());
  std::memset(all.data(), '#', all.size());
  const remote_region r = t.lend(all.slice(1000, 500), how != kind::rights ? read_write
                                                       : reads             ? access::remote_write
                                                                           : access::remote_read);
  remote_buffer key = r.buffer().first(64);
  if (how == kind::before)
    key.address -= 1;
  else if (how == kind::behind)
    key.address += 500 - 63;
  t.refused_by_device([&](sent& s) {
    if (reads)
      t.a.async_read(text, key, s.handler());
    else
      t.a.async_write(text, key, s.handler());
  });
  CHECK(all_are(all, '#'));
  CHECK(all_are(text, '!'));
}

TEST_CASE("a lease ends here first, then at the owner, and its memory is free") {
  remote_memory_options m = megabyte();
  m.grace = 100ms;
  lender t(m);
  const std::size_t before = t.in_use();
  const remote_region r = t.request(4096, read_write, 50ms);
  const auto deadline = r.deadline();
  CHECK(!t.write("in time", r));
  t.wait(deadline);
  CHECK(t.write("late", r) == error::lease_expired);
  CHECK(t.lives());
  t.until([&] { return t.in_use() == before; });
  const auto others = occupy(t.pool, 4096);
  const registered_buffer text = t.pool.allocate(64);
  t.refused_by_device([&](sent& s) { t.a.async_write(text, r.buffer(), s.handler()); });
  for (const registered_buffer& b : others)
    CHECK(all_are(b, '#'));
}

TEST_CASE("a lease is renewed, up to the owner's limit") {
  remote_memory_options m = megabyte();
  m.default_lease = 200ms;
  m.longest_lease = 10min;
  lender t(m);
  const remote_region r = t.request(4096);
  const auto first = r.deadline();
  CHECK(first <= std::chrono::steady_clock::now() + 200ms);
  outcome<void> renewed;
  t.a.async_renew(r, 1h, renewed.handler());
  t.until([&] { return renewed.done(); });
  CHECK(renewed.ec == error_code());
  CHECK(r.deadline() > first + 9min);
  CHECK(r.deadline() <= std::chrono::steady_clock::now() + 10min);
  t.wait(first);
  CHECK(!t.write("still mine", r));

  const remote_region other = t.request(64);
  t.b.revoke();
  CHECK(t.lives());
  outcome<void> late;
  t.a.async_renew(other, 1s, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec == error::lease_revoked);
}

TEST_CASE("memory that is lent: for reading, for writing, taken back, handed back") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  std::memcpy(memory.data(), "lent", 4);
  std::optional<remote_region> r = t.lend(memory.slice(0, 500), access::remote_read);
  CHECK(r->size() == 500);
  CHECK(r->deadline() == std::chrono::steady_clock::time_point::max());
  CHECK(t.read(4, *r) == "lent");
  CHECK(t.write("x", *r) == error::rights_refused);
  CHECK(memory.try_read_access());
  CHECK(!memory.try_write_access());
  CHECK(memory.slice(500).try_write_access());
  r.reset(); // releases it
  bool free = false;
  memory.async_write_access(t.io.get_executor(), [&](error_code ec, buffer_access) { free = !ec; });
  t.until([&] { return free; });

  r = t.lend(memory, read_write);
  CHECK(!memory.try_read_access());
  outcome<void> in_use;
  t.b.async_send_region(memory, in_use.handler());
  t.until([&] { return in_use.done(); });
  CHECK(in_use.ec == error::buffer_in_use);
  CHECK(!t.write("from a", *r));
  CHECK(t.b.revoke(t.pool.allocate(10)) == 0);
  CHECK(t.b.revoke(memory.slice(999)) == 1);
  CHECK(memory.try_write_access());
  CHECK(text_of(memory, 0, 6) == "from a");
  CHECK(t.lives());
  CHECK(t.write("x", *r) == error::lease_revoked);

  r = t.lend(memory, read_write);
  CHECK(!t.write("again", *r));
  outcome<void> given;
  t.a.async_send_region(*r, given.handler());
  const registered_buffer back = t.take_back();
  CHECK(back.shares_memory_with(memory));
  CHECK(text_of(back, 0, 5) == "again");
  CHECK(back.try_write_access());
  CHECK(t.lives());
}

TEST_CASE("memory that is lent for a time") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const remote_region r = t.lend(memory, access::remote_write, 5min);
  CHECK(r.deadline() > std::chrono::steady_clock::now() + 4min);
  CHECK(r.deadline() <= std::chrono::steady_clock::now() + 5min);
  CHECK(!t.write("x", r));
  outcome<void> wrong;
  t.b.async_send_region(memory, access::local_read, wrong.handler());
  t.until([&] { return wrong.done(); });
  CHECK(wrong.ec == asio::error::invalid_argument);
}

TEST_CASE("a region of another connection is of no use") {
  lender t, other;
  const remote_region r = other.request(64);
  CHECK(t.write("x", r) == asio::error::invalid_argument);
  CHECK(t.write("x", remote_region()) == asio::error::invalid_argument);
  outcome<void> given, renewed;
  t.a.async_send_region(r, given.handler());
  t.a.async_renew(r, 1s, renewed.handler());
  t.until([&] { return given.done() && renewed.done(); });
  CHECK(given.ec == asio::error::invalid_argument);
  CHECK(renewed.ec == asio::error::invalid_argument);
  CHECK(t.lives());
}

TEST_CASE("a cancelled request leaves nothing at the owner, a cancelled receive loses nothing") {
  lender t;
  const std::size_t before = t.in_use();
  asio::cancellation_signal cancel;
  region_outcome request;
  t.a.async_request_memory(4096, asio::bind_cancellation_slot(cancel.slot(), request.handler()));
  cancel.emit(asio::cancellation_type::total);
  t.until([&] { return request.done(); });
  CHECK(request.ec == asio::error::operation_aborted);
  CHECK(t.lives());
  t.until([&] { return t.in_use() == before; });

  arrival receive, all;
  t.a.async_receive_region(asio::bind_cancellation_slot(cancel.slot(), receive.handler()));
  t.a.async_receive_region(all.handler());
  cancel.emit(asio::cancellation_type::partial);
  t.a.cancel();
  t.until([&] { return receive.done() && all.done(); });
  CHECK(receive.ec == asio::error::operation_aborted);
  CHECK(all.ec == asio::error::operation_aborted);
  const registered_buffer memory = t.pool.allocate(64);
  CHECK(t.lend(memory, access::remote_read).size() == 64);
}

TEST_CASE("every wait ends with the connection, and all memory returns") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const std::size_t before = t.in_use();
  const remote_region r = t.request(4096);
  const remote_region lent = t.lend(memory, read_write);
  arrival waiting, at_peer;
  t.a.async_receive_region(waiting.handler());
  t.b.async_receive_region(at_peer.handler());
  const bool orderly = GENERATE(false, true);
  outcome<void> closed_a, closed_b;
  if (orderly) {
    t.a.async_close(closed_a.handler());
    t.b.async_close(closed_b.handler());
    t.until([&] { return closed_a.done() && closed_b.done(); });
    CHECK(closed_a.ec == error_code());
    CHECK(closed_b.ec == error_code());
  } else {
    t.a.close();
  }
  t.until([&] { return waiting.done() && at_peer.done(); });
  CHECK(waiting.ec == asio::error::operation_aborted);
  CHECK(at_peer.ec);
  t.until([&] { return static_cast<bool>(memory.try_write_access()); });
  region_outcome late;
  t.b.async_request_memory(64, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec);
  CHECK(r.deadline() == std::chrono::steady_clock::time_point::min());
  t.a.close();
  t.b.close();
  t.until([&] { return t.in_use() < before; });
}

TEST_CASE("a grant that is revoked while the connection is about to end is revoked at once") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const remote_region lent = t.lend(memory, read_write);
  std::string view(200000, 'x'); // is posted, so only terminal cancels it
  const registered_buffer large = t.pool.allocate(view.size());
  memory_region target(t.pd, view.data(), view.size(), most_rights(t.dev));
  asio::cancellation_signal cancel;
  sent s;
  outcome<void> ended;
  t.b.async_wait_disconnect(ended.handler());
  t.b.async_write(const_buffer(large.data(), large.size(), large.lkey()), target.remote(),
                  asio::bind_cancellation_slot(cancel.slot(), s.handler()));
  cancel.emit(asio::cancellation_type::terminal);
  CHECK(t.b.revoke(memory) == 1);
  CHECK(memory.try_write_access());
  t.until([&] { return s.done() && ended.done(); });
  CHECK(ended.ec == asio::error::operation_aborted);
}

TEST_CASE("a lease does not keep an idle context running") {
  lender t;
  const remote_region r = t.request(64, read_write, 10min);
  t.b.cancel();
  t.io.restart();
  t.io.run(); // returns, as there is no work
  CHECK(t.lives());
}
