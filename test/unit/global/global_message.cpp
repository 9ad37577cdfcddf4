// SPDX-License-Identifier: BSL-1.0
// The messages of a global memory's nodes.
#include <catch.hpp>

#include <asio_rdma/detail/global/global_message.hpp>

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
