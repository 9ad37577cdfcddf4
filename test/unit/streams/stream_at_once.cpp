// SPDX-License-Identifier: BSL-1.0
// The straight way of small writes and of reads that find bytes.
#include "catch.hpp"
#include "protocol/stream_two.hpp"

namespace {

using namespace stream_test;

const error_code pipe_broken = asio::error::broken_pipe;

} // namespace

TEST_CASE("a small write needs no block if nothing waits before it") {
  stream_limits o{1, frame, frame};
  o.at_once = 50;
  two t(8, o);
  t.write(51); // it takes the one block
  CHECK(t.a.writes_at_once == 0);
  CHECK_FALSE(t.write(10).ended);
  t.settle();
  CHECK(t.writes.back().ended);
  CHECK(t.a.writes_at_once == 0);
  t.a.idle();
  t.write(50);
  CHECK(t.a.writes_at_once == 1);
  CHECK(t.a.blocks.empty());
  t.write(50); // the first one's SEND is outstanding, and the round goes on
  CHECK(t.a.writes_at_once == 1);
  t.settle();
  t.a.bytes.set_no_delay(true);
  t.a.run();
  t.write(50);
  CHECK(t.a.writes_at_once == 2);
  t.write(50); // no credit for data is left
  CHECK(t.a.writes_at_once == 2);
  t.settle();
  CHECK(t.read(1000).done == 211);
  t.settle();
  CHECK(t.read(1000).done == 50);
  t.write(50);
  t.write(50);
  CHECK(t.a.writes_at_once == 4);
  t.settle();
  t.a.bytes.set_no_delay(false);
  t.a.run();
  t.a.idle();
  t.write(10); // no SEND is outstanding
  CHECK(t.a.writes_at_once == 5);
  t.a.bytes.shut_down_writes();
  t.a.run();
  CHECK(t.write(10).ec == pipe_broken);
  CHECK(t.a.writes_at_once == 5);
}

TEST_CASE("a small write does not overtake one that waits for a block") {
  stream_limits o{1, frame, frame};
  o.at_once = 50;
  two t(8, o);
  t.a.bytes.set_no_delay(true);
  t.a.run();
  t.write(60);
  a_write& waits = t.write(60);
  CHECK_FALSE(waits.ended);
  CHECK_FALSE(t.write(10).ended);
  CHECK(t.a.writes_at_once == 0);
  t.settle();
  CHECK(t.lengths().empty());
  CHECK(t.read(1000).done == 130);
}

TEST_CASE("a read takes the bytes that have arrived at once, and not before an earlier read") {
  two t;
  a_read& waits = t.read(1000);
  t.write(150);
  t.a.deliver_to(t.b);
  CHECK(waits.done == 100);
  CHECK(t.b.reads_at_once == 0);
  t.a.deliver_to(t.b);
  CHECK(t.read(20).done == 20);
  CHECK(t.read(1000).done == 30);
  CHECK(t.b.reads_at_once == 2);
  CHECK(t.b.link.flow().held() == 0);
  CHECK_FALSE(t.read(10).ended);
  t.settle();
  t.write(10);
  CHECK_FALSE(t.read(10).ended);
  CHECK(t.b.reads_at_once == 2);
}
