// SPDX-License-Identifier: BSL-1.0
// Offered messages, which are read when a receive waits for them.
#include "catch.hpp"
#include "connection/message_protocol.hpp"
#include "protocol/fake_link.hpp"
#include "unit/connection/message_party.hpp"

#include <set>
#include <vector>

namespace {

using namespace message_test;

using place = message_in::place;

} // namespace

TEST_CASE("messages: an offer is read when a receive waits, and keeps its place") {
  party p;
  p.gets_offer(77, 100000);
  p.gets_message(1);
  CHECK(p.actions.empty());
  a_receive one, two;
  p.receive(one);
  message_action a = p.take();
  REQUIRE(a.what == message_action::kind::pull);
  CHECK(a.memory == remote_buffer{0x1000, 100000, 5});
  REQUIRE(a.receive == &one);
  p.receive(two);
  CHECK(p.actions.empty());
  SECTION("to the library's memory") {
    p.messages.pulled(a.slot);
    p.run();
    REQUIRE(p.completes(one));
    CHECK(one.where == place::pulled);
    CHECK(one.slot == a.slot);
    CHECK(one.bytes == 100000);
  }
  SECTION("to the waiter's own") {
    p.messages.read_into(a.slot, one);
    p.messages.pulled(a.slot);
    p.run();
    REQUIRE(p.completes(one));
    CHECK(one.where == place::direct);
  }
  SECTION("to the waiter's own, and the waiter is cancelled: the next one gets it") {
    p.messages.read_into(a.slot, one);
    CHECK(!p.messages.cancel(one));
    const bool abandoned = GENERATE(false, true);
    if (abandoned)
      p.messages.abandon(one);
    p.run();
    CHECK(p.actions.empty());
    p.messages.pulled(a.slot);
    p.run();
    if (!abandoned) {
      REQUIRE(p.completes(one));
      CHECK(one.ec == asio::error::operation_aborted);
      CHECK(one.bytes == 0);
    }
    a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    CHECK(a.memory == remote_buffer{0x1000, 100000, 5});
    REQUIRE(a.receive == &two);
    CHECK(p.wire.empty());
    p.messages.read_into(a.slot, two);
    p.messages.pulled(a.slot);
    p.run();
    REQUIRE(p.completes(two));
    CHECK(two.where == place::direct);
    CHECK(two.bytes == 100000);
    p.receive(one);
    REQUIRE(p.completes(one));
    CHECK(one.bytes == 1);
    REQUIRE(p.wire.size() == 1);
    CHECK(p.wire[0].header.type == frame_type::taken);
    return;
  }
  SECTION("the waiter is cancelled: the next one gets it") {
    CHECK(p.messages.cancel(one));
    p.messages.pulled(a.slot);
    p.run();
    REQUIRE(p.completes(two));
    CHECK(two.bytes == 100000);
    p.receive(one);
    REQUIRE(p.completes(one));
    CHECK(one.bytes == 1);
    p.run();
    CHECK(p.wire.back().header.type == frame_type::taken);
    CHECK(p.wire.back().header.id == 77);
    return;
  }
  SECTION("there is no memory: the sender gets the error, and the next message is received") {
    p.messages.refuse(a.slot);
    p.run();
    REQUIRE(p.completes(one));
    CHECK(one.bytes == 1);
    p.run();
    REQUIRE(!p.wire.empty());
    CHECK(p.wire.back().header.type == frame_type::refused);
    return;
  }
  REQUIRE(p.completes(two));
  CHECK(two.bytes == 1);
  p.run();
  REQUIRE(p.wire.size() == 1);
  CHECK(p.wire[0].header.type == frame_type::taken);
  CHECK(p.wire[0].header.id == 77);
}

TEST_CASE("messages: a cancelled receive makes those behind it get other messages") {
  party p;
  a_receive waits[4];
  for (a_receive& w : waits)
    p.receive(w);
  for (std::uint32_t i = 0; i < 3; ++i)
    p.gets_offer(i, 1000 + i);
  std::uint32_t slots[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    const message_action a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    REQUIRE(a.receive == &waits[i]);
    p.messages.read_into(slots[i] = a.slot, waits[i]);
  }
  p.messages.pulled(slots[2]); // complete, and waits for its turn
  p.run();
  CHECK(p.actions.empty());
  CHECK(p.wire.empty());
  p.messages.cancel(waits[0]);
  p.messages.abandon(waits[0]);
  p.run();
  // The third message is read again: its receive gets the second message, in the same memory.
  const message_action third = p.take();
  REQUIRE(third.what == message_action::kind::pull);
  CHECK(third.memory.size == 1002);
  CHECK(third.receive == &waits[3]);
  p.messages.read_into(third.slot, waits[3]);
  p.messages.pulled(slots[0]);
  p.run();
  CHECK(p.actions.empty());            // its receive's memory is still written to
  CHECK(!p.messages.cancel(waits[1])); // likewise
  p.run();
  const message_action first = p.take();
  REQUIRE(first.what == message_action::kind::pull);
  CHECK(first.memory.size == 1000);
  CHECK(first.receive == &waits[2]);
  p.messages.pulled(first.slot);
  p.run();
  REQUIRE(p.completes(waits[2]));
  CHECK(waits[2].bytes == 1000);
  CHECK(p.actions.empty());
  SECTION("it ends when that is over") {}
  SECTION("the link fails") {
    p.link.stop(asio::error::connection_reset);
    p.run();
    CHECK(p.drops() == std::set{slots[1], slots[2]}); // each was read to another receive's memory
    REQUIRE(p.completes(waits[1]));
    CHECK(waits[1].ec == asio::error::operation_aborted);
    REQUIRE(p.completes(waits[3]));
    CHECK(waits[3].ec == asio::error::connection_reset);
    CHECK(p.actions.empty());
    return;
  }
  p.messages.pulled(slots[1]);
  p.run();
  REQUIRE(p.completes(waits[1]));
  CHECK(waits[1].ec == asio::error::operation_aborted);
  CHECK(p.actions.empty()); // its memory is still written to
  p.messages.pulled(slots[2]);
  p.run();
  const message_action second = p.take();
  REQUIRE(second.what == message_action::kind::pull);
  CHECK(second.memory.size == 1001);
  CHECK(second.receive == &waits[3]);
}

TEST_CASE("messages: a message that is too long for its receive is given to the receive behind") {
  party p;
  a_receive waits[3];
  waits[1].capacity = 1000;
  for (a_receive& w : waits)
    p.receive(w);
  std::uint32_t slots[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    p.gets_offer(i, 5000 + i);
    if (i == 1) { // not read for a receive with too little room
      CHECK(p.actions.empty());
      continue;
    }
    const message_action a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    REQUIRE(a.receive == &waits[i]);
    slots[i] = a.slot;
    p.messages.read_into(a.slot, waits[i]);
  }
  p.messages.pulled(slots[0]);
  p.run();
  REQUIRE(p.completes(waits[0]));
  REQUIRE(p.completes(waits[1]));
  CHECK(waits[1].ec == asio::error::message_size);
  CHECK(waits[1].bytes == 5001);
  CHECK(p.actions.empty()); // the memory for the second message has the third
  p.messages.pulled(slots[2]);
  p.run();
  const message_action second = p.take();
  REQUIRE(second.what == message_action::kind::pull);
  REQUIRE(second.receive == &waits[2]);
  p.messages.read_into(second.slot, waits[2]);
  p.messages.pulled(second.slot);
  p.run();
  REQUIRE(p.completes(waits[2]));
  CHECK(waits[2].where == place::direct);
  CHECK(waits[2].bytes == 5001);
  CHECK(p.actions.empty()); // no receive waits for the third message
  p.receive(waits[0]);
  CHECK(p.take().what == message_action::kind::pull);
}

TEST_CASE("messages: a read message is dropped when no receive can get it any more") {
  party p;
  a_receive waits[3];
  for (a_receive& w : waits)
    p.receive(w);
  std::uint32_t slots[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    p.gets_offer(i, 5000 + i);
    slots[i] = p.take().slot;
  }
  p.messages.pulled(slots[2]);
  const bool first = GENERATE(false, true);
  if (first)
    p.messages.pulled(slots[0]);
  SECTION("the link fails") {
    p.link.stop(asio::error::connection_reset);
    p.run();
    if (first) {
      CHECK(p.drops() == std::set{slots[1], slots[2]});
      CHECK(p.completes(waits[0]));
      CHECK(!waits[0].ec);
    } else {
      CHECK(p.drops() == std::set{slots[0], slots[1], slots[2]});
    }
  }
  SECTION("it closes") {
    p.run();
    if (first)
      CHECK(p.completes(waits[0]));
    p.link.close();
    p.run();
    CHECK(p.drops() == std::set{slots[2]});
    p.actions.clear();
    p.messages.pulled(slots[1]);
    p.run();
    CHECK(p.drops() == std::set{slots[1]});
  }
}

TEST_CASE("messages: a message to be read again when the link has stopped is lost") {
  party p;
  a_receive waits[4], cancelled;
  waits[1].capacity = 1000;
  std::uint32_t slots[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    p.receive(i == 1 ? cancelled : waits[i]);
    p.gets_offer(i, i == 1 ? 2000 : 5000);
    const message_action a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    slots[i] = a.slot;
    if (i != 1) {
      p.messages.read_into(a.slot, waits[i]);
    } else { // the message is read already when waits[1] starts
      REQUIRE(p.messages.cancel(cancelled));
      p.receive(waits[1]);
    }
  }
  p.receive(waits[3]);
  for (const std::uint32_t slot : {slots[1], slots[2], slots[0]})
    p.messages.pulled(slot);
  p.link.stop(asio::error::connection_reset);
  p.run();
  REQUIRE(p.completes(waits[0]));
  CHECK(waits[0].ec == error_code());
  REQUIRE(p.completes(waits[1]));
  CHECK(waits[1].ec == asio::error::message_size);
  REQUIRE(p.completes(waits[2]));
  CHECK(waits[2].ec == error_code());
  CHECK(waits[2].bytes == 2000);
  REQUIRE(p.completes(waits[3]));
  CHECK(waits[3].ec == asio::error::connection_reset);
}

TEST_CASE("messages: lost messages give their receives back when the link stops") {
  party p;
  a_receive first, second;
  p.receive(first);
  p.gets_message(1); // delivered: the application has its receive
  p.gets_message(2); // complete: kept for a later receive
  p.gets_offer(1, 10000);
  p.gets_message(3); // behind the lost message
  REQUIRE(p.completes(first));
  p.receive(second);
  REQUIRE(p.completes(second));
  a_receive into;
  into.capacity = 20000;
  p.receive(into);
  const message_action a = p.take();
  REQUIRE(a.what == message_action::kind::pull);
  p.messages.read_into(a.slot, into);
  p.link.stop(asio::error::connection_reset);
  std::set<std::uint32_t> freed;
  while (const auto slot = p.link.next_freed())
    CHECK(freed.insert(*slot).second);
  CHECK(freed == std::set<std::uint32_t>{receive_of(2), receive_of(3)});
  p.messages.pulled(a.slot);
  CHECK(!p.link.next_freed());
}

TEST_CASE(
    "messages: a message to be read again after the link has stopped gives its receive back") {
  party p;
  a_receive waits[2];
  waits[1].capacity = 20000;
  p.receive(waits[0]);
  p.receive(waits[1]);
  std::uint32_t slots[2];
  for (std::uint32_t i = 0; i < 2; ++i) {
    p.gets_offer(i, 5000);
    const message_action a = p.take();
    REQUIRE(a.what == message_action::kind::pull);
    slots[i] = a.slot;
    p.messages.read_into(a.slot, waits[i]);
  }
  p.messages.pulled(slots[1]); // behind the first, which is lost
  p.link.stop(asio::error::connection_reset);
  std::set<std::uint32_t> freed;
  while (const auto slot = p.link.next_freed())
    CHECK(freed.insert(*slot).second);
  CHECK(freed == std::set<std::uint32_t>{slots[0], slots[1]});
}

TEST_CASE("messages: several are read at a time, each for a receive") {
  party p({}, {.pulls = 2});
  for (std::uint32_t i = 0; i < 4; ++i)
    p.gets_offer(i, 600);
  CHECK(p.actions.empty());
  a_receive one, two, three;
  p.receive(one);
  CHECK(p.take().what == message_action::kind::pull);
  CHECK(p.actions.empty());
  p.receive(two);
  CHECK(p.take().what == message_action::kind::pull);
  p.receive(three);
  CHECK(p.actions.empty()); // two at a time
  p.messages.pulled(receive_of(1));
  p.run();
  CHECK(p.take().what == message_action::kind::pull);
  CHECK(p.actions.empty());
  p.messages.pulled(receive_of(0));
  p.run();
  CHECK(p.completes(one));
  CHECK(p.completes(two));
}

TEST_CASE("messages: those that are read ahead of their receives have a bound") {
  party p({}, {.pulls = 4, .pull_bytes = 1000});
  a_receive waits[4];
  SECTION("and further messages wait until earlier ones were received") {
    for (a_receive& r : waits)
      p.receive(r);
    for (std::uint32_t i = 0; i < 4; ++i)
      p.gets_offer(i, 500);
    for (std::uint32_t i = 0; i < 2; ++i)
      CHECK(p.take().what == message_action::kind::pull);
    CHECK(p.actions.empty());
    p.messages.pulled(receive_of(1));
    p.run();
    CHECK(p.actions.empty()); // it still has its memory
    p.messages.pulled(receive_of(0));
    p.run();
    CHECK(p.completes(waits[0]));
    CHECK(p.completes(waits[1]));
    for (std::uint32_t i = 0; i < 2; ++i)
      CHECK(p.take().what == message_action::kind::pull);
  }
  SECTION("which the first message may exceed, so that it arrives") {
    for (a_receive& r : waits)
      p.receive(r);
    p.gets_offer(0, 1500);
    p.gets_offer(1, 100);
    CHECK(p.take().what == message_action::kind::pull);
    CHECK(p.actions.empty());
    p.messages.pulled(receive_of(0));
    p.run();
    CHECK(p.completes(waits[0]));
    CHECK(p.take().what == message_action::kind::pull);
  }
  SECTION("but not for memory of the receives") {
    for (a_receive& r : waits) {
      r.direct = true;
      p.receive(r);
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
      p.gets_offer(i, 900);
      const message_action a = p.take();
      REQUIRE(a.what == message_action::kind::pull);
      p.messages.read_into(a.slot, waits[i]);
    }
  }
  SECTION("and a message that is refused counts no more") {
    for (a_receive& r : waits)
      p.receive(r);
    for (std::uint32_t i = 0; i < 2; ++i)
      p.gets_offer(i, 800);
    CHECK(p.take().what == message_action::kind::pull);
    CHECK(p.actions.empty());
    p.messages.refuse(receive_of(0));
    p.run();
    CHECK(p.take().what == message_action::kind::pull);
  }
}

TEST_CASE("messages: a receive of device-only memory gets what was read into it alone") {
  party p;
  a_receive op, next;
  op.device_only = true;
  const auto is_refused = [&](std::uint64_t bytes) {
    REQUIRE(p.completes(op));
    CHECK(op.ec == asio::error::operation_not_supported);
    CHECK(op.bytes == bytes);
    p.receive(next);
    REQUIRE(p.completes(next));
    CHECK(!next.ec);
    CHECK(next.bytes == bytes);
  };
  SECTION("not a message that was sent whole, which the next receive gets") {
    p.gets_message(3);
    p.receive(op);
    is_refused(3);
  }
  SECTION("not one that was read to the library's memory") {
    p.gets_offer(1, 100000);
    p.receive(op);
    p.messages.pulled(p.take().slot);
    p.run();
    is_refused(100000);
  }
  SECTION("one that was read into it") {
    p.gets_offer(1, 100000);
    p.receive(op);
    const std::uint32_t slot = p.take().slot;
    p.messages.read_into(slot, op);
    p.messages.pulled(slot);
    p.run();
    REQUIRE(p.completes(op));
    CHECK(!op.ec);
    CHECK(op.where == place::direct);
  }
  SECTION("one without payload") {
    p.gets_message(0);
    p.receive(op);
    REQUIRE(p.completes(op));
    CHECK(!op.ec);
  }
}
