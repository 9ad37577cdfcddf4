// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <infiniband/verbs.h>

#include <concepts>
#include <cstdint>

namespace asio_rdma::detail {

/// A buffer as the device takes it. It has fewer than 2^32 bytes.
inline ibv_sge element_of(const const_buffer& b) noexcept {
  return {reinterpret_cast<std::uintptr_t>(b.data()), static_cast<std::uint32_t>(b.size()),
          b.lkey()};
}

/// Calls `f` with each of these Asio buffers that is not empty, until `f` gives false. The key of
/// one that is not registered is 0.
template <class Buffers, class Function>
void for_each_buffer(const Buffers& buffers, Function&& f) {
  const auto give = [&](const auto& b) {
    std::uint32_t lkey = 0;
    if constexpr (std::convertible_to<decltype(b), const_buffer>)
      lkey = static_cast<const_buffer>(b).lkey();
    const asio::const_buffer view(b);
    return view.size() == 0 || f(const_buffer(view.data(), view.size(), lkey));
  };
  if constexpr (std::convertible_to<Buffers, const_buffer>) {
    give(static_cast<const_buffer>(buffers));
  } else {
    const auto end = asio::buffer_sequence_end(buffers);
    for (auto i = asio::buffer_sequence_begin(buffers); i != end && give(*i); ++i)
      continue;
  }
}

} // namespace asio_rdma::detail
