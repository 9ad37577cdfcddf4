// SPDX-License-Identifier: BSL-1.0
// Operations of a connection on memory of the peer.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/connection/connection_reach.hpp"
#include "device/connection/connection_support.hpp"
#include "interposer/faults.hpp"

#include <algorithm>
#include <utility>

namespace test::connection_remote_tests {
TEST_CASE("registered, viewed and plain memory is written to the peer and read back") {
  reach t;
  for (const std::size_t bytes : {std::size_t(1), std::size_t(64), std::size_t(200000)}) {
    CAPTURE(bytes);
    const auto plain = pattern(bytes, 1);
    const registered_buffer owned = t.filled(bytes, 2);
    const registered_buffer viewed = t.filled(bytes, 3);
    sent written[3];
    t.a.async_write(asio::buffer(plain), t.target.remote(), written[0].handler());
    t.until([&] { return written[0].done(); });
    CHECK(t.placed());
    CHECK(is_pattern(t.target.data(), bytes, 1));
    t.a.async_write(owned, t.target.remote(), written[1].handler());
    t.until([&] { return written[1].done(); });
    CHECK(t.placed());
    CHECK(is_pattern(t.target.data(), bytes, 2));
    t.a.async_write(const_buffer(viewed), t.target.remote(), written[2].handler());
    t.until([&] { return written[2].done(); });
    CHECK(t.placed());
    CHECK(is_pattern(t.target.data(), bytes, 3));
    for (const sent& w : written) {
      CHECK(w.succeeded());
      CHECK(w.value == bytes);
    }

    std::vector<std::uint8_t> to_plain(bytes);
    const registered_buffer to_owned = t.pool.allocate(bytes), to_viewed = t.pool.allocate(bytes);
    sent read[3];
    t.a.async_read(asio::buffer(to_plain), t.target.remote(), read[0].handler());
    t.a.async_read(to_owned, t.target.remote(), read[1].handler());
    t.a.async_read(mutable_buffer(to_viewed), t.target.remote(), read[2].handler());
    t.until([&] { return read[0].done() && read[1].done() && read[2].done(); });
    for (const sent& r : read) {
      CHECK(r.succeeded());
      CHECK(r.value == bytes);
    }
    CHECK(is_pattern(to_plain.data(), bytes, 3));
    CHECK(is_pattern(to_owned.data(), bytes, 3));
    CHECK(is_pattern(to_viewed.data(), bytes, 3));
  }
}

TEST_CASE("scattered memory, registered or not, and none at all") {
  reach t;
  const auto plain = pattern(3000, 5);
  sent w;
  t.a.async_write(std::array{asio::buffer(plain.data(), 1000), asio::buffer(&plain[1000], 2000)},
                  t.target.remote(16), w.handler());
  t.until([&] { return w.done(); });
  CHECK(w.succeeded());
  CHECK(t.placed());
  CHECK(is_pattern(t.target.data() + 16, 3000, 5));

  const registered_buffer all = t.pool.allocate(4000);
  std::vector<std::uint8_t> first(1200), second(1800);
  sent r, p;
  t.a.async_read(std::array{mutable_buffer(all.slice(3300, 700)), mutable_buffer(all.first(2300))},
                 t.target.remote(16), r.handler());
  t.a.async_read(std::array{asio::buffer(first), asio::buffer(second)}, t.target.remote(16),
                 p.handler());
  t.until([&] { return r.done() && p.done(); });
  CHECK(r.succeeded());
  CHECK(p.succeeded());
  CHECK(std::equal(plain.begin(), plain.begin() + 700,
                   static_cast<const std::uint8_t*>(all.slice(3300).data())));
  CHECK(std::equal(first.begin(), first.end(), plain.begin()));
  CHECK(std::equal(second.begin(), second.end(), plain.begin() + 1200));

  sent none;
  t.a.async_write(registered_buffer(), t.target.remote(), none.handler());
  t.until([&] { return none.done(); });
  CHECK(none.succeeded());
  CHECK(none.value == 0);
}

TEST_CASE("a peer that is read from learns no key by which it may write") {
  reach t;
  faults::injector faults(t.dev.native_handle());
  const registered_buffer into = t.pool.allocate(1000), other = t.filled(1000, 7);
  const auto source = pattern(1000, 5);
  std::copy(source.begin(), source.end(), t.target.data());
  sent read, written;
  outcome<void> ended;
  t.a.async_read(into, t.target.remote(), read.handler());
  const std::uint32_t told = faults.counts().last_send_key; // on iWARP
  t.until([&] { return read.done(); });
  REQUIRE(read.succeeded());
  const std::uint32_t of_pool = const_buffer(into).lkey();
  CHECK((told != of_pool || t.dev.type() != transport::iwarp));
  const bool by_pool = GENERATE(false, true);
  const registered_buffer& to = by_pool ? other : into;
  t.a.async_wait_disconnect(ended.handler());
  t.b.async_write(
      asio::buffer(pattern(1000, 3)),
      remote_buffer{reinterpret_cast<std::uintptr_t>(to.data()), 1000, by_pool ? of_pool : told},
      written.handler());
  t.until([&] { return written.done() && ended.done(); });
  CHECK(is_pattern(other.data(), 1000, 7));
  CHECK(is_pattern(into.data(), 1000, 5));
}

TEST_CASE("a write with immediate data is there when the data is") {
  reach t;
  constexpr std::uint32_t count = 300; // more than the receives
  sent written[count];
  outcome<std::uint32_t> told[count];
  std::vector<registered_buffer> sources;
  for (std::uint32_t i = 0; i < count; ++i) {
    sources.push_back(t.filled(512, i));
    t.a.async_write(sources.back(), t.target.remote(i * 512, 512), i * 7, written[i].handler());
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    t.b.async_receive_immediate(told[i].handler());
    t.until([&] { return told[i].done(); });
    REQUIRE(told[i].succeeded());
    CHECK(told[i].value == i * 7);
    CHECK(is_pattern(t.target.data() + i * 512, 512, i));
  }
  t.until([&] { return std::all_of(written, written + count, [](auto& w) { return w.done(); }); });
  for (const sent& w : written) {
    CHECK(w.succeeded());
    CHECK(w.value == 512);
  }
}

TEST_CASE("a write with the device's immediate data is no message, whichever frame the receive had "
          "before") {
  connection_options few;
  few.receives = 8;
  reach t(few, few);
  if (t.dev.type() == transport::iwarp)
    return not_on_this_device("no immediate data");
  const std::string text(64, 'm');
  for (std::uint32_t i = 0; i < few.receives; ++i) { // so that each receive has been used once
    sent s, r;
    std::string into(text.size(), ' ');
    t.a.async_send(asio::buffer(text), s.handler());
    t.b.async_receive(asio::buffer(into), r.handler());
    t.until([&] { return s.done() && r.done(); });
    REQUIRE(into == text);
  }
  outcome<message> waiting;
  outcome<void> ended;
  t.b.async_receive(waiting.handler());
  t.b.async_wait_disconnect(ended.handler());
  ibv_sge from{};
  from.addr = reinterpret_cast<std::uintptr_t>(t.target.data());
  from.length = static_cast<std::uint32_t>(16 + text.size()); // the length of such a frame
  from.lkey = t.target.region.lkey();
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.sg_list = &from;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = t.target.remote().address;
  wr.wr.rdma.rkey = t.target.remote().rkey;
  REQUIRE(ibv_post_send(t.a.impl()->target_queue_pair()->native_handle(), &wr, &bad) == 0);
  t.until([&] { return waiting.done() && ended.done(); });
  CHECK(waiting.ec == error::protocol_violation);
  CHECK(ended.ec == error::protocol_violation);
}

TEST_CASE("immediate data and messages are received independently") {
  reach t;
  sent w;
  outcome<std::uint32_t> told;
  t.a.async_write(asio::buffer("x", 1), t.target.remote(), 9u, w.handler());
  CHECK(t.lives());
  t.b.async_receive_immediate(told.handler());
  t.until([&] { return told.done() && w.done(); });
  CHECK(told.succeeded());
  CHECK(told.value == 9);
}

TEST_CASE("atomic operations of a connection report the old value") {
  reach t;
  outcome<std::uint64_t> swapped, missed, added, misaligned, narrow;
  t.target.put_word(8, 40);
  if (!t.has_atomics()) {
    t.a.async_fetch_add(t.target.remote(8), 1, added.handler());
    t.until([&] { return added.done(); });
    CHECK(added.ec == asio::error::operation_not_supported);
    CHECK(t.lives());
    return;
  }
  t.a.async_compare_and_swap(t.target.remote(8), 40, 50, swapped.handler());
  t.a.async_compare_and_swap(t.target.remote(8), 40, 60, missed.handler());
  t.a.async_fetch_add(t.target.remote(8), 2, added.handler());
  t.until([&] { return swapped.done() && missed.done() && added.done(); });
  CHECK(swapped.succeeded());
  CHECK(swapped.value == 40);
  CHECK(missed.succeeded());
  CHECK(missed.value == 50);
  CHECK(added.succeeded());
  CHECK(added.value == 50);
  CHECK(t.target.word(8) == 52);

  t.a.async_fetch_add(t.target.remote(4), 2, misaligned.handler());
  t.a.async_fetch_add(t.target.remote(8, 7), 2, narrow.handler());
  t.until([&] { return misaligned.done() && narrow.done(); });
  CHECK(misaligned.ec == error::misaligned);
  CHECK(narrow.ec == error::remote_range);
  CHECK(t.target.word(8) == 52);
  CHECK(t.lives());
}

TEST_CASE("an operation that does not fit is not posted, and the connection lives") {
  reach t;
  const registered_buffer b = t.pool.allocate(100);
  sent w, r;
  t.a.async_write(b, t.target.remote(0, 99), w.handler());
  t.a.async_read(b, t.target.remote(0, 99), r.handler());
  t.until([&] { return w.done() && r.done(); });
  CHECK(w.ec == error::remote_range);
  CHECK(r.ec == error::remote_range);
  CHECK(b.try_write_access());
  std::array<mutable_buffer, 5> parts;
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i] = b.slice(i, 1);
  sent many;
  t.a.async_write(parts, t.target.remote(), many.handler());
  t.until([&] { return many.done(); });
  CHECK(many.ec == error::too_many_buffers);
  CHECK(t.lives());
}

TEST_CASE("a buffer is in use while an operation has it") {
  reach t;
  const registered_buffer b = t.filled(100000, 1);
  sent written, again, read, other;
  t.a.async_write(b, t.target.remote(), written.handler());
  t.a.async_write(b, t.target.remote(), again.handler()); // both operations only read it
  t.a.async_read(b.slice(99999), t.target.remote(), read.handler());
  t.a.async_read(t.pool.allocate(10), t.target.remote(), other.handler());
  CHECK(b.try_read_access());
  CHECK(!b.try_write_access());
  t.until([&] { return written.done() && again.done() && read.done() && other.done(); });
  CHECK(written.succeeded());
  CHECK(again.succeeded());
  CHECK(read.ec == error::buffer_in_use);
  CHECK(other.succeeded());
  CHECK(b.try_write_access());

  sent first;
  t.a.async_read(b, t.target.remote(), first.handler());
  CHECK(!b.try_read_access());
  t.until([&] { return first.done(); });
  CHECK(first.succeeded());
}

TEST_CASE("the last owner of a user's memory may close the connection") {
  reach t;
  constexpr std::size_t bytes = 200000;
  bool freed = false;
  std::shared_ptr<char[]> memory(new char[bytes](), [&](char* p) {
    delete[] p;
    t.a.close();
    freed = true;
  });
  memory_region region(t.pd, memory.get(), bytes);
  registered_buffer b(std::move(region), std::move(memory));
  sent done, received;
  outcome<std::variant<registered_buffer, remote_region>> lent;
  const int what = GENERATE(0, 1, 2, 3);
  CAPTURE(what);
  if (what == 0) {
    t.a.async_write(std::exchange(b, {}), t.target.remote(), done.handler());
  } else if (what == 1) {
    t.a.async_send(std::exchange(b, {}), done.handler());
    t.b.async_receive(asio::buffer(t.target.data(), bytes), received.handler());
    t.until([&] { return received.done(); });
    CHECK(received.succeeded());
  } else if (what == 2) {
    t.a.async_receive(std::exchange(b, {}), received.handler());
    t.b.async_send(asio::buffer("short"), done.handler());
    t.until([&] { return received.done(); });
    CHECK(received.succeeded());
  } else {
    outcome<void> lends;
    t.a.async_send_region(std::exchange(b, {}), access::remote_read, lends.handler());
    t.b.async_receive_region(lent.handler());
    t.until([&] { return lends.done() && lent.done(); });
    CHECK(!freed);
    CHECK(t.a.revoke() == 1);
    t.until([&] { return freed; });
    return;
  }
  t.until([&] { return done.done() && freed; });
  CHECK(done.succeeded());
}

TEST_CASE("a buffer that waits for a message is kept, and in use") {
  reach t;
  std::optional<registered_buffer> b = t.filled(1000, 1);
  const registered_buffer busy = t.filled(1000, 1);
  const std::size_t in_use = t.pool.statistics().bytes_in_use;
  sent received, refused, written, sent_it;
  t.a.async_write(busy, t.target.remote(), written.handler());
  t.a.async_receive(busy, refused.handler());
  t.until([&] { return written.done() && refused.done(); });
  CHECK(written.succeeded());
  CHECK(refused.ec == error::buffer_in_use);

  t.b.async_receive(*b, received.handler());
  CHECK(!b->try_read_access());
  b.reset();
  CHECK(t.pool.statistics().bytes_in_use == in_use);
  t.a.async_send(asio::buffer("still here"), sent_it.handler());
  t.until([&] { return received.done() && sent_it.done(); });
  CHECK(received.succeeded());
  CHECK(received.value == 11);
  t.until([&] { return t.pool.statistics().bytes_in_use < in_use; });
}

TEST_CASE("an eleventh operation on a queue of ten works") {
  connection_options o;
  o.queue_pair.send_depth = 10;
  reach t(o);
  sent s[40];
  const registered_buffer b = t.filled(512, 1);
  for (std::size_t i = 0; i < 40; ++i)
    t.a.async_write(b, t.target.remote(i * 512), s[i].handler());
  t.until([&] { return std::all_of(s, s + 40, [](auto& w) { return w.done(); }); });
  CHECK(t.placed());
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK(s[i].succeeded());
    CHECK(is_pattern(t.target.data() + i * 512, 512, 1));
  }
}

} // namespace test::connection_remote_tests
