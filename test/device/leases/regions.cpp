// SPDX-License-Identifier: BSL-1.0
// Memory that is requested from the peer, and accesses to it.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/leases/lender.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <algorithm>

namespace test::regions_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

} // namespace

TEST_CASE("memory of the peer is requested, written, read and handed back") {
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

TEST_CASE("a region carries a tag to the peer, and one back") {
  lender t;
  const registered_buffer memory = t.pool.allocate(100);
  const auto form = GENERATE(range(0, 5));
  CAPTURE(form);
  constexpr std::uint64_t tag = 0x8000000100000002;
  outcome<void> lent, given;
  outcome<received_region> arrived, back;
  if (form == 0)
    t.b.async_send_region(memory, lent.handler());
  else if (form == 1)
    t.b.async_send_region(memory, tag, lent.handler());
  else if (form == 2)
    t.b.async_send_region(memory, access::remote_read, 1h, tag, lent.handler());
  else
    t.b.async_send_region(memory, 5, lent.handler());
  asio::cancellation_signal cancel;
  if (form == 4) { // the tag stays with the region
    outcome<received_region> cancelled;
    t.a.async_receive_region(asio::bind_cancellation_slot(cancel.slot(), cancelled.handler()));
    t.until([&] { return lent.done(); });
    cancel.emit(asio::cancellation_type::total);
    t.until([&] { return cancelled.done(); });
    if (!cancelled.ec) // it had arrived
      return;
  }
  t.a.async_receive_region(arrived.handler());
  t.until([&] { return lent.done() && arrived.done(); });
  REQUIRE(arrived.ec == error_code());
  CHECK(arrived.value.tag == (form == 0 ? 0 : form < 3 ? tag : 5));
  const auto region = std::get<remote_region>(arrived.value);
  CHECK(region.size() == 100);
  if (form == 0)
    t.a.async_send_region(region, given.handler());
  else
    t.a.async_send_region(region, tag + 1, given.handler());
  t.b.async_receive_region(back.handler());
  t.until([&] { return given.done() && back.done(); });
  REQUIRE(back.ec == error_code());
  CHECK(back.value.tag == (form == 0 ? 0 : tag + 1));
  CHECK(std::get<registered_buffer>(back.value).data() == memory.data());
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

TEST_CASE("memory that was handed back counts until the program receives it") {
  remote_memory_options m;
  m.bytes = 10000;
  m.grants = 2;
  const bool by_number = GENERATE(false, true);
  const std::uint64_t bytes = by_number ? 10 : 5000;
  lender t(m);
  const std::size_t before = t.in_use();
  const auto hand_back = [&] {
    outcome<void> given;
    t.a.async_send_region(t.request(bytes), given.handler());
    t.until([&] { return given.done(); });
    REQUIRE(given.ec == error_code());
  };
  hand_back();
  hand_back();
  CHECK(t.refusal(bytes) == error::remote_memory_limit);
  CHECK(t.in_use() == before + 2);
  for (int i = 0; i < 3; ++i) {
    const registered_buffer received = t.take_back(); // no longer counts, though it is kept here
    CHECK(received.size() == bytes);
    hand_back();
    CHECK(t.refusal(bytes) == error::remote_memory_limit);
  }
  arrival awaited; // a receive that waits gets the memory before a request is refused
  std::vector<registered_buffer> all{t.take_back(), t.take_back()};
  const remote_region first = t.request(bytes), second = t.request(bytes);
  t.b.async_receive_region(awaited.handler());
  outcome<void> given;
  t.a.async_send_region(first, given.handler());
  t.until([&] { return given.done(); });
  const remote_region third = t.request(bytes);
  t.until([&] { return awaited.done(); });
  CHECK(awaited.succeeded());
  CHECK(t.refusal(bytes) == error::remote_memory_limit);
  CHECK(t.lives());
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

} // namespace test::regions_tests
