// SPDX-License-Identifier: BSL-1.0
// Messages that the receiver does not accept, for which it has no memory, or for which a waiting
// receive has no room.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "link/credits.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <string_view>

namespace test::connection_limits_tests {
namespace {

connection_options limited(std::uint64_t most) {
  connection_options o;
  o.max_message = most;
  return o;
}

/// Sends a pattern from plain memory, a registered buffer or a view of one.
struct sources {
  void send(talk& t, int how, std::size_t bytes, std::uint32_t seed, sent& s) {
    if (how == 0)
      return t.a.async_send(asio::buffer(pattern(bytes, seed)), s.handler());
    buffers.push_back(filled(t.pool, bytes, seed));
    if (how == 1)
      t.a.async_send(buffers.back(), s.handler());
    else
      t.a.async_send(const_buffer(buffers.back()), s.handler());
  }
  bool free() const {
    return std::none_of(buffers.begin(), buffers.end(), [](auto& b) { return in_use(b); });
  }
  std::deque<registered_buffer> buffers;
};

constexpr auto is_done = [](const auto& o) {
  return o.done();
};

} // namespace

TEST_CASE("a connection is a reliable one, and reads one long message at a time at least") {
  connection_options o;
  o.queue_pair.type = IBV_QPT_UC;
  {
    asio::io_context io(1);
    asio_rdma::connection c(io);
    error_code ec;
    c.open(memory_pool(protection_domain(open_device())), o, ec);
    CHECK(ec == asio::error::invalid_argument);
    CHECK_FALSE(c.is_open());
  }
  o.queue_pair.type = IBV_QPT_RC;
  o.pulls = 0;
  talk t(o, o);
  const auto bytes = pattern(100'000, 1);
  sent s;
  outcome<message> r;
  t.a.async_send(asio::buffer(bytes), s.handler());
  t.b.async_receive(r.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(is_pattern(r.value.payload.data(), r.value.size(), 1));
}

TEST_CASE("a message over the peer's limit is refused, and those around it arrive") {
  constexpr std::size_t most = 100'000;
  connection_options options = limited(most);
  options.max_receive_size = 0; // so the number of blocks does not depend on the messages
  talk t({}, options);
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  const bool waits = GENERATE(false, true); // the receive is started before the send
  const int how = GENERATE(0, 1, 2);
  CAPTURE(waits, how);
  constexpr std::array<std::size_t, 8> sizes{5, most + 1, 300, most, 4 * most, most + 1, 9000, 0};
  std::array<sent, sizes.size()> sends;
  std::array<outcome<message>, 5> taken;
  {
    sources from;
    const auto take = [&] {
      for (auto& r : taken)
        t.b.async_receive(r.handler());
    };
    if (waits)
      take();
    for (std::uint32_t i = 0; i < sizes.size(); ++i)
      from.send(t, how, sizes[i], i, sends[i]);
    if (!waits) {
      t.until([&] { return sends[1].done() && sends[4].done() && sends[5].done(); });
      take();
    }
    t.until([&] {
      return std::all_of(sends.begin(), sends.end(), is_done) &&
             std::all_of(taken.begin(), taken.end(), is_done);
    });
    CHECK(from.free());
  }
  std::size_t next = 0;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(i);
    if (sizes[i] > most) {
      CHECK(sends[i].ec == error::peer_message_limit);
      CHECK(sends[i].ec == errc::message_size);
      continue;
    }
    CHECK(sends[i].succeeded());
    const outcome<message>& r = taken[next++];
    CHECK(r.succeeded());
    CHECK(r.value.size() == sizes[i]);
    CHECK(is_pattern(r.value.payload.data(), r.value.size(), i));
  }
  taken = {};
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("a limit below the size of the receives holds, too") {
  talk t({}, limited(100));
  CHECK(t.b.options().receive_size == 116);
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  sent just, over;
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.a.async_send(asio::buffer(pattern(101, 1)), over.handler());
  t.a.async_send(asio::buffer(pattern(100, 2)), just.handler());
  t.until([&] { return over.done() && just.done() && r.done(); });
  CHECK(over.ec == error::peer_message_limit);
  CHECK(just.succeeded());
  REQUIRE(r.succeeded());
  CHECK(r.value.size() == 100);
  CHECK(is_pattern(r.value.payload.data(), 100, 2));
  r = {};
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("a message that the receiver has no memory for is refused, and the connection lives") {
  memory_pool_options small;
  small.limit = std::size_t(4) << 20;
  talk t({}, {}, small);
  const memory own(t.pd, std::size_t(8) << 20, access::local_write);
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  sent too_much, ok;
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.a.async_send(const_buffer(own.buffer()), too_much.handler());
  t.a.async_send(asio::buffer(pattern(50'000, 3)), ok.handler());
  t.until([&] { return too_much.done() && ok.done() && r.done(); });
  CHECK(too_much.ec == error::peer_out_of_memory); // not that of this side
  CHECK(too_much.ec == errc::not_enough_memory);
  CHECK(ok.succeeded());
  REQUIRE(r.succeeded());
  CHECK(r.value.size() == 50'000);
  CHECK(is_pattern(r.value.payload.data(), r.value.size(), 3));
  r = {};
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("long messages take a part of the pool only") {
  memory_pool_options of_pool;
  of_pool.limit = 128 << 20;
  connection_options options;
  options.max_receive_size = 0;
  SECTION("of which the receiver has a part") {
    constexpr std::size_t bytes = 1 << 20, count = 16;
    options.pulls = count;
    options.pull_bytes = 3 * bytes;
    talk t(options, options, of_pool);
    const test::memory own(t.pd, bytes, access::local_write);
    const std::uint64_t idle = t.pool.statistics().bytes_in_use;
    std::array<sent, count> sends;
    std::size_t arrived = 0;
    for (std::size_t i = 0; i < count; ++i)
      t.b.async_receive([&](const error_code& ec, const message& m) {
        CHECK(!ec);
        CHECK(m.size() == bytes);
        // Besides, the first message may be read, and messages have ended whose handlers wait.
        CHECK(t.pool.statistics().bytes_in_use - idle <= options.pull_bytes + 6 * bytes);
        ++arrived;
      });
    for (sent& s : sends)
      t.a.async_send(const_buffer(own.buffer()), s.handler());
    t.until([&] { return arrived == count && std::all_of(sends.begin(), sends.end(), is_done); });
    CHECK(std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.succeeded(); }));
  }
  SECTION("so a longer one is refused, unless its receive has memory") {
    options.pull_bytes = 1 << 20;
    talk t(options, options, of_pool);
    const auto longer = pattern((1 << 20) + 1, 2);
    sent refused, taken, received;
    outcome<message> none;
    asio::cancellation_signal stop;
    t.b.async_receive(asio::bind_cancellation_slot(stop.slot(), none.handler()));
    t.a.async_send(asio::buffer(longer), refused.handler());
    t.until([&] { return refused.done(); });
    CHECK(refused.ec == error::peer_out_of_memory);
    stop.emit(asio::cancellation_type::total);
    t.until([&] { return none.done(); });
    const registered_buffer into = t.pool.allocate(longer.size());
    t.b.async_receive(into, received.handler());
    t.a.async_send(asio::buffer(longer), taken.handler());
    t.until([&] { return taken.done() && received.done(); });
    CHECK(taken.succeeded());
    REQUIRE(received.succeeded());
    CHECK(is_pattern(into.data(), longer.size(), 2));
  }
  SECTION("and an eighth of the limit is left for other links") {
    options.pull_bytes = of_pool.limit;
    talk t(options, options, of_pool);
    std::vector<registered_buffer> mine; // all but a quarter
    while (t.pool.statistics().bytes_in_use < of_pool.limit / 4 * 3)
      mine.push_back(t.pool.allocate(4 << 20));
    const test::memory own(t.pd, 24 << 20, access::local_write);
    sent refused;
    outcome<message> none;
    t.b.async_receive(none.handler());
    t.a.async_send(const_buffer(own.buffer()), refused.handler());
    t.until([&] { return refused.done(); });
    CHECK(refused.ec == error::peer_out_of_memory);
    asio_rdma::connection another(t.io);
    error_code ec;
    another.open(t.pool, options, ec);
    CHECK(!ec);
    sent small;
    t.a.async_send(asio::buffer("small", 5), small.handler());
    t.until([&] { return small.done() && none.done(); });
    CHECK(none.succeeded());
  }
}

TEST_CASE("short messages have a part of the pool that longer ones leave") {
  memory_pool_options of_pool;
  of_pool.limit = 128 << 20;
  connection_options options;
  options.max_receive_size = 0;
  talk t(options, options, of_pool);
  std::vector<registered_buffer> mine; // more than long messages may use
  while (t.pool.statistics().bytes_in_use < of_pool.limit / 8 * 7)
    mine.push_back(t.pool.allocate(1 << 20));
  const auto passes = [&](std::size_t bytes) {
    const test::memory own(t.pd, bytes, access::local_write);
    asio::cancellation_signal stop;
    sent s;
    outcome<message> r;
    t.b.async_receive(asio::bind_cancellation_slot(stop.slot(), r.handler()));
    t.a.async_send(const_buffer(own.buffer()), s.handler());
    t.until([&] { return s.done(); });
    CHECK((!s.ec || s.ec == error::peer_out_of_memory));
    if (s.ec)
      stop.emit(asio::cancellation_type::total);
    t.until([&] { return r.done(); });
    return !s.ec;
  };
  CHECK_FALSE(passes((1 << 20) + 1));
  CHECK(passes(1 << 20));
  CHECK(passes(300'000));
  while (t.pool.statistics().bytes_in_use < of_pool.limit / 16 * 15)
    mine.push_back(t.pool.allocate(1 << 20));
  CHECK_FALSE(passes(300'000));
  CHECK(passes(1 << 17));
  CHECK(passes(50'000));
}

TEST_CASE("a message longer than the buffers that wait for it is still there") {
  talk t;
  const std::size_t bytes = GENERATE(std::size_t(500), std::size_t(100'000));
  const int into = GENERATE(0, 1, 2);
  const bool waits = GENERATE(false, true);
  CAPTURE(bytes, into, waits);
  std::vector<std::uint8_t> plain(bytes - 1);
  const registered_buffer owned = t.pool.allocate(bytes - 1);
  sent s, next, r;
  outcome<message> whole, then;
  const auto receive = [&] {
    if (into == 0)
      t.b.async_receive(asio::buffer(plain), r.handler());
    else if (into == 1)
      t.b.async_receive(owned, r.handler());
    else
      t.b.async_receive(mutable_buffer(owned), r.handler());
  };
  if (waits)
    receive();
  const std::uint64_t before = t.b.statistics().frames_received;
  t.a.async_send(asio::buffer(pattern(bytes, 1)), s.handler());
  t.a.async_send(asio::buffer(pattern(20, 2)), next.handler());
  if (!waits) {
    t.until([&] { return t.b.statistics().frames_received >= before + 2; });
    receive();
  }
  t.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::message_size);
  CHECK(r.value == bytes);
  CHECK(!in_use(owned));
  t.b.async_receive(whole.handler());
  t.b.async_receive(then.handler());
  t.until([&] { return s.done() && next.done() && whole.done() && then.done(); });
  CHECK(s.succeeded());
  CHECK(next.succeeded());
  REQUIRE(whole.succeeded());
  REQUIRE(whole.value.size() == bytes);
  CHECK(is_pattern(whole.value.payload.data(), bytes, 1));
  REQUIRE(then.succeeded());
  CHECK(is_pattern(then.value.payload.data(), 20, 2));
}

TEST_CASE("receives that there was no memory for are posted when there is some again") {
  memory_pool_options little;
  little.limit = little.first_arena;
  connection_options silent;
  silent.keep_alive = silent.keep_alive.zero(); // keep-alive would post them too
  talk t(silent, silent, little);
  const memory own(t.pd, 100, access::local_write);
  std::vector<registered_buffer> rest;
  error_code full;
  while (!full)
    rest.push_back(t.pool.allocate(t.b.options().receive_size, full));
  constexpr std::size_t count = 100; // more than there are receives
  std::array<sent, count> sends;
  std::array<outcome<message>, count> received;
  for (auto& s : sends)
    t.a.async_send(const_buffer(own.buffer()), s.handler());
  for (auto& r : received)
    t.b.async_receive(r.handler());
  // The messages keep the memory of their receives, so no more arrive than there are receives for
  // data. On iWARP the connecting side has used one for its first frame.
  const std::size_t most = t.b.options().receives - asio_rdma::detail::credits::reserve -
                           (t.dev.type() == transport::iwarp ? 1 : 0);
  t.until([&] { return received[most - 1].done(); });
  rest.clear(); // no event reports that
  t.until([&] {
    return std::all_of(sends.begin(), sends.end(), is_done) &&
           std::all_of(received.begin(), received.end(), is_done);
  });
  for (const auto& s : sends)
    CHECK(s.succeeded());
  for (const auto& r : received)
    CHECK(r.succeeded());
}

TEST_CASE("a send fails if the sender's pool has no memory for it") {
  memory_pool_options small;
  small.limit = std::size_t(4) << 20;
  talk t({}, {}, small);
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  const std::vector<std::uint8_t> plain(std::size_t(8) << 20);
  sent s;
  t.a.async_send(asio::buffer(plain), s.handler());
  t.until([&] { return s.done(); });
  CHECK(s.ec == error::pool_limit);
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

} // namespace test::connection_limits_tests
