// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/core/build.hpp>

namespace asio_rdma::detail {

// Declared above as extern, so it has external linkage.
const char ASIO_RDMA_BUILD_NAME = 0;

} // namespace asio_rdma::detail
