// SPDX-License-Identifier: BSL-1.0
// The common part of the processes that a chaos run ends, stops and cuts off.
#pragma once

#include "chaos/ledger.hpp"
#include "device/support/long_run.hpp"
#include "device/support/pair.hpp"

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdlib>
#include <exception>
#include <string>

namespace chaos {

namespace asio = boost::asio;
using asio_rdma::error_code;
using namespace std::chrono_literals;

constexpr auto token = asio::as_tuple(asio::use_awaitable);

inline constexpr asio_rdma::node_id server_node = 1;

/// Short times, so that faults are noticed within the run.
inline asio_rdma::connection_options connection_options() {
  asio_rdma::connection_options o;
  o.keep_alive = 1s;
  o.read_timeout = 3s;
  o.remote_memory.bytes = 1 << 20;
  return o;
}
inline asio_rdma::stream_options stream_options() {
  asio_rdma::stream_options o;
  o.keep_alive = 1s;
  o.read_timeout = 3s;
  o.linger = 1s;
  return o;
}
inline asio_rdma::global_memory_options memory_options() {
  asio_rdma::global_memory_options o;
  o.lanes.keep_alive = 1s;
  o.lanes.read_timeout = 3s;
  return o;
}

/// The limit is that which the driver gives this process, in bytes.
inline asio_rdma::memory_pool_options pool_options() {
  asio_rdma::memory_pool_options o;
  if (const char* const limit = std::getenv("CHAOS_POOL"))
    o.limit = std::strtoull(limit, nullptr, 10);
  return o;
}

/// Reports lost bytes of a stream. A program that ends a stream early says so in the ledger before.
/// So unless one has, the peer's shutdown or close comes after the last byte (`basic_stream`). A
/// process that is killed, and a connection that fails, end a stream with other errors.
inline void check_end(const label& l, const entry& client, bool whole, const error_code& ec) {
  const bool orderly = ec == asio::error::eof || ec == asio::error::broken_pipe;
  if (orderly && !whole && !client.has_ended_early(l.number))
    report_wrong("the end of a stream: bytes are missing");
}

/// A process: its context, its pool, and a timer that takes over settings.
class process {
public:
  process(shared_ledger& shared, std::size_t place);
  void run() { io.run(); }
  /// Ends the process if the error says that its device was removed.
  void look(const error_code& ec);

  template <class Coroutine>
  void spawn(Coroutine&& c) {
    asio::co_spawn(io, std::forward<Coroutine>(c), [](std::exception_ptr e) {
      if (e)
        std::rethrow_exception(e);
    });
  }

  shared_ledger& shared;
  entry& mine;
  asio::io_context io;
  asio_rdma::device dev = test::open_device();
  asio_rdma::memory_pool pool{asio_rdma::protection_domain(dev), pool_options()};

private:
  void tick();
  void count_objects();
  void print_what_is_left();
  asio::steady_timer timer_{io};
};

/// The two sides of a round of leases. `l`: the client's private data. Returns whether the round is
/// whole.
asio::awaitable<bool> borrow(process& p, asio_rdma::connection& c, const label& l);
asio::awaitable<void> lend(process& p, asio_rdma::connection& c, const label& l);

} // namespace chaos
