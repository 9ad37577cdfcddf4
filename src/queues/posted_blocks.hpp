// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/queues/work_queue.hpp>

#include "memory/memory_pool_impl.hpp"

#include <cstddef>

namespace asio_rdma::detail {

/// Adds the blocks, of any pool, that are in use by posted operations of the queue.
template <class Operation>
void find_posted_blocks(const work_queue& queue, kept_blocks& to) noexcept {
  queue.each_posted([&](const operation& op) {
    const auto& wr = static_cast<const Operation&>(op).wr;
    memory_pool_impl::find_blocks({wr.sg_list, static_cast<std::size_t>(wr.num_sge)}, to);
  });
}

} // namespace asio_rdma::detail
