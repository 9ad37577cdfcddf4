// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace asio_rdma::detail {

/// The flow control of one side of a link: how many frames the peer can still receive, and where
/// the receives of this side are.
///
/// The application may keep the receive of a data frame for any time, so data leaves `reserve`
/// credits untouched. A control frame leaves one credit, unless it returns credits itself. Every
/// frame returns the credits that are owed. A frame is sent for credits alone when half of the
/// promise is owed, or when two are owed and the peer has no more than the reserve. Therefore one
/// of two idle sides can always send, and its frame enables the other. An exchange of credits
/// frames ends, because each needs two owed credits and causes one.
///
/// A link has a *share* of receives: those that it holds, those that it owes and those promised to
/// the peer. The share is at least `promise` and at most `receives`. At most `promise` receives are
/// promised to the peer at a time. If a link has receives of its own, share, promise and receives
/// are equal. If receives are shared, a link gets one more, if available, while its application
/// holds one, and gives it back afterwards.
class credits {
public:
  static constexpr std::uint32_t reserve = 3;
  /// The fewest receives of a side with which data can always be sent.
  static constexpr std::uint32_t minimum = 5;

  credits(std::uint32_t receives, std::uint32_t peer_receives) noexcept
      : credits(receives, receives, peer_receives, peer_receives) {}
  /// Each `promise` is the number of frames that the other side may send at first, at most its
  /// `receives`.
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

  /// Counts a frame that is being sent. Returns the credits that the frame returns.
  std::uint16_t spend() noexcept {
    const auto returned = static_cast<std::uint16_t>(std::min<std::uint32_t>(owed_, 0xffff));
    --available_;
    owed_ -= returned;
    with_peer_ += returned;
    return returned;
  }

  /// Counts a received frame and the credits in it. Returns false if the peer violated its credits.
  [[nodiscard]] bool arrived(std::uint16_t returned) noexcept {
    if (with_peer_ == 0 || returned > peer_receives_ - available_)
      return false;
    --with_peer_;
    available_ += returned;
    return true;
  }

  /// Marks the last received frame's receive as held until `release`. Returns false if the peer
  /// used its reserve for data.
  [[nodiscard]] bool hold() noexcept {
    if (held_ >= share_ - reserve)
      return false;
    ++held_;
    return true;
  }
  void release() noexcept { --held_; }

  /// A receive of the share has been given up.
  void freed() noexcept { --share_; }
  /// `freed` and `granted` at a time: a receive of the share has been posted again.
  void reposted() noexcept { ++owed_; }
  /// Whether another receive should be promised to the peer.
  bool wants() const noexcept { return owed_ + with_peer_ < promise_ && share_ < receives_; }
  /// Whether the share is below the number that the link is always entitled to.
  bool below_promise() const noexcept { return share_ < promise_; }
  /// A posted receive has been added to the share.
  void granted() noexcept {
    ++share_;
    ++owed_;
  }

  std::uint32_t available() const noexcept { return available_; } ///< Receives of the peer.
  std::uint32_t held() const noexcept { return held_; }
  std::uint32_t owed() const noexcept { return owed_; }
  std::uint32_t with_peer() const noexcept { return with_peer_; } ///< Including those in transit.
  std::uint32_t share() const noexcept { return share_; }
  std::uint32_t receives() const noexcept { return receives_; }
  std::uint32_t promise() const noexcept { return promise_; } ///< To the peer, at a time.
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
