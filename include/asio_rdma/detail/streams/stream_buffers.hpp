// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/queues/request.hpp>
#include <asio_rdma/detail/streams/stream_operations.hpp>
#include <boost/asio/buffer.hpp>

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

/// Gives buffers to the operation, as many as `parts` has room for. Errors: `error::buffer_in_use`
/// for a `registered_buffer`, which the operation keeps.
template <class Op, class Buffers>
error_code give_buffers(Op& op, ibv_sge* parts, std::size_t most, const Buffers& buffers) {
  constexpr bool reads = std::derived_from<Op, stream_reading>;
  if constexpr (has_payload<Buffers>)
    return give_buffers(op, parts, most, buffers.payload);
  op.parts = parts;
  op.registered = const_buffer_sequence<Buffers>;
  for_each_buffer(buffers, [&](const const_buffer& b) {
    constexpr std::size_t longest = std::size_t(1) << 30;
    if (op.part_count == most)
      return false;
    const const_buffer part = b.first(longest);
    op.parts[op.part_count++] = element_of(part);
    op.size += part.size();
    op.device_only = op.device_only || part.is_device_only();
    return part.size() == b.size();
  });
  if constexpr (std::same_as<Buffers, registered_buffer>) {
    op.memory = buffers;
    return reads ? op.access.try_begin_write(buffers) : op.access.try_begin_read(buffers);
  } else {
    return {};
  }
}

} // namespace asio_rdma::detail
