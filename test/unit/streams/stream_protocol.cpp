// SPDX-License-Identifier: BSL-1.0
#include "protocol/stream_two.hpp"

#include "catch.hpp"

namespace {

using namespace stream_test;

using lengths = std::vector<std::uint32_t>;
using read_kind = stream_read::kind;
using write_kind = stream_write::kind;

/// An action that ends a stream, and the result of each function afterwards.
struct ending {
  const char* name;
  void (*happens)(two&);
  error_code read_here, write_here;
  error_code waiting_read, waiting_write;
};

const error_code none;
const error_code eof = asio::error::eof;
const error_code aborted = asio::error::operation_aborted;
const error_code pipe_broken = asio::error::broken_pipe;
const error_code reset = asio::error::connection_reset;

} // namespace

TEST_CASE("a write is cut into frames of the peer's size") {
  struct row {
    std::uint64_t bytes;
    std::uint64_t taken;
    lengths frames;
  };
  const row rows[] = {{1, 1, {1}},
                      {99, 99, {99}},
                      {100, 100, {100}},
                      {101, 101, {100, 1}},
                      {399, 399, {100, 100, 100, 99}},
                      {401, 400, {100, 100, 100, 100}}}; // four blocks
  for (const row& r : rows) {
    CAPTURE(r.bytes);
    two t(16);
    a_write& w = t.write(r.bytes);
    CHECK(w.ended);
    CHECK(w.done == r.taken);
    CHECK(t.lengths() == r.frames);
    two lent(16);
    a_write& l = lent.lend(r.bytes);
    CHECK(!l.ended);
    lent.settle();
    CHECK(l.ended);
    CHECK(l.done == r.bytes);
  }
}

TEST_CASE("a small write is sent at once, and those behind it share a frame") {
  two t;
  t.write(10);
  CHECK(t.lengths() == lengths{10});
  t.write(10);
  t.write(20);
  CHECK(t.lengths() == lengths{10});
  CHECK(t.writes.back().ended);
  t.a.complete_send();
  CHECK(t.lengths() == lengths{10}); // more writes may follow now
  REQUIRE(t.a.idle());
  t.write(5);
  REQUIRE(t.a.idle()); // another write has been made meanwhile
  CHECK(t.lengths() == lengths{10});
  REQUIRE(t.a.idle());
  CHECK(t.lengths() == lengths{10, 35});
  t.write(70);
  t.write(50); // the full block need not wait; the rest waits
  CHECK(t.lengths() == lengths{10, 35, 100});
  t.settle();
  a_read& r = t.read(1000);
  CHECK(r.done == 165);
  for (std::uint64_t i = 0; i < r.done; ++i)
    REQUIRE(r.data[i] == byte_at(i));
}

TEST_CASE("the first write of a round of handlers is sent at once") {
  two t;
  t.write(10);
  t.a.complete_send();
  CHECK_FALSE(t.a.idle()); // no bytes wait for the end of the round
  t.write(20);
  CHECK(t.lengths() == lengths{10, 20});
  t.a.complete_send();
  t.write(30);
  CHECK(t.lengths() == lengths{10, 20});
  REQUIRE(t.a.idle(true));
  CHECK(t.lengths() == lengths{10, 20, 30});
}

TEST_CASE("once nothing is ready, written bytes wait no longer") {
  two t;
  t.write(10);
  t.a.complete_send();
  t.write(10);
  t.write(20);
  CHECK(t.lengths() == lengths{10}); // the handlers of the writes are ready
  REQUIRE(t.a.idle(true));
  CHECK(t.lengths() == lengths{10, 30});
}

TEST_CASE("writes that follow each other share a frame, and do not wait for the one before") {
  frame_options l = link_of();
  l.receive_size = l.peer_receive_size = 400 + frame_header::size;
  two t(l, stream_limits{4, 400, 20});
  t.write(100);
  CHECK(t.lengths() == lengths{100});
  t.write(100);
  REQUIRE(t.a.idle());
  t.write(100);
  REQUIRE(t.a.idle());
  CHECK(t.lengths() == lengths{100}); // more writes may follow
  REQUIRE(t.a.idle());
  CHECK(t.lengths() == lengths{100, 200}); // the first frame is still outstanding
  for (int i = 0; i < 5; ++i)
    t.write(100);
  CHECK(t.lengths() == lengths{100, 200, 400}); // a full block need not wait
  t.settle();
  a_read& r = t.read(1000);
  CHECK(r.done == 800);
  for (std::uint64_t i = 0; i < r.done; ++i)
    REQUIRE(r.data[i] == byte_at(i));
}

TEST_CASE("writes that wait for the peer to read share frames") {
  frame_options l = link_of();
  l.receive_size = l.peer_receive_size = 400 + frame_header::size;
  two t(l, stream_limits{4, 400, 20});
  for (std::size_t sent = 0; t.lengths().size() == sent; ++sent) // all that the peer takes
    t.write(400);
  t.settle();
  for (int i = 0; i < 5; ++i) { // the first of them is alone in its block
    CHECK(t.write(100).ended);
    t.settle(); // also the round of handlers
  }
  CHECK(t.lengths().empty());
  CHECK(t.read(10'000).ended);
  while (t.b.deliver_to(t.a)) // credits
    continue;
  CHECK(t.lengths() == lengths{100, 400});
}

TEST_CASE("the end of a long write does not wait for its beginning") {
  two t;
  t.write(250);
  CHECK(t.lengths() == lengths{100, 100, 50});
}

TEST_CASE("a small write waits for the frame before it") {
  SECTION("not with no_delay") {
    two t;
    t.a.bytes.set_no_delay(true);
    t.write(10);
    t.write(10);
    CHECK(t.lengths() == lengths{10, 10});
  }
  SECTION("not if a shutdown follows") {
    two t;
    t.write(10);
    t.write(10);
    t.a.bytes.shut_down_writes();
    t.a.run();
    CHECK(t.lengths() == lengths{10, 10});
    CHECK(t.a.wire.back().header.type == frame_type::shutdown);
  }
  SECTION("not if a close follows") {
    two t;
    t.write(10);
    t.write(10);
    t.a.link.close();
    t.a.run();
    CHECK(t.lengths() == lengths{10, 10});
    CHECK(t.a.wire.back().header.type == frame_type::goodbye);
  }
  SECTION("not if a lent write follows") {
    two t;
    t.write(10);
    t.write(10);
    t.lend(150);
    CHECK(t.lengths() == lengths{10, 10, 100, 50});
  }
}

TEST_CASE("nothing is buffered beyond the peer's receives and the blocks") {
  two t(8, 4);
  std::uint64_t taken = 0;
  for (int i = 0; i < 100; ++i) {
    a_write& w = t.write(1000);
    t.settle();
    if (!w.ended)
      break;
    taken += w.done;
  }
  CHECK(taken == (8 - credits::reserve + 4) * frame);
  a_write& stuck = t.writes.back();
  CHECK(!stuck.ended);
  a_read& r = t.read(2 * frame); // one credit is not returned alone
  CHECK(r.ended);
  t.settle();
  CHECK(stuck.ended);
  CHECK(stuck.done >= 1);
}

TEST_CASE("reads take parts of a receive, and from several") {
  two t;
  t.write(150);
  t.settle();
  CHECK(t.b.bytes.available() == 150);
  CHECK(t.read(60).done == 60);
  CHECK(t.b.link.flow().held() == 2);
  CHECK(t.read(60).done == 60);
  CHECK(t.b.link.flow().held() == 1);
  CHECK(t.b.bytes.available() == 30);
  CHECK(t.read(60).done == 30);
  CHECK(t.b.link.flow().held() == 0);
  a_read& waits = t.read(60);
  CHECK(!waits.ended);
  t.written = 150;
  t.write(10);
  t.settle();
  CHECK(waits.ended);
  CHECK(waits.done == 10);
  std::uint64_t at = 0;
  for (const a_read& r : t.reads)
    for (const std::byte b : r.data)
      REQUIRE(b == byte_at(at++));
}

TEST_CASE("a piece is the rest of one receive") {
  two t;
  t.write(150);
  t.settle();
  CHECK(t.read(30).done == 30);
  CHECK(t.read(1000, read_kind::piece).done == 70);
  CHECK(t.read(1000, read_kind::piece).done == 50);
  CHECK(t.b.link.flow().held() == 0);
}

TEST_CASE("waits end with the state and take nothing") {
  two t(8, 1);
  a_read& readable = t.read(1, read_kind::wait);
  a_write& writable = t.write(t.a, 0, write_kind::wait);
  CHECK(!readable.ended);
  CHECK(writable.ended);
  t.write(100); // in flight, so no block is free
  a_write& again = t.write(t.a, 0, write_kind::wait);
  CHECK(!again.ended);
  t.a.deliver_to(t.b);
  CHECK(readable.ended);
  CHECK(t.b.bytes.available() == 100);
  t.a.complete_send();
  CHECK(again.ended);
  CHECK(again.ec == none);
}

TEST_CASE("the peer's shutdown follows the bytes before it, and the other direction stays open") {
  two t;
  t.write(30);
  t.a.bytes.shut_down_writes();
  t.a.run();
  t.settle();
  CHECK(t.read(10).ec == none);
  CHECK(t.read(100).done == 20);
  for (int i = 0; i < 2; ++i) {
    a_read& end = t.read(100);
    CHECK(end.ended);
    CHECK(end.ec == eof);
  }
  CHECK(t.write(5).ec == pipe_broken);
  a_write back(5);
  back.data.resize(5);
  t.b.write(back);
  CHECK(back.ec == none);
  a_read got(10);
  t.a.read(got);
  t.settle();
  CHECK(got.done == 5);
  CHECK(!t.a.failure);
  CHECK(!t.b.failure);
}

TEST_CASE("after each kind of end, calls report the results of that kind") {
  const ending endings[] = {
      {"shutdown of writes here", [](two& t) { t.a.bytes.shut_down_writes(); }, none, pipe_broken,
       none, pipe_broken},
      {"shutdown of reads here", [](two& t) { t.a.bytes.shut_down_reads(); }, eof, none, eof, none},
      {"close here", [](two& t) { t.a.link.close(); }, aborted, aborted, aborted, aborted},
      {"close there",
       [](two& t) {
         t.b.link.close();
         t.b.run();
         t.settle();
       },
       eof, pipe_broken, eof, pipe_broken},
      {"shutdown there",
       [](two& t) {
         t.b.bytes.shut_down_writes();
         t.b.run();
         t.settle();
       },
       eof, none, eof, none},
      {"failure", [](two& t) { t.a.stop(reset); }, reset, reset, reset, reset},
      {"failure after a shutdown here",
       [](two& t) {
         t.a.bytes.shut_down_writes();
         t.a.run();
         t.a.stop(reset);
       },
       reset, pipe_broken, reset, pipe_broken},
      {"failure after a shutdown there",
       [](two& t) {
         t.b.bytes.shut_down_writes();
         t.b.run();
         t.settle();
         t.a.stop(reset);
       },
       eof, reset, eof, reset},
  };
  for (const ending& e : endings) {
    CAPTURE(e.name);
    two t(5, 1);
    // Two blocks of b's receives are taken, and here one block is full: the next write waits.
    a_read waiting_read(10), wait(1, read_kind::wait);
    t.a.read(waiting_read);
    t.a.read(wait);
    while (t.write(100).ended)
      t.settle();
    a_write& waiting_write = t.writes.back();
    e.happens(t);
    t.a.run();
    const auto check = [](const char* what, const auto& op, const error_code& wanted) {
      CAPTURE(what, op.ec.message(), wanted.message());
      CHECK(op.ended == bool(wanted));
      CHECK(op.ec == wanted);
    };
    check("a read that waited", waiting_read, e.waiting_read);
    check("a write that waited", waiting_write, e.waiting_write);
    CHECK(wait.ended == bool(e.waiting_read));
    CHECK(wait.ec == (e.waiting_read == aborted ? aborted : none));
    a_read read(10);
    t.a.read(read);
    check("a read", read, e.read_here);
    if (e.write_here) {
      a_write w(10);
      w.data.resize(10);
      t.a.write(w);
      check("a write", w, e.write_here);
    }
  }
}

TEST_CASE("bytes that had arrived before a failure can be read") {
  two t;
  t.write(150);
  t.settle();
  t.b.stop(reset);
  CHECK(t.read(100).done == 100);
  CHECK(t.read(100).done == 50);
  CHECK(t.read(100).ec == reset);
}

TEST_CASE("after a close written bytes are still sent, and received bytes are dropped") {
  two t;
  t.write(250);
  a_write theirs(50);
  theirs.data.resize(50);
  t.b.write(theirs);
  t.a.link.close();
  t.a.run();
  t.settle();
  CHECK(t.a.closed);
  CHECK(t.b.closed);
  CHECK(t.a.bytes.available() == 0);
  CHECK(t.read(1000).done == 250);
  CHECK(t.read(1000).ec == eof);
}

TEST_CASE("cancelled writes") {
  SECTION("one that waits is taken back") {
    two t(5, 1);
    while (t.write(100).ended)
      t.settle();
    a_write& w = t.writes.back();
    t.a.cancel(w);
    CHECK(w.cancelled);
    CHECK(w.done == 0);
  }
  SECTION("a lent write that is being sent ends when its begun part has been sent") {
    two t(5, 1);
    a_write& w = t.lend(1000);
    CHECK(t.lengths() == lengths{100, 100});
    t.a.cancel(w);
    CHECK(!w.cancelled);
    CHECK(!w.ended);
    t.settle();
    CHECK(w.ended);
    CHECK(w.ec == aborted);
    CHECK(w.done == 200);
    CHECK(t.read(1000).done == 200);
  }
}

TEST_CASE("a failure reports how much of a lent write had been sent") {
  two t;
  a_write& w = t.lend(1000);
  t.a.complete_send();
  t.a.stop(reset);
  CHECK(w.ended);
  CHECK(w.ec == reset);
  CHECK(w.done == 100);
}

TEST_CASE("a write that there is no memory for fails, unless it has begun") {
  two t;
  int until = 0;
  t.a.refuses_memory = [&] {
    return until-- == 0;
  };
  a_write& first = t.write(150);
  CHECK(first.ended);
  CHECK(first.ec == asio::error::no_memory);
  until = 1;
  a_write& second = t.write(150);
  CHECK(second.ec == none);
  CHECK(second.done == 100);
  t.settle();
  CHECK(t.read(1000).done == 100);
}

TEST_CASE("a peer that breaks the rules") {
  SECTION("data after shutdown") {
    two t;
    t.b.arrives(frame_of({.type = frame_type::shutdown}));
    t.b.arrives(frame_of({.type = frame_type::data, .length = 1}));
    CHECK(t.b.failure == error::protocol_violation);
  }
  SECTION("shutdown twice") {
    two t;
    t.b.arrives(frame_of({.type = frame_type::shutdown}));
    t.b.arrives(frame_of({.type = frame_type::shutdown}));
    CHECK(t.b.failure == error::protocol_violation);
  }
  SECTION("more data than may be held") {
    two t(5);
    for (int i = 0; i < 3; ++i)
      t.b.arrives(frame_of({.type = frame_type::data, .length = 1}));
    CHECK(t.b.failure == error::protocol_violation);
  }
  SECTION("no bytes") {
    two t;
    t.b.arrives(frame_of({.type = frame_type::data}));
    CHECK(t.b.failure == error::protocol_violation);
  }
  SECTION("a message") {
    two t;
    t.b.arrives(frame_of({.type = frame_type::message, .length = 3}));
    CHECK(t.b.failure == error::protocol_violation);
  }
}

TEST_CASE("a peer that has sent its goodbye is not queried") {
  two t;
  t.settle();
  t.b.link.close();
  t.b.run();
  REQUIRE(t.b.wire.size() == 1);
  const std::vector<std::byte> goodbye = t.b.wire.front().bytes;
  t.a.complete_receive(goodbye);
  t.a.wire.clear();
  t.a.bytes.ask();
  t.a.run();
  for (const wire_frame& f : t.a.wire)
    CHECK(f.header.type != frame_type::query);
}
