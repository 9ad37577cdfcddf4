// SPDX-License-Identifier: BSL-1.0
//
// Two connections, one of which gives memory to the other.
#pragma once

#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <variant>

namespace test {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

using region_outcome = outcome<remote_region>;
using arrival = outcome<std::variant<registered_buffer, remote_region>>;

constexpr access read_write = access::remote_read | access::remote_write;

inline connection_options giving(remote_memory_options m) {
  connection_options o;
  o.remote_memory = m;
  return o;
}

inline remote_memory_options megabyte() {
  remote_memory_options m;
  m.bytes = 1 << 20;
  return m;
}

/// Lends memory of one connection to its peer. `until` runs their contexts.
template <class Until>
remote_region lend(asio_rdma::connection& from, asio_rdma::connection& to,
                   const registered_buffer& memory, access rights, Until&& until,
                   std::chrono::microseconds lease = std::chrono::microseconds::max()) {
  outcome<void> s;
  arrival r;
  from.async_send_region(memory, rights, lease, s.handler());
  to.async_receive_region(r.handler());
  until([&] { return s.done() && r.done(); });
  REQUIRE(s.ec == error_code());
  REQUIRE(r.ec == error_code());
  return std::get<remote_region>(r.value);
}

/// A talk in which a may use memory of b. `own_domains`: both sides have protection domains of
/// their own.
struct lender : talk {
  explicit lender(const remote_memory_options& m = megabyte(), bool own_domains = false)
      : talk(connection_options().set_own_domain(own_domains),
             giving(m).set_own_domain(own_domains)) {
    b.async_receive_immediate(idle.handler());
  }

  remote_region request(std::uint64_t bytes, access rights = read_write,
                        std::chrono::microseconds lease = 0us) {
    region_outcome r;
    a.async_request_memory(bytes, rights, lease, r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    return r.value;
  }
  error_code refusal(std::uint64_t bytes, access rights = read_write) {
    region_outcome r;
    a.async_request_memory(bytes, rights, r.handler());
    until([&] { return r.done(); });
    CHECK(!r.value.is_open());
    return r.ec;
  }
  template <class Remote>
  error_code write(std::string_view text, const Remote& to) {
    sent s;
    a.async_write(asio::buffer(text), to, s.handler());
    until([&] { return s.done(); });
    return s.ec;
  }
  template <class Remote>
  std::string read(std::size_t bytes, const Remote& from) {
    std::string text(bytes, '?');
    sent s;
    a.async_read(asio::buffer(text), from, s.handler());
    until([&] { return s.done(); });
    return s.ec ? s.ec.message() : text;
  }
  registered_buffer take_back() {
    arrival r;
    b.async_receive_region(r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    return std::get<registered_buffer>(r.value);
  }
  remote_region lend(const registered_buffer& memory, access rights,
                     std::chrono::microseconds lease = std::chrono::microseconds::max()) {
    return test::lend(
        b, a, memory, rights, [this](auto done) { until(done); }, lease);
  }
  /// Whether messages go both ways.
  bool lives() {
    sent s[2];
    outcome<message> r[2];
    a.async_send(asio::buffer("to b"), s[0].handler());
    b.async_receive(r[0].handler());
    b.async_send(asio::buffer("to a"), s[1].handler());
    a.async_receive(r[1].handler());
    until([&] { return s[0].done() && r[0].done() && s[1].done() && r[1].done(); });
    return s[0].succeeded() && r[0].succeeded() && s[1].succeeded() && r[1].succeeded();
  }
  /// Uses the region's key, which must have ended. The device refuses, so the connection ends.
  template <class Start>
  void refused_by_device(Start&& start) {
    outcome<void> ended;
    sent s;
    a.async_wait_disconnect(ended.handler());
    start(s);
    until([&] { return s.done() && ended.done(); });
    CHECK(ended.ec);
    if (dev.type() != transport::iwarp) // there a write is not acknowledged
      CHECK(s.ec == make_error_code(IBV_WC_REM_ACCESS_ERR));
  }
  std::size_t in_use() const { return pool.statistics().blocks_in_use; }

  outcome<std::uint32_t> idle; ///< Keeps the context at work during waits that are no work.
  void wait(std::chrono::steady_clock::time_point until_then) {
    asio::steady_timer timer(io, until_then);
    bool over = false;
    timer.async_wait([&](error_code) { over = true; });
    until([&] { return over; });
  }
};

inline std::string text_of(const registered_buffer& b, std::size_t offset, std::size_t bytes) {
  return {static_cast<const char*>(b.data()) + offset, bytes};
}

inline bool all_are(const registered_buffer& b, char c) {
  const auto* p = static_cast<const char*>(b.data());
  return std::all_of(p, p + b.size(), [c](char x) { return x == c; });
}

/// Allocates the freed memory again, so that a write to it is noticed.
inline std::vector<registered_buffer> occupy(const memory_pool& pool, std::size_t bytes) {
  std::vector<registered_buffer> result;
  for (int i = 0; i < 8; ++i) {
    result.push_back(pool.allocate(bytes));
    std::memset(result.back().data(), '#', bytes);
  }
  return result;
}

} // namespace test
