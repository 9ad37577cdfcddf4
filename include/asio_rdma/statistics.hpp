// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor_statistics.hpp>
#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace asio_rdma {

/// The counters of the objects of one execution context at about one time.
struct context_statistics {
  /// A connection or a stream.
  struct link {
    bool is_stream = false;
    std::string device;
    std::uint32_t queue_pair = 0; ///< The number of the queue pair.
    queue_pair_state state = queue_pair_state::closed;
    std::string peer; ///< The address and port; empty before the object is connected.
    /// Messages and remote operations are 0 for a stream. `queue` is that of the completion queue.
    connection_statistics counters;
    std::optional<link_latencies> latencies; ///< If they are measured.
  };
  struct acceptor {
    std::string endpoint;
    acceptor_statistics counters;
  };
  /// A queue pair of the program's own. Those of links are not among them.
  struct queue_pair {
    std::string device;
    std::uint32_t number = 0;
    queue_pair_state state = queue_pair_state::closed;
  };
  struct completion_queue {
    std::string device;
    completion_mode mode = completion_mode::event;
    completion_counters counters;
  };
  /// A pool of the links, which other contexts may use, too.
  struct pool {
    std::string device;
    std::uint64_t limit = 0; ///< The most bytes that it registers.
    memory_pool_statistics counters;
  };

  std::vector<link> links;
  std::vector<acceptor> acceptors;
  std::vector<queue_pair> queue_pairs;
  std::vector<completion_queue> completion_queues;
  std::vector<pool> pools;
};

/// The statistics of the open objects of a context. Takes some microseconds for each object. May be
/// called from any thread, except while the context is being destroyed. The link's counters are
/// read without a lock, so a program may call this at any time without slowing its links down.
/// Throws `std::bad_alloc`.
context_statistics statistics(asio::execution_context& context);

/// The statistics as one JSON object, in one line (RFC 8259). Times are in nanoseconds.
std::string to_json(const context_statistics& s);

/// The statistics in the text format of Prometheus, version 0.0.4. Metrics begin with `asio_rdma_`;
/// counters end with `_total`, and times are in seconds. A latency is a histogram. An answer to a
/// scrape has the type `prometheus_content_type`.
/// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
std::string to_prometheus(const context_statistics& s);

inline constexpr std::string_view prometheus_content_type =
    "text/plain; version=0.0.4; charset=utf-8";

} // namespace asio_rdma
#pragma GCC visibility pop
