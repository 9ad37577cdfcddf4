// SPDX-License-Identifier: BSL-1.0
// What the settings do to a queue pair: its pace.
#include "device/queue_pair.hpp"

#include <algorithm>
#include <utility>

namespace soft {
namespace {

std::uint64_t bytes_of(send_work& r) {
  std::uint64_t bytes = r.inline_bytes;
  if ((r.flags & IBV_SEND_INLINE) == 0)
    for (unsigned i = 0; i < r.count; ++i)
      bytes += r.elements()[i].length;
  return bytes;
}

} // namespace

// Rounded up: a request seems to be no older than it is.
std::uint32_t queue_pair::post_time() noexcept {
  return static_cast<std::uint32_t>(
      std::chrono::ceil<post_tick>(clock::now().time_since_epoch()).count());
}

// The wire carries one request after the other at its rate. Each takes the latency in addition.
clock::time_point queue_pair::arrival_of(send_work& r) {
  const settings& s = current();
  const auto now = clock::now();
  const auto tick =
      static_cast<std::uint32_t>(std::chrono::floor<post_tick>(now.time_since_epoch()).count());
  // Both are rounded: a post may seem to be one tick ahead.
  const post_tick age(r.posted == tick + 1 ? 0u : tick - r.posted);
  auto carried = std::max(now - age, wire_free_);
  if (s.rate > 0)
    carried += std::chrono::nanoseconds(
        static_cast<std::int64_t>(8e9 * static_cast<double>(bytes_of(r)) / s.rate));
  wire_free_ = carried;
  return carried + s.latency;
}

// True: the request is carried out later, and the queue pair runs again then.
bool queue_pair::is_early(send_work& r) {
  if (!std::exchange(is_timed_, true))
    due_ = arrival_of(r);
  if (clock::now() >= due_)
    return false;
  engine::get().schedule_precisely(*this, due_);
  return true;
}

} // namespace soft
