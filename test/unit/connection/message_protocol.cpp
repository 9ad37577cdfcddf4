// SPDX-License-Identifier: BSL-1.0
// Messages: sends, receives and offers.
#include "connection/message_protocol.hpp"
#include "catch.hpp"
#include "protocol/fake_link.hpp"
#include "unit/connection/message_party.hpp"

#include <deque>
#include <vector>

namespace {

using namespace message_test;

using place = message_in::place;

} // namespace

TEST_CASE("messages: a short message is sent eagerly and completes with its SEND") {
  party p;
  a_send op(100, 42);
  p.send(op);
  REQUIRE(p.wire.size() == 1);
  CHECK(p.wire[0].header ==
        frame_header{.type = frame_type::message, .flags = 1, .length = 100, .immediate = 42});
  CHECK(p.wire[0].payload_of_operation);
  CHECK(p.actions.empty());
  p.complete_send();
  REQUIRE(p.completes(op));
  CHECK(!op.ec);
}

TEST_CASE("messages: the longest eager message fills the peer's receive") {
  party p({.peer_receive_size = 128});
  CHECK(p.messages.eager_size() == 112);
  a_send fits(112), longer(113), empty(0);
  p.send(fits);
  p.send(empty);
  p.send(longer);
  CHECK(p.types() == std::vector{frame_type::message, frame_type::message});
  CHECK(p.take().what == message_action::kind::prepare);
}

TEST_CASE("messages: a long message is offered with its key, and completes when it is taken") {
  party p;
  a_send op(10000, 3), after(1);
  p.send(op);
  p.send(after);
  const message_action a = p.take();
  REQUIRE(a.what == message_action::kind::prepare);
  CHECK(a.send == &op);
  CHECK(p.wire.empty()); // nor anything behind it
  p.messages.prepared(op, key);
  p.run();
  REQUIRE(p.types() == std::vector{frame_type::offer, frame_type::message});
  const frame_header h = p.wire[0].header;
  CHECK(h.immediate == 3);
  offer_payload payload;
  REQUIRE(!decode(std::span(p.wire[0].bytes).subspan(16), payload));
  CHECK(payload.memory == key);
  SECTION("taken after the SEND") {
    p.complete_send();
    CHECK(p.actions.empty());
    p.gets_answer(h.id);
    REQUIRE(p.completes(op));
    CHECK(!op.ec);
  }
  SECTION("taken before the SEND") {
    p.gets_answer(h.id);
    CHECK(p.actions.empty());
    p.complete_send();
    REQUIRE(p.completes(op));
    CHECK(!op.ec);
  }
  SECTION("refused, and the link lives") {
    p.complete_send();
    p.gets_answer(h.id, refusal::size);
    REQUIRE(p.completes(op));
    CHECK(op.ec == error::peer_message_limit);
    p.complete_send();
    CHECK(p.completes(after));
    CHECK(!p.failure);
  }
  SECTION("answered twice") {
    p.gets_answer(h.id);
    p.gets_answer(h.id);
    CHECK(p.failure == error::protocol_violation);
  }
  SECTION("an answer to nothing") {
    p.gets_answer(h.id ^ 0x10000);
    CHECK(p.failure == error::protocol_violation);
  }
}

TEST_CASE("messages: keys are asked for ahead, as many as may be offered") {
  party p({}, {.offers = 2});
  a_send one(10000), two(10000), three(10000), small(1);
  for (a_send* op : {&one, &small, &two, &three})
    p.send(*op);
  CHECK(p.take().send == &one);
  CHECK(p.take().send == &two);
  CHECK(p.actions.empty());
  p.messages.prepared(two, key);
  p.run();
  CHECK(p.wire.empty());
  SECTION("a key that cannot be had ends its message only") {
    p.messages.fail_send(one, asio::error::no_memory);
    p.run();
    CHECK(p.types() == std::vector{frame_type::message, frame_type::offer});
    CHECK(p.completes(one));
    CHECK(one.ec == asio::error::no_memory);
    CHECK(p.take().send == &three);
  }
  SECTION("a message may be cancelled until something of it is sent") {
    CHECK(p.messages.cancel(one));
    p.run();
    CHECK(p.types() == std::vector{frame_type::message, frame_type::offer});
    CHECK(!p.messages.cancel(small));
    CHECK(!p.messages.cancel(two));
    CHECK(p.take().send == &three);
    CHECK(p.messages.cancel(three));
  }
}

TEST_CASE("messages: receives grow to an offered message that is read, within their limit") {
  party p({.max_receive_size = 10000}, {});
  std::deque<a_receive> ops;
  const auto reads = [&](std::uint64_t bytes, bool device_only = false) {
    p.gets_offer(static_cast<std::uint32_t>(ops.size()), bytes);
    ops.emplace_back().device_only = device_only;
    p.receive(ops.back());
    REQUIRE(p.take().what == message_action::kind::pull);
    return p.link.receive_size();
  };
  CHECK(reads(9985) == 4096);
  CHECK(reads(5000, true) == 4096); // the next one must be offered, too
  CHECK(reads(5000) == 8192 + frame_header::size);
  REQUIRE(p.types() == std::vector{frame_type::resized});
  CHECK(p.wire[0].header.immediate == 8192 + frame_header::size);
  CHECK(reads(9984) == 10000);
}

TEST_CASE("messages: a message is sent eagerly once the peer's receives have grown") {
  party p({.peer_receives = 6, .peer_receive_size = 128});
  p.arrives(frame_of({.type = frame_type::resized, .immediate = 2016}));
  a_send early(1000); // the receives from before are used first
  p.send(early);
  REQUIRE(p.take().what == message_action::kind::prepare);
  REQUIRE(p.messages.cancel(early));
  std::deque<a_send> small;
  while (p.messages.eager_size() != 2000) {
    REQUIRE(small.size() < 10);
    p.send(small.emplace_back(1));
    while (p.complete_send())
      continue;
    REQUIRE(p.completes(small.back()));
    p.arrives(frame_of({.type = frame_type::credits, .credits = 1}));
  }
  p.wire.clear();
  a_send op(2000);
  p.send(op);
  CHECK(p.types() == std::vector{frame_type::message});
}

TEST_CASE("messages: a message waits for an offer until it fits the next receive of the peer") {
  party p({.receives = 5, .peer_receives = 6, .peer_receive_size = 128}, {.offers = 1});
  a_send first(1000), second(1000);
  p.send(first);
  REQUIRE(p.take().send == &first);
  p.messages.prepared(first, key);
  p.run();
  p.complete_send();
  p.send(second);
  CHECK(p.actions.empty()); // no offer is left
  p.arrives(frame_of({.type = frame_type::resized, .immediate = 2016}));
  for (int i = 0; i < 100 && p.messages.eager_size() != 2000; ++i) { // credits use the old receives
    const bool room = p.link.flow().available() + 1 < p.link.flow().peer_receives();
    p.arrives(frame_of({.type = frame_type::credits, .credits = std::uint16_t(room ? 1 : 0)}));
    while (p.complete_send())
      continue;
  }
  REQUIRE(p.messages.eager_size() == 2000);
  CHECK(p.types().back() == frame_type::message);
}

TEST_CASE("messages: a message whose key was requested is offered though the receives have grown") {
  party p({.peer_receives = 6, .peer_receive_size = 128}, {.offers = 1});
  a_send op(1000);
  p.send(op);
  REQUIRE(p.take().send == &op);
  p.arrives(frame_of({.type = frame_type::resized, .immediate = 2016}));
  for (int i = 0; i < 100 && p.messages.eager_size() != 2000; ++i) { // credits use the old receives
    p.arrives(frame_of({.type = frame_type::credits}));
    while (p.complete_send())
      continue;
  }
  REQUIRE(p.messages.eager_size() == 2000);
  p.arrives(frame_of({.type = frame_type::credits, .credits = 5}));
  p.messages.prepared(op, key);
  p.run();
  REQUIRE(p.types().back() == frame_type::offer);
  p.arrives(frame_of({.type = frame_type::taken, .id = p.wire.back().header.id}));
  while (p.complete_send())
    continue;
  CHECK(p.completes(op));
  a_send longer(3000); // the only place for an offer is free again
  p.send(longer);
  CHECK(p.take().send == &longer);
}

TEST_CASE("messages: received in order, lent in their receives") {
  party p;
  p.gets_message(10);
  p.gets_message(0, 9);
  CHECK(p.reposted.empty());
  a_receive one, two;
  p.receive(one);
  p.receive(two);
  REQUIRE(p.completes(one));
  CHECK(one.bytes == 10);
  CHECK(!one.immediate);
  CHECK(one.where == place::slot);
  CHECK(one.slot == receive_of(0));
  REQUIRE(p.completes(two));
  CHECK(two.bytes == 0);
  CHECK(two.immediate == 9U);
  CHECK(p.reposted.empty());
  p.link.release(receive_of(0));
  p.run();
  CHECK(p.reposted == std::vector<std::uint32_t>{receive_of(0)});
}

TEST_CASE("messages: a cancelled receive loses nothing, and too small a one neither") {
  party p;
  a_receive one, two, three;
  p.receive(one);
  CHECK(p.messages.cancel(one));
  CHECK(!p.messages.cancel(one));
  p.gets_message(10);
  two.capacity = 9;
  p.receive(two);
  REQUIRE(p.completes(two));
  CHECK(two.ec == asio::error::message_size);
  CHECK(two.bytes == 10);
  p.receive(three);
  REQUIRE(p.completes(three));
  CHECK(!three.ec);
  CHECK(three.bytes == 10);
}

TEST_CASE("messages: a message over the limit is refused, and takes no place") {
  party p({}, {.limit = 1000});
  p.gets_offer(5, 1001);
  p.run();
  REQUIRE(p.wire.size() == 1);
  CHECK(p.wire[0].header.type == frame_type::refused);
  CHECK(p.wire[0].header.immediate == static_cast<std::uint32_t>(refusal::size));
  CHECK(p.reposted.size() == 1);
  a_receive one;
  p.receive(one);
  p.gets_message(4);
  REQUIRE(p.completes(one));
  CHECK(one.bytes == 4);
}

TEST_CASE("messages: notices of writes come beside messages") {
  party p;
  a_send notice(0, 99);
  notice.what = message_out::kind::written;
  p.send(notice);
  CHECK(p.wire[0].header == frame_header{.type = frame_type::written, .flags = 1, .immediate = 99});
  a_receive message, immediate, cancelled;
  immediate.what = cancelled.what = message_in::kind::written;
  p.receive(message);
  p.receive(cancelled);
  p.receive(immediate);
  CHECK(p.messages.cancel(cancelled));
  p.gets({.type = frame_type::written, .flags = 1, .immediate = 5});
  REQUIRE(p.completes(immediate));
  CHECK(immediate.immediate == 5U);
  p.run();
  CHECK(p.reposted.size() == 1);
}

TEST_CASE("messages: data waits for credits, answers do not") {
  party p({.peer_receives = 5});
  a_send ops[4] = {a_send(1), a_send(1), a_send(1), a_send(1)};
  for (a_send& op : ops)
    p.send(op);
  CHECK(p.wire.size() == 2);
  p.gets_offer(1, 10000);
  a_receive one;
  p.receive(one);
  REQUIRE(p.take().what == message_action::kind::pull);
  p.messages.pulled(receive_of(0));
  p.run();
  CHECK(p.wire.back().header.type == frame_type::taken);
  p.gets({.type = frame_type::credits, .credits = 2});
  CHECK(p.types().size() == 4); // and one more message, of two frames
}
