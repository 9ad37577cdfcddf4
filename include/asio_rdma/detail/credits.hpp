// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace asio_rdma::detail {

/// The flow control of one link, seen from one side: how many of the peer's receives may still be
/// sent to, and where the receives posted here are.
///
/// A data frame may hold its receive for as long as the application likes, so data leaves `reserve`
/// credits untouched. A frame of control leaves one, unless it returns credits itself. Credits go
/// back in every frame; alone when half of what is promised is owed, or two while the peer has no
/// more than the reserve. Of two sides at rest one can then always send, what it sends lets the
/// other go on, and frames of credits end because each needs two owed and makes one.
///
/// A link has a *share* of receives: what it holds, what it owes and what is with the peer. It has
/// at least `promise` of them and at most `receives`, and promises the peer no more than `promise`
/// at a time. Where links have receives of their own the three are the same; of shared ones a link
/// gets one more while its application holds one, if there is one, and gives it back afterwards.
class credits {
public:
  static constexpr std::uint32_t reserve = 3;
  /// The fewest receives of a side with which data always gets through.
  static constexpr std::uint32_t minimum = 5;

  credits(std::uint32_t receives, std::uint32_t peer_receives) noexcept
      : credits(receives, receives, peer_receives, peer_receives) {}
  /// Each `promise` is what the other side may send at first, at most its `receives`.
  credits(std::uint32_t receives, std::uint32_t promise, std::uint32_t peer_receives,
          std::uint32_t peer_promise) noexcept
      : receives_(receives),
        promise_(promise),
        share_(promise),
        with_peer_(promise),
        peer_receives_(peer_receives),
        available_(peer_promise) {}

  bool may_send_data() const noexcept { return available_ > reserve; }
  bool may_send_control() const noexcept {
    return available_ > 1 || (available_ == 1 && owed_ > 0);
  }
  /// Whether a frame should be sent only to return credits.
  bool should_return() const noexcept {
    return available_ > 0 && owed_ >= 2 && (owed_ >= promise_ / 2 || with_peer_ <= reserve);
  }

  /// Counts a frame that is sent now; gives the credits that it returns.
  std::uint16_t spend() noexcept {
    const auto returned = static_cast<std::uint16_t>(std::min<std::uint32_t>(owed_, 0xffff));
    --available_;
    owed_ -= returned;
    with_peer_ += returned;
    return returned;
  }

  /// Counts a frame that came, and the credits in it. False if the peer had no right to either.
  [[nodiscard]] bool arrived(std::uint16_t returned) noexcept {
    if (with_peer_ == 0 || returned > peer_receives_ - available_)
      return false;
    --with_peer_;
    available_ += returned;
    return true;
  }

  /// The receive that just came holds data until `release`. False if the peer used its reserve.
  [[nodiscard]] bool hold() noexcept {
    if (held_ >= share_ - reserve)
      return false;
    ++held_;
    return true;
  }
  void release() noexcept { --held_; }

  /// A receive of the share is needed no more.
  void freed() noexcept { --share_; }
  /// Whether the peer is to be promised one more, if there is one.
  bool wants() const noexcept { return owed_ + with_peer_ < promise_ && share_ < receives_; }
  /// Whether the next one is of those that a link always has.
  bool below_promise() const noexcept { return share_ < promise_; }
  /// One more receive is of the share, and posted.
  void granted() noexcept {
    ++share_;
    ++owed_;
  }

  std::uint32_t available() const noexcept { return available_; } ///< Of the peer's receives.
  std::uint32_t held() const noexcept { return held_; }
  std::uint32_t owed() const noexcept { return owed_; }
  std::uint32_t with_peer() const noexcept { return with_peer_; } ///< And under way to and from it.
  std::uint32_t share() const noexcept { return share_; }
  std::uint32_t receives() const noexcept { return receives_; }
  std::uint32_t peer_receives() const noexcept { return peer_receives_; }

private:
  std::uint32_t receives_;
  std::uint32_t promise_;
  std::uint32_t share_;
  std::uint32_t with_peer_;
  std::uint32_t owed_ = 0;
  std::uint32_t held_ = 0;
  std::uint32_t peer_receives_;
  std::uint32_t available_;
};

} // namespace asio_rdma::detail
