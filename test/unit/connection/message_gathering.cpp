// SPDX-License-Identifier: BSL-1.0
// Small messages that share a frame.
#include "catch.hpp"
#include "unit/connection/message_party.hpp"

#include <array>
#include <deque>
#include <initializer_list>
#include <vector>

namespace {

using namespace message_test;

const message_options gathering{.gather = 200, .small = 100};

struct a_message {
  std::uint32_t length;
  std::optional<std::uint32_t> immediate = {};
};

std::vector<std::byte> payload_with(std::initializer_list<a_message> messages) {
  std::vector<std::byte> result;
  for (const a_message& m : messages) {
    std::array<std::byte, gathered_header::size> header;
    encode({m.length, m.immediate}, header.data());
    result.insert(result.end(), header.begin(), header.end());
    result.resize(result.size() + gathered_size(m.length) - header.size());
  }
  return result;
}

void gets_gathered(party& p, std::span<const std::byte> payload) {
  p.gets({.type = frame_type::gathered, .length = static_cast<std::uint32_t>(payload.size())},
         payload);
}

void complete_wait(party& p) {
  REQUIRE(p.take().what == message_action::kind::await_idle);
  p.messages.on_idle();
  p.run();
}

} // namespace

TEST_CASE("gathered messages: small messages behind an outstanding one share a frame") {
  party p({}, gathering);
  a_send first(10), second(20, 7), third(0), fourth(5);
  p.send(first);
  p.send(second);
  p.send(third);
  REQUIRE(p.types() == std::vector{frame_type::message});
  p.complete_send();
  CHECK(p.completes(first));
  CHECK(p.wire.size() == 1); // the handler of `first` may send more
  p.send(fourth);
  CHECK(p.wire.size() == 1);
  complete_wait(p);
  REQUIRE(p.types() == std::vector{frame_type::message, frame_type::gathered});
  CHECK(p.wire[1].bytes == frame_of(p.wire[1].header, payload_with({{20, 7}, {0}, {5}})));
  CHECK(p.actions.empty());
  p.complete_send();
  CHECK(p.completes(second));
  CHECK(p.completes(third));
  CHECK(p.completes(fourth));
  CHECK(!second.ec);
}

TEST_CASE("messages are sent at once if nothing waits before them") {
  frame_options l;
  l.peer_receives = 7; // four frames of data, and the reserve
  party p(l, gathering);
  p.run();
  a_send small(10), large(150), held(10), behind(150), offered(1u << 20), last(150);
  p.send(small);
  p.send(large);
  CHECK(p.sent_at_once == 2);
  p.send(held); // the first one's frame is outstanding
  CHECK(p.sent_at_once == 2);
  p.send(behind);
  CHECK(p.sent_at_once == 2);
  CHECK(p.types() == std::vector(4, frame_type::message));
  p.send(last); // no credit for data is left
  CHECK(p.sent_at_once == 2);
  CHECK(p.wire.size() == 4);
  CHECK(p.messages.cancel(last));
  p.run();
  for (message_out* op : {&small, &large, &held, &behind}) {
    p.complete_send();
    CHECK(p.completes(*op));
  }
  p.gets({.type = frame_type::credits, .credits = 4});
  p.send(offered);
  CHECK(p.sent_at_once == 2);
  p.send(last); // the key of the message before is being made
  CHECK(p.sent_at_once == 2);
  CHECK(p.wire.size() == 4);
}

TEST_CASE("gathered messages: a message whose predecessors have completed is sent at once") {
  party p({}, gathering);
  for (int i = 0; i < 3; ++i) {
    a_send op(10);
    p.send(op);
    p.complete_send();
    CHECK(p.completes(op));
    CHECK(p.actions.empty());
  }
  CHECK(p.wire.size() == 3);
}

TEST_CASE("gathered messages: a full frame waits for nothing") {
  party p({}, {.gather = 192, .small = 100});
  std::deque<a_send> many;
  for (int i = 0; i < 5; ++i)
    p.send(many.emplace_back(40)); // four of 48 bytes fill a frame
  REQUIRE(p.types() == std::vector{frame_type::message, frame_type::gathered});
  CHECK(p.wire[1].header.length == 4 * 48);
}

TEST_CASE("gathered messages: a frame has a limited number of messages") {
  party p({}, {.gather = 4000, .small = 100});
  std::deque<a_send> many;
  for (std::uint32_t i = 0; i < 1 + most_gathered; ++i)
    p.send(many.emplace_back(0));
  REQUIRE(p.types() == std::vector{frame_type::message, frame_type::gathered});
  CHECK(p.wire[1].header.length == most_gathered * gathered_header::size);
}

TEST_CASE("gathered messages: a frame fits the peer's receives") {
  party p({.peer_receive_size = 64}, gathering);
  std::deque<a_send> many;
  for (int i = 0; i < 4; ++i)
    p.send(many.emplace_back(10));
  REQUIRE(p.types() == std::vector{frame_type::message, frame_type::gathered});
  CHECK(p.wire[1].header.length == 2 * 24);
}

TEST_CASE("gathered messages: a message that is not small ends the wait, and keeps its place") {
  party p({}, gathering);
  a_send first(1), second(2), third(3), longer(101), last(4);
  p.send(first);
  p.send(second);
  p.send(third);
  SECTION("a longer message") {
    p.send(longer);
    CHECK(p.types() == std::vector{frame_type::message, frame_type::gathered, frame_type::message});
  }
  SECTION("a notice of an RDMA WRITE") {
    longer.what = message_out::kind::written;
    longer.bytes = 0;
    p.send(longer);
    CHECK(p.types() == std::vector{frame_type::message, frame_type::gathered, frame_type::written});
  }
  SECTION("an offer") {
    longer.bytes = 5000;
    p.send(longer);
    CHECK(p.types() == std::vector{frame_type::message, frame_type::gathered});
    REQUIRE(p.take().what == message_action::kind::prepare);
    p.send(last);
    p.messages.prepared(longer, key);
    p.run();
    CHECK(p.types() == std::vector{frame_type::message, frame_type::gathered, frame_type::offer});
  }
}

TEST_CASE("gathered messages: a message that waits can be cancelled") {
  party p({}, gathering);
  a_send first(1), second(2), third(3);
  p.send(first);
  p.send(second);
  p.send(third);
  CHECK(p.messages.cancel(second));
  p.complete_send();
  CHECK(p.completes(first));
  complete_wait(p);
  CHECK(p.types() == std::vector{frame_type::message, frame_type::message});
  CHECK(!p.messages.cancel(third));
  p.complete_send();
  CHECK(p.completes(third));
}

TEST_CASE("gathered messages: a wait does not delay the goodbye for ever") {
  party p({}, gathering);
  a_send first(1), second(2);
  p.send(first);
  p.send(second);
  p.link.close();
  p.run();
  CHECK(p.types() == std::vector{frame_type::message});
  p.complete_send();
  CHECK(p.completes(first));
  complete_wait(p);
  CHECK(p.types() == std::vector{frame_type::message, frame_type::message, frame_type::goodbye});
}

TEST_CASE("gathered messages: every message of a frame ends when the link stops") {
  party p({}, gathering);
  std::deque<a_send> many;
  for (int i = 0; i < 6; ++i)
    p.send(many.emplace_back(40));
  CHECK(p.wire.size() == 2); // and one waits
  p.stop(asio::error::connection_reset);
  p.run();
  for (const a_send& op : many) {
    REQUIRE(p.completes(op));
    CHECK(op.ec == asio::error::connection_reset);
  }
}

TEST_CASE(
    "gathered messages: messages of a frame are received in order, and the last ends its receive") {
  party p;
  gets_gathered(p, payload_with({{20, 7}, {0}, {9}}));
  p.gets_message(3);
  std::deque<a_receive> ops(4);
  for (a_receive& op : ops)
    p.receive(op);
  const std::array<std::uint32_t, 4> lengths{20, 0, 9, 3}, places{8, 40, 48, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(p.completes(ops[i]));
    CHECK(!ops[i].ec);
    CHECK(ops[i].where == message_in::place::slot);
    CHECK(ops[i].bytes == lengths[i]);
    CHECK(ops[i].at == places[i]);
    CHECK(ops[i].slot == receive_of(i < 3 ? 0 : 1));
    CHECK(ops[i].last == (i >= 2));
  }
  CHECK(ops[0].immediate == 7u);
  CHECK(!ops[1].immediate);
}

TEST_CASE("gathered messages: more messages wait than there are receives") {
  party p({.receives = 6});
  const auto many = payload_with({{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}});
  gets_gathered(p, many);
  gets_gathered(p, many);
  for (std::uint32_t i = 0; i < 16; ++i) {
    a_receive op;
    p.receive(op);
    REQUIRE(p.completes(op));
    CHECK(op.bytes == i % 8 + 1);
  }
}

TEST_CASE("gathered messages: a message that does not fit stays first") {
  party p;
  gets_gathered(p, payload_with({{20}, {30}}));
  a_receive small, enough, next;
  small.capacity = 19;
  p.receive(small);
  REQUIRE(p.completes(small));
  CHECK(small.ec == asio::error::message_size);
  CHECK(small.bytes == 20);
  p.receive(enough);
  p.receive(next);
  CHECK(p.completes(enough));
  CHECK(p.completes(next));
  CHECK(next.bytes == 30);
}

TEST_CASE(
    "gathered messages: the rest of a frame is dropped by a close, and its receive is posted") {
  party p;
  gets_gathered(p, payload_with({{20}, {30}, {40}}));
  a_receive op;
  p.receive(op);
  CHECK(p.completes(op));
  CHECK(p.reposted.empty());
  p.link.close();
  p.run();
  CHECK(p.reposted == std::vector{receive_of(0)});
  gets_gathered(p, payload_with({{20}, {30}}));
  CHECK(p.reposted.size() == 2);
  CHECK(!p.failure);
}

TEST_CASE("gathered messages: a frame that is not whole ends the link") {
  party p;
  auto payload = payload_with({{20, 7}, {9}});
  SECTION("no message") { payload.clear(); }
  SECTION("half a header") { payload.resize(payload.size() + 4); }
  SECTION("a length beyond the end") { payload[32] = std::byte(17); }
  SECTION("zeros that are cut off") { payload.resize(payload.size() - 1); }
  SECTION("zeros that are none") { payload.back() = std::byte(1); }
  SECTION("immediate data without its bit") { payload[3] = std::byte(0); }
  SECTION("too many messages") {
    payload.assign((most_gathered + 1) * gathered_header::size, std::byte(0));
  }
  gets_gathered(p, payload);
  CHECK(p.failure == error::protocol_violation);
}
