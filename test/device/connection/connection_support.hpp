// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection.hpp>

#include "device/connecting/cm_support.hpp"

#include <cstdint>
#include <random>
#include <vector>

namespace test {

/// Two connections of one process, on one context.
struct talk {
  explicit talk(const connection_options& of_a = {}, const connection_options& of_b = {},
                const memory_pool_options& memory = {});
  /// Both connections share receives with these options.
  talk(const connection_options& of_each, const shared_receives_options& options);

  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  /// Whether a message from a arrives at b.
  bool lives();
  /// Sends a message from a, which b receives.
  void exchange(std::size_t bytes);
  /// Returns when the bytes of completed writes of a are in b's memory: `pair::placed`.
  bool placed() { return talk::lives(); }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool;
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  asio_rdma::connection a{io}, b{io}; ///< a has connected to b.
};

/// Bytes that depend on their position and on `seed`.
std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint32_t seed);
/// Memory of the pool with that pattern.
registered_buffer filled(const memory_pool& pool, std::size_t bytes, std::uint32_t seed);
/// Whether an operation has locked the buffer against writers.
bool in_use(const registered_buffer& b);
bool is_pattern(const void* data, std::size_t bytes, std::uint32_t seed);

} // namespace test
