// SPDX-License-Identifier: BSL-1.0
//
// The properties of a handler, as in asio_associated.cpp, for operations of objects other than
// queue pairs.
#include <asio_rdma/stream.hpp>

#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/strand.hpp>

#include <list>
#include <vector>

namespace test::asio_objects_tests {
namespace {

using io_executor = asio::io_context::executor_type;
using strand_type = asio::strand<io_executor>;
using endpoints = std::vector<asio::ip::tcp::endpoint>;
template <class Executor>
using unix_socket = asio::basic_stream_socket<asio::local::stream_protocol, Executor>;

/// An object of each kind, with all that its operations need to succeed.
template <class Executor>
struct objects {
  template <class ExecutorOrContext>
  objects(ExecutorOrContext&& ex, const ground& g)
      : faults(g.dev.native_handle()),
        listener(ex, own_endpoint()),
        initiator(ex),
        events(ex, g.dev),
        shared(ex, g.pd),
        receiver(ex),
        here(ex),
        there(ex) {
    for (int i = 0; i < 7; ++i)
      qp.emplace_back(ex, g.pd);
    receiver.open(g.pd, shared);
    connect(manager, qp[6], receiver);
    asio::local::connect_pair(here, there);
  }

  faults::injector faults;
  asio::io_context manager{1};
  basic_acceptor<Executor> listener;
  basic_connector<Executor> initiator;
  basic_device_events<Executor> events;
  basic_shared_receive_queue<Executor> shared;
  std::vector<basic_queue_pair<Executor>> qp;
  basic_queue_pair<Executor> receiver;
  unix_socket<Executor> here, there;
};

/// Starts an operation of each kind, with handlers of `make(name, error, then)`. They call `then`
/// with their arguments after the error.
template <class Executor, class Make>
int start_each(objects<Executor>& o, const ground& g, Make make) {
  const error_code none;
  const error_code by_hand =
      g.dev.type() == transport::iwarp ? error_code(asio::error::operation_not_supported) : none;
  const auto nothing = [](auto&&...) {
  };

  o.listener.async_accept(o.qp[0], make("accept", none, nothing));
  o.listener.async_wait_request(
      make("wait_request", none, [&o, make, none, nothing](connection_request request) mutable {
        o.listener.async_accept(std::move(request), o.qp[1],
                                make("accept of a request", none, nothing));
      }));
  const auto where = o.listener.local_endpoint();
  o.initiator.async_connect(o.qp[2], where, make("connect", none, nothing));
  o.initiator.async_connect(o.qp[3], endpoints{where}, make("connect by a list", none, nothing));

  async_exchange(o.here, o.qp[4], make("exchange", by_hand, nothing));
  async_exchange(o.there, o.qp[5], make("exchange", by_hand, nothing));

  o.events.async_wait_event(make("wait_event", none, nothing));
  o.faults.raise_port_event();

  o.shared.async_receive(g.part(1), make("shared receive", none, nothing));
  for (std::size_t i = 2; i < 5; ++i)
    o.shared.async_receive(g.part(i), asio::detached);
  o.shared.async_wait_limit(3, make("wait_limit", none, nothing));
  o.qp[6].async_send(g.part(0), asio::detached);
  o.qp[6].async_send(g.part(0), asio::detached);
  return 10;
}

/// Objects, some of which are closed.
template <class Executor>
struct unusable {
  template <class ExecutorOrContext>
  unusable(ExecutorOrContext&& ex, const ground& g)
      : initiator(ex),
        listener(ex, own_endpoint()),
        closed_listener(ex),
        fresh(ex, g.pd),
        closed(ex),
        closed_stream(ex),
        shared(ex, g.pd),
        closed_shared(ex),
        closed_events(ex),
        socket(ex) {}

  basic_connector<Executor> initiator;
  basic_acceptor<Executor> listener, closed_listener;
  basic_queue_pair<Executor> fresh, closed;
  basic_stream<Executor> closed_stream;
  basic_shared_receive_queue<Executor> shared, closed_shared;
  basic_device_events<Executor> closed_events;
  unix_socket<Executor> socket;
};

/// Starts operations that fail at once, with handlers of `make(error)`.
template <class Executor, class Make>
int start_failing(unusable<Executor>& u, const ground& g, Make make) {
  const error_code closed = asio::error::bad_descriptor;
  u.closed_listener.async_accept(u.fresh, make(closed));
  u.closed_listener.async_wait_request(make(closed));
  u.listener.async_accept(u.closed, make(closed));
  u.listener.async_accept(connection_request(), u.fresh, make(closed));
  u.initiator.async_connect(u.closed, u.listener.local_endpoint(), make(closed));
  u.initiator.async_connect(u.fresh, endpoints(), make(asio::error::not_found));
  async_exchange(u.socket, u.closed, make(closed));
  async_teardown(boost::beast::role_type(), u.closed_stream, make(closed));
  u.closed_events.async_wait_event(make(closed));
  u.closed_shared.async_receive(g.part(0), make(closed));
  u.closed_shared.async_wait_limit(1, make(closed));
  u.shared.async_receive(std::vector<mutable_buffer>(100, g.part(0)),
                         make(error::too_many_buffers));
  return 12;
}

} // namespace

TEST_CASE("the handler of any object's operation runs on its own executor, with its allocator") {
  ground g;
  asio::io_context io(1);
  objects<io_executor> o(io.get_executor(), g);
  recording_executor::record record;
  const recording_executor ex(io, record);
  std::list<allocation_count> counts;
  int done = 0, started = -1;
  bool initiating = false;
  asio::post(io, [&] {
    initiating = true;
    started = start_each(o, g, [&](const char* name, error_code expected, auto then) {
      allocation_count& count = counts.emplace_back();
      return asio::bind_allocator(
          counting_allocator<void>(count),
          asio::bind_executor(ex, [&, name, expected, then](error_code ec, auto&&... r) mutable {
            INFO(name);
            CHECK_FALSE(initiating);
            CHECK(record.running == 1);
            CHECK(ec == expected);
            CHECK(count.allocations != 0);
            CHECK(count.outstanding == 0);
            ++done;
            then(std::forward<decltype(r)>(r)...);
          }));
    });
    initiating = false;
  });
  until(io, [&] { return done == started; });
}

TEST_CASE(
    "the handler of any object's operation runs without an executor on the object's: a strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  objects<strand_type> o(strand, g);
  int done = 0, started = -1;
  bool initiating = false;
  asio::post(strand, [&] {
    initiating = true;
    started = start_each(o, g, [&](const char* name, error_code expected, auto then) {
      return [&, name, expected, then](error_code ec, auto&&... r) mutable {
        INFO(name);
        CHECK_FALSE(initiating);
        CHECK(strand.running_in_this_thread());
        CHECK(ec == expected);
        ++done;
        then(std::forward<decltype(r)>(r)...);
      };
    });
    initiating = false;
  });
  until(io, [&] { return done == started; });
}

TEST_CASE(
    "an immediate error of any object's operation uses the handler's executor and allocator") {
  ground g;
  asio::io_context io(1);
  unusable<io_executor> u(io.get_executor(), g);
  recording_executor::record record;
  const recording_executor ex(io, record);
  std::list<allocation_count> counts;
  int done = 0, started = 0;
  bool initiating = false;
  asio::post(io, [&] {
    initiating = true;
    started = start_failing(u, g, [&](error_code expected) {
      allocation_count& count = counts.emplace_back();
      return asio::bind_allocator(counting_allocator<void>(count),
                                  asio::bind_executor(ex, [&, expected](error_code ec, auto&&...) {
                                    CHECK_FALSE(initiating);
                                    CHECK(record.running == 1);
                                    CHECK(ec == expected);
                                    CHECK(count.allocations != 0);
                                    CHECK(count.outstanding == 0);
                                    ++done;
                                  }));
    });
    initiating = false;
  });
  io.run();
  CHECK(done == started);
  CHECK(record.executed == started);
}

TEST_CASE("an immediate error of a handler without an executor is reported later, in the object's "
          "strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  unusable<strand_type> u(strand, g);
  int done = 0, started = 0;
  bool initiating = false;
  asio::post(strand, [&] {
    initiating = true;
    started = start_failing(u, g, [&](error_code expected) {
      return [&, expected](error_code ec, auto&&...) {
        CHECK_FALSE(initiating);
        CHECK(strand.running_in_this_thread());
        CHECK(ec == expected);
        ++done;
      };
    });
    initiating = false;
  });
  io.run();
  CHECK(done == started);
}

} // namespace test::asio_objects_tests
