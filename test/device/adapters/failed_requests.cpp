// SPDX-License-Identifier: BSL-1.0
// A request fails, and the adapter raises an event that does not tell the cause before the
// completion tells it.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"

#include <string>

namespace test::failed_requests_tests {
namespace {

// bnxt_re raises IBV_EVENT_QP_ACCESS_ERR, and irdma IBV_EVENT_QP_FATAL.
std::string reporting_first() {
  return GENERATE("irdma,late_failure=5ms", "bnxt_re,late_failure=5ms");
}

} // namespace

TEST_CASE("a queue pair whose request is repeated in vain reports it before any event", "[h12]") {
  const std::string kind = reporting_first();
  INFO(kind);
  adapter a(kind);
  pair p;
  outcome<void> disconnect;
  got receive;
  sent first, second;
  p.a.async_wait_disconnect(disconnect.handler());
  p.a.async_receive(p.ma.buffer(64, 8), receive.handler());
  a.become((kind + ",fail=send:1:retry").c_str());
  p.a.async_send(p.ma.buffer(0, 8), first.handler());
  p.a.async_send(p.ma.buffer(8, 8), second.handler());
  p.until([&] { return first.done() && second.done() && receive.done() && disconnect.done(); });
  CHECK(first.ec == errc::timed_out);
  CHECK(second.ec == asio::error::connection_reset);
  CHECK(receive.ec == asio::error::connection_reset);
  CHECK(disconnect.ec == asio::error::connection_reset);
  sent late;
  p.a.async_send(p.ma.buffer(0, 8), late.handler());
  p.until([&] { return late.done(); });
  CHECK(late.ec == asio::error::connection_reset);
}

TEST_CASE("a queue pair that has no completion of the failure ends with the event's reason",
          "[h12]") {
  const bool never = GENERATE(true, false); // the device flushes nothing
  const adapter a(never ? "bnxt_re,late_failure=3600s,fail=send:1:retry"
                        : "bnxt_re,event=send:1:qp_access_err,drop=send:1");
  pair p;
  outcome<void> disconnect;
  sent first;
  p.a.async_wait_disconnect(disconnect.handler());
  p.a.async_send(p.ma.buffer(0, 8), first.handler());
  p.until([&] { return disconnect.done() && first.done(); });
  CHECK(disconnect.ec == error::peer_access_refused);
  CHECK(first.ec == error::peer_access_refused);
}

TEST_CASE("a connection whose request is repeated in vain ends by its timeout", "[h12]") {
  const std::string kind = reporting_first();
  INFO(kind);
  adapter a(kind);
  talk t;
  outcome<void> disconnect;
  t.a.async_wait_disconnect(disconnect.handler());
  a.become((kind + ",fail=send:1:retry").c_str());
  sent message;
  t.a.async_send(asio::buffer("some", 4), message.handler());
  t.until([&] { return message.done() && disconnect.done(); });
  CHECK(message.ec == errc::timed_out);
  CHECK(disconnect.ec == errc::timed_out);
}

} // namespace test::failed_requests_tests
