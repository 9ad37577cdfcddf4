// SPDX-License-Identifier: BSL-1.0
// How a connection ends, and that an idle connection notices the end.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"

#include <variant>

namespace test::connection_end_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

/// Two connections on contexts of their own.
struct apart {
  explicit apart(const connection_options& of_a) {
    listener.open({device_address(dev), 0});
    a.open(pool, of_a);
    b.open(pool);
    test::connection accepted, connected;
    listener.async_accept(b, accepted.handler());
    initiator.async_connect(a, listener.local_endpoint(), connected.handler());
    while (!accepted.done() || !connected.done()) {
      there.restart();
      there.poll();
      here.restart();
      here.poll();
    }
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  asio::io_context here{1}, there{1};
  acceptor listener{there};
  connector initiator{here};
  asio_rdma::connection a{here}, b{there};
};

} // namespace

TEST_CASE("an idle connection detects that its peer has disappeared without a goodbye") {
  connection_options o;
  o.keep_alive = 20ms;
  o.queue_pair = impatient();
  apart t(o);
  outcome<message> waiting;
  t.a.async_receive(waiting.handler());
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR; // b's context is not run any more
  REQUIRE(ibv_modify_qp(t.b.impl()->target_queue_pair()->native_handle(), &attr, IBV_QP_STATE) ==
          0);
  until(t.here, [&] { return waiting.done(); });
  CHECK(waiting.ec);
  if (t.dev.type() != transport::iwarp) // on iWARP TCP reports the end
    CHECK(waiting.ec == errc::timed_out);
}

TEST_CASE("a receive of a region ends when it is cancelled, though the peer does not answer") {
  apart t({});
  const auto both = [&](auto&& condition) {
    const auto patience = std::chrono::steady_clock::now() + 30s;
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < patience);
      t.there.restart();
      t.there.poll();
      t.here.restart();
      t.here.poll();
    }
  };
  sent greeting;
  outcome<message> greeted; // on iWARP the connecting side sends first
  t.a.async_send(asio::buffer("hello"), greeting.handler());
  t.b.async_receive(greeted.handler());
  both([&] { return greeting.done() && greeted.done(); });
  const registered_buffer memory = t.pool.allocate(64);
  outcome<void> lent;
  outcome<std::variant<registered_buffer, remote_region>> cancelled, received;
  asio::cancellation_signal cancel;
  const std::uint64_t before = t.a.statistics().frames_sent;
  t.a.async_receive_region(asio::bind_cancellation_slot(cancel.slot(), cancelled.handler()));
  t.b.async_send_region(memory, access::remote_read, 5min, lent.handler());
  both([&] { return t.a.statistics().frames_sent != before; }); // until it renews the lease
  cancel.emit(asio::cancellation_type::total);
  until(t.here, [&] { return cancelled.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  outcome<std::uint32_t> idle; // keeps b's context running after it has lent
  t.b.async_receive_immediate(idle.handler());
  t.a.async_receive_region(received.handler());
  both([&] { return received.done() && lent.done(); });
  CHECK(received.succeeded());
  CHECK(std::get<remote_region>(received.value).size() == 64);
}

TEST_CASE("keeping alive does no harm, nor keeps a context running") {
  connection_options o;
  o.keep_alive = 1ms;
  talk t(o, o);
  const auto& queue = t.a.impl()->target_queue_pair()->completion_queue();
  const std::uint64_t before = queue->counters().completions;
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.until([&] { return queue->counters().completions > before + 10; });
  CHECK(!r.done());
  sent s;
  t.a.async_send(asio::buffer("x", 1), s.handler());
  t.until([&] { return r.done() && s.done(); });
  CHECK(r.succeeded());
  CHECK(s.succeeded());
  t.io.restart();
  t.io.run(); // returns, as there is no work
}

TEST_CASE("a side that ends when it learns of the peer's close lets it close successfully") {
  const bool sends = GENERATE(false, true);
  for (int i = 0; i < 20; ++i) {
    talk t;
    outcome<void> theirs;
    error_code heard;
    // If it sends: what it offers is not read any more.
    const std::vector<char> many(sends ? 1 << 20 : 0);
    const auto end = [&](const error_code& ec) {
      heard = ec;
      t.b.close();
    };
    if (sends)
      t.b.async_send(asio::buffer(many), [&](const error_code& ec, std::size_t) { end(ec); });
    else
      t.b.async_receive([&](const error_code& ec, const message&) { end(ec); });
    t.a.async_close(theirs.handler());
    t.until([&] { return heard && theirs.done(); });
    CHECK(heard == (sends ? error_code(asio::error::broken_pipe) : asio::error::eof));
    INFO(i << ": " << theirs.ec.message() << " sends " << sends);
    CHECK(theirs.succeeded());
  }
}

TEST_CASE("a side that closes when it learns of the peer's close closes successfully") {
  talk t;
  outcome<void> ours, theirs;
  error_code heard;
  t.b.async_receive([&](const error_code& ec, const message&) {
    heard = ec;
    t.b.async_close(ours.handler());
  });
  t.a.async_close(theirs.handler());
  t.until([&] { return ours.done() && theirs.done(); });
  CHECK(heard == asio::error::eof);
  CHECK(ours.succeeded());
  CHECK(theirs.succeeded());
}

} // namespace test::connection_end_tests
