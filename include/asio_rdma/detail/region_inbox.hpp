// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/frame_link.hpp>

#include <deque>

namespace asio_rdma::detail {

/// A wait for the next region that the peer passes.
class region_receive : public frame_operation {
public:
  error_code ec;
  bool returned = false; ///< One of this side's own, else one that the peer lends.
  std::uint32_t id = 0;  ///< Of the grant in this side's `grant_table`, or of the lease.

protected:
  ~region_receive() = default;

private:
  friend class region_inbox;
  bool waiting_ = false;
};

/// Regions that came, lent or handed back, in order. They hold their receives until taken.
class region_inbox final : private link_part {
public:
  explicit region_inbox(frame_link& link) : link_(link), arrived_(link.options().receives) {
    link.add(*this, {});
  }

  void receive(region_receive& op);
  /// Takes `op` out; no region is lost. False if it is complete.
  bool cancel(region_receive& op);
  /// An operation that is complete, or none.
  region_receive* next();
  /// A lease that `next` gave, and that is the next one's after all.
  void put_back(std::uint32_t id) { put_back_.push_back(id); }

  /// Whether what comes is for nobody.
  bool ended() const noexcept { return static_cast<bool>(why_); }
  /// Whether nobody gets what has come either.
  bool dropping() const noexcept { return dropping_; }
  /// A region has come in `slot`. One that is not ready waits, and so do those behind it.
  void push(std::uint32_t slot, bool returned, std::uint32_t id, bool ready);
  void ready(std::uint32_t id);

private:
  struct arrival {
    std::uint32_t slot;
    bool returned;
    std::uint32_t id;
    bool ready;
  };
  using list = boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;

  disposition on_frame(const frame_header&, std::span<const std::byte>, std::uint32_t,
                       protocol_clock::time_point) override {
    return disposition::violation;
  }
  void on_closing() override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  frame_link& link_;
  boost::circular_buffer<arrival> arrived_;
  std::deque<std::uint32_t> put_back_;
  list waiting_;
  error_code why_; // why nothing more comes
  bool dropping_ = false;
};

} // namespace asio_rdma::detail
