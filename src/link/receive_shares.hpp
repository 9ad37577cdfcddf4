// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace asio_rdma::detail {

/// The division of shared receives among links. Each link claims `promise` receives as long as it
/// exists. Further receives are given one at a time from those that are not claimed. All shares
/// together never exceed the receives that are posted or held by links, so every frame finds a
/// receive.
class receive_shares {
public:
  receive_shares(std::uint32_t receives, std::uint32_t promise) noexcept
      : receives_(receives), promise_(promise) {}

  std::uint32_t promise() const noexcept { return promise_; }

  /// Adds a link with a share of `promise` receives. Returns false if there are not enough.
  [[nodiscard]] bool join() noexcept {
    if (receives_ - claimed_ < promise_ || receives_ - missing_ < given_ + promise_)
      return false;
    claimed_ += promise_;
    given_ += promise_;
    ++links_;
    return true;
  }
  /// Removes a link with a share of `share` receives. It keeps `kept` of them until `give_back`.
  void leave(std::uint32_t share, std::uint32_t kept) noexcept {
    claimed_ -= std::max(share, promise_) - kept;
    given_ -= share - kept;
    --links_;
  }

  /// Adds a receive to a link's share, if possible. `below_promise`: the share is smaller than the
  /// link's claim.
  [[nodiscard]] bool take(bool below_promise) noexcept {
    if (!any_left() || (!below_promise && claimed_ == receives_))
      return false;
    ++given_;
    claimed_ += below_promise ? 0 : 1;
    return true;
  }
  /// Removes a receive from a link's share. `below_promise`: the share is then smaller than the
  /// link's claim.
  void give_back(bool below_promise) noexcept {
    --given_;
    claimed_ -= below_promise ? 0 : 1;
  }

  /// A receive outside of all shares cannot be posted for lack of memory, until `found`.
  void lost() noexcept { ++missing_; }
  void found() noexcept { --missing_; }

  /// Whether a receive is in no share.
  bool any_left() const noexcept { return given_ < receives_ - missing_; }
  std::uint32_t links() const noexcept { return links_; }
  std::uint32_t unclaimed() const noexcept { return receives_ - claimed_; }
  std::uint32_t given() const noexcept { return given_; }
  std::uint32_t missing() const noexcept { return missing_; }

private:
  std::uint32_t receives_;
  std::uint32_t promise_;
  std::uint32_t claimed_ = 0; // the sum over the links of share or `promise`, whichever is larger
  std::uint32_t given_ = 0;   // the sum of the shares
  std::uint32_t missing_ = 0;
  std::uint32_t links_ = 0;
};

} // namespace asio_rdma::detail
