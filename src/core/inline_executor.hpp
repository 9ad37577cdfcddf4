// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/execution.hpp>
#include <boost/asio/execution_context.hpp>

#include <utility>

namespace asio_rdma::detail {

/// The executor of the library's timers: handlers run directly in the context's event loop.
struct inline_executor {
  boost::asio::execution_context* context;

  boost::asio::execution_context& query(boost::asio::execution::context_t) const noexcept {
    return *context;
  }
  template <class Function>
  void execute(Function&& f) const {
    std::forward<Function>(f)();
  }
  friend bool operator==(const inline_executor& a, const inline_executor& b) noexcept {
    return a.context == b.context;
  }
  friend bool operator!=(const inline_executor& a, const inline_executor& b) noexcept {
    return !(a == b);
  }
};

} // namespace asio_rdma::detail
