// SPDX-License-Identifier: BSL-1.0
// Acceptors and connectors at the edges of an attempt.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"

#include <asio_rdma/stream.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>

#include <algorithm>
#include <array>

namespace test::cm_edges_tests {
namespace {

using std::chrono::milliseconds;

/// A queue pair whose `open` always fails.
struct never_open : queue_pair {
  using queue_pair::queue_pair;
  struct options_type {};
  inline static int rounds = 0;

  void open(int, const options_type&, error_code& ec) {
    ++rounds;
    ec = error::queue_pair_fatal;
  }
};

} // namespace

TEST_CASE("the error of the object's own open ends an accept that makes the object") {
  meeting m;
  never_open::rounds = 0;
  int calls = 0;
  error_code result;
  m.listener->async_accept<never_open>(1, {}, [&](error_code ec, never_open) {
    ++calls;
    result = ec;
  });
  m.until([&] { return calls != 0 || never_open::rounds > 100; });
  CHECK(calls == 1);
  CHECK(result == error::queue_pair_fatal);
  CHECK(never_open::rounds == 1);
}

TEST_CASE("a connector gives up before each call that accepts it") {
  bool given_up = true;
  for (int step = 0; given_up; ++step) {
    INFO("before call " << step);
    meeting m;
    if (m.dev.type() == transport::iwarp)
      return not_on_this_device("closing waits for the answer");
    outcome<connection_request> request;
    m.listener->async_wait_request(request.handler());
    silent_connector silent(m.where(), *m.a.native_handle());
    m.until([&] { return request.done(); });
    rdma_cm_id* const id = request.value.native_handle();
    int calls = 0;
    const hooks h;
    before_cm_call = [&](cm_call, const rdma_cm_id* of) {
      if (of == id && calls++ == step) {
        silent.give_up();
        CHECK(wait_until_given_up(id));
      }
      return 0;
    };
    accept_options o;
    o.timeout = milliseconds(500);
    m.listener->async_accept(std::move(request.value), m.b, o, m.accepted.handler());
    m.until([&] { return m.accepted.done(); });
    given_up = calls > step;
    INFO(describe(m.accepted.ec));
    if (given_up)
      CHECK(m.accepted.ec == asio::error::connection_aborted);
    else
      CHECK(step == 4); // three states and the acceptance
  }
}

TEST_CASE("an acceptor gives up before each call that answers it") {
  bool given_up = true;
  for (int step = 0; given_up; ++step) {
    INFO("before call " << step << " after the answer");
    meeting m;
    if (m.dev.type() == transport::iwarp)
      return not_on_this_device("the connector's last call is its first");
    acceptor other(m.io, {device_address(m.dev), 0});
    queue_pair c(m.io, m.pd);
    connection by_other;
    m.accept();
    other.async_accept(c, by_other.handler());
    const rdma_cm_id* connecting = nullptr;
    bool answered = false;
    int calls = 0;
    const hooks h;
    before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
      if (call == cm_call::resolve_address)
        connecting = id;
      answered = answered || call == cm_call::accept;
      if (id == connecting && answered && calls++ == step) {
        m.b.close();
        CHECK(wait_until_given_up(const_cast<rdma_cm_id*>(id)));
      }
      return 0;
    };
    m.initiator->async_connect(m.a, std::array{m.where(), other.local_endpoint()},
                               m.connected.handler());
    m.until([&] { return m.connected.done(); });
    given_up = calls > step;
    INFO(describe(m.connected.ec));
    if (!given_up) {
      CHECK(m.connected.succeeded());
      CHECK(step == 3);     // two states, and the notice of the last
    } else if (step == 0) { // the queue pair is in its first state
      CHECK(m.connected.succeeded());
      CHECK(m.connected.value.remote == other.local_endpoint());
    } else {
      CHECK(m.connected.ec == error::rejected);
      CHECK(m.a.state() == queue_pair_state::failed);
    }
  }
}

TEST_CASE("a stream goes to the next endpoint if the acceptor of the first gives up") {
  const device dev = open_device();
  if (dev.type() == transport::iwarp)
    return not_on_this_device("the connector's last call is its first");
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  acceptor first(io, {device_address(dev), 0}), second(io, {device_address(dev), 0});
  connector initiator(io);
  stream a(io, pool), b(io, pool), c(io, pool);
  connection accepted, by_second, connected;
  first.async_accept(b, accepted.handler());
  second.async_accept(c, by_second.handler());
  const rdma_cm_id* connecting = nullptr;
  bool answered = false, given_up = false;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    if (call == cm_call::resolve_address)
      connecting = id;
    answered = answered || call == cm_call::accept;
    if (id == connecting && answered && !given_up) {
      given_up = true;
      b.close();
      CHECK(wait_until_given_up(const_cast<rdma_cm_id*>(id)));
    }
    return 0;
  };
  initiator.async_connect(a, std::array{first.local_endpoint(), second.local_endpoint()},
                          connected.handler());
  until(io, [&] { return connected.done(); });
  INFO(describe(connected.ec));
  CHECK(given_up);
  CHECK(connected.succeeded());
  CHECK(connected.value.remote == second.local_endpoint());
}

TEST_CASE("a request whose connector has given up is rejected") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("closing waits for the answer");
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  silent_connector silent(m.where(), *m.a.native_handle());
  m.until([&] { return request.done(); });
  silent.give_up();
  REQUIRE(wait_until_given_up(request.value.native_handle()));
  error_code ec;
  request.value.reject({}, ec);
  CHECK(ec == asio::error::connection_aborted);
}

TEST_CASE("the first message completes an accept whose confirmation is lost") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  const bool shares = GENERATE(false, true);
  INFO((shares ? "shared receives" : "receives of its own"));
  if (shares && m.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  shared_receive_queue shared(m.io);
  queue_pair with_shared(m.io);
  if (shares) {
    shared.open(m.pd);
    with_shared.open(m.pd, shared);
  }
  queue_pair& accepting = shares ? with_shared : m.b;
  const mutable_buffer space = m.mb.buffer(0, 64);
  got arrived;
  if (shares)
    shared.async_receive(space, arrived.handler());
  else
    accepting.async_receive(space, arrived.handler());
  m.listener->async_accept(accepting, m.accepted.handler());
  unconfirmed connector(m);
  CHECK_FALSE(m.accepted.done());
  connector.send();
  m.until([&] { return m.accepted.done(); });
  CHECK_FALSE(m.accepted.ec);
  m.until([&] { return arrived.done() && connector.message.calls == 1; });
  CHECK_FALSE(arrived.ec);
  CHECK_FALSE(connector.message.ec);
}

TEST_CASE("poll counts the first message of a connector once") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  completion_queue_options options;
  options.mode = completion_mode::manual;
  completion_queue manual(m.io, m.dev, options);
  queue_pair accepting(m.io);
  accepting.open(m.pd, manual);
  got arrived;
  accepting.async_receive(m.mb.buffer(0, 64), arrived.handler());
  m.listener->async_accept(accepting, m.accepted.handler());
  unconfirmed connector(m);
  connector.send();
  std::size_t polled = 0;
  m.until([&] {
    polled += manual.poll();
    return arrived.done() && m.accepted.done();
  });
  CHECK_FALSE(m.accepted.ec);
  CHECK(polled == 1);
}

TEST_CASE("total does not cancel an accept that has taken its request") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  asio::cancellation_signal signal;
  got arrived;
  m.b.async_receive(m.mb.buffer(0, 64), arrived.handler());
  m.listener->async_accept(m.b, asio::bind_cancellation_slot(signal.slot(), m.accepted.handler()));
  unconfirmed connector(m);
  signal.emit(asio::cancellation_type::total);
  connector.send();
  m.until([&] { return m.accepted.done(); });
  CHECK_FALSE(m.accepted.ec);
  CHECK(m.b.state() == queue_pair_state::connected);
}

TEST_CASE("connecting and accepting with options use the default token of the executor") {
  using token = asio::use_awaitable_t<>;
  meeting m;
  token::as_default_on_t<acceptor> accepts(m.io.get_executor(), own_endpoint());
  token::as_default_on_t<connector> connects(m.io.get_executor());
  int ended = 0;
  const auto count = [&ended](const std::exception_ptr& e) {
    CHECK(e == nullptr);
    ++ended;
  };
  asio::co_spawn(
      m.io,
      [&]() -> asio::awaitable<void> { co_await accepts.async_accept(m.b, accept_options()); },
      count);
  asio::co_spawn(
      m.io,
      [&]() -> asio::awaitable<void> {
        co_await connects.async_connect(m.a, accepts.local_endpoint(), connect_options());
      },
      count);
  m.until([&] { return ended == 2; });
  CHECK(m.a.state() == queue_pair_state::connected);
  CHECK(m.b.state() == queue_pair_state::connected);
}

TEST_CASE("an accept that cannot be served leaves the connector to the next one") {
  meeting m;
  queue_pair closed(m.io, m.pd);
  connection first;
  m.listener->async_accept(closed, first.handler());
  m.accept();
  closed.close();
  m.connect();
  m.until([&] { return first.done() && m.connected.done() && m.accepted.done(); });
  CHECK(first.ec == asio::error::bad_descriptor);
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
}

TEST_CASE("a request that no accept can take waits for the next one") {
  meeting m;
  queue_pair closed(m.io, m.pd);
  connection first;
  m.listener->async_accept(closed, first.handler());
  closed.close();
  m.connect();
  m.until([&] { return first.done(); });
  CHECK(first.ec == asio::error::bad_descriptor);
  m.accept();
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.succeeded());
}

TEST_CASE("an invalid argument of an accept is reported at once") {
  meeting m;
  connection wrong;
  SECTION("the queue pair of another accept that waits") {
    m.accept();
    m.listener->async_accept(m.b, wrong.handler());
    m.until([&] { return wrong.done(); });
    CHECK(wrong.ec == asio::error::already_connected);
    m.connect();
    m.until([&] { return m.connected.done() && m.accepted.done(); });
    CHECK(m.accepted.succeeded());
    CHECK(m.connected.succeeded());
  }
  SECTION("private data with a stream") {
    memory_pool pool(m.pd);
    stream s(m.io);
    s.open(pool);
    accept_options o;
    o.data = bytes_of("too much");
    m.listener->async_accept(s, o, wrong.handler());
    m.until([&] { return wrong.done(); });
    CHECK(wrong.ec == asio::error::invalid_argument);
  }
}

TEST_CASE("a queue pair that is being connected is not connected by hand") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("connecting by address");
  m.connect();
  error_code ec;
  m.a.connect(m.b.local_address(), ec);
  CHECK(ec == asio::error::already_connected);
  m.a.set_connected();
  CHECK(m.a.state() == queue_pair_state::open);
  m.accept();
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.accepted.succeeded());
}

TEST_CASE("queue pairs that rdma_cm cannot connect are refused at once") {
  queue_pair_options unreliable;
  unreliable.type = IBV_QPT_UC;
  std::optional<meeting> m;
  try {
    m.emplace(unreliable, unreliable);
  } catch (const system_error&) {
    return not_on_this_device("unreliable connections");
  }
  m->accept();
  m->until([&] { return m->accepted.done(); });
  CHECK(m->accepted.ec == asio::error::operation_not_supported);
  m->connect();
  m->until([&] { return m->connected.done(); });
  CHECK(m->connected.ec == asio::error::operation_not_supported);
}

TEST_CASE("a loopback address of the device is no foreign one") {
  const device dev = open_device();
  const auto own = dev.addresses();
  const asio::ip::address loopback = asio::ip::address_v4::loopback();
  if (std::find(own.begin(), own.end(), loopback) == own.end())
    return not_on_this_device("the loopback address");
  asio::io_context io(1);
  acceptor any(io, endpoint(asio::ip::address_v4::any(), 0));
  acceptor second(io);
  error_code ec;
  second.open(endpoint(loopback, any.local_endpoint().port()), 8, ec);
  CHECK(ec == asio::error::address_in_use);

  any.close();
  protection_domain pd(dev);
  queue_pair qp(io, pd);
  connector initiator(io);
  test::connection connected;
  const hooks h;
  before_cm_call = [](cm_call call, const rdma_cm_id*) {
    return call == cm_call::resolve_address ? EINVAL : 0;
  };
  initiator.async_connect(qp, endpoint(loopback, 1), connected.handler());
  until(io, [&] { return connected.done(); });
  CHECK(connected.ec == errc::invalid_argument);
}

TEST_CASE("an address that is in use for a moment is tried again") {
  meeting m;
  int failing = 2;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    return call == cm_call::connect && failing-- > 0 ? EADDRNOTAVAIL : 0;
  };
  m.accept();
  m.connect();
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.succeeded());
}

TEST_CASE("a stream whose peer answers no reads fails once it is connected") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("a device that agrees on no read");
  const hooks h;
  edit_parameters = [](cm_call call, rdma_conn_param& p) {
    if (call != cm_call::connect)
      p.responder_resources = 0;
  };
  const memory_pool pool(m.pd);
  stream x(m.io), y(m.io);
  x.open(pool);
  y.open(pool);
  m.listener->async_accept(y, m.accepted.handler());
  m.initiator->async_connect(x, m.where(), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  sent s;
  char byte = 0;
  x.async_read_some(asio::buffer(&byte, 1), s.handler());
  m.until([&] { return s.done(); });
  CHECK(s.ec == error::incompatible_peer);
}

TEST_CASE("a peer that answers no reads") {
  meeting m;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  const bool starts_none = GENERATE(true, false);
  const hooks h;
  edit_parameters = [=](cm_call call, rdma_conn_param& p) {
    if ((call == cm_call::connect) == connecting)
      return;
    p.responder_resources = 0;
    if (starts_none)
      p.initiator_depth = 0;
  };
  m.meet();
  queue_pair& reading = connecting ? m.a : m.b;
  CHECK(m.carries("messages"));
  sent read, wrote;
  reading.async_read(m.ma.buffer(0, 8), m.mb.remote(0, 8), read.handler());
  m.until([&] { return read.done(); });
  INFO(describe(read.ec));
  // The error depends on the device: siw agrees on one read at least.
  if (m.dev.type() == transport::iwarp && !read.ec)
    return;
  CHECK(read.ec == asio::error::operation_not_supported);
  if (m.dev.has_atomics()) {
    outcome<std::uint64_t> added;
    reading.async_fetch_add(m.mb.remote(0, 8), 1, added.handler());
    m.until([&] { return added.done(); });
    CHECK(added.ec == asio::error::operation_not_supported);
  }
  if (m.dev.type() != transport::iwarp || connecting) { // there the connector sends first
    reading.async_write(m.ma.buffer(0, 8), m.mb.remote(0, 8), wrote.handler());
    m.until([&] { return wrote.done(); });
    CHECK(wrote.succeeded());
  }
}

TEST_CASE("a queue pair without reads is not opened") {
  asio::io_context io;
  const protection_domain pd(open_device());
  queue_pair qp(io);
  queue_pair_options o;
  o.max_reads = 0;
  error_code ec;
  qp.open(pd, o, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(qp.is_open());
}

} // namespace test::cm_edges_tests
