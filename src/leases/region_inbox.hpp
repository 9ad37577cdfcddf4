// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/leases/lease_operations.hpp>

#include "link/frame_link.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

namespace asio_rdma::detail {

/// Regions that were lent or handed back, in order of arrival. They hold their receives until
/// taken.
class region_inbox final : private link_part {
public:
  explicit region_inbox(frame_link& link) : link_(link), arrived_(link.options().receives) {
    link.add(*this, {});
  }

  void receive(region_receive& op);
  /// Cancels a wait; no region is lost. Returns false if `op` has completed.
  bool cancel(region_receive& op);
  /// An operation that has completed, or null.
  region_receive* next();
  using link_part::may_act; ///< Whether `next` may have something.
  /// Puts back a lease that `next` returned: the next operation gets it.
  void put_back(std::uint32_t id, std::uint64_t tag) {
    ask_again();
    put_back_.push_back({id, tag});
  }

  /// Whether no more regions are accepted.
  bool ended() const noexcept { return static_cast<bool>(why_); }
  /// Whether the regions that have arrived are dropped as well.
  bool dropping() const noexcept { return dropping_; }
  /// Adds a region that arrived in `slot`. If it is not ready, it and later regions wait for
  /// `ready`.
  void push(std::uint32_t slot, bool returned, std::uint32_t id, std::uint64_t tag, bool ready);
  void ready(std::uint32_t id);
  /// Calls `f` with the number of each region that was handed back, if a waiting operation gets it
  /// as soon as it and the regions before it are ready.
  template <class Function>
  void for_each_awaited(Function&& f) const {
    std::size_t n = paused_ ? 0 : waiting_.size();
    n -= std::min(n, put_back_.size());
    for (auto a = arrived_.begin(); a != arrived_.end() && n != 0; ++a, --n)
      if (a->returned)
        f(a->id);
  }
  /// If on, regions that have arrived are not given to operations, and hold their receives.
  void pause(bool on) noexcept {
    if (std::exchange(paused_, on) && !on)
      ask_again();
  }

private:
  struct arrival {
    std::uint32_t slot;
    bool returned;
    std::uint32_t id;
    std::uint64_t tag;
    bool ready;
  };
  struct lease {
    std::uint32_t id;
    std::uint64_t tag;
  };

  disposition on_frame(const frame_header&, std::span<const std::byte>, std::uint32_t,
                       protocol_clock::time_point) override {
    return disposition::violation;
  }
  void on_closing() override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  frame_link& link_;
  boost::circular_buffer<arrival> arrived_;
  std::deque<lease> put_back_;
  frame_operation_list waiting_;
  error_code why_; // why no more regions arrive
  bool dropping_ = false;
  bool paused_ = false;
};

} // namespace asio_rdma::detail
