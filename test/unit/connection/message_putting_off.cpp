// SPDX-License-Identifier: BSL-1.0
// Offered messages whose memory is not there yet.
#include "catch.hpp"
#include "connection/message_protocol.hpp"
#include "protocol/fake_link.hpp"
#include "unit/connection/message_party.hpp"

using namespace message_test;

TEST_CASE("messages: one that is put off is read later, before those behind it") {
  party p;
  p.gets_offer(1, 100000);
  p.gets_offer(2, 200000);
  a_receive one, two;
  p.receive(one);
  const std::uint32_t slot = p.take().slot;
  p.receive(two);
  message_action a = p.take();
  CHECK(a.memory.size == 200000); // it is being read
  const std::uint32_t behind = a.slot;
  p.messages.put_off(slot);
  CHECK(p.messages.puts_off());
  p.run();
  CHECK(p.actions.empty());
  SECTION("until the driver goes on") {
    p.messages.go_on();
    p.run();
    a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    CHECK(a.memory.size == 100000);
    CHECK(a.receive == &one);
    p.messages.pulled(a.slot);
    p.messages.pulled(behind);
    p.run();
    REQUIRE(p.completes(one));
    REQUIRE(p.completes(two));
  }
  SECTION("its receive is cancelled, and another one gets it") {
    CHECK(p.messages.cancel(one));
    p.messages.pulled(behind);
    p.messages.go_on();
    p.run();
    a = p.take();
    CHECK(a.memory.size == 100000);
    CHECK(a.receive == &two);
  }
  SECTION("the link is closed") {
    p.messages.pulled(behind);
    p.link.close();
    p.run();
    CHECK(one.ec == asio::error::operation_aborted);
    CHECK(p.messages.puts_off());
    p.messages.go_on();
    p.run();
    for (const message_action& left : p.actions)
      CHECK(left.what != message_action::kind::pull);
  }
  SECTION("the link stops") {
    p.link.stop(asio::error::connection_reset);
    CHECK_FALSE(p.messages.puts_off());
    p.run();
    CHECK(one.ec == asio::error::connection_reset);
  }
}
