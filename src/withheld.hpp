// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>
#include <boost/intrusive/list.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// An object that the device may still use because the call that ends its use has failed. It is not
/// reused until `release_withheld` repeats the call with success, or until the process ends.
class withheld : public boost::intrusive::list_base_hook<
                     boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  withheld() = default;
  withheld(const withheld&) = delete;
  virtual ~withheld() = default;
  /// Repeats the call. Returns true if the device no longer uses the object.
  virtual bool release() noexcept = 0;
};

/// Thread-safe, under any lock: releases nothing and allocates nothing.
void withhold(std::unique_ptr<withheld> w) noexcept;
/// Withholds a registration or another key, with its memory.
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

/// Repeats the calls of all withheld objects. Call with no mutex locked, because it may destroy
/// queue pairs.
void release_withheld() noexcept;

} // namespace asio_rdma::detail
