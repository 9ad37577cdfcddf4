// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>

#include <cstddef>

namespace asio_rdma {

/// The result of `async_revoke`.
struct revocation {
  /// The grants and loans that had not ended when the operation began.
  std::size_t grants = 0;
  /// Those of them that ended before their peer had confirmed the end of its operations: by the end
  /// of the grace or of the lease, by `revoke`, or with the connection.
  std::size_t unconfirmed = 0;

  friend bool operator==(const revocation&, const revocation&) = default;
};

} // namespace asio_rdma
