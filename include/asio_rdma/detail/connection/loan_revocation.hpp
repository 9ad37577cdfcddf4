// SPDX-License-Identifier: BSL-1.0
// The revocation of memory by all connections that have lent it.
#pragma once

#include <asio_rdma/detail/core/handler_op.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <asio_rdma/revocation.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// One call of `async_revoke` for all connections. Each connection has a share of it, which counts
/// as an operation of that connection. Its members but `complete` may be called by any thread.
class loan_revocation : public std::enable_shared_from_this<loan_revocation> {
public:
  loan_revocation(const loan_revocation&) = delete;

  /// Starts the shares. `complete` is called when the last of them has ended.
  void start(const registered_buffer& memory, std::chrono::microseconds grace);
  /// Ends the wait, unless the type is `total`. The shares continue.
  void cancel(asio::cancellation_type_t type);

protected:
  loan_revocation() = default;
  ~loan_revocation() = default;

private:
  friend class loan_share; // reports the end of a share

  /// Called once at most; not if the context of a connection was destroyed.
  virtual void complete(const error_code& ec, const revocation& result) = 0;

  void begin() {
    const std::lock_guard lock(mutex_);
    ++pending_;
  }
  void ended(const error_code& ec, const revocation& part);
  void destroyed() noexcept { over_ = true; }

  std::mutex mutex_;
  std::size_t pending_ = 1; // shares, and `start`
  revocation result_;
  error_code ec_;
  std::atomic<bool> over_{false};
};

template <class Handler, class Executor>
class loan_revocation_op final : public loan_revocation {
public:
  loan_revocation_op(Handler&& handler, const Executor& ex)
      : work_(asio::prefer(asio::get_associated_executor(handler, ex),
                           asio::execution::outstanding_work.tracked)),
        handler_(std::move(handler)) {}

private:
  using executor_type = asio::associated_executor_t<Handler, Executor>;
  using tracked = std::decay_t<decltype(asio::prefer(std::declval<const executor_type&>(),
                                                     asio::execution::outstanding_work.tracked))>;

  void complete(const error_code& ec, const revocation& result) override {
    bound_handler<Handler, error_code, revocation> bound(std::move(*handler_), ec, result);
    handler_.reset();
    const tracked work(std::move(*work_));
    work_.reset();
    asio::post(work, std::move(bound));
  }

  std::optional<tracked> work_;
  std::optional<Handler> handler_;
};

struct loan_revocation_canceller {
  std::weak_ptr<loan_revocation> which;

  void operator()(asio::cancellation_type_t type) const {
    if (const auto keep = which.lock())
      keep->cancel(type);
  }
};

template <class Executor>
struct initiate_loan_revocation {
  using executor_type = Executor;
  const executor_type& get_executor() const noexcept { return executor; }

  template <class Handler>
  void operator()(Handler&& handler, const registered_buffer& memory,
                  std::chrono::microseconds grace) const {
    using op_type = loan_revocation_op<std::decay_t<Handler>, Executor>;
    auto slot = asio::get_associated_cancellation_slot(handler);
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    const auto op = std::make_shared<op_type>(std::move(h), executor);
    if (slot.is_connected())
      slot.template emplace<loan_revocation_canceller>(loan_revocation_canceller{op});
    op->start(memory, grace);
  }

  Executor executor;
};

} // namespace asio_rdma::detail
#pragma GCC visibility pop
