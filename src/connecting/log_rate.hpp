// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {

/// A limit on the lines of a log that peers cause. The lines left out are counted. Thread-safe.
class log_rate {
public:
  using clock = std::chrono::steady_clock;

  static constexpr unsigned most_a_second = 10;

  /// Whether a line may be written. If so, `omitted` is the number of those that were left out
  /// since the line before.
  bool admits(clock::time_point now, std::uint64_t& omitted) noexcept {
    const std::lock_guard lock(mutex_);
    if (lines_ == 0 || now - begin_ >= std::chrono::seconds(1)) {
      begin_ = now;
      lines_ = 0;
    }
    if (lines_ == most_a_second) {
      ++omitted_;
      return false;
    }
    ++lines_;
    omitted = std::exchange(omitted_, 0);
    return true;
  }

private:
  std::mutex mutex_;
  clock::time_point begin_{}; // of the second
  unsigned lines_ = 0;        // in this second
  std::uint64_t omitted_ = 0;
};

/// The end of a line behind which others were left out; else empty.
class omitted_text {
public:
  explicit omitted_text(std::uint64_t lines) noexcept {
    if (lines != 0)
      std::snprintf(text_.data(), text_.size(), " (%llu such lines were left out before)",
                    static_cast<unsigned long long>(lines));
  }
  const char* c_str() const noexcept { return text_.data(); }

private:
  std::array<char, 64> text_{};
};

} // namespace asio_rdma::detail
