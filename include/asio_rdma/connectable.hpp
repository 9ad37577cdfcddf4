// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/queue_pair.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace asio_rdma::detail {
class connection_target;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {

namespace detail {

/// The queue pair of an object with a protocol of its own.
const std::shared_ptr<queue_pair_impl>& queue_pair_of(const connection_target& target) noexcept;

/// A queue pair to be connected, and the object that uses it, if any.
struct connection_end {
  connection_end() = default;
  template <class Executor>
  explicit connection_end(const basic_queue_pair<Executor>& qp) : queue_pair(qp.impl()) {}
  /// The class of `object.impl()` may be incomplete: argument-dependent lookup finds `target_of`.
  template <class Object>
  requires requires(const Object& object) {
    { target_of(object.impl()) } -> std::same_as<std::shared_ptr<connection_target>>;
  }
  explicit connection_end(const Object& object) : target(target_of(object.impl())) {
    if (target)
      queue_pair = queue_pair_of(*target);
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
#pragma GCC visibility pop
