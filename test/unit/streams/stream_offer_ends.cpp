// SPDX-License-Identifier: BSL-1.0
// The ends of offers: cancelled writes and reads, failures, shutdown and close.
#include "protocol/stream_two.hpp"

#include "catch.hpp"
#include "unit/streams/stream_offering.hpp"

namespace {

using namespace stream_test;

const error_code eof = asio::error::eof;
const error_code aborted = asio::error::operation_aborted;
const error_code pipe_broken = asio::error::broken_pipe;
const error_code reset = asio::error::connection_reset;

} // namespace

TEST_CASE("a cancelled direct read ends when its memory is not written any more") {
  offering t;
  a_read& r = t.read_direct(500);
  a_read& second = t.read_direct(100);
  t.lend(500);
  t.a.deliver_to(t.b);
  REQUIRE(t.b.pulls.size() == 1);
  t.b.cancel(r);
  t.b.cancel(second);
  CHECK(second.cancelled);
  CHECK(!r.cancelled);
  CHECK(!r.ended);
  t.b.complete_pull(t.a);
  CHECK(r.ended);
  CHECK(r.ec == aborted);
  CHECK(r.done == 0);
  CHECK(!t.writes.back().ended); // no byte of it has been taken
  CHECK(t.read_all() == 500);
  CHECK(t.writes.back().ended);
}

TEST_CASE("a cancelled lent write reports how many bytes the peer gets") {
  SECTION("none, if it was not offered yet") {
    offering t;
    t.lend(500);
    t.written += 500;
    t.lend(500);
    t.written += 500;
    a_write& third = t.lend(500); // no more may be offered
    t.a.cancel(third);
    CHECK(third.cancelled);
    CHECK(t.read_all() == 1000);
  }
  SECTION("the bytes that have been read ahead") {
    offering t;
    a_write& w = t.lend(2000);
    t.settle();
    CHECK(!w.ended);
    t.a.cancel(w);
    CHECK(!w.ended);
    CHECK(t.types() == types{frame_type::withdraw});
    t.settle();
    CHECK(w.ended);
    CHECK(w.ec == aborted);
    CHECK(w.done == ahead);
    CHECK(t.a.keys.empty());
    t.written = ahead;
    t.write(7);
    CHECK(t.read_all() == ahead + 7);
  }
  SECTION("with the bytes that are being read") {
    offering t;
    a_read& r = t.read_direct(400);
    a_write& w = t.lend(2000);
    t.a.deliver_to(t.b);
    t.a.cancel(w);
    t.a.deliver_to(t.b);
    CHECK(t.b.wire.empty());
    t.settle();
    CHECK(r.done == 400);
    CHECK(w.ec == aborted);
    CHECK(w.done == 400);
  }
  SECTION("all, if all have been read") {
    offering t;
    a_write& w = t.lend(500);
    t.a.deliver_to(t.b);
    while (t.b.complete_pull(t.a))
      continue;
    t.a.cancel(w);
    t.settle();
    CHECK(w.ec == none);
    CHECK(w.done == 500);
    CHECK(!t.b.failure);
    CHECK(t.read_all() == 500);
  }
  SECTION("by a shutdown") {
    offering t;
    a_write& w = t.lend(2000);
    t.settle();
    t.a.bytes.shut_down_writes();
    t.a.run();
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == ahead);
    CHECK(t.read_all() == ahead);
    CHECK(t.reads.back().ec == eof);
  }
}

TEST_CASE("the end of the stream follows the offered bytes") {
  offering t;
  t.lend(500);
  while (t.a.deliver_to(t.b))
    continue;
  a_read& r = t.read(100);
  CHECK(!r.ended);
  while (t.b.complete_pull(t.a))
    continue;
  CHECK(r.done == 100);
  t.settle();
  t.a.bytes.shut_down_writes();
  t.a.run();
  t.settle();
  CHECK(t.read(1000).done == 400);
  CHECK(t.read(1000).ec == eof);
}

TEST_CASE("a failure keeps the bytes that have been read, and is reported behind them") {
  offering t;
  t.lend(1000);
  while (t.a.deliver_to(t.b))
    continue;
  t.b.complete_pull(t.a);
  a_read& taken = t.read(10);
  CHECK(taken.done == 10);
  t.b.stop(reset);
  CHECK(t.read(1000).done == chunk - 10);
  CHECK(t.read(1000).ec == reset);
  CHECK(t.b.link.flow().held() == 0);
  CHECK(t.b.chunks.empty());
}

TEST_CASE("a failure ends a direct read and the offered writes") {
  offering t;
  a_read& r = t.read_direct(500);
  a_write& w = t.lend(500);
  t.write(40);
  t.a.deliver_to(t.b);
  t.a.stop(reset);
  t.b.stop(reset);
  CHECK(r.ec == reset);
  CHECK(r.done == 0);
  CHECK(w.ec == reset);
  CHECK(w.done == 0);
  CHECK((t.a.keys.empty() && t.a.blocks.empty()));
}

TEST_CASE("a side that closes") {
  SECTION("sends its copied bytes, and withdraws its lent writes") {
    offering t;
    t.write(50);
    t.written = 50;
    a_write& w = t.lend(2000);
    t.settle();
    t.a.link.close();
    t.a.run();
    t.settle();
    CHECK(w.ec == aborted);
    CHECK(w.done == ahead);
    CHECK(t.a.closed);
    CHECK(t.b.closed);
    CHECK(t.read_all() == 50 + ahead);
    CHECK(t.reads.back().ec == eof);
  }
  SECTION("refuses the peer's offers") {
    offering t;
    a_read& r = t.read_direct(300);
    a_write& w = t.lend(2000);
    a_write& second = t.lend(400);
    while (t.a.deliver_to(t.b))
      continue;
    t.b.link.close();
    t.b.run();
    CHECK(!r.ended);
    t.settle();
    CHECK(r.ec == aborted);
    CHECK(w.ec == pipe_broken);
    CHECK(second.ec == pipe_broken);
    CHECK(t.a.closed);
    CHECK(t.b.closed);
    CHECK(t.a.keys.empty());
  }
  SECTION("and an offer crosses its goodbye") {
    offering t;
    a_write& w = t.lend(500);
    t.b.link.close();
    t.b.run();
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(t.a.closed);
    CHECK(t.b.closed);
  }
}

TEST_CASE("a side that drops the bytes that arrive later") {
  SECTION("keeps the bytes that it has, and reports how much of each offer was read") {
    offering t;
    t.write(30);
    t.settle();
    t.written = 30;
    a_write& w = t.lend(2000);
    a_write& behind = t.lend(400);
    t.settle();
    CHECK(t.b.bytes.available() == 30 + ahead);
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.b.run();
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == ahead);
    CHECK(behind.ec == pipe_broken);
    CHECK(behind.done == 0);
    CHECK(t.a.keys.empty());
    CHECK(t.read_all() == 30 + ahead);
    CHECK(t.reads.back().ec == eof);
    CHECK(t.write(10).ec == pipe_broken);
    CHECK(t.b.link.flow().held() == 0);
  }
  SECTION("needs no read") {
    offering t;
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.write(250);
    a_write& w = t.lend(500);
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == 0);
    CHECK(t.read(10).ec == eof);
  }
  SECTION("ends the peer's writes though a control frame uses the last receive for data") {
    offering t;
    t.write(4 * frame);
    t.settle();
    REQUIRE(t.b.link.flow().held() == 4);
    t.b.bytes.ask(); // the answer is a control frame
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.b.run();
    t.settle();
    CHECK(t.write(10).ec == pipe_broken);
  }
  SECTION("ends the peer's writes though unread bytes fill its receives") {
    offering t;
    while (t.write(200).ended)
      t.settle();
    a_write& w = t.writes.back();
    const std::uint64_t here = t.b.bytes.available();
    CHECK(here == (8 - credits::reserve) * frame);
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.b.run();
    t.settle();
    CHECK(w.ended);
    CHECK(w.ec == pipe_broken);
    CHECK(t.write(10).ec == pipe_broken);
    CHECK(!t.a.bytes.owes());
    CHECK(t.a.blocks.empty());
    CHECK(t.read(10000).done == here);
    CHECK(t.read(10).ec == eof);
  }
  SECTION("gives a direct read the bytes that it has requested") {
    offering t;
    t.b.read_at_a_time = 300;
    a_read& r = t.read_direct(1000);
    a_write& w = t.lend(1000);
    t.a.deliver_to(t.b);
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.b.run();
    t.settle();
    CHECK(r.ec == none);
    CHECK(r.done == 300);
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == 300);
  }
  SECTION("and then closes") {
    offering t;
    a_write& w = t.lend(2000);
    t.a.deliver_to(t.b);
    t.b.complete_pull(t.a);
    t.b.bytes.shut_down_writes();
    t.b.bytes.shut_down_reads();
    t.b.link.close();
    t.b.run();
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == 2 * chunk + ahead % chunk);
    CHECK(t.a.closed);
    CHECK(t.b.closed);
    CHECK(t.b.chunks.empty());
  }
}

TEST_CASE("a write that is withdrawn during a direct read ends at the bytes already requested") {
  offering t;
  t.b.read_at_a_time = 300;
  a_read& r = t.read_direct(1000);
  a_write& w = t.lend(1000);
  t.a.deliver_to(t.b);
  t.a.cancel(w);
  t.a.deliver_to(t.b);
  REQUIRE(t.b.pulls.size() == 1);
  CHECK(t.b.pulls.front().from.size == 300);
  t.settle();
  CHECK(r.ec == none);
  CHECK(r.done == 300);
  CHECK(w.ec == aborted);
  CHECK(w.done == 300);
}

TEST_CASE("a write can be removed until a part of it has begun") {
  offering t;
  t.lend(500);
  t.lend(500);
  a_write& waits = t.lend(500); // no more may be offered
  CHECK(t.a.bytes.has_begun(t.writes.front()));
  CHECK(!t.a.bytes.has_begun(waits));
  t.a.cancel(t.writes.front());
  t.a.cancel(t.writes.front());
  CHECK(t.types() == types{frame_type::offer, frame_type::offer, frame_type::withdraw});
  t.a.cancel(waits);
  CHECK(waits.cancelled);
}
