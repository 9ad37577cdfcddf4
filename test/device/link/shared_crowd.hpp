// SPDX-License-Identifier: BSL-1.0
//
// Connections or streams that share receives.
#pragma once

#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/buffer.hpp>

#include <deque>

namespace test {

inline shared_receives_options few(std::uint32_t receives) {
  shared_receives_options o;
  o.receives = receives;
  return o;
}

/// Pairs of links in one process. The accepting sides share receives, and the connecting sides
/// share others.
template <class Link>
struct crowd {
  explicit crowd(std::size_t pairs, const shared_receives_options& options = {},
                 const memory_pool_options& memory_of_b = {})
      : pool_b(pd, memory_of_b), of_a(io, pool_a, options), of_b(io, pool_b, options) {
    listener.open({device_address(dev), 0});
    for (std::size_t i = 0; i < pairs; ++i)
      connect(a.emplace_back(io, of_a), b.emplace_back(io, of_b));
  }

  void connect(Link& from, Link& to) {
    test::connection accepted, connected;
    listener.async_accept(to, accepted.handler());
    initiator.async_connect(from, listener.local_endpoint(), connected.handler());
    until([&] { return accepted.done() && connected.done(); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  /// Sends one message and checks its bytes.
  void carries(Link& from, Link& to, std::size_t bytes, std::uint32_t seed) {
    const auto text = pattern(bytes, seed);
    outcome<std::size_t> s;
    outcome<message> r;
    from.async_send(asio::buffer(text), seed, s.handler());
    to.async_receive(r.handler());
    until([&] { return s.done() && r.done(); });
    REQUIRE(s.ec == error_code());
    REQUIRE(r.ec == error_code());
    REQUIRE(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, seed));
    CHECK(r.value.immediate == std::optional(seed));
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool_a{pd}, pool_b;
  asio::io_context io{1};
  shared_receives of_a, of_b;
  acceptor listener{io};
  connector initiator{io};
  std::deque<Link> a, b; ///< a[i] has connected to b[i].
};

using talks = crowd<asio_rdma::connection>;

/// Closes everything and checks that nothing of the pools is in use.
template <class Crowd>
void gives_everything_back(Crowd& c) {
  c.a.clear();
  c.b.clear();
  c.of_a = c.of_b = {};
  c.listener.close();
  drain(c.io);
  CHECK(c.pool_a.statistics().blocks_in_use == 0);
  CHECK(c.pool_b.statistics().blocks_in_use == 0);
}

} // namespace test
