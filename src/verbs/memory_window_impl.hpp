// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>
#include <boost/intrusive/list.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace asio_rdma::detail {

class bound_windows;

/// A memory window, kept by its handle and by its outstanding binds. It belongs to the queue pair
/// that bound it first, and is freed before that queue pair is destroyed. Thread-safe.
class memory_window_impl : public boost::intrusive::list_base_hook<
                               boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
public:
  memory_window_impl(const protection_domain& pd, ibv_mw* mw, ownership owns) noexcept;
  memory_window_impl(const memory_window_impl&) = delete;
  ~memory_window_impl();

  /// Null once its queue pair has ended.
  ibv_mw* native_handle() const noexcept { return mw_; }
  /// The key of the last bind; 0 before the first.
  std::uint32_t rkey() const noexcept { return rkey_; }
  /// Returns the key of the next bind, with a new tag in the low eight bits.
  std::uint32_t next_key() noexcept;

  /// Frees the window at once, which ends its key; an outstanding bind fails. Errors: those of the
  /// system; closing may then be retried.
  error_code close() noexcept;

  /// Assigns the window to a queue pair; called before a bind, while the queue pair cannot end.
  /// Errors: `bad_descriptor` if the window was freed with its queue pair; `invalid_argument` if it
  /// belongs to another one.
  error_code give_to(const std::shared_ptr<bound_windows>& queue_pair);

private:
  friend class bound_windows; // it frees all windows at the end of the queue pair

  error_code free() noexcept;

  protection_domain pd_;
  std::atomic<ibv_mw*> mw_;
  const std::uint32_t first_key_;
  std::atomic<std::uint32_t> rkey_{0};
  ownership owns_;
  std::mutex mutex_;
  std::shared_ptr<bound_windows> queue_pair_; // set at most once
};

/// The windows that belong to a queue pair. Does not keep them alive.
class bound_windows {
public:
  /// Frees all windows, and waits for those being destroyed. Returns false if the device refuses;
  /// the call may be repeated.
  bool free_all() noexcept;

private:
  friend class memory_window_impl; // a window enters and leaves the list itself

  std::mutex mutex_;
  boost::intrusive::list<memory_window_impl, boost::intrusive::constant_time_size<false>> all_;
};

/// Errors: those of `memory_window`.
std::shared_ptr<memory_window_impl> make_window(const protection_domain& pd, error_code& ec);

} // namespace asio_rdma::detail
