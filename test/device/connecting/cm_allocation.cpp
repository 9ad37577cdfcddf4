// SPDX-License-Identifier: BSL-1.0
// Connecting, accepting, rejecting and disconnecting while each allocation fails once.
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"
#include "device/support/allocation_scene.hpp"
#include "streams/stream_impl.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>

namespace {

using namespace test;

/// Wraps a handler: the error `end`, which the scene brings about, is no error for it.
template <class Handler>
auto expecting(error_code end, Handler h) {
  return [end, h = std::move(h)](error_code ec, auto&&... args) mutable {
    h(ec == end ? error_code() : ec, std::forward<decltype(args)>(args)...);
  };
}

/// An acceptor, a connector and two open objects to be connected.
template <class Object, class Source>
struct scene {
  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  Source source{pd};
  acceptor listener{io, endpoint(device_address(dev), 0)};
  connector initiator{io};
  Object a{io}, b{io};
  connection_request request;
  // A peer is not always notified that its attempt was given up: siw does not notice. So waits have
  // a time limit.
  connect_options soon;
  accept_options in_time;
  error_code end; // the error that the scene brings about

  scene() {
    a.open(source);
    b.open(source);
    soon.timeout = in_time.timeout = std::chrono::milliseconds(500);
  }

  // If the connector's operation fails, the acceptor's waits for the next request, so it is
  // cancelled then.
  void connect(handler_accounts& accounts) {
    accounts.start(
        "connect",
        [this](auto h) {
          initiator.async_connect(a, listener.local_endpoint(), soon, expecting(end, std::move(h)));
        },
        [this](error_code, const connection_info&) { listener.cancel(); });
  }
  void accept(handler_accounts& accounts) {
    accounts.start("accept", [this](auto h) {
      listener.async_accept(b, in_time, expecting(end, std::move(h)));
    });
  }
  void close() {
    request = {};
    listener.close();
    initiator.cancel();
    a.close();
    b.close();
  }
};

using queue_pairs = scene<queue_pair, protection_domain>;

struct accepting : queue_pairs {
  void play(handler_accounts& accounts) {
    accept(accounts);
    connect(accounts);
  }
};

struct accepting_a_request : queue_pairs {
  void play(handler_accounts& accounts) {
    connect(accounts);
    accounts.start(
        "wait", [this](auto h) { listener.async_wait_request(std::move(h)); },
        [this, &accounts](error_code ec, connection_request r) {
          if (ec)
            return;
          request = std::move(r);
          accounts.start("accept the request", [this](auto h) {
            listener.async_accept(std::move(request), b, in_time, std::move(h));
          });
        });
  }
};

struct rejecting : queue_pairs {
  private_data why = bytes_of("no");

  void play(handler_accounts& accounts) {
    end = error::rejected;
    connect(accounts);
    accounts.start(
        "wait", [this](auto h) { listener.async_wait_request(std::move(h)); },
        [this](error_code, connection_request r) {
          error_code ignored;
          r.reject(why, ignored);
        });
  }
};

struct disconnecting : queue_pairs {
  void play(handler_accounts& accounts) {
    accept(accounts);
    connect(accounts);
    if (!accounts.run(io) || b.state() != queue_pair_state::connected)
      return;
    accounts.start("wait for the end", [this](auto h) {
      b.async_wait_disconnect(expecting(asio::error::connection_reset, std::move(h)));
    });
    a.close();
  }
};

struct cancelling : queue_pairs {
  void play(handler_accounts& accounts) {
    end = asio::error::operation_aborted;
    accept(accounts);
    connect(accounts);
    io.poll_one();
    initiator.cancel();
    listener.cancel();
  }
};

/// An acceptor makes a stream, and makes it again because its first connector gives up. The
/// acceptor's executor is that of the context, as Asio then calls the handlers of a composed
/// operation without an allocation.
struct accepting_twice : scene<stream, memory_pool> {
  basic_acceptor<asio::io_context::executor_type> maker{io, endpoint(device_address(dev), 0)};
  queue_pair unused{io, pd};
  silent_connector first{maker.local_endpoint(), *unused.native_handle(), a.impl()->hello()};

  void play(handler_accounts& accounts) {
    accounts.start(
        "accept", [this](auto h) { maker.async_accept<stream>(source, {}, in_time, std::move(h)); },
        [this](error_code ec, stream made) {
          b = std::move(made);
          if (ec) // no operation is left that would answer
            initiator.cancel();
        });
    while (!accounts.refused() && !accounts.all_called() && !first.answered()) {
      try {
        io.poll_one();
      } catch (const std::bad_alloc&) { // as in accounts.run
      }
    }
    first.give_up();
    if (accounts.refused() || accounts.any_failed())
      return;
    accounts.start(
        "connect",
        [this](auto h) { initiator.async_connect(a, maker.local_endpoint(), soon, std::move(h)); },
        [this](error_code, const connection_info&) { maker.cancel(); });
  }
  void close() {
    maker.close();
    scene::close();
  }
};

} // namespace

TEST_CASE("accepting a queue pair while each allocation fails once") {
  fail_each_allocation<accepting>();
}

TEST_CASE("accepting a request while each allocation fails once") {
  fail_each_allocation<accepting_a_request>();
}

TEST_CASE("accepting after a connector that gives up while each allocation fails once") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  fail_each_allocation<accepting_twice>();
}

TEST_CASE("rejecting while each allocation fails once") { fail_each_allocation<rejecting>(); }

TEST_CASE("disconnecting while each allocation fails once") {
  fail_each_allocation<disconnecting>();
}

TEST_CASE("cancelling an attempt while each allocation fails once") {
  fail_each_allocation<cancelling>();
}
