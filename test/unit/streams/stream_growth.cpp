// SPDX-License-Identifier: BSL-1.0
// Receives that grow to the writes of the peer.
#include "protocol/stream_two.hpp"

#include "catch.hpp"

namespace {

using namespace stream_test;

using sizes = std::vector<std::uint32_t>;

frame_options growing(std::uint32_t most) {
  frame_options l = link_of(16);
  l.max_receive_size = most;
  return l;
}

constexpr std::uint32_t block = 1000; // bytes

struct growing_two : two {
  explicit growing_two(std::uint32_t most = 2000) : two(growing(most), {4, block, frame}) {}

  /// Writes `n` bytes, which the peer reads, and returns the lengths of the frames.
  sizes pass(std::uint64_t n) {
    a_write& w = write(n);
    sizes result;
    while (!w.ended || !a.wire.empty()) {
      for (const std::uint32_t length : lengths())
        result.push_back(length);
      settle();
    }
    CHECK(w.done == n);
    for (std::uint64_t taken = 0; taken != n;) {
      a_read& r = read(n - taken);
      settle();
      for (const std::byte byte : r.data)
        REQUIRE(byte == byte_at(at_++));
      taken += r.done;
    }
    settle();
    return result;
  }

private:
  std::uint64_t at_ = 0;
};

} // namespace

TEST_CASE("receives grow to the size of the peer's writes") {
  growing_two t;
  CHECK(t.pass(300) == sizes{100, 100, 100});
  CHECK(t.b.link.receive_size() == 512 + frame_header::size);
  // The receives from before the change are used first.
  for (int i = 0; i < 16; ++i)
    t.pass(90);
  CHECK(t.pass(300) == sizes{300});
  CHECK(t.pass(512) == sizes{512});
  CHECK(t.b.link.receive_size() == 512 + frame_header::size);
  CHECK(t.a.link.receive_size() == frame + frame_header::size); // nothing was sent this way
}

TEST_CASE("receives do not grow beyond a limit") {
  growing_two t(200);
  t.pass(1000);
  CHECK(t.b.link.receive_size() == 200);
  for (int i = 0; i < 16; ++i)
    t.pass(90);
  CHECK(t.pass(400) == sizes{184, 184, 32});
}

TEST_CASE("receives for which there is no memory stay as they are") {
  growing_two t;
  int asked = 0;
  t.b.refuses_growth = [&] {
    return ++asked != 0;
  };
  for (int i = 0; i < 4; ++i)
    t.pass(300);
  CHECK(asked == 3); // 528, 264 and 132 bytes
  CHECK(t.b.link.receive_size() == frame + frame_header::size);
  CHECK(t.pass(300) == sizes{100, 100, 100});
}

TEST_CASE("a peer that breaks the rules of receive sizes") {
  growing_two t;
  SECTION("a smaller size") {
    t.a.arrives(
        frame_of({.type = frame_type::resized, .immediate = frame + frame_header::size - 1}));
    CHECK(t.a.failure == error::protocol_violation);
  }
  SECTION("but not the same size") {
    t.a.arrives(frame_of({.type = frame_type::resized, .immediate = frame + frame_header::size}));
    CHECK(!t.a.failure);
  }
  SECTION("a frame for which the receive was too small") {
    t.write(1000);
    while (t.a.deliver_to(t.b))
      continue;
    REQUIRE(t.b.link.receive_size() > frame + frame_header::size);
    t.b.complete_receive(frame_of({.type = frame_type::data, .length = frame}));
    REQUIRE(!t.b.link.failure());
    t.b.complete_receive(frame_of({.type = frame_type::data, .length = frame + 1}));
    CHECK(t.b.link.failure() == error::protocol_violation);
  }
  SECTION("the notice that bytes are dropped, twice") {
    t.a.arrives(frame_of({.type = frame_type::no_data}));
    CHECK(!t.a.failure);
    t.a.arrives(frame_of({.type = frame_type::no_data}));
    CHECK(t.a.failure == error::protocol_violation);
  }
}
