// SPDX-License-Identifier: BSL-1.0
// Bytes of a stream that are offered, and read from the writer's memory.
#include "protocol/stream_two.hpp"

#include "catch.hpp"
#include "unit/streams/stream_offering.hpp"

namespace {

using namespace stream_test;

const error_code no_memory = asio::error::no_memory;

std::vector<std::byte> an_offer(std::uint32_t id, std::uint64_t bytes = 500,
                                std::uint64_t address = 0) {
  const frame_header h{.type = frame_type::offer, .length = offer_payload::size, .id = id};
  payload_bytes payload;
  encode(offer_payload{{address, bytes, 1}}, payload);
  return frame_of(h, payload);
}

} // namespace

TEST_CASE("few lent bytes are sent in frames, many are offered") {
  offering few;
  few.lend(299);
  CHECK(few.lengths() == std::vector<std::uint32_t>{100, 100, 99});
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

TEST_CASE("after a lent write whose end was waited for, copies are better until the peer answers") {
  offering t(16);
  CHECK_FALSE(t.a.bytes.lends(frame - 1, true));
  CHECK(t.a.bytes.lends(frame, true));
  const auto answer = [&t] {
    const std::uint64_t written = t.written; // by the other side
    t.write(t.b, 10);
    t.written = written;
  };
  const a_write& w = t.lend(200);
  t.written += 200;
  CHECK(t.a.bytes.lends(200, true)); // no end was waited for yet
  t.settle();
  REQUIRE(w.ended);
  CHECK_FALSE(t.a.bytes.lends(200, true));

  t.write(150);
  answer();
  while (t.b.deliver_to(t.a)) // while copied bytes are under way
    continue;
  CHECK_FALSE(t.a.bytes.lends(200, true));
  t.settle();
  CHECK_FALSE(t.a.bytes.lends(200, true));
  answer();
  t.settle();
  CHECK(t.a.bytes.lends(200, true));
  CHECK(t.read_all() == 350);

  const a_write& offered = t.lend(400); // the program does not wait for a frame's end
  t.settle();
  REQUIRE(offered.ended);
  CHECK(t.a.bytes.lends(200, true));
}

TEST_CASE("offered bytes keep their order") {
  offering t;
  const auto lend = [&](std::uint64_t n) {
    a_write& w = t.lend(n);
    t.written += n;
    return &w;
  };
  t.write(10);
  t.write(150);
  const a_write* const one = lend(400);
  const a_write* const other = lend(50);
  t.write(70);
  CHECK(t.read_all() == 680);
  REQUIRE(one->ended);
  REQUIRE(other->ended);
}

TEST_CASE("offered bytes are read ahead up to a limit") {
  offering t;
  a_write& w = t.lend(1000);
  a_write& behind = t.lend(700);
  t.settle();
  CHECK(t.b.bytes.available() == ahead);
  CHECK(t.read(ahead).done == ahead);
  t.settle();
  CHECK(w.ended);
  CHECK(!behind.ended);
  CHECK(t.b.bytes.available() == ahead);
}

TEST_CASE("one chunk at a time is read ahead while memory is scarce") {
  offering t;
  bool scarce = true;
  t.b.holds_back = [&] {
    return scarce;
  };
  a_write& w = t.lend(1000);
  t.settle();
  CHECK(t.b.bytes.available() == chunk);
  // Reads that wait are no reason to read more, and get no error.
  a_read& one = t.read(1000);
  a_read& other = t.read(1000);
  t.settle();
  CHECK(one.done == chunk);
  CHECK(other.done == chunk);
  CHECK_FALSE(one.ec);
  CHECK_FALSE(other.ec);
  CHECK(t.b.bytes.available() == chunk);
  scarce = false;
  CHECK(t.read(chunk).done == chunk);
  t.settle();
  CHECK(t.read(1000).done == 1000 - 3 * chunk);
  CHECK(w.ended);
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
    CHECK(t.read_all() == 350);
  }
  SECTION("a chunk: a pending read fails, and the next one tries again") {
    bool refuses = true;
    t.b.refuses_memory = [&] {
      return refuses;
    };
    a_read& r = t.read(1000);
    t.lend(500);
    t.settle();
    CHECK(r.ended);
    CHECK(r.ec == no_memory);
    CHECK(t.read(1000).ec == no_memory);
    refuses = false;
    CHECK(t.read_all() == 500);
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
  t.lend(1000);
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
  SECTION("an answer of fewer bytes than before, or of more than were written, is a violation") {
    const std::uint32_t answer = GENERATE(2u, 999u, 1000u, 1001u, 0xffffffffu);
    REQUIRE(direct > 3);
    REQUIRE(direct < 999);
    t.a.bytes.ask();
    t.a.run();
    t.a.arrives(frame_of({.type = frame_type::progress, .immediate = answer}));
    const bool possible = answer == 999 || answer == 1000;
    CHECK(t.a.failure == (possible ? error_code() : error::protocol_violation));
  }
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

TEST_CASE("lent bytes behind a write that ends without a frame are sent or offered") {
  const auto kind = GENERATE(stream_write::kind::wait, stream_write::kind::copy);
  const std::uint64_t bytes = GENERATE(299u, 300u); // in frames, and offered
  offering t;
  const bool parts_first = GENERATE(false, true);
  t.a.parts_first = parts_first;
  a_write front(1, kind), lent(bytes, stream_write::kind::lend);
  front.bytes = 0;
  lent.data.resize(bytes);
  t.a.bytes.write(front);
  t.a.bytes.write(lent);
  t.a.run();
  CHECK(front.ended);
  t.settle();
  CHECK(lent.ended);
  CHECK(lent.done == bytes);
}
