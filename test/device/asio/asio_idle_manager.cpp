// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/support/pair.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <concepts>
#include <deque>
#include <utility>
#include <vector>

namespace test::asio_idle_manager {
namespace {

/// Objects that are open.
template <class Object>
struct open_objects {
  explicit open_objects(asio::io_context& io) {
    for (int i = 0; i < started_count; ++i)
      if constexpr (std::same_as<Object, queue_pair>)
        all.emplace_back(io).open(pd);
      else
        all.emplace_back(io).open(pool);
  }
  Object& next() { return all[used++]; }

  protection_domain pd{open_device()};
  memory_pool pool{pd};
  std::deque<Object> all;
  std::size_t used = 0;
};
using open_queue_pairs = open_objects<queue_pair>;

struct accepts : operations {
  explicit accepts(asio::io_context& io) : accepted(io), listener(io, own_endpoint()) {}
  void start(done d) override {
    listener.async_accept(accepted.next(), upon_cancellation(std::move(d)));
  }
  void complete() override { listener.cancel(); }
  open_queue_pairs accepted;
  acceptor listener;
};

/// Each handler rejects the request that it receives.
struct request_waits : operations {
  explicit request_waits(asio::io_context& io)
      : connecting(io), listener(io, own_endpoint()), initiator(io) {}
  void start(done d) override { listener.async_wait_request(upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      initiator.async_connect(connecting.next(), listener.local_endpoint(), asio::detached);
  }
  open_queue_pairs connecting;
  acceptor listener;
  connector initiator;
};

/// The listener accepts no request, so each attempt is pending until it is cancelled.
struct connects : operations {
  explicit connects(asio::io_context& io)
      : connecting(io), listener(io, own_endpoint()), initiator(io) {}
  void start(done d) override {
    initiator.async_connect(connecting.next(), listener.local_endpoint(),
                            upon_cancellation(std::move(d)));
  }
  void complete() override { initiator.cancel(); }
  open_queue_pairs connecting;
  acceptor listener;
  connector initiator;
};

/// An acceptor, a connector, and objects for it.
template <class Object>
struct connecting_side {
  explicit connecting_side(asio::io_context& io)
      : connecting(io), listener(io, own_endpoint()), initiator(io) {}
  template <class Handler>
  void connect_next(Handler&& h) {
    initiator.async_connect(connecting.next(), listener.local_endpoint(), std::forward<Handler>(h));
  }
  void connect_all() {
    for (int i = 0; i < started_count; ++i)
      connect_next(asio::detached);
  }
  open_objects<Object> connecting;
  acceptor listener;
  connector initiator;
};

template <class Object>
struct accepts_that_succeed : operations, connecting_side<Object> {
  explicit accepts_that_succeed(asio::io_context& io) : connecting_side<Object>(io), accepted(io) {}
  void start(done d) override { this->listener.async_accept(accepted.next(), upon(std::move(d))); }
  void complete() override { this->connect_all(); }
  open_objects<Object> accepted;
};

template <class Object>
struct accepts_of_new_objects : operations, connecting_side<Object> {
  using connecting_side<Object>::connecting_side;
  void start(done d) override {
    this->listener.template async_accept<Object>(this->connecting.pool, {}, upon(std::move(d)));
  }
  void complete() override { this->connect_all(); }
};

template <class Object>
struct accepts_of_requests : started_late, connecting_side<Object> {
  explicit accepts_of_requests(asio::io_context& io) : connecting_side<Object>(io), accepted(io) {
    int taken = 0;
    for (connection_request& r : requests)
      this->listener.async_wait_request([&](error_code, connection_request taken_one) {
        r = std::move(taken_one);
        ++taken;
      });
    this->connect_all();
    until(io, [&] { return taken == started_count; });
    io.restart();
  }
  void start_now(done d) override {
    connection_request& r = requests[accepted.used];
    this->listener.async_accept(std::move(r), accepted.next(), upon(std::move(d)));
  }
  open_objects<Object> accepted;
  std::vector<connection_request> requests = std::vector<connection_request>(started_count);
};

template <class Object>
struct connects_that_succeed : started_late, connecting_side<Object> {
  explicit connects_that_succeed(asio::io_context& io) : connecting_side<Object>(io), accepted(io) {
    for (Object& o : accepted.all)
      this->listener.async_accept(o, asio::detached);
  }
  void start_now(done d) override { this->connect_next(upon(std::move(d))); }
  open_objects<Object> accepted;
};

/// The peer sends nothing, so each exchange is pending until its stream is cancelled. On iWARP an
/// exchange reports in any case that it cannot connect the queue pair.
struct exchanges : operations {
  using unix_stream = asio::local::stream_protocol;

  explicit exchanges(asio::io_context& c) : io(c), connecting(c) {
    if (connecting.pd.get_device().type() == transport::iwarp)
      expected = asio::error::operation_not_supported;
  }
  void start(done d) override {
    unix_stream::socket& here = streams.emplace_back(io);
    asio::local::connect_pair(here, peers.emplace_back(io));
    async_exchange(here, connecting.next(), upon(std::move(d), expected));
    io.poll(); // until the exchange waits for the peer
    io.restart();
  }
  void complete() override {
    for (unix_stream::socket& s : streams)
      s.cancel();
  }
  asio::io_context& io;
  open_queue_pairs connecting;
  std::deque<unix_stream::socket> streams, peers;
  error_code expected = asio::error::operation_aborted;
};

} // namespace

std::vector<kind> kinds() {
  using asio_rdma::connection;
  return {
      {"accepts", make<accepts>()},
      {"waits for a request", make<request_waits>()},
      {"connects", make<connects>()},
      {"exchanges", make<exchanges>()},
      {"accepts of queue pairs that succeed", make<accepts_that_succeed<queue_pair>>(), false},
      {"accepts of connections that succeed", make<accepts_that_succeed<connection>>(), false},
      {"accepts of streams that succeed", make<accepts_that_succeed<stream>>(), false},
      {"accepts of new connections", make<accepts_of_new_objects<connection>>(), false},
      {"accepts of new streams", make<accepts_of_new_objects<stream>>(), false},
      {"accepts of requests, queue pairs", make<accepts_of_requests<queue_pair>>(), false},
      {"accepts of requests, connections", make<accepts_of_requests<connection>>(), false},
      {"accepts of requests, streams", make<accepts_of_requests<stream>>(), false},
      {"connects of queue pairs that succeed", make<connects_that_succeed<queue_pair>>(), false},
      {"connects of connections that succeed", make<connects_that_succeed<connection>>(), false},
      {"connects of streams that succeed", make<connects_that_succeed<stream>>(), false},
  };
}

} // namespace test::asio_idle_manager
