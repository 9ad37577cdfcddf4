// SPDX-License-Identifier: BSL-1.0
// A connection that is destroyed, closed or moved in a handler of its own.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/detached.hpp>

#include <deque>
#include <functional>
#include <optional>
#include <variant>

namespace test::connection_handlers_tests {
namespace {

constexpr std::size_t lengthy = 200'000; // more than receives grow to

enum class trigger { send, long_send, receive, long_receive, write, request, immediate };
enum class ending { destroyed, closed, assigned, moved };

using arrival = outcome<std::variant<registered_buffer, remote_region>>;

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  return o;
}

/// A connection that can be destroyed or moved, with operations of every kind, and its peer.
struct scene : talk {
  scene() : talk(generous(), generous()) {
    outcome<remote_region> r;
    a.async_request_memory(lengthy, r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.succeeded());
    there = r.value;
    r = {};
    b.async_request_memory(64, r.handler());
    until([&] { return r.done(); });
    of_a = r.value;
    mine = std::move(a);
  }

  void end(ending how) {
    switch (how) {
    case ending::destroyed:
      return mine.reset();
    case ending::closed:
      return mine->close();
    case ending::assigned:
      *mine = asio_rdma::connection(io);
      return;
    case ending::moved:
      other = std::move(*mine);
      mine.reset();
    }
  }

  /// A handler that keeps the result in `o` and then calls `f`.
  template <class T>
  auto once(std::function<void()> f, outcome<T>& o) {
    return [f = std::move(f), &o](error_code ec, T v) {
      o.handler()(ec, std::move(v));
      f();
    };
  }

  std::optional<asio_rdma::connection> mine, other;
  remote_region there, of_a;
};

} // namespace

TEST_CASE("a connection may be destroyed, closed or moved in a handler of its own") {
  const trigger first =
      GENERATE(trigger::send, trigger::long_send, trigger::receive, trigger::long_receive,
               trigger::write, trigger::request, trigger::immediate);
  const ending how = GENERATE(ending::destroyed, ending::closed, ending::assigned, ending::moved);
  CAPTURE(static_cast<int>(first), static_cast<int>(how));
  scene t;
  const memory_pool pool = t.pool;
  asio_rdma::connection& c = *t.mine;
  sent s;
  outcome<message> m;
  outcome<std::uint32_t> word;
  outcome<remote_region> region;
  const auto end = [&] {
    t.end(how);
  };

  // The trigger completes first.
  switch (first) {
  case trigger::send:
    c.async_send(asio::buffer(pattern(600, 1)), t.once(end, s));
    break;
  case trigger::long_send:
    c.async_send(asio::buffer(pattern(lengthy, 1)), t.once(end, s));
    t.b.async_receive(asio::detached);
    break;
  case trigger::receive:
    c.async_receive(t.once(end, m));
    t.b.async_send(asio::buffer(pattern(600, 1)), asio::detached);
    break;
  case trigger::long_receive:
    c.async_receive(t.once(end, m));
    t.b.async_send(asio::buffer(pattern(lengthy, 1)), asio::detached);
    break;
  case trigger::write:
    c.async_write(filled(t.pool, 1000, 1), t.there, t.once(end, s));
    break;
  case trigger::request:
    c.async_request_memory(100, t.once(end, region));
    break;
  case trigger::immediate:
    c.async_receive_immediate(t.once(end, word));
    t.b.async_write(asio::buffer("x", 1), t.of_a, 5u, asio::detached);
  }
  std::deque<sent> sends;
  outcome<message> r[2], peer;
  outcome<std::uint32_t> immediate;
  outcome<void> gone, peer_gone, lent;
  arrival next;
  outcome<remote_region> asked;
  sent into;
  registered_buffer buffer = filled(t.pool, lengthy, 9), to = t.pool.allocate(lengthy);
  c.async_receive(r[0].handler());
  c.async_receive(r[1].handler());
  c.async_receive(to, into.handler());
  c.async_receive_immediate(immediate.handler());
  c.async_receive_region(next.handler());
  c.async_wait_disconnect(gone.handler());
  t.b.async_wait_disconnect(peer_gone.handler());
  // The peer has no receives for these messages, so their offers stay pending.
  c.async_send(asio::buffer(pattern(lengthy, 2)), sends.emplace_back().handler());
  c.async_send(buffer, sends.emplace_back().handler());
  c.async_send(const_buffer(buffer), sends.emplace_back().handler());
  for (int i = 0; i < 40; ++i) // more than the peer has receives
    c.async_send(asio::buffer(pattern(300, 3)), sends.emplace_back().handler());
  for (int i = 0; i < 40; ++i)
    c.async_write(filled(t.pool, lengthy, 4), t.there, sends.emplace_back().handler());
  c.async_request_memory(200, asked.handler());
  c.async_send_region(filled(t.pool, 500, 5), lent.handler());

  const auto triggered = [&] {
    return s.done() || m.done() || word.done() || region.done();
  };
  t.until(triggered);
  if (how == ending::moved) { // all operations continue
    CHECK(!t.mine);
    REQUIRE(t.other->is_open());
    CHECK(!r[1].done());
    for (int i = 0; i < 4; ++i)
      t.b.async_send(asio::buffer(pattern(lengthy, 6)), asio::detached);
    for (std::size_t i = 0; i < 60; ++i)
      t.b.async_receive(asio::detached);
    t.until([&] {
      return r[0].done() && r[1].done() && into.done() && asked.done() && lent.done() &&
             std::all_of(sends.begin(), sends.end(), [](const sent& x) { return x.done(); });
    });
    CHECK(r[0].succeeded());
    CHECK(r[1].succeeded());
    CHECK(into.succeeded());
    CHECK(is_pattern(to.data(), into.value, 6));
    CHECK(asked.succeeded());
    CHECK(lent.succeeded());
    for (const sent& x : sends)
      CHECK(x.succeeded());
    CHECK(!gone.done());
    CHECK(!immediate.done());
    t.other->close();
  }
  drain(t.io); // b's remaining operations keep nothing either
  CHECK(s.calls + m.calls + word.calls + region.calls == 1);
  CHECK((!s.ec && !m.ec && !word.ec && !region.ec));
  const error_code aborted = asio::error::operation_aborted;
  for (const sent& x : sends) {
    CHECK(x.calls == 1);
    CHECK((!x.ec || x.ec == aborted));
  }
  if (how != ending::moved) {
    // These messages have not been received.
    for (int i = 1; i < 3; ++i)
      CHECK(sends[static_cast<std::size_t>(i)].ec == aborted);
    for (const outcome<message>& x : r) {
      CHECK(x.calls == 1);
      CHECK(x.ec == aborted);
    }
    CHECK(into.calls == 1);
    CHECK(into.ec == aborted);
    CHECK(asked.calls == 1);
    CHECK((!asked.ec || asked.ec == aborted));
    CHECK(lent.calls == 1);
    CHECK((!lent.ec || lent.ec == aborted));
  }
  CHECK(immediate.calls == 1);
  CHECK(immediate.ec == aborted);
  CHECK(next.calls == 1);
  CHECK(next.ec == aborted);
  CHECK(gone.calls == 1);
  CHECK(gone.ec == aborted);
  CHECK(peer_gone.calls == 1);
  CHECK(peer_gone.ec == asio::error::connection_reset);
  CHECK(!in_use(buffer));
  CHECK(!in_use(to));

  // Complete messages can still be received at the other end; then the receive reports the end.
  for (int n = 0; n < 100 && !peer.ec; ++n) {
    peer = {};
    t.b.async_receive(peer.handler());
    t.until([&] { return peer.done(); });
  }
  CHECK(peer.ec == asio::error::connection_reset);
  t.b.close();
  buffer = to = {};
  t.there.reset();
  t.of_a.reset();
  m = {};
  r[0] = r[1] = peer = {};
  region = asked = {};
  t.mine.reset();
  t.other.reset();
  drain(t.io);
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE("the peer closes in a handler of this side, and this side is destroyed in the handler "
          "that reports it") {
  scene t;
  const memory_pool pool = t.pool;
  std::deque<sent> sends;
  outcome<message> first, second;
  sent s;
  t.mine->async_receive([&](error_code ec, const message&) {
    first.handler()(ec, {});
    t.mine.reset();
  });
  t.mine->async_receive(second.handler());
  for (int i = 0; i < 5; ++i)
    t.mine->async_send(asio::buffer(pattern(lengthy, 2)), sends.emplace_back().handler());
  t.mine->async_write(asio::buffer("x", 1), t.there, t.once([&] { t.b.close(); }, s));
  drain(t.io);
  CHECK(s.succeeded());
  CHECK(first.calls == 1);
  CHECK(first.ec == asio::error::connection_reset);
  CHECK(second.calls == 1);
  CHECK(second.ec == asio::error::connection_reset);
  for (const sent& x : sends) {
    CHECK(x.calls == 1);
    CHECK(x.ec == asio::error::connection_reset);
  }
  t.there.reset();
  t.of_a.reset();
  drain(t.io);
  CHECK(pool.statistics().blocks_in_use == 0);
}

} // namespace test::connection_handlers_tests
