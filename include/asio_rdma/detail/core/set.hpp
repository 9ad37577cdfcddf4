// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>

#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

/// Sets a member of options. Returns the options, so that calls of setters can be chained.
template <class Options, class T>
constexpr Options& set(Options& options, T& member, std::type_identity_t<T> value) {
  member = std::move(value);
  return options;
}

} // namespace asio_rdma::detail
