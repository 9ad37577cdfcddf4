// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/detached.hpp>

#include <numeric>
#include <optional>

namespace test::queues_tests {
namespace {

using flags = queue_pair::flags;

queue_pair_options shallow(std::uint32_t depth) {
  queue_pair_options options;
  options.send_depth = options.receive_depth = depth;
  return options;
}

// iWARP has no RNR: a message without a posted receive ends the connection. On iWARP a test with
// more receives than the queue is deep gets a deeper queue.
queue_pair_options receiving(const queue_pair_options& options, std::uint32_t receives) {
  queue_pair_options result = options;
  if (open_device().type() == transport::iwarp)
    result.receive_depth = receives;
  return result;
}

// The numbers of operations in the order in which their handlers ran.
struct order {
  std::vector<unsigned> numbers;
  unsigned failures = 0;

  auto handler(unsigned number) {
    return [this, number](error_code ec, auto&&...) {
      numbers.push_back(number);
      failures += ec ? 1u : 0u;
    };
  }
  bool is_sequence(unsigned count) const {
    std::vector<unsigned> wanted(count);
    std::iota(wanted.begin(), wanted.end(), 0u);
    return numbers == wanted;
  }
};

} // namespace

TEST_CASE("ten times as many sends and receives as the queues are deep") {
  pair p(shallow(8), receiving(shallow(8), 80));
  const unsigned count = 10 * p.a.options().send_depth;
  order sends;
  std::vector<got> receives(count);
  for (unsigned i = 0; i < count; ++i)
    p.b.async_receive(p.mb.buffer(8 * i, 8), receives[i].handler());
  for (unsigned i = 0; i < count; ++i) {
    p.ma.put_word(8 * i, i + 1);
    p.a.async_send(p.ma.buffer(8 * i, 8), sends.handler(i));
  }
  p.drain();
  CHECK(sends.is_sequence(count));
  CHECK(sends.failures == 0);
  for (unsigned i = 0; i < count; ++i) {
    CAPTURE(i);
    REQUIRE(receives[i].succeeded());
    REQUIRE(receives[i].value.bytes == 8);
    REQUIRE(p.mb.word(8 * i) == i + 1);
  }
}

TEST_CASE("ten times as many writes, with the smallest queues there are") {
  pair p(shallow(1));
  order writes;
  const unsigned count = 10 * p.a.options().send_depth;
  for (unsigned i = 0; i < count; ++i) {
    p.ma.put_word(8 * i, i + 1);
    p.a.async_write(p.ma.buffer(8 * i, 8), p.mb.remote(8 * i, 8), writes.handler(i));
  }
  p.drain();
  CHECK(writes.is_sequence(count));
  CHECK(writes.failures == 0);
  REQUIRE(p.placed());
  for (unsigned i = 0; i < count; ++i)
    REQUIRE(p.mb.word(8 * i) == i + 1);
}

TEST_CASE("handlers that start the next operation keep a full queue going") {
  pair p(shallow(4));
  constexpr unsigned window = 16, total = 400;
  unsigned started = 0, done = 0, failed = 0;
  const std::function<void()> start = [&] {
    ++started;
    p.a.async_write(p.ma.buffer(0, 64), p.mb.remote(0, 64), [&](error_code ec, std::size_t) {
      ++done;
      failed += ec ? 1u : 0u;
      if (started < total)
        start();
    });
  };
  for (unsigned i = 0; i < window; ++i)
    start();
  p.drain();
  CHECK(done == total);
  CHECK(failed == 0);
}

TEST_CASE("unsignaled sends complete with the next that is signaled, in order") {
  pair p(shallow(32));
  order sends;
  for (unsigned i = 0; i < 6; ++i) {
    p.b.async_receive(p.mb.buffer(8 * i, 8), asio::detached);
    p.a.async_send(p.ma.buffer(0, 8), i == 5 ? flags::none : flags::unsignaled, sends.handler(i));
  }
  p.drain();
  CHECK(sends.is_sequence(6));
  CHECK(sends.failures == 0);
}

TEST_CASE("unsignaled operations only, ten times the queue") {
  pair p(shallow(8));
  order writes;
  const unsigned count = 10 * p.a.options().send_depth;
  for (unsigned i = 0; i + 1 < count; ++i)
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), flags::unsignaled, writes.handler(i));
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), writes.handler(count - 1));
  p.drain();
  CHECK(writes.is_sequence(count));
  CHECK(writes.failures == 0);
}

TEST_CASE("an unsignaled operation that fails reports it to its handler, and ends the operations "
          "behind it") {
  pair p(impatient());
  sent before, wrong, behind;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), flags::unsignaled, before.handler());
  p.a.async_write(p.ma.buffer(0, 8), {p.mb.remote().address, 8, p.mb.region.rkey() ^ 0xff},
                  flags::unsignaled, wrong.handler());
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), flags::unsignaled, behind.handler());
  p.until([&] { return behind.done(); });
  CHECK(before.calls == 1);
  CHECK(wrong.calls == 1);
  CHECK(behind.calls == 1);
  if (p.dev.type() != transport::iwarp) { // there TCP has taken all of them
    CHECK(before.succeeded());
    CHECK(wrong.ec);
    CHECK(behind.ec == asio::error::connection_reset);
  }
  p.drain();
}

TEST_CASE("a batch is posted when it is committed, in order") {
  pair p;
  order sends, receives;
  p.ma.put(0, "0123456789");
  {
    queue_pair::batch of_b(p.b);
    for (unsigned i = 0; i < 10; ++i)
      p.b.async_receive(p.mb.buffer(100 + i, 1), receives.handler(i));
  }
  {
    queue_pair::batch batch(p.a);
    for (unsigned i = 0; i < 10; ++i)
      p.a.async_send(p.ma.buffer(i, 1), sends.handler(i));
    p.io.restart();
    p.io.poll();
    CHECK(sends.numbers.empty());
    batch.commit();
    batch.commit(); // the batch is empty now
  }
  p.drain();
  CHECK(sends.is_sequence(10));
  CHECK(receives.is_sequence(10));
  CHECK(sends.failures + receives.failures == 0);
  CHECK(p.mb.text(100, 10) == "0123456789");
}

TEST_CASE("batches larger than the queues") {
  constexpr unsigned count = 37;
  pair p(shallow(4), receiving(shallow(4), count));
  order sends, receives;
  {
    queue_pair::batch of_a(p.a), of_b(p.b); // the receives are posted first, as iWARP requires
    for (unsigned i = 0; i < count; ++i) {
      p.b.async_receive(p.mb.buffer(i, 1), receives.handler(i));
      p.a.async_send(p.ma.buffer(i, 1), i % 3 == 0 ? flags::none : flags::unsignaled,
                     sends.handler(i));
    }
    p.a.async_write(p.ma.buffer(0, 1), p.mb.remote(1000), sends.handler(count));
  }
  p.drain();
  CHECK(sends.is_sequence(count + 1));
  CHECK(receives.is_sequence(count));
  CHECK(sends.failures + receives.failures == 0);
}

TEST_CASE("batches in batches, an empty one, and one whose queue pair closes") {
  pair p;
  order writes;
  { const queue_pair::batch empty(p.a); }
  {
    const queue_pair::batch outer(p.a);
    {
      const queue_pair::batch inner(p.a);
      p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), writes.handler(0));
    }
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), writes.handler(1));
  }
  p.drain();
  CHECK(writes.is_sequence(2));
  sent late;
  {
    const queue_pair::batch open(p.a);
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), late.handler());
    p.a.close();
  }
  p.drain();
  CHECK(late.calls == 1);
  CHECK(late.ec == asio::error::operation_aborted);
}

TEST_CASE("a batch with one operation that cannot be started") {
  queue_pair_options options;
  options.max_send_sge = 2;
  pair p(options);
  order writes;
  sent wrong;
  const auto n = p.a.options().max_send_sge;
  const std::vector<const_buffer> many(n + 1, p.ma.buffer(0, 8));
  {
    const queue_pair::batch batch(p.a);
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), writes.handler(0));
    p.a.async_write(many, p.mb.remote(), wrong.handler());
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), writes.handler(1));
  }
  p.drain();
  CHECK(wrong.ec == error::too_many_buffers);
  CHECK(writes.is_sequence(2));
  CHECK(writes.failures == 0);
}

TEST_CASE("a message waits for a receive that is posted late") {
  queue_pair_options options;
  options.rnr_retry = 7;
  pair p(options);
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("a missing receive ends an iWARP connection");
  sent s, after;
  got r;
  p.ma.put(0, "early");
  p.a.async_send(p.ma.buffer(0, 5), s.handler());
  // An operation that completes at b only if the connection continues while the message waits.
  p.b.async_write(p.mb.buffer(0, 0), p.ma.remote(), after.handler());
  p.until([&] { return after.done(); });
  CHECK(s.calls == 0);
  CHECK(p.a.state() == queue_pair_state::connected);
  p.b.async_receive(p.mb.buffer(100, 10), r.handler());
  p.until([&] { return r.done() && s.done(); });
  CHECK(s.succeeded());
  CHECK(r.succeeded());
  CHECK(p.mb.text(100, 5) == "early");
}

TEST_CASE("a message that no receive is posted for ends with an error") {
  pair p(impatient());
  sent s, behind;
  p.a.async_send(p.ma.buffer(0, 5), s.handler());
  p.a.async_send(p.ma.buffer(0, 5), behind.handler());
  if (p.dev.type() == transport::iwarp) { // the connection's error: TCP has the messages
    outcome<void> gone;
    p.a.async_wait_disconnect(gone.handler());
    p.until([&] { return gone.done() && s.done() && behind.done(); });
    CHECK(gone.ec == asio::error::connection_reset);
    return;
  }
  p.until([&] { return behind.done(); });
  CHECK(s.ec == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(s.ec == errc::no_buffer_space);
  CHECK(s.value == 0);
  CHECK(behind.ec == asio::error::connection_reset);
  CHECK(p.a.state() == queue_pair_state::failed);
}

TEST_CASE("receives started before connecting take the messages after it") {
  asio::io_context io;
  const device dev = open_device();
  const protection_domain pd(dev);
  memory m(pd, 4096, most_rights(dev));
  queue_pair a(io, pd), b(io, pd);
  sent s;
  got r;
  m.put(0, "first");
  b.async_receive(m.buffer(100, 10), r.handler());
  CHECK(b.state() == queue_pair_state::open);
  connect(io, a, b);
  a.async_send(m.buffer(0, 5), s.handler());
  until(io, [&] { return s.done() && r.done(); });
  CHECK(r.succeeded());
  CHECK(m.text(100, 5) == "first");
}

TEST_CASE("a queue pair is moved while it has operations in flight") {
  pair p;
  sent s;
  got r;
  p.b.async_receive(p.mb.buffer(0, 10), r.handler());
  queue_pair moved(std::move(p.b));
  CHECK_FALSE(p.b.is_open());
  CHECK(p.b.state() == queue_pair_state::closed);
  p.a.async_send(p.ma.buffer(0, 5), s.handler());
  p.drain();
  CHECK(r.succeeded());
  p.b = std::move(moved);
  CHECK(p.carries("moved back"));
}

TEST_CASE("a queue pair is closed and opened again") {
  pair p;
  REQUIRE(p.carries("first life"));
  p.a.close();
  p.b.close();
  p.drain();
  p.a.open(p.pd);
  p.b.open(p.pd);
  error_code ec;
  p.a.open(p.pd, queue_pair_options(), ec);
  CHECK(ec == asio::error::already_open);
  p.connect();
  CHECK(p.carries("second life"));
}

// siw fails among a hundred queue pairs if its invalid offset is used.
TEST_CASE("hundreds of queue pairs are open at a time, and others in their place") {
  asio::io_context io(1);
  const protection_domain pd(open_device());
  std::vector<queue_pair> all;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      CAPTURE(round, i);
      error_code ec;
      all.emplace_back(io).open(pd, shallow(4), ec);
      REQUIRE_FALSE(ec);
    }
    all.clear();
  }
}

TEST_CASE("options are lowered to the device's limits, and the lowered values are reported") {
  pair p;
  const auto& limits = p.dev.attributes();
  const auto opened = [&](const queue_pair_options& options) {
    queue_pair q(p.io);
    q.open(p.pd, options);
    return q.options();
  };
  queue_pair_options options;
  options.max_send_sge = options.max_receive_sge = 100000;
  options.max_reads = 255;
  const queue_pair_options few = opened(options);
  CHECK(few.max_send_sge <= std::uint32_t(limits.max_sge));
  CHECK(few.max_receive_sge <= std::uint32_t(limits.max_sge));
  CHECK(few.max_reads <= std::max(limits.max_qp_rd_atom, 1));
  options = {};
  options.max_inline = 1u << 20;
  CHECK(opened(options).max_inline < 1u << 20);
}

} // namespace test::queues_tests
