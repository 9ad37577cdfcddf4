// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receives.hpp>

#include "link/frame_receive.hpp"
#include "link/receive_shares.hpp"
#include "queues/shared_receive_queue_impl.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace asio_rdma::detail {

class link_impl;
class shared_receives_impl;
class shared_source;

/// A receive that links share. While a link holds it, it is in the link's list.
class shared_receive final : public frame_receive {
public:
  shared_receive(shared_receives_impl& owner, std::uint32_t number) noexcept
      : frame_receive(&shared_receive::run, number), owner_(owner) {}

private:
  static void run(operation* base, disposal how);

  shared_receives_impl& owner_;
};

/// The logic of `shared_receives`: receives that are posted to one shared receive queue, and their
/// division among links. A received frame is passed to the link whose queue pair took it.
///
/// Links call these functions with their mutex locked. This class calls no link with its own mutex
/// locked.
class shared_receives_impl final : public std::enable_shared_from_this<shared_receives_impl> {
public:
  /// Makes an object for users. When the last user releases it, the receives end.
  static std::shared_ptr<shared_receives_impl> make(asio::execution_context& context,
                                                    const memory_pool& pool,
                                                    std::shared_ptr<completion_queue_impl> queue,
                                                    const shared_receives_options& options,
                                                    error_code& ec);

  shared_receives_impl(asio::execution_context& context, const memory_pool& pool,
                       const shared_receives_options& options);
  ~shared_receives_impl();

  const memory_pool& pool() const noexcept { return pool_; }
  const shared_receives_options& options() const noexcept { return options_; }
  const std::shared_ptr<shared_receive_queue_impl>& queue() const noexcept { return srq_; }
  shared_receives_statistics statistics() const;
  bool is_open() const;
  /// Closes the receives. Their links fail.
  void close();

  /// `join` reserves the promise of a new link. Call `add` or `leave` afterwards.
  error_code join();
  void leave();
  /// From `add` on, frames of the queue pair are passed to the link. `remove` is called after its
  /// last completion. The link gives up `share` receives, but keeps `kept` of them until they are
  /// given back.
  void add(shared_source& link, std::uint32_t queue_pair);
  void remove(shared_source& link, std::uint32_t queue_pair, std::uint32_t share,
              std::uint32_t kept);

  shared_receive& receive(std::uint32_t slot) noexcept { return receives_[slot]; }
  /// As in `receive_shares`. A receive that is given back is posted.
  bool take(bool below_promise);
  void give_back(shared_receive& r, bool below_promise);
  /// Posts a receive that a failed link does not want.
  void discard(shared_receive& r);
  /// Queues a link that has fewer receives than promised; `wake` wakes it when there is one.
  void wait(shared_source& link);
  bool anyone_waits() const noexcept { return waits_.load(std::memory_order_relaxed); }
  void wake();
  /// Retries to allocate memory for starved receives.
  bool starved() const noexcept { return starving_.load(std::memory_order_relaxed); }
  void refill();

private:
  friend shared_receive; // calls `on_receive` when it has completed
  struct user;

  error_code open(std::shared_ptr<completion_queue_impl> queue);
  void end();
  void on_receive(shared_receive& r, disposal how);
  bool post(shared_receive& r);
  void unposted(std::shared_ptr<shared_receives_impl>& last);
  std::vector<std::shared_ptr<link_impl>> links() const;

  asio::execution_context& context_;
  memory_pool pool_;
  shared_receives_options options_;
  std::shared_ptr<shared_receive_queue_impl> srq_;

  mutable mutex mutex_;
  std::deque<shared_receive> receives_;
  receive_shares shares_;
  /// By queue pair number. If a destroyed queue pair's number was reused, its link comes first.
  std::unordered_map<std::uint32_t, std::vector<shared_source*>> links_;
  std::vector<std::uint32_t> starved_; // receives that could not be posted
  std::vector<shared_source*> waiting_;
  std::atomic<bool> starving_{false}, waits_{false};
  std::uint32_t posted_ = 0;
  std::shared_ptr<shared_receives_impl> self_; // while any receive is posted
  bool closed_ = false;
};

} // namespace asio_rdma::detail
