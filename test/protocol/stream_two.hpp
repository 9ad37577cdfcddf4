// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "stream_party.hpp"

namespace stream_test {

constexpr std::uint32_t frame = 100; // bytes of payload

inline frame_options link_of(std::uint32_t receives = 8) {
  frame_options l;
  l.receives = l.peer_receives = receives;
  l.receive_size = l.peer_receive_size = frame + frame_header::size;
  l.sends = 16;
  return l;
}

/// Two sides: a writes and b reads, unless the test does otherwise.
struct two {
  explicit two(std::uint32_t receives = 8, std::uint32_t blocks = 4)
      : two(receives, stream_limits{blocks, frame, frame}) {}
  two(std::uint32_t receives, const stream_limits& o) : two(link_of(receives), o) {}
  two(const frame_options& l, const stream_limits& o) : a(l, o), b(l, o) {}

  party a, b;
  std::uint64_t written = 0;

  /// Starts a write. The value of every byte is a function of its position in the stream.
  a_write& write(party& p, std::uint64_t n, stream_write::kind k = stream_write::kind::copy) {
    a_write& op = writes.emplace_back(n, k);
    for (std::uint64_t i = 0; i < n; ++i)
      op.data.push_back(byte_at(written + i));
    p.write(op);
    if (op.ended)
      written += op.done;
    return op;
  }
  a_write& write(std::uint64_t n) { return write(a, n); }
  a_write& lend(std::uint64_t n) { return write(a, n, stream_write::kind::lend); }
  a_read& read(std::uint64_t n, stream_read::kind k = stream_read::kind::copy) {
    a_read& op = reads.emplace_back(n, k);
    b.read(op);
    return op;
  }
  void settle() {
    while (a.deliver_to(b) || b.deliver_to(a) || a.complete_send() || b.complete_send() ||
           a.idle() || b.idle() || a.complete_pull(b) || b.complete_pull(a))
      continue;
  }
  std::vector<std::uint32_t> lengths() const {
    std::vector<std::uint32_t> result;
    for (const wire_frame& f : a.wire)
      if (f.header.type == frame_type::data)
        result.push_back(f.header.length);
    return result;
  }

  std::deque<a_write> writes;
  std::deque<a_read> reads;
};

} // namespace stream_test
