// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "link/link_transfer.hpp"

#include <chrono>
#include <cstdint>

namespace asio_rdma::detail {

/// Asks a silent peer for a sign of life, by an RDMA WRITE of zero bytes. Functions are called with
/// the link locked.
class keep_alive_probe final : public link_transfer {
public:
  explicit keep_alive_probe(link_impl& link) noexcept;
  /// Probes a peer that has been silent for the interval, or for half of it. 0: never.
  void start(std::chrono::milliseconds interval);
  /// A work request has completed.
  void saw_sign() noexcept { ++signs_; }

private:
  void wait();
  void check();

  std::chrono::microseconds pause_{};
  bool asking_ = false;
  std::uint64_t signs_ = 0, signs_before_ = 0; // work requests that have completed, now and at the
                                               // last check
};

} // namespace asio_rdma::detail
