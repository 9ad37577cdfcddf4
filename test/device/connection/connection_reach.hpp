// SPDX-License-Identifier: BSL-1.0
//
// Two connections and memory that one of them may access.
#pragma once

#include "device/connection/connection_support.hpp"

#include <utility>

namespace test {

/// A talk, and memory of b that a may access. a has sent b a word first, as iWARP requires.
struct reach : talk {
  explicit reach(const connection_options& of_a = {}, const connection_options& of_b = {})
      : talk(of_a, of_b) {}

  registered_buffer filled(std::size_t bytes, std::uint32_t seed) {
    return test::filled(pool, bytes, seed);
  }
  bool has_atomics() const { return dev.has_atomics(); }
  template <class Handler>
  void start(bool reads, const registered_buffer& buffer, Handler handler) {
    if (reads)
      a.async_read(buffer, target.remote(), std::move(handler));
    else
      a.async_write(buffer, target.remote(), std::move(handler));
  }

  memory target{pd, 256 * 1024, most_rights(dev)};
};

} // namespace test
