// SPDX-License-Identifier: BSL-1.0
// Connecting, accepting, rejecting, disconnecting, exchanging and opening an acceptor while each
// allocation fails once.
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"
#include "device/support/allocation_scene.hpp"
#include "streams/stream_impl.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/exchange.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace test::cm_allocation_tests {
namespace {

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

template <class Scene>
struct accepting : Scene {
  void play(handler_accounts& accounts) {
    this->accept(accounts);
    this->connect(accounts);
  }
};

/// The program's function admits the connection.
struct admitting : accepting<scene<asio_rdma::connection, memory_pool>> {
  admitting() {
    soon.data = bytes_of("secret");
    in_time.admit = [](std::span<const std::byte> data, const endpoint&) {
      return data.size() == 6;
    };
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

/// Two contexts that one thread runs, with the functions of one that scenes use.
struct two_contexts {
  asio::io_context a{1}, b{1};

  void restart() {
    a.restart();
    b.restart();
  }
  bool stopped() const { return a.stopped() && b.stopped(); }
  std::size_t run_one_until(std::chrono::steady_clock::time_point end) {
    for (;;) {
      restart(); // one may have given the other work
      if (a.poll_one() != 0 || b.poll_one() != 0)
        return 1;
      if (stopped() || std::chrono::steady_clock::now() > end)
        return 0;
      std::this_thread::yield();
    }
  }
};

/// The acceptor and the connector are of another context than the queue pairs.
struct attempts_over_two_contexts {
  two_contexts io;
  device dev = open_device();
  protection_domain pd{dev};
  acceptor listener{io.a, endpoint(device_address(dev), 0)};
  connector initiator{io.a};
  queue_pair a{io.b, pd}, b{io.b, pd};
  connect_options soon;
  accept_options in_time;

  attempts_over_two_contexts() { soon.timeout = in_time.timeout = std::chrono::milliseconds(500); }

  void play(handler_accounts& accounts) {
    accounts.start("accept", [this](auto h) { listener.async_accept(b, in_time, std::move(h)); });
    accounts.start(
        "connect",
        [this](auto h) {
          initiator.async_connect(a, listener.local_endpoint(), soon, std::move(h));
        },
        [this](error_code, const connection_info&) { listener.cancel(); });
  }
  void close() {
    listener.close();
    initiator.cancel();
    a.close();
    b.close();
  }
};

/// If one side's exchange fails, its socket is closed, which ends the other one. The sockets'
/// executor is that of the context, for the reason given above.
struct exchanging {
  using socket =
      asio::basic_stream_socket<asio::local::stream_protocol, asio::io_context::executor_type>;

  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  queue_pair a{io, pd}, b{io, pd};
  socket here{io}, there{io};

  exchanging() { asio::local::connect_pair(here, there); }

  void play(handler_accounts& accounts) {
    exchange(accounts, "exchange here", here, a);
    exchange(accounts, "exchange there", there, b);
  }
  void exchange(handler_accounts& accounts, const char* name, socket& s, queue_pair& qp) {
    accounts.start(
        name, [&](auto h) { async_exchange(s, qp, std::move(h)); },
        [&s](error_code ec) {
          if (ec)
            s.close(ec);
        });
    if (accounts.refused())
      s.close();
  }
  void close() {
    here.close();
    there.close();
    a.close();
    b.close();
  }
};

/// Opens an acceptor with the n-th allocation failing, for each n until none has failed. After each
/// failure `undone()` is called.
template <class Open, class Undone>
void open_while_each_allocation_fails(acceptor& a, Open open, Undone undone) {
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    error_code ec;
    bool threw = false;
    {
      const failing_allocation failing(n);
      try {
        open(ec);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      failed = failing.failed();
    }
    CAPTURE(n, threw, ec);
    REQUIRE(a.is_open() == !(threw || ec));
    REQUIRE((failed || a.is_open()));
    if (!a.is_open())
      undone();
    else if (failed)
      a.close();
  }
}

} // namespace

TEST_CASE("accepting a queue pair while each allocation fails once") {
  fail_each_allocation<accepting<queue_pairs>>();
}

TEST_CASE("connecting a connection while each allocation fails once") {
  fail_each_allocation<accepting<scene<asio_rdma::connection, memory_pool>>>();
}

TEST_CASE("asking the program about a request while each allocation fails once") {
  fail_each_allocation<admitting>();
}

TEST_CASE("accepting a request while each allocation fails once") {
  fail_each_allocation<accepting_a_request>();
}

TEST_CASE("accepting after a connector that gives up while each allocation fails once") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  fail_each_allocation<accepting_twice>();
}

TEST_CASE("connecting over two contexts while each allocation fails once") {
  fail_each_allocation<attempts_over_two_contexts>();
}

TEST_CASE("an exchange while each allocation fails once") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("exchanges");
  fail_each_allocation<exchanging>();
}

TEST_CASE("an acceptor is opened while each allocation fails once") {
  const connections_check nothing_left;
  asio::io_context io(1);
  acceptor a(io);
  const endpoint at(device_address(open_device()), 0);
  open_while_each_allocation_fails(
      a, [&](error_code& ec) { a.open(at, 8, ec); }, [] {});
  CHECK(a.local_endpoint().port() != 0);
}

TEST_CASE("an id is assigned to an acceptor while each allocation fails once, and stays the "
          "caller's") {
  const connections_check nothing_left;
  endpoint at(device_address(open_device()), 0);
  rdma_event_channel* const events = rdma_create_event_channel();
  REQUIRE(events != nullptr);
  rdma_cm_id* id = nullptr;
  int mine = 0;
  REQUIRE(rdma_create_id(events, &id, &mine, RDMA_PS_TCP) == 0);
  REQUIRE(rdma_bind_addr(id, static_cast<sockaddr*>(at.data())) == 0);
  asio::io_context io(1);
  acceptor a(io);
  open_while_each_allocation_fails(
      a, [&](error_code& ec) { a.assign(id, 8, ec); }, [&] { REQUIRE(id->context == &mine); });
  CHECK(a.native_handle() == id);
  CHECK(a.local_endpoint().port() != 0);
  a.close();
  rdma_destroy_event_channel(events);
}

TEST_CASE("rejecting while each allocation fails once") { fail_each_allocation<rejecting>(); }

TEST_CASE("disconnecting while each allocation fails once") {
  fail_each_allocation<disconnecting>();
}

TEST_CASE("cancelling an attempt while each allocation fails once") {
  fail_each_allocation<cancelling>();
}

} // namespace test::cm_allocation_tests
