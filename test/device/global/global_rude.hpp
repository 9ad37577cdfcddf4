// SPDX-License-Identifier: BSL-1.0
// A peer that breaks the protocol of a global memory's nodes.
#pragma once

#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/detail/global/global_message.hpp>

#include <optional>
#include <vector>

namespace test {

using detail::global_message;
using kind = global_message::kind;

/// A connection to the host that can send any message.
struct rude {
  explicit rude(world& where, const connection_options& options = {})
      : w(where), link(w.io, w.pool, options), connector(w.io) {
    test::connection connected;
    connector.async_connect(link, w.host.local_endpoint(), connected.handler());
    w.until([&] { return connected.done(); });
    REQUIRE(connected.succeeded());
  }

  void say(const std::vector<std::byte>& bytes) {
    sent s;
    link.async_send(asio::buffer(bytes), s.handler());
    w.until([&] { return s.done(); });
  }
  void say(const global_message& m) { say(encode(m)); }
  /// The next message of the host; empty if the host has ended the connection.
  std::optional<global_message> hear() {
    outcome<message> m;
    link.async_receive(m.handler());
    w.until([&] { return m.done(); });
    if (m.ec)
      return {};
    global_message result;
    REQUIRE(decode(m.value.bytes(), result));
    return result;
  }
  void join() {
    say(hello());
    const auto answer = hear();
    REQUIRE(answer);
    CHECK(answer->what == kind::welcome);
    CHECK(answer->node == host_id);
    REQUIRE(answer->segments.size() == 1);
    segment = answer->segments.front();
  }
  /// A word of the host's segment.
  remote_buffer word_at(std::uint64_t offset) const {
    remote_buffer word = segment + offset;
    word.size = sizeof(std::uint64_t);
    return word;
  }
  static global_message hello() {
    global_message m;
    m.node = 99;
    m.incarnation = 1;
    m.segments = {{4096, 4096, 1}};
    return m;
  }

  world& w;
  asio_rdma::connection link;
  asio_rdma::connector connector;
  remote_buffer segment; // the host's
};

inline global_message of(kind k) {
  global_message m;
  m.what = k;
  m.id = 7;
  m.value = 64;
  m.alignment = k == kind::allocate ? 8 : 0;
  return m;
}

} // namespace test
