// SPDX-License-Identifier: BSL-1.0
// How a connection ends, and that an idle one finds out.
#include "catch.hpp"
#include "connection_support.hpp"

#include <variant>

namespace {

using namespace test;
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

TEST_CASE("an idle connection finds out that its peer is gone without a word") {
  connection_options o;
  o.keep_alive = 20ms;
  o.queue_pair = impatient();
  apart t(o);
  outcome<message> waiting;
  t.a.async_receive(waiting.handler());
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR; // and b's context does not run any more
  REQUIRE(ibv_modify_qp(t.b.impl()->queue_pair()->native_handle(), &attr, IBV_QP_STATE) == 0);
  until(t.here, [&] { return waiting.done(); });
  CHECK(waiting.ec);
  if (t.dev.type() != transport::iwarp) // where TCP tells
    CHECK(waiting.ec == errc::timed_out);
}

TEST_CASE("keeping alive does no harm, nor keeps a context running") {
  connection_options o;
  o.keep_alive = 1ms;
  talk t(o, o);
  const auto& queue = t.a.impl()->queue_pair()->completion_queue();
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
  t.io.run(); // returns, as nothing is awaited
}
