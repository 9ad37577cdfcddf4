// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/circular_buffer.hpp>

#include <cassert>
#include <cstdint>

namespace asio_rdma::detail {

/// The sizes of the unused receives of one side, in the order of their use. Both sides keep this
/// record: the side whose receives these are, and the side that sends to them. A change of the size
/// concerns the receives whose credits are returned after the change.
class receive_sizes {
public:
  /// The most changes whose receives from before are not used up.
  static constexpr std::uint32_t max_changes = 32;

  explicit receive_sizes(std::uint32_t bytes) : runs_(max_changes), later_(bytes) {}

  /// The size of the receive that the next frame uses.
  std::uint32_t next() const noexcept { return runs_.empty() ? later_ : runs_.front().bytes; }
  /// The size of the receives whose credits are returned from now on.
  std::uint32_t later() const noexcept { return later_; }

  /// The size changes. `unused`: the receives that frames have not used. Returns false if there are
  /// too many changes.
  [[nodiscard]] bool change(std::uint32_t bytes, std::uint32_t unused) {
    assert(unused >= before_);
    if (unused != before_) {
      if (runs_.full())
        return false;
      runs_.push_back({later_, unused - before_});
    }
    before_ = unused;
    later_ = bytes;
    return true;
  }
  /// A frame uses the next receive.
  void use() noexcept {
    if (runs_.empty())
      return;
    --before_;
    if (--runs_.front().receives == 0)
      runs_.pop_front();
  }

private:
  struct run {
    std::uint32_t bytes;
    std::uint32_t receives;
  };

  boost::circular_buffer<run> runs_; // receives from before the last change
  std::uint32_t before_ = 0;         // their number
  std::uint32_t later_;
};

} // namespace asio_rdma::detail
