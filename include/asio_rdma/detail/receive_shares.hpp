// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace asio_rdma::detail {

/// Who may count on how many of the receives that links share. A link claims `promise` of them for
/// as long as it is there. Beyond that it gets what nobody has claimed, one at a time. What links
/// have is never more than what is posted or in their hands, so no frame ever lacks a receive.
class receive_shares {
public:
  receive_shares(std::uint32_t receives, std::uint32_t promise) noexcept
      : receives_(receives), promise_(promise) {}

  std::uint32_t promise() const noexcept { return promise_; }

  /// A link comes, and has `promise` receives from then on. False if so many are not there.
  [[nodiscard]] bool join() noexcept {
    if (receives_ - claimed_ < promise_ || receives_ - missing_ < given_ + promise_)
      return false;
    claimed_ += promise_;
    given_ += promise_;
    ++links_;
    return true;
  }
  /// It goes with a share of so many, of which it keeps some until they are `given_back`.
  void leave(std::uint32_t share, std::uint32_t kept) noexcept {
    claimed_ -= std::max(share, promise_) - kept;
    given_ -= share - kept;
    --links_;
  }

  /// One more for a link, or not. `below_promise`: it has fewer than it has claimed.
  [[nodiscard]] bool take(bool below_promise) noexcept {
    if (!any_left() || (!below_promise && claimed_ == receives_))
      return false;
    ++given_;
    claimed_ += below_promise ? 0 : 1;
    return true;
  }
  /// One is needed no more, by which its link has fewer than it has claimed, or not.
  void give_back(bool below_promise) noexcept {
    --given_;
    claimed_ -= below_promise ? 0 : 1;
  }

  /// A receive that is nobody's cannot be posted for want of memory, until it is `found`.
  void lost() noexcept { ++missing_; }
  void found() noexcept { --missing_; }

  /// Whether there is one that no link has.
  bool any_left() const noexcept { return given_ < receives_ - missing_; }
  std::uint32_t links() const noexcept { return links_; }
  std::uint32_t unclaimed() const noexcept { return receives_ - claimed_; }
  std::uint32_t given() const noexcept { return given_; }
  std::uint32_t missing() const noexcept { return missing_; }

private:
  std::uint32_t receives_;
  std::uint32_t promise_;
  std::uint32_t claimed_ = 0; // by each link its share or `promise`, whichever is more
  std::uint32_t given_ = 0;   // the shares
  std::uint32_t missing_ = 0;
  std::uint32_t links_ = 0;
};

} // namespace asio_rdma::detail
