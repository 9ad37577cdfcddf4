// SPDX-License-Identifier: BSL-1.0
// Streams that an acceptor makes, as an acceptor of sockets does.
#define BOOST_ASIO_ENABLE_HANDLER_TYPE_REQUIREMENTS
#include "catch.hpp"
#include "device/connecting/silent_connector.hpp"
#include "device/streams/stream_support.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <chrono>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

namespace test::stream_accept_tests {
namespace {

using asio_rdma::stream;
using namespace asio::experimental::awaitable_operators;

/// The result of an accept that makes a stream.
struct made {
  int calls = 0;
  error_code ec;
  std::optional<stream> value;

  auto handler() {
    return [this](const error_code& e, stream s) {
      ++calls;
      ec = e;
      value.emplace(std::move(s));
    };
  }
  bool done() const { return calls != 0; }
  bool refused(const error_code& why) const { return calls == 1 && ec == why && !value->is_open(); }
};

/// An acceptor, and a stream that connects to it.
struct reception {
  void accept() { listener->async_accept<stream>(pool, accepted.handler()); }
  void connect() {
    initiator.async_connect(client, listener->local_endpoint(), connected.handler());
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io{1};
  std::optional<acceptor> listener{std::in_place, io, own_endpoint()};
  connector initiator{io};
  stream client{io, pool};
  made accepted;
  test::connection connected;
};

/// Whether a byte arrives.
bool carries(asio::io_context& io, stream& from, stream& to) {
  char c = 0;
  outcome<std::size_t> read, write;
  from.async_write_some(asio::buffer("c", 1), write.handler());
  to.async_read_some(asio::buffer(&c, 1), read.handler());
  test::until(io, [&] { return read.done() && write.done(); });
  return write.succeeded() && read.succeeded() && c == 'c';
}

struct way {
  const char* name;
  std::function<void(reception&, asio::cancellation_signal&)> give_up;
};
const way ways[] = {
    {"terminal",
     [](reception&, auto& s) {
       s.emit(asio::cancellation_type::terminal);
     }},
    {"partial",
     [](reception&, auto& s) {
       s.emit(asio::cancellation_type::partial);
     }},
    {"total",
     [](reception&, auto& s) {
       s.emit(asio::cancellation_type::total);
     }},
    {"acceptor::cancel",
     [](reception& r, auto&) {
       r.listener->cancel();
     }},
    {"acceptor::close",
     [](reception& r, auto&) {
       r.listener->close();
     }},
    {"acceptor destroyed",
     [](reception& r, auto&) {
       r.listener.reset();
     }},
};

} // namespace

TEST_CASE("an acceptor makes the stream, also if it was moved to another executor") {
  using context_executor = asio::io_context::executor_type;
  reception r;
  basic_acceptor<context_executor> first(r.io, own_endpoint());
  basic_connector<context_executor> second(r.io);
  r.listener.emplace(std::move(first));
  r.initiator = connector(std::move(second));
  CHECK_FALSE(first.is_open());
  r.accept();
  r.connect();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  REQUIRE(r.accepted.ec == error_code());
  REQUIRE(r.connected.succeeded());
  stream& server = *r.accepted.value;
  CHECK(server.get_executor() == r.io.get_executor());
  CHECK(carries(r.io, r.client, server));
  // Asio's form gives only the socket, which knows the endpoints.
  CHECK(server.remote_endpoint() == r.connected.value.local);
  CHECK(server.local_endpoint() == r.connected.value.remote);
}

TEST_CASE("an acceptor makes the object with or without options, on its executor or on another") {
  reception r;
  const asio::any_io_executor here = r.io.get_executor(), strand = asio::make_strand(r.io);
  stream_options few;
  few.receives = 7;
  const accept_options how;
  auto& l = *r.listener;
  const auto form = GENERATE(range(0, 8));
  CAPTURE(form);
  const std::function<void(asio::any_completion_handler<void(error_code, stream)>)> forms[] = {
      [&](auto h) { l.async_accept<stream>(r.pool, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(r.pool, few, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(r.pool, few, how, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(strand, r.pool, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(strand, r.pool, few, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(strand, r.pool, few, how, std::move(h)); },
      [&](auto h) { l.async_accept<stream>(strand, r.pool, {}, std::move(h)); },
      [&](auto h) {
        l.async_accept<stream>(r.io, r.pool, asio::deferred)(std::move(h));
      }};
  forms[form](r.accepted.handler());
  r.connect();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  REQUIRE(r.accepted.ec == error_code());
  const bool has_options = form % 3 != 0 && form < 6;
  CHECK(r.accepted.value->options().receives == (has_options ? 7 : stream_options().receives));
  CHECK(r.accepted.value->get_executor() == (form >= 3 && form < 7 ? strand : here));
  CHECK(carries(r.io, r.client, *r.accepted.value));
}

TEST_CASE("an object that an acceptor makes on another context belongs to that context") {
  reception r;
  asio::io_context other(1);
  std::optional<stream> server;
  auto work = std::make_optional(asio::make_work_guard(other));
  struct running {
    ~running() {
      if (!thread.joinable())
        return;
      io.stop(); // a check has failed
      thread.join();
    }

    asio::io_context& io;
    std::thread thread{[this] {
      io.run();
    }};
  } runs{other};
  const auto other_thread = runs.thread.get_id();
  std::thread::id accepted_on, read_on;
  bool read = false;
  r.listener->async_accept<stream>(other, r.pool, [&](const error_code& ec, stream s) {
    CHECK(ec == error_code());
    accepted_on = std::this_thread::get_id();
    server.emplace(std::move(s));
  });
  r.connect();
  r.until([&] { return server && r.connected.done(); });
  CHECK(accepted_on == std::this_thread::get_id());
  CHECK(server->get_executor() == other.get_executor());
  auto waits = asio::make_work_guard(r.io); // for the other thread
  char c = 0;
  server->async_read_some(asio::buffer(&c, 1), [&](const error_code& ec, std::size_t) {
    CHECK(ec == error_code());
    read_on = std::this_thread::get_id();
    asio::post(r.io, [&] { read = true; });
  });
  outcome<std::size_t> write;
  r.client.async_write_some(asio::buffer("c", 1), write.handler());
  r.until([&] { return read && write.done(); });
  CHECK(c == 'c');
  CHECK(read_on == other_thread);
  waits.reset();
  r.client.close();
  server->close();
  drain(r.io);
  work.reset();
  runs.thread.join();
}

TEST_CASE("shared receives of the acceptor's context serve no object of another context") {
  reception r;
  asio::io_context other(1);
  const shared_receives shared(r.io, r.pool);
  r.listener->async_accept<stream>(other, shared, r.accepted.handler());
  r.until([&] { return r.accepted.done(); });
  CHECK(r.accepted.refused(asio::error::invalid_argument));
  CHECK(r.accepted.value->get_executor() == other.get_executor());
}

TEST_CASE("an object that cannot be opened is not accepted, and takes no request") {
  reception r;
  made none;
  stream_options wrong;
  wrong.sends = 0;
  r.connect();
  r.listener->async_accept<stream>(r.pool, wrong, none.handler());
  CHECK_FALSE(none.done());
  r.until([&] { return none.done(); });
  CHECK(none.refused(asio::error::invalid_argument));
  r.accept();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  CHECK(r.accepted.ec == error_code());
  CHECK(r.connected.succeeded());
}

TEST_CASE("an acceptor that is not open accepts no stream") {
  reception r;
  const std::size_t blocks = r.pool.statistics().blocks_in_use;
  if (GENERATE(false, true))
    r.listener->close();
  else
    r.listener.emplace(r.io);
  r.accept();
  CHECK_FALSE(r.accepted.done());
  r.until([&] { return r.accepted.done(); });
  CHECK(r.accepted.refused(asio::error::bad_descriptor));
  drain(r.io);
  CHECK(r.pool.statistics().blocks_in_use == blocks);
}

TEST_CASE("an accept that is cancelled leaves nothing behind, and the request to the next") {
  reception r;
  const std::size_t blocks = r.pool.statistics().blocks_in_use;
  const way& w = GENERATE(from_range(std::begin(ways), std::end(ways)));
  INFO(w.name);
  made given_up;
  asio::cancellation_signal signal;
  r.listener->async_accept<stream>(r.pool, {},
                                   asio::bind_cancellation_slot(signal.slot(), given_up.handler()));
  w.give_up(r, signal);
  CHECK_FALSE(given_up.done()); // not from inside cancel
  r.until([&] { return given_up.done(); });
  CHECK(given_up.refused(asio::error::operation_aborted));
  drain(r.io);
  CHECK(r.pool.statistics().blocks_in_use == blocks);
  if (!r.listener || !r.listener->is_open())
    return;
  r.accept();
  r.connect();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  CHECK(r.accepted.ec == error_code());
  CHECK(r.connected.succeeded());
}

TEST_CASE("an accept is cancelled at each of its steps") {
  const way& w = GENERATE(from_range(std::begin(ways), std::end(ways)));
  INFO(w.name);
  bool reached_the_end = false;
  for (int steps = 0; !reached_the_end; ++steps) {
    REQUIRE(steps < 100);
    INFO("after " << steps << " steps");
    reception r;
    asio::cancellation_signal signal;
    r.listener->async_accept<stream>(
        r.pool, {}, asio::bind_cancellation_slot(signal.slot(), r.accepted.handler()));
    r.connect();
    for (int i = 0; i < steps && !(r.connected.done() && r.accepted.done()); ++i)
      r.io.run_one();
    reached_the_end = r.connected.done() && r.accepted.done();
    w.give_up(r, signal);
    // The other side is given up too, so that each operation must end.
    if (r.listener)
      r.listener->close();
    r.initiator.cancel();
    r.client.close();
    drain(r.io);
    CHECK(r.connected.calls == 1);
    CHECK(r.accepted.calls == 1);
    INFO(describe(r.accepted.ec));
    CHECK((!r.accepted.ec || r.accepted.ec == asio::error::operation_aborted ||
           r.accepted.ec == asio::error::connection_aborted));
    REQUIRE(r.accepted.value);
    CHECK(r.accepted.value->is_open() == !r.accepted.ec);
  }
}

TEST_CASE("a connector that gives up in the middle costs the others nothing") {
  reception r;
  if (r.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  accept_options how;
  const bool leaves = GENERATE(true, false);
  if (!leaves)
    how.timeout = std::chrono::milliseconds(50);
  const shared_receives shared(r.io, r.pool);
  if (GENERATE(false, true))
    r.listener->async_accept<stream>(shared, {}, how, r.accepted.handler());
  else
    r.listener->async_accept<stream>(r.pool, {}, how, r.accepted.handler());
  stream lost(r.io, r.pool);
  silent_connector silent(r.listener->local_endpoint(), *lost.native_handle(),
                          lost.impl()->hello());
  REQUIRE(silent.accepted(r.io));
  r.connect();
  if (leaves)
    silent.give_up();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  INFO(describe(r.accepted.ec));
  REQUIRE(r.accepted.ec == error_code());
  CHECK(r.connected.succeeded());
  CHECK(carries(r.io, r.client, *r.accepted.value));
}

TEST_CASE("an acceptor that ends takes no other request for one that gives up") {
  reception r;
  if (r.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  const way& w = GENERATE(from_range(std::begin(ways) + 3, std::end(ways)));
  INFO(w.name);
  r.accept();
  stream lost(r.io, r.pool);
  silent_connector silent(r.listener->local_endpoint(), *lost.native_handle(),
                          lost.impl()->hello());
  REQUIRE(silent.accepted(r.io));
  asio::cancellation_signal none;
  w.give_up(r, none);
  silent.give_up();
  r.until([&] { return r.accepted.done(); });
  INFO(describe(r.accepted.ec));
  CHECK(r.accepted.refused(asio::error::operation_aborted));
}

TEST_CASE("a stream that is connected accepts no peer, and takes no request") {
  reception r;
  r.accept();
  r.connect();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  test::connection again;
  r.listener->async_accept(*r.accepted.value, again.handler());
  CHECK_FALSE(again.done());
  r.until([&] { return again.done(); });
  CHECK(again.ec == asio::error::already_connected);
  CHECK(carries(r.io, r.client, *r.accepted.value));
}

TEST_CASE("a stream that connects while it accepts has the peer that it connects to") {
  reception r;
  acceptor there(r.io, own_endpoint());
  stream both(r.io, r.pool), other(r.io, r.pool), next(r.io, r.pool);
  test::connection accepted, waits, taken;
  outcome<connection_request> request;
  there.async_wait_request(request.handler());
  r.listener->async_accept(both, accepted.handler());
  r.initiator.async_connect(both, there.local_endpoint(), r.connected.handler());
  r.until([&] { return request.done(); });
  r.initiator.async_connect(other, r.listener->local_endpoint(), waits.handler());
  r.until([&] { return accepted.done(); });
  CHECK(accepted.ec == asio::error::already_connected);
  r.listener->async_accept(next, taken.handler());
  r.until([&] { return taken.done() && waits.done(); });
  CHECK(taken.succeeded());
  CHECK(waits.succeeded());
  test::connection reached;
  there.async_accept(std::move(request.value), r.client, reached.handler());
  r.until([&] { return r.connected.done() && reached.done(); });
  INFO(describe(r.connected.ec));
  REQUIRE(r.connected.succeeded());
  REQUIRE(reached.succeeded());
  CHECK(carries(r.io, both, r.client));
}

TEST_CASE("accepting with use_future, while another thread runs the context") {
  reception r;
  auto future = r.listener->async_accept<stream>(r.pool, {}, asio::use_future);
  auto refused = r.listener->async_accept<stream>(r.pool, {}, asio::use_future);
  auto connected =
      r.initiator.async_connect(r.client, r.listener->local_endpoint(), asio::use_future);
  std::optional<stream> server;
  std::thread runs([&] { r.io.run(); });
  connected.get();
  server.emplace(future.get());
  asio::post(r.io, [&] { r.listener->close(); });
  refused.wait();
  r.client.close();
  runs.join();
  CHECK(server->is_open());
  CHECK_THROWS_AS(refused.get(), system_error);
}

TEST_CASE("a deferred accept begins when it is launched, as often as it is") {
  reception r;
  const std::size_t blocks = r.pool.statistics().blocks_in_use;
  const auto accept = r.listener->async_accept<stream>(r.pool, {}, asio::deferred);
  r.io.poll();
  CHECK(r.pool.statistics().blocks_in_use == blocks);
  made second;
  accept(r.accepted.handler());
  auto copy = accept;
  std::move(copy)(second.handler());
  stream other(r.io, r.pool);
  test::connection other_connected;
  r.connect();
  r.initiator.async_connect(other, r.listener->local_endpoint(), other_connected.handler());
  r.until([&] { return r.accepted.done() && second.done(); });
  r.until([&] { return r.connected.done() && other_connected.done(); });
  CHECK(r.accepted.ec == error_code());
  CHECK(second.ec == error_code());
}

TEST_CASE("accepting by coroutines, with exceptions and without") {
  stream_pair t;
  t.play([&]() -> asio::awaitable<void> {
    constexpr auto tuple = asio::as_tuple(asio::use_awaitable);
    stream client(t.io, t.pool);
    const auto connect = [&](stream& by) -> asio::awaitable<void> {
      co_await t.initiator.async_connect(by, t.listener.local_endpoint(), asio::use_awaitable);
    };
    stream server = co_await (connect(client) &&
                              t.listener.async_accept<stream>(t.pool, {}, asio::use_awaitable));
    co_await server.async_write_some(asio::buffer("hello", 5), asio::use_awaitable);
    stream other(t.io, t.pool);
    auto [ec, second] =
        co_await (connect(other) && t.listener.async_accept<stream>(t.pool, {}, tuple));
    CHECK(!ec);
    CHECK(second.is_open());
    char memory[5];
    const std::size_t n =
        co_await client.async_read_some(asio::buffer(memory), asio::use_awaitable);
    CHECK(n == 5);

    asio::post(t.io, [&] { t.listener.cancel(); });
    auto [aborted, none] = co_await t.listener.async_accept<stream>(t.pool, {}, tuple);
    CHECK(aborted == asio::error::operation_aborted);
    CHECK_FALSE(none.is_open());
    t.listener.close();
    error_code thrown;
    try {
      co_await t.listener.async_accept<stream>(t.pool, {}, asio::use_awaitable);
    } catch (const system_error& e) {
      thrown = e.code();
    }
    CHECK(thrown == asio::error::bad_descriptor);
  }());
}

TEST_CASE("an acceptor makes connections too, and objects that share receives") {
  reception r;
  const shared_receives shared(r.io, r.pool);
  r.listener->async_accept<stream>(shared, {}, r.accepted.handler());
  r.connect();
  r.until([&] { return r.accepted.done() && r.connected.done(); });
  REQUIRE(r.accepted.ec == error_code());
  CHECK(carries(r.io, r.client, *r.accepted.value));

  asio_rdma::connection talker(r.io, r.pool);
  std::optional<asio_rdma::connection> answerer;
  test::connection connected;
  r.listener->async_accept<asio_rdma::connection>(
      r.pool, {}, [&](const error_code& ec, asio_rdma::connection c) {
        CHECK(!ec);
        answerer.emplace(std::move(c));
      });
  r.initiator.async_connect(talker, r.listener->local_endpoint(), connected.handler());
  r.until([&] { return answerer && connected.done(); });
  CHECK(connected.succeeded());
  CHECK(answerer->is_open());
}

} // namespace test::stream_accept_tests
