// SPDX-License-Identifier: BSL-1.0
// Peers that break the protocol of a global memory's nodes.
#include "device/global/global_rude.hpp"
#include "catch.hpp"
#include "global/global_guest.hpp"

#include <asio_rdma/alock.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace test::global_rude_tests {
namespace {

/// A party that a peer has put at the end of the remote queue of a lock without linking it.
struct unlinked {
  unlinked(rude& of_peer, remote_ptr<alock_words> at, const global_message& lent)
      : mine(detail::remote_word(99, 0, lent.value).bits()) {
    const auto& tail = *(of_peer.w.host.local(at.cast<nic_atomic<std::uint64_t>>()) + 1);
    before = tail.load();
    const auto swapped = of_peer.w.ask<std::uint64_t>([&](auto h) {
      of_peer.link.async_compare_and_swap(of_peer.word_at(at.offset() + sizeof tail), before, mine,
                                          h);
    });
    REQUIRE(swapped.succeeded());
    REQUIRE(swapped.value == before);
  }

  const std::uint64_t mine; // the descriptor
  std::uint64_t before = 0; // the descriptor of its predecessor
};

/// Options of a host that disconnects a peer without an introduction after a second.
global_memory_options impatient_host() {
  global_memory_options o;
  o.lanes.keep_alive = std::chrono::seconds(1);
  return o;
}

} // namespace

TEST_CASE("a peer that does not introduce itself gets no answer") {
  world w({}, impatient_host());
  for (const kind k : {kind::welcome, kind::refuse, kind::allocate, kind::allocated, kind::free,
                       kind::freed, kind::descriptors}) {
    CAPTURE(int(k));
    rude r(w);
    global_message m = of(k);
    m.node = 99;
    m.status = k == kind::refuse ? global_message::result::invalid : m.status;
    r.say(m);
    CHECK(!r.hear());
  }
  for (const auto& bytes : {std::vector<std::byte>(), std::vector<std::byte>(16),
                            std::vector<std::byte>(100000, std::byte(1))}) {
    rude r(w);
    r.say(bytes);
    CHECK(!r.hear());
  }
  CHECK(w.read(root_of(host_id)).succeeded());
}

TEST_CASE("a message longer than any of the protocol is not read") {
  world w({}, impatient_host());
  rude r(w);
  const std::vector<std::byte> much(64 << 20, std::byte(1));
  sent s;
  r.link.async_send(asio::buffer(much), s.handler());
  CHECK(!r.hear());
  w.until([&] { return s.done(); });
  CHECK(s.ec);
  CHECK(w.read(root_of(host_id)).succeeded());
}

TEST_CASE("a second introduction, or an answer to nothing, ends the connection") {
  world w;
  for (const kind k : {kind::join, kind::welcome, kind::refuse, kind::allocated, kind::freed}) {
    CAPTURE(int(k));
    rude r(w);
    r.join();
    global_message m = k == kind::join ? rude::hello() : of(k);
    m.node = 99;
    r.say(m);
    CHECK(!r.hear());
  }
  CHECK(w.read(root_of(host_id)).succeeded());
  CHECK(w.host.knows(99));
}

// All of them arrive before the host takes the first.
TEST_CASE("a node gets one refusal") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context of_host(1), of_peer(1);
  global_memory host(of_host, pool, host_id);
  host.listen({device_address(dev), 0});
  asio_rdma::connection link(of_peer, pool);
  asio_rdma::connector connector(of_peer);
  test::connection connected;
  connector.async_connect(link, host.local_endpoint(), connected.handler());
  until({&of_host, &of_peer}, [&] { return connected.done(); });
  global_message join = rude::hello();
  join.node = host_id; // and another incarnation
  const std::vector<std::byte> bytes = encode(join);
  constexpr int joins = 4;
  int said = 0;
  for (int i = 0; i < joins; ++i)
    link.async_send(asio::buffer(bytes), [&](error_code, std::size_t) { ++said; });
  until(of_peer, [&] { return said == joins; });
  int refusals = 0;
  for (;;) {
    outcome<message> heard;
    link.async_receive(heard.handler());
    until({&of_host, &of_peer}, [&] { return heard.done(); });
    if (heard.ec)
      break;
    ++refusals;
  }
  CHECK(refusals == 1);
}

TEST_CASE("requests with invalid values are answered with the error") {
  world w;
  rude r(w);
  r.join();
  const auto ask = [&](global_message m) {
    r.say(m);
    const auto answer = r.hear();
    REQUIRE(answer);
    CHECK(answer->id == 7);
    return answer->status;
  };
  using result = global_message::result;
  global_message m = of(kind::allocate);
  CHECK(ask(m) == result::ok);
  for (const std::uint64_t alignment : {std::uint64_t(0), std::uint64_t(3), UINT64_MAX}) {
    m.alignment = alignment;
    CHECK(ask(m) == result::invalid);
  }
  m = of(kind::allocate);
  m.segment = 1;
  CHECK(ask(m) == result::invalid);
  m = of(kind::allocate);
  m.value = UINT64_MAX;
  CHECK(ask(m) == result::no_memory);
  m = of(kind::descriptors);
  CHECK(ask(m) == result::ok);
  for (const std::uint64_t count : {std::uint64_t(0), std::uint64_t(1025), UINT64_MAX}) {
    m.value = count;
    CHECK(ask(m) == result::invalid);
  }
  m = of(kind::descriptors);
  m.segment = 1;
  CHECK(ask(m) == result::invalid);
  m = of(kind::free);
  m.value = 0; // the root
  CHECK(ask(m) == result::invalid);
  m.value = UINT64_MAX;
  CHECK(ask(m) == result::invalid);
  m = of(kind::descriptors);
  r.say(m);
  const auto lent = r.hear();
  REQUIRE(lent);
  m = of(kind::free);
  m.value = lent->value; // others may still write to it
  CHECK(ask(m) == result::invalid);
  CHECK(w.make<char>().offset() != 64); // the block is still the peer's
}

TEST_CASE("requests of a peer that takes no answers are not taken, and those of others are") {
  world w;
  connection_options options;
  options.receives = 5; // the host's answers soon wait for its peer
  rude r(w, options);
  r.join();
  constexpr std::size_t requests = 500;
  const auto bytes = encode(of(kind::allocate));
  std::vector<sent> sends(requests);
  for (sent& s : sends)
    r.link.async_send(asio::buffer(bytes), s.handler());
  const auto taken = [&] {
    return std::size_t(std::count_if(sends.begin(), sends.end(), [](auto& s) { return s.done(); }));
  };
  w.until([&] { return taken() >= 16; });
  for (int i = 0; i < 500; ++i) // in each of their turns the host could take one of the peer's
    w.make<char>();
  CHECK(taken() < 100); // 16 that are answered, and those in the host's receives
  for (std::size_t i = 0; i < requests; ++i) {
    const auto answer = r.hear();
    REQUIRE(answer);
    REQUIRE(answer->status == global_message::result::ok);
  }
  w.until([&] { return taken() == requests; });
}

TEST_CASE("a peer that sends nothing is disconnected") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  global_memory_options o;
  o.lanes.keep_alive = std::chrono::milliseconds(50);
  global_memory host(io, pool, host_id, o);
  host.listen({device_address(dev), 0});
  asio_rdma::connection link(io, pool);
  asio_rdma::connector connector(io);
  test::connection connected;
  connector.async_connect(link, host.local_endpoint(), connected.handler());
  until(io, [&] { return connected.done(); });
  REQUIRE(connected.succeeded());
  outcome<message> heard;
  link.async_receive(heard.handler());
  until(io, [&] { return heard.done(); });
  CHECK(heard.ec);
  CHECK(heard.ec != asio::error::operation_aborted);
}

TEST_CASE(
    "the next holder of a lock is notified by the lock's node, and need not receive the notice") {
  world w;
  rude waits(w), tells(w);
  waits.join();
  global_message other = rude::hello();
  other.node = 98;
  tells.say(other);
  REQUIRE(tells.hear());
  global_message m = of(kind::descriptors);
  m.value = 2;
  waits.say(m);
  const auto lent = waits.hear();
  REQUIRE(lent);
  REQUIRE(lent->what == kind::allocated);

  m = of(kind::wake);
  m.value = lent->value + sizeof(detail::alock_descriptor);
  tells.say(m);
  auto heard = waits.hear();
  REQUIRE(heard);
  CHECK(heard->what == kind::woken);
  CHECK(heard->segment == 0);
  CHECK(heard->value == m.value);

  // The descriptors of no party.
  for (const std::uint64_t value :
       {std::uint64_t(0), lent->value - 1, lent->value + 2 * sizeof(detail::alock_descriptor),
        max_segment_bytes - 1}) {
    m.value = value;
    tells.say(m);
  }
  m.value = lent->value;
  m.segment = 1;
  tells.say(m);
  // The descriptor of a peer that does not receive: its notices do not pile up.
  m.segment = 0;
  for (int i = 0; i < 300; ++i)
    tells.say(m);
  tells.say(of(kind::allocate)); // its answer shows that the host has received all
  REQUIRE(tells.hear());
  waits.say(of(kind::allocate));
  int told = 0;
  for (heard = waits.hear(); heard && heard->what == kind::woken; heard = waits.hear()) {
    CHECK(heard->value == lent->value);
    ++told;
  }
  CHECK(told > 0);
  CHECK(told < 200);
  REQUIRE(heard);
  CHECK(heard->what == kind::allocated);
}

TEST_CASE("a party that hands a lock over notifies its successor through the lock's node") {
  world w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<alock_words>();
  alock lock(w.guest, at);
  auto held = w.ask<alock_guard>([&](auto h) { lock.async_lock(h); });
  REQUIRE(held.succeeded());
  rude r(w);
  r.join();
  r.say(of(kind::descriptors));
  const auto lent = r.hear();
  REQUIRE(lent);
  const unlinked party(r, at, *lent);
  const auto linked = w.ask<std::size_t>([&](auto h) {
    r.link.async_write(asio::buffer(&party.mine, sizeof party.mine),
                       r.word_at(detail::remote_word(party.before).offset()), h);
  });
  REQUIRE(linked.succeeded());
  held.value.unlock();
  const auto heard = r.hear();
  REQUIRE(heard);
  CHECK(heard->what == kind::woken);
  CHECK(heard->value == lent->value);
  const auto* const descriptor =
      w.host.local(remote_ptr<detail::alock_descriptor>(host_id, 0, lent->value));
  CHECK(descriptor->turn.load() != 0); // written before the notice
}

TEST_CASE(
    "the next party for a lock dies before it has linked itself: the holder does not wait for it") {
  world w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<alock_words>();
  alock remote(w.guest, at), local(w.host, at);
  auto held = w.ask<alock_guard>([&](auto h) { remote.async_lock(h); });
  REQUIRE(held.succeeded());
  {
    rude r(w);
    r.join();
    r.say(of(kind::descriptors));
    const auto lent = r.hear();
    REQUIRE(lent);
    const unlinked party(r, at, *lent);
  }
  CHECK(w.ask<void>([&](auto h) { remote.async_unlock(std::move(held.value), h); }).ec ==
        error::owner_dead);
  CHECK(w.ask<alock_guard>([&](auto h) { local.async_lock(h); }).ec == error::owner_dead);
}

TEST_CASE("a notice of a lock that no party waits for is ignored; one beyond a segment ends the "
          "connection") {
  world w;
  rude r(w);
  r.join();
  for (const std::uint64_t value : {std::uint64_t(0), max_segment_bytes - 1}) {
    global_message m = of(kind::woken);
    m.value = value;
    r.say(m);
  }
  r.say(of(kind::allocate));
  CHECK(r.hear());
  global_message m = of(kind::woken);
  m.value = max_segment_bytes;
  r.say(m);
  CHECK(!r.hear());
}

TEST_CASE("atomic operations of a node whose device has none are not posted") {
  world w;
  rude r(w);
  r.join(); // its introduction says that it has no atomic operations
  const remote_ptr<nic_atomic<std::uint64_t>> p(99, 0, 0);
  const auto fetched = w.ask<std::uint64_t>([&](auto h) { w.host.async_fetch_add(p, 1, h); });
  CHECK(fetched.ec == asio::error::operation_not_supported);
  global_memory::batch b(w.host, 99);
  b.fetch_add(p, 1);
  CHECK(w.ask<void>([&](auto h) { b.async_post(h); }).ec == asio::error::operation_not_supported);
  r.say(of(kind::allocate)); // the connection is still open
  CHECK(r.hear());
}

TEST_CASE("a node's statement about its segments is believed, and its device refuses the access") {
  world w;
  rude r(w);
  r.join();
  const auto read = w.ask<std::uint64_t>(
      [&](auto h) { w.host.async_read(remote_ptr<std::uint64_t>(99, 0, 0), h); });
  CHECK(read.ec);
  CHECK(w.read(root_of(host_id)).succeeded());
}

TEST_CASE("descriptors that a node gives twice are a violation of the protocol") {
  world w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  constexpr std::size_t usual = 16, more = 4; // descriptors of one request
  constexpr std::uint64_t descriptors = 4096; // their offset, behind the lock
  memory segment(w.pool.get_protection_domain(), 16384, most_rights(w.dev));
  connection_options open_to_all;
  open_to_all.remote_memory.rights =
      access::remote_read | access::remote_write | access::remote_atomic;
  rude r(w, open_to_all);
  global_message hello = rude::hello();
  hello.atomics = w.dev.attributes().atomic_cap;
  hello.segments = {segment.remote()};
  r.say(hello);
  REQUIRE(r.hear());

  alock lock(w.host, remote_ptr<alock_words>(99, 0, 0));
  std::vector<outcome<alock_guard>> all(usual + more);
  for (auto& a : all)
    lock.async_lock(a.handler());
  for (int asked = 0; asked != 2; ++asked) {
    const auto request = r.hear();
    REQUIRE(request);
    REQUIRE(request->what == kind::descriptors);
    REQUIRE(request->value == usual);
    global_message answer = of(kind::allocated);
    answer.node = 99;
    answer.id = request->id;
    answer.value = descriptors;
    r.say(answer);
  }
  for (std::size_t i = usual; i != all.size(); ++i) {
    w.until([&] { return all[i].done(); });
    CHECK(all[i].ec == error::protocol_violation);
  }
  // The parties that have one of the descriptors continue.
  for (std::size_t left = usual; left != 0; --left) {
    const auto holder = [&] {
      return std::find_if(all.begin(), all.end(), [](const auto& a) { return bool(a.value); });
    };
    w.until([&] { return holder() != all.end(); });
    std::exchange(holder()->value, {}).unlock();
  }
  for (const auto& a : all)
    CHECK(a.calls == 1);
}

} // namespace test::global_rude_tests
