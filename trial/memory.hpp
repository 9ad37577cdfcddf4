// SPDX-License-Identifier: BSL-1.0
// Memory and queue pairs of a check.
#pragma once

#include "session.hpp"

#include <asio_rdma/queue_pair.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace trial {

/// The byte at `offset` of a content, of which there is one for each `seed`.
inline char content(std::size_t offset, unsigned seed) {
  return static_cast<char>((offset * 31 + (offset >> 8) * 7 + seed * 97 + 1) & 0xff);
}
inline void fill(void* to, std::size_t bytes, unsigned seed, std::size_t offset = 0) {
  for (std::size_t i = 0; i < bytes; ++i)
    static_cast<char*>(to)[i] = content(offset + i, seed);
}
/// Throws a `failure` that names the first wrong byte.
inline void compare(const void* found, std::size_t bytes, unsigned seed, std::size_t offset = 0) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (static_cast<const char*>(found)[i] != content(offset + i, seed))
      throw failure("byte " + std::to_string(offset + i) + " is not the one that was sent");
}

/// All rights that the device gives.
inline access most_rights(const device& d) {
  access result = access::local_write | access::remote_write | access::remote_read;
  if (d.has_atomics())
    result = result | access::remote_atomic;
  if (d.has_memory_windows())
    result = result | access::window_bind;
  if (d.has_flush(placement::visible))
    result = result | access::flush_visible;
  return result;
}

inline bool is_roce(const device& d) {
  return d.type() == transport::infiniband &&
         d.port(d.first_port()).link_layer == IBV_LINK_LAYER_ETHERNET;
}

/// The address vector of a connected queue pair, unless the driver does not report it
/// (irdma_query_qp of the kernel).
inline std::optional<ibv_ah_attr> if_reported(const ibv_ah_attr& route) {
  const auto is_0 = [](std::uint8_t byte) {
    return byte == 0;
  };
  if (route.is_global == 0 && route.dlid == 0 && route.sl == 0 && route.port_num == 0 &&
      std::all_of(std::begin(route.grh.dgid.raw), std::end(route.grh.dgid.raw), is_0))
    return {};
  return route;
}
inline std::optional<ibv_ah_attr> route_of(const queue_pair& qp) {
  return if_reported(qp.query(IBV_QP_AV).ah_attr);
}

/// A queue pair, memory of this side, and the place of the other side's memory.
struct pair_end {
  explicit pair_end(session& session_, const queue_pair_options& options = {},
                    std::size_t bytes = 65536)
      : s(session_),
        memory(bytes),
        region(s.pd, memory.data(), memory.size(), most_rights(s.dev)),
        qp(s.io, s.pd, options) {}

  awaitable<void> link(connect_options options = {}) {
    co_await s.link(qp, options);
    co_await s.tell(region.remote());
    there = co_await s.hear_memory();
  }

  /// The near side sends the bytes of `seed`, and the far side receives them.
  awaitable<void> carry(std::size_t bytes, unsigned seed) {
    if (s.is_near()) {
      fill(memory.data(), bytes, seed);
      co_await s.hear();
      const std::size_t n = co_await qp.async_send(region.buffer(0, bytes), use_awaitable);
      expect(n == bytes, "a send reported another size");
    } else {
      fill(memory.data(), bytes, seed + 1);
      const received r = co_await (qp.async_receive(region.buffer(0, bytes), use_awaitable) &&
                                   s.tell(std::string("ready")));
      expect(r.bytes == bytes, "a receive reported another size");
      compare(memory.data(), bytes, seed);
    }
  }

  session& s;
  std::vector<char> memory;
  memory_region region;
  queue_pair qp;
  remote_buffer there;
};

} // namespace trial
