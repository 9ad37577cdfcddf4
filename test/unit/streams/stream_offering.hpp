// SPDX-License-Identifier: BSL-1.0
//
// Two sides of a stream whose long lent writes are offered.
#pragma once

#include "protocol/stream_two.hpp"

namespace stream_test {

constexpr std::uint32_t ahead = 600, chunk = 250, direct = 200;

inline stream_limits limits() {
  stream_limits o{4, frame, frame};
  o.lend_from = frame;
  o.offer_from = 300;
  o.offers = 2;
  o.direct_from = direct;
  o.inbox = {ahead, chunk};
  return o;
}

struct offering : two {
  explicit offering(std::uint32_t receives = 8) : two(receives, limits()) {}

  a_read& read_direct(std::uint64_t n) {
    a_read& op = reads.emplace_back(n);
    op.direct = true;
    b.read(op);
    return op;
  }
  /// The types of the frames on the way to b.
  std::vector<frame_type> types() const {
    std::vector<frame_type> result;
    for (const wire_frame& f : a.wire)
      result.push_back(f.header.type);
    return result;
  }
  /// Reads all bytes that b can get, and checks their order.
  std::uint64_t read_all() {
    for (;;) {
      a_read& r = read(10000);
      settle();
      for (const std::byte byte : r.data)
        must(byte == byte_at(at_++), "bytes arrive in order and unchanged");
      if (r.ended && !r.ec)
        continue;
      b.cancel(r);
      return at_;
    }
  }

private:
  std::uint64_t at_ = 0;
};

using types = std::vector<frame_type>;
inline const error_code none;

} // namespace stream_test
