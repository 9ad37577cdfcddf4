// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/verbs/scatter_gather.hpp>
#include <asio_rdma/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace asio_rdma::detail {

/// A receive of the library's own, with memory for one frame.
class frame_receive : public receive_operation {
public:
  frame_receive(const frame_receive&) = delete;

  /// Whether the receive can be posted with its memory, for frames of `size` bytes.
  bool fits(std::size_t size) const noexcept { return !kept && memory.size() >= size; }
  void replace(registered_buffer fresh) noexcept {
    memory = std::move(fresh);
    kept = false;
  }
  /// Prepares for posting: allocates `size` bytes, unless the receive fits. Returns false with the
  /// error in `ec` if that fails.
  bool fill(const memory_pool& pool, std::size_t size) {
    ec = {};
    if (!fits(size))
      replace(pool.allocate(size, ec));
    element_ = element_of(memory);
    return !ec;
  }

  /// The bytes that arrived. Empty if the completion carries immediate data or an invalidated key,
  /// because that is no frame. After an RDMA WRITE with immediate data the memory has its old
  /// contents.
  std::span<const std::byte> arrived() const noexcept {
    if ((flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0)
      return {};
    return {static_cast<const std::byte*>(memory.data()), bytes};
  }

  const std::uint32_t slot;
  registered_buffer memory;
  bool kept = false; ///< The application keeps the memory, so it is not posted again.

protected:
  frame_receive(function f, std::uint32_t number) noexcept : receive_operation(f), slot(number) {
    background = true;
    internal = true;
    wr.sg_list = &element_;
    wr.num_sge = 1;
  }
  ~frame_receive() = default;

private:
  ibv_sge element_{};
};

} // namespace asio_rdma::detail
