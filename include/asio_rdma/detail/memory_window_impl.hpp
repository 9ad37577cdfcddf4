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

/// A memory window: kept by its handle and by the binds of it that have not ended. It belongs to
/// the queue pair that bound it first, and goes before that at the latest. From any thread.
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
  /// Takes the key of the next bind: a new tag in the low eight bits.
  std::uint32_t next_key() noexcept;

  /// Frees it now, which ends its key; a bind of it that is under way fails. Errors: the system's;
  /// then it may be tried again.
  error_code close() noexcept;

  /// To be called before it is bound, while the queue pair cannot end. Errors: `bad_descriptor`
  /// when it has gone with its queue pair, `invalid_argument` if it belongs to another one.
  error_code give_to(const std::shared_ptr<bound_windows>& queue_pair);

private:
  friend class bound_windows;

  error_code free() noexcept;

  protection_domain pd_;
  std::atomic<ibv_mw*> mw_;
  const std::uint32_t first_key_;
  std::atomic<std::uint32_t> rkey_{0};
  ownership owns_;
  std::mutex mutex_;
  std::shared_ptr<bound_windows> queue_pair_; // set once
};

/// The windows that belong to a queue pair. It keeps none of them.
class bound_windows {
public:
  /// Frees them, and waits for those that go meanwhile. False if the device refuses; it may be
  /// tried again.
  bool free_all() noexcept;

private:
  friend class memory_window_impl;

  std::mutex mutex_;
  boost::intrusive::list<memory_window_impl, boost::intrusive::constant_time_size<false>> all_;
};

/// Errors as of `memory_window`.
std::shared_ptr<memory_window_impl> make_window(const protection_domain& pd, error_code& ec);

} // namespace asio_rdma::detail
