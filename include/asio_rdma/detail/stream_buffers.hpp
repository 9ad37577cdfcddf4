// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/request.hpp>
#include <asio_rdma/detail/stream_impl.hpp>
#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

namespace asio_rdma::detail {

struct stream_size_result {
  using signature = void(error_code, std::size_t);
  static std::tuple<std::size_t> arguments(const stream_operation& op) {
    return {static_cast<std::size_t>(op.value)};
  }
};

struct stream_piece_result {
  using signature = void(error_code, registered_buffer);
  static std::tuple<registered_buffer> arguments(stream_reading& op) {
    return {std::move(op.result)};
  }
};

/// Takes as many buffers as `parts` has room for. Errors: `error::buffer_in_use` of a
/// `registered_buffer`, which the operation keeps.
template <class Op, class Buffers>
error_code give_buffers(Op& op, ibv_sge* parts, std::size_t most, const Buffers& buffers) {
  constexpr bool reads = std::derived_from<Op, stream_reading>;
  op.parts = parts;
  op.registered = const_buffer_sequence<Buffers>;
  const auto add = [&](const auto& b) {
    constexpr std::size_t longest = std::size_t(1) << 30;
    std::uint32_t lkey = 0;
    if constexpr (std::convertible_to<decltype(b), const_buffer>)
      lkey = static_cast<const_buffer>(b).lkey();
    const asio::const_buffer view(b);
    if (view.size() == 0)
      return true;
    if (op.part_count == most)
      return false;
    const std::size_t n = std::min(view.size(), longest);
    op.parts[op.part_count++] = element_of({view.data(), n, lkey});
    op.size += n;
    return n == view.size();
  };
  if constexpr (std::same_as<Buffers, registered_buffer>) {
    op.memory = buffers;
    add(static_cast<const_buffer>(buffers));
    return reads ? op.access.try_begin_write(buffers) : op.access.try_begin_read(buffers);
  } else if constexpr (std::convertible_to<Buffers, const_buffer>) {
    add(static_cast<const_buffer>(buffers));
  } else {
    const auto end = asio::buffer_sequence_end(buffers);
    for (auto i = asio::buffer_sequence_begin(buffers); i != end && add(*i); ++i)
      continue;
  }
  return {};
}

} // namespace asio_rdma::detail
