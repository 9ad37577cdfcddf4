// SPDX-License-Identifier: BSL-1.0
//
// Sends and receives of each kind, for the tests of cancellation.
#pragma once

#include "device/connection/connection_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <algorithm>

namespace test {

constexpr std::size_t eager = 600, lengthy = 200'000; // neither is copied into the frame's memory

/// A message to be sent from memory of one kind.
struct letter {
  enum class kind { plain, owned, view };

  letter(talk& t, kind k, std::size_t bytes, std::uint32_t s)
      : what(k), seed(s), plain(pattern(bytes, s)), owned(filled(t.pool, bytes, s)) {}

  void send(talk& t) {
    auto h = asio::bind_cancellation_slot(cancel.slot(), result.handler());
    if (what == kind::plain)
      t.a.async_send(asio::buffer(plain), h);
    else if (what == kind::owned)
      t.a.async_send(owned, h);
    else
      t.a.async_send(const_buffer(owned), h);
  }
  /// Overwrites a plain message. Call it when the message has been cancelled.
  void overwrite() { std::fill(plain.begin(), plain.end(), std::uint8_t(0xee)); }

  kind what;
  std::uint32_t seed;
  std::vector<std::uint8_t> plain;
  registered_buffer owned;
  asio::cancellation_signal cancel;
  sent result;
};

inline void send(talk& t, std::size_t bytes, std::uint32_t seed, sent& s) {
  t.a.async_send(asio::buffer(pattern(bytes, seed)), s.handler());
}

/// A wait for a message, into memory of one kind.
struct taker {
  enum class kind { owning, plain, owned, view };

  taker(talk& t, kind k) : what(k), plain(lengthy), owned(t.pool.allocate(lengthy)) {}

  void receive(talk& t) {
    const auto slot = cancel.slot();
    if (what == kind::owning)
      t.b.async_receive(asio::bind_cancellation_slot(slot, whole.handler()));
    else if (what == kind::plain)
      t.b.async_receive(asio::buffer(plain), asio::bind_cancellation_slot(slot, size.handler()));
    else if (what == kind::owned)
      t.b.async_receive(owned, asio::bind_cancellation_slot(slot, size.handler()));
    else
      t.b.async_receive(mutable_buffer(owned), asio::bind_cancellation_slot(slot, size.handler()));
  }
  bool done() const { return whole.done() || size.done(); }
  int calls() const { return whole.calls + size.calls; }
  error_code ec() const { return whole.done() ? whole.ec : size.ec; }
  std::size_t bytes() const { return whole.done() ? whole.value.size() : size.value; }
  const void* data() const {
    return whole.done()          ? whole.value.payload.data()
           : what == kind::plain ? plain.data()
                                 : owned.data();
  }
  bool has(std::size_t n, std::uint32_t seed) const {
    return calls() == 1 && !ec() && bytes() == n && is_pattern(data(), n, seed);
  }

  kind what;
  std::vector<std::uint8_t> plain;
  registered_buffer owned;
  asio::cancellation_signal cancel;
  outcome<message> whole;
  sent size;
};

} // namespace test
