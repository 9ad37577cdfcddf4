// SPDX-License-Identifier: BSL-1.0
// Operations of a global memory that wait for a place because others are in flight.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/alock.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace test::global_places_tests {
namespace {

using word = std::uint64_t;

constexpr remote_ptr<word> place(host_id, 0, 64);

global_memory_options at_most(std::size_t operations) {
  global_memory_options o;
  o.in_flight = operations;
  return o;
}

/// A handler that counts its calls.
struct told {
  auto handler() {
    return [this](error_code e, auto&&...) {
      ++calls;
      ec = e;
    };
  }
  int calls = 0;
  error_code ec;
};

bool all_told(const std::vector<told>& all) {
  return std::all_of(all.begin(), all.end(), [](const told& t) { return t.calls != 0; });
}

} // namespace

TEST_CASE("an operation that is cancelled while it waits for a place is not carried out") {
  world w(at_most(1));
  const auto total = asio::cancellation_type::total;
  asio::cancellation_signal stop;
  outcome<word> first, last;
  told cancelled;
  w.guest.async_read(place, first.handler());
  w.guest.async_write(place, 5, asio::bind_cancellation_slot(stop.slot(), cancelled.handler()));
  w.guest.async_read(place, last.handler());
  stop.emit(total);
  w.until([&] { return first.done() && last.done() && cancelled.calls != 0; });
  CHECK(cancelled.calls == 1);
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(first.succeeded());
  CHECK(last.succeeded());
  CHECK(last.value == 0);
  stop.emit(total); // no operation has this signal any more
  CHECK(w.read(place).value == 0);
  CHECK_THROWS_AS(global_memory(w.io, w.pool, 9, at_most(0)), system_error);
}

TEST_CASE("more operations than there are places are carried out in order, on any nodes") {
  const std::size_t places = GENERATE(1u, 3u);
  CAPTURE(places);
  world w(at_most(places));
  global_memory other(w.io, w.pool, 9);
  other.host(4096);
  other.listen({device_address(w.dev), 0});
  outcome<node_id> joined;
  w.guest.async_join(other.local_endpoint(), joined.handler());
  w.until([&] { return joined.done(); });
  REQUIRE(joined.value == 9);
  constexpr word count = 40;
  const auto of = [](word i, word n) {
    return remote_ptr<word>(i % 2 == 0 ? host_id : 9, 0, n);
  };
  std::vector<word> order;
  for (word i = 0; i < count; ++i)
    w.guest.async_write(of(i, 64), i, [&, i](error_code ec) {
      CHECK(!ec);
      order.push_back(i);
    });
  w.until([&] { return order.size() == count; });
  if (places == 1)
    CHECK(std::is_sorted(order.begin(), order.end()));
  for (const word last : {count - 2, count - 1})
    CHECK(w.read(of(last, 64)).value == last);
}

TEST_CASE("a lock is released behind the operations before it, though these wait for a place") {
  world w(at_most(1));
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<alock_words>();
  global_memory reads(w.io, w.pool, 9);
  REQUIRE(!w.join(reads).ec);
  alock lock(w.guest, at), of_other(reads, at);
  for (word round = 1; round <= 20; ++round) {
    auto held = w.ask<alock_guard>([&](auto h) { lock.async_lock(h); });
    REQUIRE(held.succeeded());
    std::vector<told> writes(10);
    for (word i = 0; i < writes.size(); ++i)
      w.guest.async_write(place + 100 + i, round, writes[i].handler());
    held.value.unlock();
    auto next = w.ask<alock_guard>([&](auto h) { of_other.async_lock(h); });
    REQUIRE(next.succeeded());
    for (word i = 0; i < writes.size(); ++i)
      CHECK(w.ask<word>([&](auto h) { reads.async_read(place + 100 + i, h); }).value == round);
    next.value.unlock();
    w.until([&] { return all_told(writes); });
  }
}

TEST_CASE("a lock is taken though operations on another node wait for places") {
  world w(at_most(1));
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<alock_words>();
  alock lock(w.guest, at);
  asio::io_context sleeping(1); // not run, so the node does not answer
  global_memory other(sleeping, w.pool, 9);
  other.host(segment_bytes);
  other.listen({device_address(w.dev), 0});
  outcome<node_id> joined;
  w.guest.async_join(other.local_endpoint(), joined.handler());
  while (!joined.done()) {
    sleeping.poll();
    w.io.poll();
    std::this_thread::yield();
  }
  REQUIRE(joined.value == 9);
  const remote_ptr<char> there(9, 0, 64);
  const std::vector<char> much(segment_bytes / 2);
  std::vector<told> writes(500);
  for (told& t : writes)
    w.guest.async_write(there, asio::buffer(much), visibility::flushed, t.handler());
  auto held = w.ask<alock_guard>([&](auto h) { lock.async_lock(h); });
  CHECK(held.succeeded());
  CHECK(writes.back().calls == 0);
  CHECK(!w.ask<void>([&](auto h) { lock.async_unlock(std::move(held.value), h); }).ec);
  CHECK(writes.back().calls == 0);
  w.until([&] { return all_told(writes); });
}

TEST_CASE("an operation that waits for a place needs no object of its initiation") {
  world w(at_most(1));
  const auto blocks = w.pool.statistics().blocks_in_use;
  const std::string text(3000, 'x');
  std::vector<told> all(5);
  std::array<word, 4> brought{};
  w.guest.async_read(place, all[0].handler());
  {
    std::vector<asio::const_buffer> parts{asio::buffer(text, 1000), asio::buffer(text, 500)};
    w.guest.async_write(place, parts, all[1].handler());
    registered_buffer memory = w.pool.allocate(64);
    std::fill_n(static_cast<char*>(memory.data()), 64, 'y');
    w.guest.async_write(place + 200, memory, all[2].handler());
    std::vector<asio::mutable_buffer> into{asio::buffer(&brought[0], 16),
                                           asio::buffer(&brought[2], 16)};
    w.guest.async_read(place + 200, into, all[3].handler());
    global_memory::batch b(w.guest, host_id);
    b.write(place + 300, 7);
    b.async_post(all[4].handler());
    told again;
    b.async_post(again.handler()); // the batch has not been posted to the device yet
    w.until([&] { return again.calls != 0; });
    CHECK(again.ec == asio::error::already_started);
  }
  w.until([&] { return all_told(all); });
  for (const told& t : all) {
    CHECK(t.calls == 1);
    CHECK(!t.ec);
  }
  const char* const there = reinterpret_cast<const char*>(w.host.local(place));
  CHECK(std::string(there, 1500) == text.substr(0, 1500));
  CHECK(std::string(there + 1600, 64) == std::string(64, 'y'));
  CHECK(brought[3] == 0x7979797979797979);
  CHECK(w.read(place + 300).value == 7); // is answered after the placement
  CHECK(*w.host.local(place + 300) == 7);
  w.until([&] { return w.pool.statistics().blocks_in_use <= blocks; });
}

TEST_CASE("operations that wait for a place end with the object, and with the node") {
  world w(at_most(2));
  global_memory other(w.io, w.pool, 9);
  other.host(4096);
  other.listen({device_address(w.dev), 0});
  outcome<node_id> joined;
  w.guest.async_join(other.local_endpoint(), joined.handler());
  w.until([&] { return joined.done(); });
  std::vector<told> going(30), staying(30);
  for (std::size_t i = 0; i < going.size(); ++i) {
    w.guest.async_read(place, going[i].handler());
    w.guest.async_read(remote_ptr<word>(9, 0, 64), staying[i].handler());
  }
  bool here = false;
  SECTION("the object is closed") { w.guest.close(); }
  SECTION("a node leaves") {
    here = true;
    w.host.close();
  }
  w.until([&] { return all_told(going) && all_told(staying); });
  for (std::size_t i = 0; i < going.size(); ++i) {
    CHECK(going[i].calls == 1);
    CHECK(staying[i].calls == 1);
    if (here)
      CHECK(!staying[i].ec);
    else
      CHECK((staying[i].ec == asio::error::operation_aborted || i == 0)); // it may have completed
  }
  CHECK(going.back().ec);
}

TEST_CASE("a context that is destroyed destroys the operations that wait for a place") {
  device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  const auto held = std::make_shared<int>(0);
  int calls = 0;
  {
    asio::io_context io(1);
    global_memory host(io, pool, host_id), guest(io, pool, guest_id, at_most(1));
    host.host(segment_bytes);
    host.listen({device_address(dev), 0});
    outcome<node_id> joined;
    guest.async_join(host.local_endpoint(), joined.handler());
    until(io, [&] { return joined.done(); });
    const bool closes = GENERATE(true, false);
    for (int i = 0; i < 20; ++i)
      guest.async_read(place, [&calls, held](error_code, word) { ++calls; });
    if (closes)
      guest.close();
  }
  CHECK(calls == 0);
  CHECK(held.use_count() == 1);
  CHECK(pool.statistics().blocks_in_use == 0);
}

} // namespace test::global_places_tests
