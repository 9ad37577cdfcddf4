// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <infiniband/verbs.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#pragma GCC visibility push(default)
namespace asio_rdma {
class registered_buffer;
}
#pragma GCC visibility pop

namespace asio_rdma::detail {

/// The scatter/gather element of a buffer of fewer than 2^32 bytes.
inline ibv_sge element_of(const const_buffer& b) noexcept {
  return {reinterpret_cast<std::uintptr_t>(b.data()), static_cast<std::uint32_t>(b.size()),
          b.lkey()};
}

/// The number of elements of a READ, at least one. A READ of no bytes gets an element of length 0,
/// because siw writes a READ without elements to the memory of an earlier work request.
inline int give_read_element(ibv_sge* elements, int count) noexcept {
  if (count != 0) [[likely]]
    return count;
  elements[0] = {};
  return 1;
}

/// Calls `f` with each non-empty Asio buffer until `f` returns false. The key is 0 if the buffer is
/// not registered. A sequence of `registered_buffer` objects is ill-formed: pass views, and keep
/// the buffers alive.
template <class Buffers, class Function>
void for_each_buffer(const Buffers& buffers, Function&& f) {
  const auto give = [&](const auto& b) {
    static_assert(!std::same_as<std::remove_cvref_t<decltype(b)>, registered_buffer>,
                  "an operation keeps a registered_buffer that it is given by itself; of several, "
                  "give views (const_buffer, mutable_buffer) and keep the memory");
    if constexpr (std::convertible_to<decltype(b), const_buffer>) {
      const const_buffer view(b);
      return view.size() == 0 || f(view);
    } else {
      const asio::const_buffer view(b);
      return view.size() == 0 || f(const_buffer(view.data(), view.size(), 0));
    }
  };
  if constexpr (std::convertible_to<Buffers, const_buffer>) {
    give(static_cast<const_buffer>(buffers));
  } else {
    const auto end = asio::buffer_sequence_end(buffers);
    for (auto i = asio::buffer_sequence_begin(buffers); i != end && give(*i); ++i)
      continue;
  }
}

/// Calls `f` with the elements, or parts of them, of `bytes` bytes from `offset` on.
template <class Function>
void for_range(std::span<const ibv_sge> elements, std::uint64_t offset, std::uint64_t bytes,
               Function&& f) {
  for (const ibv_sge& e : elements) {
    if (bytes == 0)
      return;
    if (offset >= e.length) {
      offset -= e.length;
      continue;
    }
    const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(e.length - offset, bytes));
    f(ibv_sge{e.addr + offset, n, e.lkey});
    bytes -= n;
    offset = 0;
  }
}

/// Copies `bytes` bytes into the elements, from `offset` on. They must not be device-only.
inline void scatter(const void* from, std::span<const ibv_sge> to, std::uint64_t offset,
                    std::size_t bytes) noexcept {
  auto p = static_cast<const std::byte*>(from);
  for_range(to, offset, bytes, [&](const ibv_sge& e) {
    std::memcpy(reinterpret_cast<void*>(e.addr), p, e.length);
    p += e.length;
  });
}

/// Copies `bytes` bytes from the elements, from `offset` on. They must not be device-only.
inline void gather(std::span<const ibv_sge> from, std::uint64_t offset, std::size_t bytes,
                   void* to) noexcept {
  auto p = static_cast<std::byte*>(to);
  for_range(from, offset, bytes, [&](const ibv_sge& e) {
    std::memcpy(p, reinterpret_cast<const void*>(e.addr), e.length);
    p += e.length;
  });
}

} // namespace asio_rdma::detail
