// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "streams/stream_impl.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// `linger`, increased to 0 if it is negative and reduced to a day if it is longer.
inline std::chrono::milliseconds limited(std::chrono::milliseconds linger) {
  return std::clamp<std::chrono::milliseconds>(linger, std::chrono::milliseconds(0),
                                               std::chrono::hours(24));
}

/// Waits for the goodbyes of a closed stream.
class stream_impl::closer final : public operation {
public:
  closer() noexcept : operation(&closer::run) {}

  std::shared_ptr<stream_impl> stream;

private:
  static void run(operation* base, disposal how) {
    const auto s = std::move(static_cast<closer*>(base)->stream);
    if (how != disposal::destroy)
      s->link_.close();
  }
};

/// Counts as work of the context while the stream waits for the peer with no other operation
/// outstanding.
class stream_impl::holder final : public operation {
public:
  enum class state { idle, holding, ending };

  holder() noexcept : operation(&holder::run) { internal = true; }

  state now = state::idle;
  std::shared_ptr<stream_impl> stream; ///< While it ends.

private:
  static void run(operation* base, disposal how) {
    auto& self = *static_cast<holder*>(base);
    const auto s = std::move(self.stream);
    link_impl::visit v(s->link_);
    self.now = state::idle;
    if (how != disposal::destroy)
      v.advance();
  }
};

} // namespace asio_rdma::detail
