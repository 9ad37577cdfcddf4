// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

namespace asio_rdma::detail {

/// Random delays, so that competing operations separate.
class random_delay {
public:
  random_delay()
      : random_(static_cast<std::minstd_rand::result_type>(
            reinterpret_cast<std::uintptr_t>(this) >> 4 ^
            static_cast<std::uintptr_t>(
                std::chrono::steady_clock::now().time_since_epoch().count()))) {}

  /// Returns less than `limit` microseconds.
  std::chrono::microseconds operator()(std::uint32_t limit) {
    return std::chrono::microseconds(random_() % limit);
  }

private:
  std::minstd_rand random_;
};

} // namespace asio_rdma::detail
