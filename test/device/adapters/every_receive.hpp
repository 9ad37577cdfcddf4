// SPDX-License-Identifier: BSL-1.0
// Whether the receives of a shared receive queue exist.
#pragma once

#include "catch.hpp"
#include "device/support/pair.hpp"
#include "queues/queue_pair_impl.hpp"
#include "queues/shared_receive_queue_impl.hpp"

#include <cstdint>
#include <memory>

namespace test {

/// Sends messages to the queue until one finds no receive, at most `most`. Returns the number that
/// have arrived. No completion of the queue is polled meanwhile, so no receive is posted again. The
/// receives have 8 bytes or more. `io` is the context of the queue.
inline std::uint32_t count_receives(asio::io_context& io, const protection_domain& pd,
                                    const device& dev,
                                    const std::shared_ptr<detail::shared_receive_queue_impl>& queue,
                                    std::uint32_t most) {
  asio::io_context other(1);
  queue_pair_options tries_once;
  tries_once.rnr_retry = 0;
  queue_pair from(other);
  from.open(pd, tries_once);
  error_code ec;
  const auto to = detail::open_queue_pair(io, pd, {}, nullptr, queue, ec);
  REQUIRE(ec == error_code());
  queue_pair_address at;
  REQUIRE(to->local_address(at) == error_code());
  REQUIRE(to->connect(from.local_address()) == error_code());
  from.connect(at);
  const memory m(pd, 8, most_rights(dev));
  std::uint32_t arrived = 0;
  for (; arrived != most; ++arrived) {
    sent s;
    from.async_send(m.buffer(0, 8), s.handler());
    until(other, [&] { return s.done(); });
    if (s.ec) {
      CHECK(s.ec == IBV_WC_RNR_RETRY_EXC_ERR);
      break;
    }
  }
  to->close();
  return arrived;
}

} // namespace test
