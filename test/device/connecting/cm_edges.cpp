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
#include <boost/asio/use_awaitable.hpp>

#include <arpa/inet.h>
#include <array>
#include <list>
#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace test;
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

/// Two ids bound to one port, so that rdma_listen(3) fails for either.
struct rivals {
  rivals(const device& dev, void* context) {
    endpoint at(device_address(dev), 0);
    for (rdma_cm_id*& i : ids) {
      REQUIRE(rdma_create_id(channel, &i, context, RDMA_PS_TCP) == 0);
      int yes = 1;
      rdma_set_option(i, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes);
      REQUIRE(rdma_bind_addr(i, static_cast<sockaddr*>(at.data())) == 0);
      at.port(ntohs(rdma_get_src_port(i)));
    }
  }
  rivals(const rivals&) = delete;
  ~rivals() {
    for (rdma_cm_id* i : ids)
      rdma_destroy_id(i);
    rdma_destroy_event_channel(channel);
  }

  rdma_event_channel* const channel = rdma_create_event_channel();
  std::array<rdma_cm_id*, 2> ids{};
};

/// While it exists, the process can open no descriptor.
struct no_descriptors {
  no_descriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit none = before;
    const int next = dup(0);
    close(next);
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  no_descriptors(const no_descriptors&) = delete;
  ~no_descriptors() { setrlimit(RLIMIT_NOFILE, &before); }

  rlimit before{};
};

endpoint unused(meeting& m) { return acceptor(m.io, {device_address(m.dev), 0}).local_endpoint(); }

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
    const hooks h;
    meeting m;
    if (m.dev.type() == transport::iwarp)
      return not_on_this_device("closing waits for the answer");
    outcome<connection_request> request;
    m.listener->async_wait_request(request.handler());
    silent_connector silent(m.where(), *m.a.native_handle());
    m.until([&] { return request.done(); });
    rdma_cm_id* const id = request.value.native_handle();
    int calls = 0;
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
    const hooks h;
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
  shared_receive_queue shared(m.io, m.pd);
  queue_pair with_shared(m.io);
  with_shared.open(m.pd, shared);
  const bool shares = GENERATE(false, true);
  INFO((shares ? "shared receives" : "receives of its own"));
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

TEST_CASE("a stream whose peer answers no reads fails once it is connected") {
  const hooks h;
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("a device that agrees on no read");
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

TEST_CASE("a peer that answers no reads") {
  const hooks h;
  meeting m;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  const bool starts_none = GENERATE(true, false);
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

TEST_CASE("requests beyond the backlog cost a few system calls each") {
  const hooks h;
  constexpr int backlog = 20, more = 5;
  meeting m({}, {}, backlog);
  std::list<queue_pair> callers;
  int ended = 0, asked = 0;
  const auto connect = [&] {
    m.initiator->async_connect(callers.emplace_back(m.io, m.pd), m.where(),
                               [&](error_code, const connection_info&) { ++ended; });
  };
  for (int i = 0; i < backlog; ++i)
    connect();
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    asked += call == cm_call::init_queue_pair ? 1 : 0;
    return 0;
  };
  for (int i = 0; i < more; ++i)
    connect();
  m.until([&] { return ended == more; });
  // Each connector calls once, to prepare its own queue pair.
  CHECK(asked - backlog - more <= 8 * more);
}

TEST_CASE("events of many attempts leave turns to the context's other work") {
  constexpr int many = 200;
  meeting m({}, {}, many);
  asio::io_context other(1);
  connector initiator(other);
  std::list<queue_pair> callers;
  int connecting = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    connecting += call == cm_call::connect ? 1 : 0;
    return 0;
  };
  for (int i = 0; i < many; ++i)
    initiator.async_connect(callers.emplace_back(other, m.pd), m.where(),
                            [](error_code, const connection_info&) {});
  until(other, [&] { return connecting == many; });
  const int before = events_read;
  int turns = 0;
  std::vector<outcome<connection_request>> requests(many);
  for (auto& r : requests)
    m.listener->async_wait_request(r.handler());
  std::function<void()> turn = [&] {
    ++turns;
    if (events_read - before < many)
      asio::post(m.io, turn);
  };
  asio::post(m.io, turn);
  m.until([&] { return events_read - before >= many; });
  CHECK(turns >= 4);
}

TEST_CASE("a port of one's own serves for each endpoint of a range") {
  meeting m;
  connect_options c;
  c.local = unused(m);
  m.accept();
  m.initiator->async_connect(m.a, std::array{unused(m), m.where()}, c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  CHECK(m.connected.value.local == *c.local);
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
  m.accept();
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.accepted.succeeded());
}

TEST_CASE("an id that cannot be listened with is given back though no descriptor is left") {
  meeting m; // its context has its event channel
  const rivals r(m.dev, &m);
  rdma_cm_id* const id = r.ids[0];
  rdma_event_channel* const contexts = m.listener->native_handle()->channel;
  std::optional<no_descriptors> none(std::in_place);
  acceptor other(m.io);
  error_code ec;
  other.assign(id, 1, ec);
  none.reset();
  CHECK(ec);
  CHECK_FALSE(other.is_open());
  CHECK(id->channel != contexts);
  CHECK(id->context == &m);
}

TEST_CASE("an accept that no descriptor is left for costs no connector its connection") {
  meeting m;
  asio::io_context other(1); // whose event channel is made for the first connection there
  queue_pair qp(other, m.pd);
  connection first;
  m.connect();
  {
    const no_descriptors none;
    m.listener->async_accept(qp, first.handler());
    m.until([&] { return first.done(); });
  }
  CHECK(first.ec == errc::too_many_files_open);
  m.accept();
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
}

TEST_CASE("a connection that no descriptor is left for is not begun") {
  meeting m;
  asio::io_context other(1);
  queue_pair qp(other, m.pd);
  connection first;
  std::optional<no_descriptors> none(std::in_place);
  const bool requested = GENERATE(false, true);
  if (requested) {
    none.reset();
    outcome<connection_request> request;
    m.listener->async_wait_request(request.handler());
    m.connect();
    m.until([&] { return request.done(); });
    none.emplace();
    m.listener->async_accept(std::move(request.value), qp, first.handler());
  } else {
    m.initiator->async_connect(qp, m.where(), first.handler());
  }
  m.until([&] { return first.done(); });
  none.reset();
  CHECK(first.ec == errc::too_many_files_open);
  CHECK(qp.state() == queue_pair_state::open);
}

TEST_CASE("the events of an id that cannot be given back are passed over") {
  const hooks h;
  meeting m;
  std::array<std::uintptr_t, 8> of_caller{};
  of_caller.fill(1); // an address that cannot be read
  const rivals r(m.dev, &of_caller);
  rdma_cm_id* const id = r.ids[0];
  int moves = 0;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    return call == cm_call::migrate && moves++ > 0 ? ENOMEM : 0;
  };
  acceptor other(m.io);
  error_code ec;
  other.assign(id, 1, ec);
  CHECK(ec);
  CHECK(moves == 3); // to the context, and twice back
  CHECK_FALSE(other.is_open());
  CHECK(id->context == nullptr);
  const int before = events_read;
  endpoint to = m.where();
  REQUIRE(rdma_resolve_addr(id, nullptr, static_cast<sockaddr*>(to.data()), 5000) == 0);
  m.accept();
  m.until([&] { return events_read != before; });
  m.connect(); // the channel serves other ids
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

TEST_CASE("an address that is in use for a moment is tried again") {
  const hooks h;
  meeting m;
  int failing = 2;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    return call == cm_call::connect && failing-- > 0 ? EADDRNOTAVAIL : 0;
  };
  m.accept();
  m.connect();
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.succeeded());
}
