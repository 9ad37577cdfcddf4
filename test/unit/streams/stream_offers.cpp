// SPDX-License-Identifier: BSL-1.0
// Bytes of a stream that are offered, and read from the writer's memory.
#include "protocol/stream_two.hpp"

#include "catch.hpp"

namespace {

using namespace stream_test;

constexpr std::uint32_t large = 1000, ahead = 600, chunk = 250, direct = 200;

stream_limits limits() {
  stream_limits o{4, 1000};
  o.offer_from = 300;
  o.large_block_size = large;
  o.offers = 2;
  o.direct_from = direct;
  o.inbox = {ahead, chunk};
  return o;
}

struct offering : two {
  offering() : two(8, limits()) {}

  a_read& read_direct(std::uint64_t n) {
    a_read& op = reads.emplace_back(n);
    op.direct = true;
    b.read(op);
    return op;
  }
  /// The types of the frames on the way to b.
  std::vector<frame_type> types() const {
    std::vector<frame_type> result;
    for (const wire_frame& f : a.wire)
      result.push_back(f.header.type);
    return result;
  }
  /// Reads all bytes that b can get, and checks their order.
  std::uint64_t read_all() {
    for (;;) {
      a_read& r = read(10000);
      settle();
      for (const std::byte byte : r.data)
        must(byte == byte_at(at_++), "bytes come in order and as they were");
      if (r.ended && !r.ec)
        continue;
      b.cancel(r);
      return at_;
    }
  }

private:
  std::uint64_t at_ = 0;
};

using types = std::vector<frame_type>;
const error_code none;
const error_code eof = asio::error::eof;
const error_code aborted = asio::error::operation_aborted;
const error_code pipe_broken = asio::error::broken_pipe;
const error_code reset = asio::error::connection_reset;
const error_code no_memory = asio::error::no_memory;

std::vector<std::byte> an_offer(std::uint32_t id, std::uint64_t bytes = 500,
                                std::uint64_t address = 0) {
  const frame_header h{.type = frame_type::offer, .length = offer_payload::size, .id = id};
  payload_bytes payload;
  encode(offer_payload{{address, bytes, 1}}, payload);
  return frame_of(h, payload);
}

} // namespace

TEST_CASE("few bytes are sent in frames, many are offered") {
  offering few;
  few.write(299);
  CHECK(few.lengths() == std::vector<std::uint32_t>{100, 100, 99});
  offering many;
  CHECK(many.write(300).ended); // when it is copied
  CHECK(many.types() == types{frame_type::offer});
  offering lent;
  a_write& w = lent.lend(300);
  CHECK(lent.types() == types{frame_type::offer});
  CHECK(!w.ended);
  lent.settle();
  CHECK(w.ended);
  CHECK(w.ec == none);
  CHECK(w.done == 300);
  CHECK(lent.a.keys.empty());
  CHECK(lent.b.bytes.available() == 300); // before any read
  CHECK(lent.read_all() == 300);
}

TEST_CASE("offered bytes keep their order") {
  offering t;
  const auto lend = [&](std::uint64_t n) {
    a_write& w = t.lend(n);
    t.written += n;
    return &w;
  };
  t.write(10);
  t.write(500);
  t.write(20);
  const a_write* const one = lend(400);
  const a_write* const other = lend(50);
  t.write(700);
  CHECK(t.read_all() == 1680);
  CHECK((one->ended && other->ended));
}

TEST_CASE("writes meet in one offer while another is not answered") {
  offering t;
  t.write(300);
  t.write(320);
  t.write(20);
  CHECK(t.types() == types{frame_type::offer});
  t.a.deliver_to(t.b);
  for (int i = 0; i < 2; ++i) // chunks
    t.b.complete_pull(t.a);
  t.b.deliver_to(t.a);
  REQUIRE(t.types() == types{frame_type::offer});
  CHECK(t.a.keys.size() == 2); // the first key ends when its SEND has completed too
  t.a.complete_send();
  REQUIRE(t.a.keys.size() == 1);
  CHECK(t.a.keys.begin()->second.size() == 340);
  CHECK(t.read_all() == 640);
}

TEST_CASE("an offer is sent at once with no_delay, or if a lent write or a shutdown follows") {
  SECTION("no delay") {
    offering t;
    t.a.bytes.set_no_delay(true);
    t.write(300);
    t.write(320);
    CHECK(t.types() == types{frame_type::offer, frame_type::offer});
  }
  SECTION("a lent write") {
    offering t;
    t.write(300);
    t.write(320);
    t.lend(50);
    CHECK(t.types() == types{frame_type::offer, frame_type::offer, frame_type::data});
  }
  SECTION("shutdown") {
    offering t;
    t.write(300);
    t.write(320);
    t.a.bytes.shut_down_writes();
    t.a.run();
    CHECK(t.types() == types{frame_type::offer, frame_type::offer, frame_type::shutdown});
  }
}

TEST_CASE("bytes are read ahead up to a limit, and copied up to a limit") {
  offering t;
  std::uint64_t taken = 0;
  for (int i = 0; i < 100 && (t.writes.empty() || t.writes.back().ended); ++i) {
    taken += t.write(5000).done;
    t.settle();
  }
  a_write& stuck = t.writes.back();
  CHECK(!stuck.ended);
  CHECK(t.b.bytes.available() == ahead);
  CHECK(taken == 2 * large); // two blocks; 600 bytes of the first have been read
  CHECK(t.read(ahead).done == ahead);
  t.settle();
  CHECK(stuck.ended);
  CHECK(t.b.bytes.available() == ahead);
}

TEST_CASE("both sides write as much as is read ahead before they read") {
  offering t;
  a_write back(ahead, stream_write::kind::lend);
  back.data.resize(ahead);
  a_write& w = t.lend(ahead);
  t.b.write(back);
  t.settle();
  CHECK(w.ended);
  CHECK(back.ended);
}

TEST_CASE("a waiting read of much memory is direct") {
  offering t;
  a_read& r = t.read_direct(5000);
  a_write& w = t.lend(2000);
  t.a.deliver_to(t.b);
  REQUIRE(t.b.pulls.size() == 1);
  CHECK(t.b.pulls.front().read == &r);
  CHECK(t.b.pulls.front().from.size == 2000);
  t.settle();
  CHECK(r.done == 2000);
  CHECK(w.done == 2000);
  // With less room a read takes a part; then bytes are read ahead.
  a_read& part = t.read_direct(direct);
  t.lend(1000);
  t.settle();
  CHECK(part.done == direct);
  CHECK(t.b.bytes.available() == ahead);
  // A small read is not direct.
  a_read& small = t.read_direct(direct - 1);
  CHECK(small.ended);
  t.settle();
}

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
  t.write(1000);
  t.a.bytes.shut_down_writes();
  t.a.run();
  while (t.a.deliver_to(t.b))
    continue;
  a_read& r = t.read(100);
  CHECK(!r.ended);
  t.settle();
  CHECK(r.done == 100);
  t.read(1000);
  t.settle();
  CHECK(t.read(1000).done == 400);
  CHECK(t.read(1000).ec == eof);
}

TEST_CASE("a failure keeps the bytes that have been read, and is reported behind them") {
  offering t;
  t.write(1000);
  t.write(50);
  t.a.bytes.shut_down_writes();
  t.a.run();
  while (t.a.deliver_to(t.b))
    continue;
  t.b.complete_pull(t.a);
  a_read& taken = t.read(10);
  CHECK(taken.done == 10);
  t.b.stop(reset);
  CHECK(t.read(1000).done == chunk - 10);
  CHECK(t.read(1000).ec == reset); // though the peer had shut down
  CHECK(t.b.link.flow().held() == 0);
  CHECK(t.b.chunks.empty());
}

TEST_CASE("a failure ends a direct read and the offered writes") {
  offering t;
  a_read& r = t.read_direct(500);
  a_write& w = t.lend(500);
  t.write(400);
  t.a.deliver_to(t.b);
  t.a.stop(reset);
  t.b.stop(reset);
  CHECK(r.ec == reset);
  CHECK(r.done == 0);
  CHECK(w.ec == reset);
  CHECK(w.done == 0);
  CHECK((t.a.keys.empty() && t.a.blocks.empty()));
}

TEST_CASE("operations for which there is no memory") {
  offering t;
  SECTION("a key: the bytes are sent in frames") {
    t.a.refuses_key = [] {
      return true;
    };
    a_write& w = t.lend(350);
    CHECK(t.types() == types{4, frame_type::data});
    t.settle();
    CHECK(w.done == 350);
    t.written += 350;
    t.write(450);
    CHECK(t.read_all() == 800);
  }
  SECTION("a large block: the bytes are sent in frames") {
    int n = 0;
    t.a.refuses_memory = [&] {
      return n++ == 0;
    };
    a_write& w = t.write(350);
    CHECK(w.ec == none);
    CHECK(w.done == 350);
    CHECK(t.types() == types{4, frame_type::data});
  }
  SECTION("a chunk: a pending read fails, and the next one tries again") {
    bool refuses = true;
    t.b.refuses_memory = [&] {
      return refuses;
    };
    a_read& r = t.read(1000);
    t.write(500);
    t.settle();
    CHECK(r.ended);
    CHECK(r.ec == no_memory);
    CHECK(t.read(1000).ec == no_memory);
    refuses = false;
    CHECK(t.read_all() == 500);
  }
}

TEST_CASE("a side that closes") {
  SECTION("waits until its copied bytes are read, and withdraws its lent writes") {
    offering t;
    t.write(500);
    a_write& w = t.lend(2000);
    t.settle();
    t.a.link.close();
    t.a.run();
    t.settle();
    CHECK(w.ec == aborted);
    CHECK(w.done == 100);
    CHECK(t.a.closed);
    CHECK(t.b.closed);
    CHECK(t.read_all() == ahead);
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

TEST_CASE("a peer that breaks the rules of offers") {
  offering t;
  const auto breaks = [](party& p, const std::vector<std::byte>& f) {
    p.arrives(f);
    CHECK(p.failure == error::protocol_violation);
  };
  const auto goes = [](party& p, const std::vector<std::byte>& f) {
    p.arrives(f);
    REQUIRE(!p.failure);
  };
  SECTION("ids that do not follow each other") { breaks(t.b, an_offer(1)); }
  SECTION("no bytes") { breaks(t.b, an_offer(0, 0)); }
  SECTION("a range that wraps around") { breaks(t.b, an_offer(0, 500, ~std::uint64_t(0) - 100)); }
  SECTION("more bytes than can be answered for") {
    breaks(t.b, an_offer(0, std::uint64_t(1) << 32));
  }
  SECTION("with immediate data") {
    auto f = an_offer(0);
    f[1] = std::byte(1);
    breaks(t.b, f);
  }
  SECTION("more offers than receives") {
    for (std::uint32_t id = 0; id < 8; ++id)
      goes(t.b, an_offer(id));
    breaks(t.b, an_offer(8));
  }
  SECTION("behind the shutdown") {
    goes(t.b, frame_of({.type = frame_type::shutdown}));
    breaks(t.b, an_offer(0));
  }
  SECTION("a goodbye before they are answered") {
    goes(t.b, an_offer(0));
    breaks(t.b, frame_of({.type = frame_type::goodbye}));
  }
  SECTION("a withdrawal of no offer") {
    breaks(t.b, frame_of({.type = frame_type::withdraw, .id = 0}));
  }
  SECTION("two withdrawals of one offer") {
    goes(t.b, an_offer(0));
    goes(t.b, frame_of({.type = frame_type::withdraw, .id = 0}));
    breaks(t.b, frame_of({.type = frame_type::withdraw, .id = 0}));
  }
  SECTION("an answer to no offer") { breaks(t.a, frame_of({.type = frame_type::taken, .id = 0})); }
  SECTION("two answers to one offer") {
    t.lend(500);
    goes(t.a, frame_of({.type = frame_type::taken, .id = 0}));
    breaks(t.a, frame_of({.type = frame_type::taken, .id = 0}));
  }
  SECTION("an answer to a withdrawal that was not sent") {
    t.lend(500);
    breaks(t.a, frame_of({.type = frame_type::withdrawn, .id = 0, .immediate = 10}));
  }
  SECTION("an answer to a withdrawal with as many bytes as were offered") {
    t.a.cancel(t.lend(500));
    breaks(t.a, frame_of({.type = frame_type::withdrawn, .id = 0, .immediate = 500}));
  }
  SECTION("a refusal for another reason than the end") {
    t.lend(500);
    breaks(t.a, frame_of({.type = frame_type::refused, .id = 0, .immediate = 1}));
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
    for (int i = 0; i < 100; ++i) {
      REQUIRE(t.write(250).ended);
      t.settle();
    }
    a_write& w = t.lend(500); // when it gets the notice
    t.settle();
    CHECK(w.ec == pipe_broken);
    CHECK(w.done == 0);
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

TEST_CASE("a direct read whose memory cannot be read to gets bytes that are read ahead") {
  offering t;
  a_read& r = t.read_direct(1000);
  t.lend(1000);
  t.a.deliver_to(t.b);
  REQUIRE(t.b.pulls.size() == 1);
  t.b.pulls.pop_front();
  t.b.bytes.pulled(r, 0);
  t.b.run();
  CHECK(!r.ended);
  t.settle();
  CHECK(r.done == chunk); // read ahead
  t.written = r.done;
  CHECK(t.writes.back().ended == false);
}

TEST_CASE("sides that cannot READ each other's memory send frames") {
  stream_limits o = limits();
  o.reads = false;
  two t(16, o);
  a_write& w = t.lend(1000);
  a_write& copied = t.write(350);
  CHECK(t.lengths().size() == 13);
  while (!(w.ended && copied.ended)) {
    t.settle();
    t.read(10000);
  }
  CHECK(w.done == 1000);
  CHECK(!t.a.failure);
  SECTION("and an offer is a violation") {
    t.b.arrives(an_offer(0));
    CHECK(t.b.failure == error::protocol_violation);
  }
}

TEST_CASE("a peer that is queried answers whether its application has taken bytes") {
  offering t;
  t.write(large);
  t.settle();
  const auto ask = [&] {
    const std::uint64_t before = t.a.bytes.taken();
    t.a.bytes.ask();
    t.a.run();
    t.settle();
    return t.a.bytes.taken() - before;
  };
  CHECK(ask() == 0);
  t.read(1);
  CHECK(ask() == 1);
  CHECK(ask() == 0);
  t.read_direct(direct - 1);
  CHECK(ask() == 1);
  SECTION("one query is sent until it is answered") {
    t.a.bytes.ask();
    t.a.bytes.ask();
    t.a.run();
    t.a.bytes.ask();
    t.a.run();
    CHECK(t.types() == types{frame_type::query});
  }
  SECTION("a second query before the answer is a violation") {
    t.b.bytes.ask(); // leaves b's frames on the wire
    t.b.complete_receive(frame_of({.type = frame_type::query}));
    t.b.complete_receive(frame_of({.type = frame_type::query}));
    t.b.run();
    CHECK(t.b.failure == error::protocol_violation);
  }
  SECTION("an answer without a query is a violation") {
    t.a.arrives(frame_of({.type = frame_type::progress, .immediate = 5}));
    CHECK(t.a.failure == error::protocol_violation);
  }
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
