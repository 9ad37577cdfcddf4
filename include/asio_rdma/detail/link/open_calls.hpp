// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receives.hpp>

#include <utility>

namespace asio_rdma::detail {

/// The calls of `open` of a connection or a stream. Not defined.
template <class Options>
struct open_calls {
  static void open(const memory_pool&, const Options& = {});
  static void open(const memory_pool&, const Options&, const error_code&);
  static void open(const memory_pool&, const completion_queue&, const Options& = {});
  static void open(const memory_pool&, const completion_queue&, const Options&, const error_code&);
  static void open(const shared_receives&, const Options& = {});
  static void open(const shared_receives&, const Options&, const error_code&);
};

/// Whether `open` can be called with these arguments.
template <class Options, class... Arguments>
concept opens_with = requires(const Arguments&... arguments) {
  open_calls<Options>::open(arguments...);
};

} // namespace asio_rdma::detail
