// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace asio_rdma {

/// Options of `shared_receives`.
struct shared_receives_options {
  shared_receives_options() {
  } // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// The number of posted receives in total, up to the device's limit: `per_link` of them for each
  /// link.
  std::uint32_t receives = 1024;
  std::uint32_t receive_size = 4096; ///< Bytes of each, at least 64; 16 of them are not payload.
  /// Receives reserved for each open connection and stream, at least 5: what its peer may send
  /// before this side answers, 3 of them for the library's own frames. While received data waits
  /// for its reader, other receives replace those that hold it, if some are left. A link thus has
  /// at most `connection_options::receives` or `stream_options::receives` in total.
  std::uint32_t per_link = 6;
};

/// The use of shared receives at one time.
struct shared_receives_statistics {
  std::uint32_t links = 0;   ///< Connections and streams that share the receives.
  std::uint32_t room = 0;    ///< Additional ones that could share the receives.
  std::uint32_t posted = 0;  ///< Receives that the device has.
  std::uint32_t missing = 0; ///< Receives for which the pool has no memory.
};

} // namespace asio_rdma
