// SPDX-License-Identifier: BSL-1.0
// Long messages that are read directly to the receiver's registered memory.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

namespace test::connection_direct_tests {
namespace {

constexpr std::size_t lengthy = std::size_t(6) << 20; // several READs

memory_pool_options limited(std::size_t limit) {
  memory_pool_options o;
  o.limit = limit;
  return o;
}

/// The parties' pool has less memory than a message needs.
struct narrow : talk {
  explicit narrow(std::size_t limit = std::size_t(4) << 20) : talk({}, {}, limited(limit)) {
    const auto bytes = pattern(lengthy, 1);
    std::copy(bytes.begin(), bytes.end(), from.data());
  }

  void send(sent& s, std::size_t bytes = lengthy) {
    a.async_send(const_buffer(from.buffer(0, bytes)), s.handler());
  }
  /// Sends a message and waits until b has its offer.
  void offer(sent& s) {
    const std::uint64_t before = b.statistics().frames_received;
    send(s);
    until([&] { return b.statistics().frames_received > before; });
  }
  registered_buffer of_user(std::shared_ptr<std::uint8_t[]> bytes, std::size_t n) {
    memory_region region(pd, bytes.get(), n, access::local_write);
    return registered_buffer(std::move(region), std::move(bytes));
  }
  registered_buffer of_user(std::size_t n) {
    return of_user(std::shared_ptr<std::uint8_t[]>(new std::uint8_t[n]()), n);
  }

  memory from{pd, lengthy, access::local_write};
};

} // namespace

TEST_CASE("a long message is read to registered memory, and not copied") {
  narrow t;
  REQUIRE(t.lives());
  const std::size_t blocks = t.pool.statistics().blocks_in_use;
  const bool view = GENERATE(false, true), waits = GENERATE(false, true);
  constexpr std::size_t room = lengthy + 5000;
  const registered_buffer all = t.of_user(room), to = all.slice(1000, lengthy + 3000);
  sent s, r;
  const auto receive = [&] {
    if (view)
      t.b.async_receive(mutable_buffer(to), r.handler());
    else
      t.b.async_receive(to, r.handler());
  };
  if (waits)
    receive();
  t.offer(s);
  if (!waits)
    receive();
  if (!waits)
    CHECK(in_use(to) == !view); // no completion has been polled yet
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(r.value == lengthy);
  CHECK(is_pattern(to.data(), lengthy, 1));
  const auto* p = static_cast<const std::uint8_t*>(all.data());
  const auto is_zero = [](std::uint8_t x) {
    return x == 0;
  };
  CHECK(std::all_of(p, p + 1000, is_zero));
  CHECK(std::all_of(p + 1000 + lengthy, p + room, is_zero));
  CHECK(!in_use(all));
  CHECK(t.b.statistics().rendezvous_received == 1);
  CHECK(t.b.statistics().bytes_received == 11 + lengthy);
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("long messages are read to memory that lies in the pool, in order") {
  talk t;
  constexpr std::size_t count = 12;
  std::deque<sent> sends, taken;
  std::deque<registered_buffer> into;
  for (std::uint32_t i = 0; i < count; ++i) {
    into.push_back(t.pool.allocate(200'000));
    // The library does not know that this memory is registered.
    t.b.async_receive(asio::buffer(into[i].data(), into[i].size()), taken.emplace_back().handler());
  }
  for (std::uint32_t i = 0; i < count; ++i) // the first buffers are longer
    t.a.async_send(asio::buffer(pattern(200'000 - 10'000 * i, i)), sends.emplace_back().handler());
  t.until([&] {
    return std::all_of(taken.begin(), taken.end(), [](auto& r) { return r.done(); }) &&
           std::all_of(sends.begin(), sends.end(), [](auto& s) { return s.done(); });
  });
  for (std::uint32_t i = 0; i < count; ++i) {
    CAPTURE(i);
    CHECK(taken[i].succeeded());
    CHECK(taken[i].value == 200'000 - 10'000 * i);
    CHECK(is_pattern(into[i].data(), taken[i].value, i));
  }
  CHECK(t.lives());
}

TEST_CASE("a bind is posted with its offer, and a READ with the answer to the one before") {
  connection_options one_read;
  one_read.pulls = 1;
  talk t({}, one_read);
  constexpr std::size_t bytes = 1'000'000;
  const registered_buffer from = filled(t.pool, bytes, 1);
  const auto exchange = [&](std::size_t count) {
    std::deque<sent> sends;
    std::deque<outcome<message>> taken;
    for (std::size_t i = 0; i < count; ++i)
      t.b.async_receive(taken.emplace_back().handler());
    for (std::size_t i = 0; i < count; ++i)
      t.a.async_send(from, sends.emplace_back().handler());
    t.until([&] {
      return std::all_of(taken.begin(), taken.end(), [](auto& r) { return r.done(); }) &&
             std::all_of(sends.begin(), sends.end(), [](auto& s) { return s.done(); });
    });
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(sends[i].succeeded());
      REQUIRE(taken[i].succeeded());
      CHECK(is_pattern(taken[i].value.payload.data(), bytes, 1));
    }
  };
  exchange(1);
  if (t.a.statistics().registrations != 0)
    return not_on_this_device("windows that confine the peer");
  REQUIRE(t.lives());
  faults::injector faults(t.dev.native_handle());
  const faults::counters before = faults.counts();
  exchange(2);
  const faults::counters after = faults.counts();
  // Of each message: a bind, an offer, a READ, an answer, and the end of the key.
  CHECK(after.send_requests - before.send_requests == 10);
  CHECK(after[faults::call::post_send] - before[faults::call::post_send] == 7);
  // The binds have none. The frames have one at each end.
  CHECK(after.completions - before.completions == 12);
}

TEST_CASE("an offer whose bind is refused does not reach the peer") {
  talk t;
  if (!t.a.pool().get_protection_domain().get_device().confines_windows())
    return not_on_this_device("windows that confine the peer");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer from = filled(t.pool, 1'000'000, 1);
  outcome<message> taken;
  sent send;
  t.b.async_receive(taken.handler());
  faults.fail(faults::call::post_send, ENOMEM, {1, 1},
              t.a.impl()->link().queue_pair()->native_handle()->qp_num);
  t.a.async_send(from, send.handler());
  t.until([&] { return send.done() && taken.done(); });
  CHECK(faults.counts().refused_of(faults::call::post_send) == 1);
  CHECK(send.ec == boost::system::errc::not_enough_memory);
  INFO(describe(taken.ec));
  CHECK(taken.ec == asio::error::connection_reset); // not that of a READ without access
}

TEST_CASE("a message is refused if the memory of its read cannot be registered") {
  narrow t(std::size_t(64) << 20);
  if (t.dev.type() != transport::iwarp)
    return not_on_this_device("registrations for each READ");
  t.pool.reserve(std::size_t(32) << 20);
  const std::uint64_t in_use = t.pool.statistics().blocks_in_use;
  faults::injector faults(t.dev.native_handle());
  // The sender's registration is the first. There are six READs, four of which are in progress at a
  // time.
  const unsigned failing = GENERATE(2u, 4u, 6u);
  const bool direct = GENERATE(true, false);
  const int why = GENERATE(ENOMEM, ENOSPC); // of a device that has no key left
  const registered_buffer to = t.of_user(lengthy);
  sent into, refused, send;
  outcome<message> m;
  if (direct)
    t.b.async_receive(to, into.handler());
  else
    t.b.async_receive(m.handler());
  faults.fail(faults::call::reg_mr, why, {failing, 1});
  t.send(refused);
  t.until([&] { return refused.done(); });
  CHECK(refused.ec == boost::system::errc::not_enough_memory);
  CHECK_FALSE((into.done() || m.done()));
  t.send(send, lengthy - 1);
  t.until([&] { return into.done() || m.done(); });
  CHECK((direct ? into.ec : m.ec) == error_code());
  REQUIRE((direct ? into.value : m.value.size()) == lengthy - 1);
  CHECK(is_pattern(direct ? to.data() : m.value.payload.data(), lengthy - 1, 1));
  m.value = {};
  CHECK(t.lives());
  CHECK(t.pool.statistics().blocks_in_use == in_use);
}

// The pool has no room for a message.
TEST_CASE(
    "a receive that is cancelled while messages are read leaves them to the receives behind it") {
  narrow t;
  REQUIRE(t.lives());
  const registered_buffer to[3] = {t.of_user(lengthy), t.of_user(lengthy), t.of_user(lengthy)};
  faults::injector faults(t.dev.native_handle());
  asio::cancellation_signal cancels;
  sent taken[3], sends[2];
  t.b.async_receive(to[0], asio::bind_cancellation_slot(cancels.slot(), taken[0].handler()));
  t.b.async_receive(to[1], taken[1].handler());
  // Waits until b has both offers, and reads.
  faults.hold_completions({.qp_num = t.b.native_handle()->qp_num});
  const std::uint64_t offered = t.b.statistics().frames_received + 2;
  t.send(sends[0]);
  t.send(sends[1], lengthy - 1);
  t.io.restart();
  while (faults.held() < 2)
    t.io.poll();
  while (t.b.statistics().frames_received != offered) {
    faults.release_completions(1);
    t.io.poll();
  }
  REQUIRE_FALSE((taken[0].done() || taken[1].done()));
  cancels.emit(asio::cancellation_type::total);
  t.b.async_receive(to[2], taken[2].handler());
  faults.release_completions();
  t.until([&] { return taken[1].done() && taken[2].done() && sends[0].done() && sends[1].done(); });
  CHECK(taken[0].ec == asio::error::operation_aborted);
  for (int i = 0; i < 2; ++i) {
    CHECK(sends[i].succeeded());
    CHECK(taken[i + 1].succeeded());
    CHECK(taken[i + 1].value == lengthy - std::size_t(i));
    CHECK(is_pattern(to[i + 1].data(), lengthy - std::size_t(i), 1));
  }
}

TEST_CASE("a message that is too long for a receive waits for one that has room") {
  narrow t;
  const registered_buffer to[2] = {t.of_user(lengthy), t.of_user(lengthy)};
  std::uint8_t few[1000];
  sent taken[2], too_few, sends[2];
  t.b.async_receive(to[0], taken[0].handler());
  t.b.async_receive(asio::buffer(few), too_few.handler());
  t.send(sends[0]);
  t.send(sends[1], lengthy - 1);
  t.until([&] { return too_few.done(); });
  CHECK(too_few.ec == asio::error::message_size);
  t.b.async_receive(to[1], taken[1].handler());
  t.until([&] { return taken[1].done() && sends[0].done() && sends[1].done(); });
  for (int i = 0; i < 2; ++i) {
    CHECK(sends[i].succeeded());
    CHECK(taken[i].succeeded());
    CHECK(taken[i].value == lengthy - std::size_t(i));
    CHECK(is_pattern(to[i].data(), lengthy - std::size_t(i), 1));
  }
}

TEST_CASE("a cancelled receive returns its memory when the device has finished, and another "
          "receive gets the message") {
  narrow t;
  REQUIRE(t.lives());
  const bool view = GENERATE(false, true);
  const auto type = GENERATE(asio::cancellation_type::partial, asio::cancellation_type::total,
                             asio::cancellation_type::terminal);
  const registered_buffer first = t.of_user(lengthy), second = t.of_user(lengthy);
  sent s, cancelled, r;
  asio::cancellation_signal cancel;
  t.offer(s);
  if (view)
    t.b.async_receive(mutable_buffer(first),
                      asio::bind_cancellation_slot(cancel.slot(), cancelled.handler()));
  else
    t.b.async_receive(first, asio::bind_cancellation_slot(cancel.slot(), cancelled.handler()));
  cancel.emit(type);
  CHECK(in_use(first) == !view); // no completion has been polled yet
  t.b.async_receive(second, r.handler());
  t.until([&] { return cancelled.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(cancelled.value == 0);
  if (view) // the memory belongs to the caller again
    std::memset(first.data(), 0xee, first.size());
  else
    t.until([&] { return !in_use(first); });
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(r.value == lengthy);
  CHECK(is_pattern(second.data(), lengthy, 1));
  if (view) {
    const auto* p = static_cast<const std::uint8_t*>(first.data());
    CHECK(std::all_of(p, p + lengthy, [](std::uint8_t x) { return x == 0xee; }));
  }
  CHECK(t.lives());
}

TEST_CASE(
    "a connection that ends while a message is read to a receive's memory releases the memory") {
  narrow t;
  REQUIRE(t.lives());
  enum class ending { closed, peer_closed, goodbye, failed };
  const ending how = GENERATE(ending::closed, ending::peer_closed, ending::goodbye, ending::failed);
  const bool cancelled = GENERATE(false, true);
  CAPTURE(static_cast<int>(how), cancelled);
  const registered_buffer to = t.of_user(lengthy), viewed = t.of_user(lengthy);
  sent s, first, second;
  asio::cancellation_signal cancel[2];
  outcome<void> over;
  t.offer(s);
  sent behind;
  t.offer(behind);
  t.b.async_receive(to, asio::bind_cancellation_slot(cancel[0].slot(), first.handler()));
  t.b.async_receive(mutable_buffer(viewed),
                    asio::bind_cancellation_slot(cancel[1].slot(), second.handler()));
  if (cancelled)
    for (auto& c : cancel)
      c.emit(asio::cancellation_type::total);
  switch (how) {
  case ending::closed:
    t.b.close();
    break;
  case ending::peer_closed:
    t.a.close();
    break;
  case ending::goodbye:
    t.b.async_close(over.handler());
    break;
  case ending::failed: {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(t.b.native_handle(), &attr, IBV_QP_STATE) == 0);
  }
  }
  t.until([&] { return first.done() && second.done() && s.done() && behind.done(); });
  const error_code aborted = asio::error::operation_aborted;
  for (const sent* r : {&first, &second}) {
    CHECK(r->calls == 1);
    if (cancelled || how == ending::closed || how == ending::goodbye)
      CHECK(r->ec == aborted);
    else
      CHECK(r->ec == asio::error::connection_reset);
  }
  for (const sent* x : {&s, &behind}) {
    CHECK(x->calls == 1);
    CHECK(x->ec == (how == ending::peer_closed ? aborted
                    : how == ending::goodbye   ? error_code(asio::error::broken_pipe)
                                               : error_code(asio::error::connection_reset)));
  }
  t.until([&] { return !in_use(to); });
  if (how == ending::goodbye) {
    t.until([&] { return over.done(); });
    CHECK(over.succeeded());
  }
  t.a.close();
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE(
    "unshared memory of a cancelled receive is released when the device has finished with it") {
  narrow t;
  REQUIRE(t.lives());
  bool freed = false;
  std::shared_ptr<std::uint8_t[]> bytes(new std::uint8_t[lengthy](), [&](std::uint8_t* p) {
    delete[] p;
    freed = true;
    t.b.close(); // no lock is held
  });
  std::optional<registered_buffer> to = t.of_user(std::move(bytes), lengthy);
  sent s, cancelled;
  asio::cancellation_signal cancel;
  t.offer(s);
  t.b.async_receive(*to, asio::bind_cancellation_slot(cancel.slot(), cancelled.handler()));
  to.reset();
  cancel.emit(asio::cancellation_type::total);
  CHECK(!freed);
  t.until([&] { return cancelled.done() && freed && s.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(s.ec == asio::error::connection_reset);
}

} // namespace test::connection_direct_tests
