// SPDX-License-Identifier: BSL-1.0
// A wire that has stopped, because a message has found no receive.
#include "relay.hpp"
#include "sides.hpp"

#include <catch2/catch.hpp>

using namespace soft::test;

namespace {

using by = request::side;

const scene& read_before_a_message() {
  static const scene s(0, {{.what = IBV_WR_RDMA_READ, .bytes = 64, .by = by::connector},
                           {.what = IBV_WR_SEND, .bytes = 16, .by = by::connector}});
  return s;
}

const scene& answer_before_a_message() {
  static const scene s(0, {{.what = IBV_WR_RDMA_READ, .bytes = 64, .by = by::connector},
                           {.what = IBV_WR_SEND, .bytes = 16, .by = by::connector},
                           {.what = IBV_WR_SEND, .bytes = 17, .by = by::listener}});
  return s;
}

constexpr unsigned messages = 32;
const scene& unread_bytes_at_the_end() {
  static const scene s = [] {
    std::vector<request> all{{.what = IBV_WR_SEND, .bytes = 16, .by = by::listener},
                             {.what = IBV_WR_SEND, .bytes = 200'000, .by = by::listener}};
    all.insert(all.end(), messages, {.what = IBV_WR_SEND, .bytes = 1024, .by = by::connector});
    return scene(0, all);
  }();
  return s;
}

// Waits for a step of a part. The other process may go on in any case.
template <class Step>
void meet_after(int channel, Step step) {
  try {
    step();
  } catch (...) {
    meet(channel);
    throw;
  }
  meet(channel);
}

} // namespace

TEST_CASE("child: posts its receive when a READ has succeeded", "[.child]") {
  listening_side().play(read_before_a_message(), [](party& p) {
    p.be_established();
    meet(parent_channel);
    p.receive();
    meet_after(parent_channel, [&] { p.await_received(1); });
  });
}

TEST_CASE("A READ is answered although the message behind it has no receive") {
  connecting_side side("child: posts its receive when a READ has succeeded");
  const auto r = side.play(read_before_a_message(), side.port(), [&](party& p) {
    p.be_established();
    p.post(2);
    meet_after(side.channel(), [&] { p.await_sent(1); });
    p.await_sent(2);
    meet(side.channel()); // a disconnection ends a message that waits for its receive
    p.disconnect();
  });
  CHECK(fault_of_whole(read_before_a_message(), r) == "");
  CHECK(side.wait() == 0);
}

TEST_CASE("child: sends a message behind the answer to a READ", "[.child]") {
  listening_side().play(answer_before_a_message(), [](party& p) {
    meet_after(parent_channel, [&] {
      p.receive();
      p.be_established();
      p.await_received(1);
      p.post(1);
      p.await_sent(1);
    });
  });
}

TEST_CASE("A READ succeeds although the message behind its answer has no receive") {
  connecting_side side("child: sends a message behind the answer to a READ");
  relay between(side.port());
  between.start({});
  const auto r = side.play(answer_before_a_message(), between.port(), [&](party& p) {
    meet_after(side.channel(), [&] {
      p.be_established();
      between.hold(to_connector);
      p.post(2);
    });
    between.release(to_connector); // the answer and the message, in one piece
    p.await_sent(1);
    p.receive();
    p.await_received(1);
    p.await_sent(2);
    p.disconnect();
  });
  between.finish();
  CHECK(fault_of_whole(answer_before_a_message(), r) == "");
  CHECK(side.wait() == 0);
}

TEST_CASE("child: sends a message for which there is no receive", "[.child]") {
  listening_side().play(unread_bytes_at_the_end(), [](party& p) {
    for (unsigned i = 0; i != messages; ++i)
      p.receive();
    p.be_established();
    p.post(2);
    p.await_received(messages);
  });
}

// The messages are on their way while their sender closes: the relay, which takes few bytes, waits
// until all objects of the sender are destroyed.
TEST_CASE(
    "Messages that were sent arrive although their sender ends with bytes that it has not read") {
  connecting_side side("child: sends a message for which there is no receive");
  relay between(side.port(), {.receive_buffer = 4096});
  between.start({});
  const auto r = side.play(
      unread_bytes_at_the_end(), between.port(),
      [&](party& p) {
        p.receive();
        p.be_established();
        p.await_received(1);
        between.hold(to_listener);
        p.post(messages);
        p.await_sent(messages);
        p.disconnect();
      },
      [&] { between.release(to_listener); });
  between.finish();
  CHECK(fault_of(r) == "");
  CHECK(r.own.sent == messages);
  CHECK(r.other.received == messages);
  CHECK(side.wait() == 0);
}
