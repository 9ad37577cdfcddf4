// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/connecting/connection_target.hpp>
#include <asio_rdma/queue_pair.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace asio_rdma {

namespace detail {

/// A queue pair to be connected, and the object that uses it, if any.
struct connection_end {
  connection_end() = default;
  template <class Executor>
  explicit connection_end(const basic_queue_pair<Executor>& qp) : queue_pair(qp.impl()) {}
  template <class Object>
  requires std::convertible_to<decltype(std::declval<const Object&>().impl()),
                               std::shared_ptr<connection_target>>
  explicit connection_end(const Object& object) : target(object.impl()) {
    if (target)
      queue_pair = target->target_queue_pair();
  }

  std::shared_ptr<queue_pair_impl> queue_pair;
  std::shared_ptr<connection_target> target;
};

} // namespace detail

/// An object that acceptor, connector and `async_exchange` can connect: an open `basic_queue_pair`,
/// or an I/O object with a protocol of its own, such as `basic_connection` and `basic_stream`.
template <class Object>
concept connectable = std::constructible_from<detail::connection_end, const Object&>;

} // namespace asio_rdma
