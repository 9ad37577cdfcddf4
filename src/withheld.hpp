// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>
#include <boost/intrusive/list.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// What a device may still use because the call that ends its use has failed. Nobody gets it until
/// the call succeeds: that is tried again by `release_withheld`, and else it stays to the end of
/// the process.
class withheld : public boost::intrusive::list_base_hook<
                     boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  withheld() = default;
  withheld(const withheld&) = delete;
  virtual ~withheld() = default;
  /// Tries the call again. True if the device has let go.
  virtual bool release() noexcept = 0;
};

/// From any thread, under any lock: releases nothing, and allocates nothing.
void withhold(std::unique_ptr<withheld> w) noexcept;
/// A registration or another key, with the memory that it is of.
template <class Key>
void withhold(Key key, std::shared_ptr<void> memory) {
  class withheld_key final : public withheld {
  public:
    withheld_key(Key k, std::shared_ptr<void> m) noexcept
        : memory_(std::move(m)), key_(std::move(k)) {}

    bool release() noexcept override {
      error_code ec;
      key_.close(ec);
      return !ec;
    }

  private:
    std::shared_ptr<void> memory_;
    Key key_;
  };
  withhold(std::make_unique<withheld_key>(std::move(key), std::move(memory)));
}

/// Tries with all of them. Where nothing is locked, as it may destroy queue pairs.
void release_withheld() noexcept;

} // namespace asio_rdma::detail
