// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace asio_rdma::detail {

class offer_key;

/// The base of an operation whose memory may be offered to the peer, which reads it.
struct offered {
  offer_key* key = nullptr; ///< While the peer can read the memory. It belongs to the link.
};

} // namespace asio_rdma::detail
