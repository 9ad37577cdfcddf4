// SPDX-License-Identifier: BSL-1.0
// The ends of a link of messages: goodbyes, failures, frames and values that end it.
#include "catch.hpp"
#include "connection/message_protocol.hpp"
#include "protocol/fake_link.hpp"
#include "unit/connection/message_party.hpp"

#include <set>
#include <vector>

using namespace message_test;

TEST_CASE("messages: a goodbye follows the sent messages, and ends the peer's messages") {
  party p;
  a_send small(1), large(10000);
  a_receive one;
  p.send(small);
  p.send(large);
  p.take();
  p.messages.prepared(large, key);
  p.receive(one);
  p.link.close();
  p.run();
  CHECK(p.types() == std::vector{frame_type::message, frame_type::offer});
  REQUIRE(p.completes(one));
  CHECK(one.ec == asio::error::operation_aborted);
  a_send late(1);
  p.send(late);
  REQUIRE(p.completes(late));
  CHECK(late.ec == asio::error::operation_aborted);
  p.gets_message(5); // no receive gets it
  CHECK(p.reposted.size() == 1);
  p.gets_offer(3, 100);
  CHECK(p.wire.back().header.type == frame_type::refused);
  p.complete_send();
  p.complete_send();
  CHECK(p.completes(small));
  p.gets_answer(p.wire[1].header.id);
  CHECK(p.completes(large));
  CHECK(!large.ec);
  REQUIRE(p.wire.back().header.type == frame_type::goodbye);
  CHECK(!p.closed);
  p.complete_send();
  p.complete_send();
  p.gets({.type = frame_type::goodbye});
  CHECK(p.closed);
}

TEST_CASE("messages: messages sent before the peer's goodbye are received, then eof") {
  party p;
  a_send large(10000), late(1);
  p.send(large);
  p.take();
  p.gets_message(5);
  p.gets({.type = frame_type::goodbye});
  REQUIRE(p.completes(large));
  CHECK(large.ec == asio::error::broken_pipe);
  CHECK(p.types() == std::vector{frame_type::goodbye});
  p.send(late);
  REQUIRE(p.completes(late));
  CHECK(late.ec == asio::error::broken_pipe);
  p.complete_send();
  CHECK(p.closed);
  p.link.stop(asio::error::connection_reset);
  a_receive one, two;
  p.receive(one);
  p.receive(two);
  REQUIRE(p.completes(one));
  CHECK(!one.ec);
  REQUIRE(p.completes(two));
  CHECK(two.ec == asio::error::eof);
}

TEST_CASE("messages: the goodbye ends what the peer has offered, if nothing delays it") {
  party p;
  p.gets_offer(3, 10000);
  p.link.close();
  p.run();
  CHECK(p.types() == std::vector{frame_type::goodbye});
  CHECK(p.reposted.size() == 1);
}

TEST_CASE("messages: frames after a goodbye are a violation, credits are not") {
  party p;
  p.gets({.type = frame_type::goodbye});
  p.gets({.type = frame_type::credits});
  CHECK(!p.failure);
  p.gets_message(1);
  CHECK(p.failure == error::protocol_violation);
}

TEST_CASE("messages: a goodbye with an offer left is a violation") {
  party p;
  p.gets_offer(1, 10000);
  p.gets({.type = frame_type::goodbye});
  CHECK(p.failure == error::protocol_violation);
}

TEST_CASE("messages: when the link stops every operation ends once") {
  party p({.sends = 2});
  a_send eager(1), offered(10000), queued(1), preparing(10000);
  a_receive one, two, notice, later[2];
  notice.what = message_in::kind::written;
  p.send(offered);
  p.take();
  p.messages.prepared(offered, key);
  for (a_send* op : {&eager, &queued, &preparing})
    p.send(*op);
  CHECK(p.take().send == &preparing);
  p.gets_offer(1, 100000);
  p.gets_message(1); // behind the lost message
  p.receive(one);
  REQUIRE(p.take().what == message_action::kind::pull);
  p.messages.read_into(receive_of(0), one);
  p.receive(two);
  p.receive(notice);
  p.link.stop(asio::error::connection_reset);
  p.run();
  std::set<const void*> ended;
  for (const message_action& a : p.actions) {
    if (a.what == message_action::kind::sent) {
      CHECK(ended.insert(a.send).second);
      CHECK(a.send->ec == asio::error::connection_reset);
    } else {
      REQUIRE(a.what == message_action::kind::received);
      CHECK(ended.insert(a.receive).second);
      CHECK(a.receive->ec == asio::error::connection_reset);
    }
  }
  CHECK(ended.size() == 7);
  p.actions.clear();
  p.messages.pulled(receive_of(0));
  p.link.on_sent(0);
  p.receive(later[0]);
  REQUIRE(p.completes(later[0]));
  CHECK(later[0].ec == asio::error::connection_reset);
}

TEST_CASE("messages: a message that had arrived whole before a failure is still received") {
  party p;
  p.gets_message(3);
  p.gets_offer(1, 10000);
  p.link.stop(asio::error::connection_reset);
  a_receive one, two;
  p.receive(one);
  p.receive(two);
  REQUIRE(p.completes(one));
  CHECK(!one.ec);
  REQUIRE(p.completes(two));
  CHECK(two.ec == asio::error::connection_reset);
}

TEST_CASE("link: a side that waits for its peer sends after the first frame") {
  party first({.speaks_first = true}), second({.waits_for_peer = true});
  a_send op(1);
  second.send(op);
  CHECK(second.wire.empty());
  first.run();
  REQUIRE(first.types() == std::vector{frame_type::credits});
  second.gets(first.wire[0].header);
  CHECK(second.types() == std::vector{frame_type::message});
}

TEST_CASE("link: values that cannot work are found") {
  CHECK(frame_link::usable({}));
  CHECK(!frame_link::usable({.receives = 4}));
  CHECK(!frame_link::usable({.peer_receives = 4}));
  CHECK(!frame_link::usable({.receive_size = 55}));
  CHECK(!frame_link::usable({.peer_receive_size = 55}));
  CHECK(!frame_link::usable({.sends = 0}));
}
