// SPDX-License-Identifier: BSL-1.0
// The messages of a global memory's nodes, and the allocator of a segment.
#include <catch.hpp>

#include <asio_rdma/detail/global/global_message.hpp>

#include "global/segment_allocator.hpp"

#include <map>
#include <random>

using namespace asio_rdma;
using namespace asio_rdma::detail;
using kind = global_message::kind;

namespace {

global_message introduction() {
  global_message m;
  m.what = kind::welcome;
  m.node = max_node;
  m.atomics = IBV_ATOMIC_HCA;
  m.incarnation = 0x0123456789abcdef;
  m.segments = {{0x1000, 4096, 7}, {0xffff'0000'0000, max_segment_bytes, 0xffffffff}};
  return m;
}

bool decodes(const std::vector<std::byte>& bytes) {
  global_message m;
  return decode(bytes, m);
}

} // namespace

TEST_CASE("a node introduces itself with its segments") {
  const global_message m = introduction();
  global_message r;
  REQUIRE(decode(encode(m), r));
  CHECK(r.what == m.what);
  CHECK(r.node == m.node);
  CHECK(r.atomics == m.atomics);
  CHECK(r.incarnation == m.incarnation);
  CHECK(r.segments == m.segments);
  global_message many = m;
  many.segments.assign(global_message::max_segments, {4096, 64, 1});
  CHECK(decode(encode(many), r));
  CHECK(r.segments.size() == 256);
}

TEST_CASE("requests and their answers") {
  for (const kind k : {kind::refuse, kind::allocate, kind::allocated, kind::free, kind::freed,
                       kind::descriptors, kind::wake, kind::woken}) {
    global_message m;
    m.what = k;
    m.status = global_message::result::no_memory;
    m.id = 0xfedcba98;
    m.segment = 255;
    m.value = 1 << 20;
    m.alignment = k == kind::allocate ? 64 : 0;
    global_message r;
    CAPTURE(int(k));
    REQUIRE(decode(encode(m), r));
    CHECK(r.what == k);
    CHECK(r.status == m.status);
    CHECK(r.id == m.id);
    CHECK(r.segment == m.segment);
    CHECK(r.value == m.value);
    CHECK(r.alignment == m.alignment);
  }
}

TEST_CASE("a message that is wrong in any byte is refused") {
  const auto good = encode(introduction());
  REQUIRE(decodes(good));
  const auto with = [](std::vector<std::byte> bytes, std::size_t at, int value) {
    bytes[at] = std::byte(value);
    return decodes(bytes);
  };
  for (std::size_t n = 0; n < good.size(); ++n)
    if (n < 16 || (n - 16) % 24 != 0)
      CHECK_FALSE(decodes({good.begin(), good.begin() + std::ptrdiff_t(n)}));
  for (const int type : {0, 9, 255})
    CHECK_FALSE(with(good, 0, type));
  CHECK_FALSE(with(good, 1, 3));    // atomic capability
  CHECK_FALSE(with(good, 3, 0x10)); // node 4096 and more
  for (std::size_t i = 4; i < 8; ++i)
    CHECK_FALSE(with(good, i, 0xee)); // version
  for (std::size_t i = 36; i < 40; ++i)
    CHECK_FALSE(with(good, i, 1)); // padding
  global_message m = introduction();
  m.node = 0;
  CHECK_FALSE(decodes(encode(m)));
  for (const remote_buffer& s :
       {remote_buffer{4096, 0, 1}, remote_buffer{4096, max_segment_bytes + 1, 1},
        remote_buffer{UINT64_MAX - 63, 64, 1}}) {
    m = introduction();
    m.segments = {s};
    CHECK_FALSE(decodes(encode(m)));
  }
  m.segments.assign(global_message::max_segments + 1, {4096, 64, 1});
  CHECK_FALSE(decodes(encode(m)));
  m = {};
  m.what = kind::allocated;
  CHECK_FALSE(with(encode(m), 1, 4)); // status
  CHECK_FALSE(with(encode(m), 3, 1)); // segment 256
  m.value = max_segment_bytes;
  CHECK_FALSE(decodes(encode(m)));
}

TEST_CASE("random bytes are never more than refused") {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto bytes = encode(introduction());
    bytes.resize(random() % (bytes.size() + 30));
    for (unsigned n = random() % 4; n != 0 && !bytes.empty(); --n)
      bytes[random() % bytes.size()] = std::byte(random());
    global_message m;
    if (decode(bytes, m)) {
      CHECK(m.segments.size() <= global_message::max_segments);
    }
  }
}

TEST_CASE("blocks lie in the segment, aligned, and do not overlap") {
  constexpr std::uint64_t begin = 64, end = 1 << 20;
  segment_allocator a(begin, end);
  std::map<std::uint64_t, std::uint64_t> live; // begin, end
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 5 < 3) {
      const std::uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 70000 : 300);
      const std::uint64_t alignment = std::uint64_t(1) << random() % 13;
      const auto at = a.allocate(bytes, alignment);
      if (!at) {
        ++refused;
        continue;
      }
      CHECK(*at % alignment == 0);
      CHECK(*at >= begin);
      CHECK(*at + bytes <= end);
      const auto next = live.lower_bound(*at);
      CHECK((next == live.end() || *at + bytes <= next->first));
      CHECK((next == live.begin() || std::prev(next)->second <= *at));
      live[*at] = *at + bytes;
    } else if (!live.empty()) {
      auto victim = live.begin();
      std::advance(victim, random() % std::min<std::size_t>(live.size(), 50));
      CHECK(a.free(victim->first));
      CHECK_FALSE(a.free(victim->first));
      live.erase(victim);
    }
  }
  CHECK(refused > 0); // it was full sometimes
  CHECK(a.blocks_in_use() == live.size());
}

TEST_CASE("a segment is used to its end, and again") {
  segment_allocator a(0, 4096);
  std::vector<std::uint64_t> all;
  while (const auto at = a.allocate(64, 8))
    all.push_back(*at);
  CHECK(all.size() == 64);
  for (const std::uint64_t at : all)
    CHECK(a.free(at));
  for (std::size_t i = 0; i < 64; ++i)
    CHECK(a.allocate(50, 64));
  CHECK_FALSE(a.allocate(1, 1));
}

TEST_CASE("a freed block of a larger class is used when nothing else is left") {
  segment_allocator a(0, 4096);
  const auto whole = a.allocate(4096, 4096);
  REQUIRE(whole);
  CHECK_FALSE(a.allocate(1, 1));
  REQUIRE(a.free(*whole));
  CHECK(a.allocate(1, 4096) == 0);
}

TEST_CASE("memory that is not available is refused") {
  segment_allocator a(64, 4096);
  for (const std::uint64_t bytes : {std::uint64_t(0), std::uint64_t(4097), UINT64_MAX})
    CHECK_FALSE(a.allocate(bytes, 8));
  for (const std::uint64_t alignment : {std::uint64_t(0), std::uint64_t(3), std::uint64_t(8192)})
    CHECK_FALSE(a.allocate(8, alignment));
  CHECK_FALSE(a.free(64));
  segment_allocator huge(64, max_segment_bytes);
  CHECK(huge.allocate(max_segment_bytes / 2, 8));
  CHECK_FALSE(huge.allocate(max_segment_bytes, 8));
}
