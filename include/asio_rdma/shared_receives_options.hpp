// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace asio_rdma {

/// What receives that connections and streams share are made with.
struct shared_receives_options {
  shared_receives_options() {
  } // gcc 12 destroys a temporary aggregate in a co_await expression twice

  /// Posted ahead for all together, up to the device's limit: `per_link` of them for each.
  std::uint32_t receives = 1024;
  std::uint32_t receive_size = 4096; ///< Bytes of each, at least 64; 16 of them are not payload.
  /// So many are kept for each connection and stream as long as it is open, at least 5: what its
  /// peer may send before it hears of this side, 3 of them for the library's own frames. While
  /// received data waits for its reader, others take its place, if some are left: as long as there
  /// are not more than `connection_options::receives` or `stream_options::receives` in all.
  std::uint32_t per_link = 6;
};

/// What of them is in use at one time.
struct shared_receives_statistics {
  std::uint32_t links = 0;   ///< Connections and streams that share them.
  std::uint32_t room = 0;    ///< How many more could.
  std::uint32_t posted = 0;  ///< Receives that the device has.
  std::uint32_t missing = 0; ///< For which the pool has no memory.
};

} // namespace asio_rdma
