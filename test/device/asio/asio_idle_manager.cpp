// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <deque>

namespace test {
namespace {

/// Queue pairs that are open.
struct open_queue_pairs {
  explicit open_queue_pairs(asio::io_context& io) {
    for (int i = 0; i < started_count; ++i)
      all.emplace_back(io).open(pd);
  }
  queue_pair& next() { return all[used++]; }

  protection_domain pd{open_device()};
  std::deque<queue_pair> all;
  std::size_t used = 0;
};

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

std::vector<kind> kinds_of_manager() {
  return {
      {"accepts", make<accepts>()},
      {"waits for a request", make<request_waits>()},
      {"connects", make<connects>()},
      {"exchanges", make<exchanges>()},
  };
}

} // namespace test
