// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include <asio_rdma/remote_ptr.hpp>

#include <array>
#include <cstring>
#include <set>
#include <unordered_set>

using namespace asio_rdma;

namespace {

struct header {
  std::uint32_t kind;
  std::uint32_t bytes;
};

struct record {
  header head;
  char name[20];
  remote_ptr<record> next;
  const int fixed;
};

struct unknown; // never defined

// A remote_ptr fits a word on which the device can compare and swap.
static_assert(sizeof(remote_ptr<record>) == 8);
static_assert(alignof(remote_ptr<record>) == 8);
static_assert(std::is_trivially_copyable_v<remote_ptr<record>>);
static_assert(std::is_standard_layout_v<remote_ptr<record>>);
static_assert(std::has_unique_object_representations_v<remote_ptr<record>>);
static_assert(sizeof(remote_ptr<unknown>) == 8);

// Remote pointers convert and compare as pointers do.
static_assert(std::is_convertible_v<remote_ptr<int>, remote_ptr<const int>>);
static_assert(std::is_convertible_v<remote_ptr<int>, remote_ptr<void>>);
static_assert(std::is_convertible_v<remote_ptr<int>, remote_ptr<const void>>);
static_assert(std::is_convertible_v<remote_ptr<const int>, remote_ptr<const void>>);
static_assert(std::is_convertible_v<remote_ptr<void>, remote_ptr<const void>>);
static_assert(!std::is_convertible_v<remote_ptr<const int>, remote_ptr<int>>);
static_assert(!std::is_convertible_v<remote_ptr<const int>, remote_ptr<void>>);
static_assert(!std::is_convertible_v<remote_ptr<void>, remote_ptr<int>>);
static_assert(!std::is_convertible_v<remote_ptr<int>, remote_ptr<long>>);
static_assert(!std::is_constructible_v<remote_ptr<int>, remote_ptr<long>>);
static_assert(!std::is_constructible_v<remote_ptr<int>, int*>);
static_assert(!std::is_constructible_v<remote_ptr<int>, std::uint64_t>);
static_assert(!std::is_convertible_v<remote_ptr<int>, bool>);
static_assert(!std::is_convertible_v<remote_ptr<int>, std::uint64_t>);

template <class A, class B>
concept comparable = requires(A a, B b) {
  a == b;
  a < b;
};
static_assert(comparable<remote_ptr<int>, remote_ptr<int>>);
static_assert(comparable<remote_ptr<int>, remote_ptr<const int>>);
static_assert(comparable<remote_ptr<int>, std::nullptr_t>);
static_assert(!comparable<remote_ptr<int>, remote_ptr<long>>);

template <class P>
concept steps = requires(P p) {
  p + 1;
  ++p;
};
static_assert(steps<remote_ptr<int>>);
static_assert(!steps<remote_ptr<void>>);
template <class A, class B>
concept subtracts = requires(A a, B b) {
  a - b;
};
static_assert(subtracts<remote_ptr<int>, remote_ptr<int>>);
static_assert(!subtracts<remote_ptr<int>, remote_ptr<long>>);
static_assert(!subtracts<remote_ptr<void>, remote_ptr<void>>);
template <class P>
concept adds_fractions = requires(P p) {
  p + 0.5;
};
static_assert(!adds_fractions<remote_ptr<int>>);

template <class T, auto Member>
concept has_member = requires(remote_ptr<T> p) {
  p.template member<Member>();
};
static_assert(has_member<record, &record::next>);
static_assert(!has_member<header, &record::next>);

// The fields of constants are checked at compile time.
constexpr remote_ptr<int> last(max_node, 255, max_segment_bytes - 1);
static_assert(last.node() == 4095 && last.segment() == 255 &&
              last.offset() == (std::uint64_t(1) << 44) - 1);

using ptr = remote_ptr<std::uint32_t>;

} // namespace

TEST_CASE("null is zero, and zeroed memory") {
  CHECK(!ptr());
  CHECK(ptr() == nullptr);
  CHECK(ptr().bits() == 0);
  ptr zeroed(1, 2, 3);
  std::memset(static_cast<void*>(&zeroed), 0, sizeof zeroed);
  CHECK(zeroed == nullptr);
  CHECK(ptr(1, 0, 0) != nullptr);
}

TEST_CASE("the fields hold every value that fits their bits, and no larger one") {
  for (const node_id node : {node_id(1), node_id(2048), max_node})
    for (const segment_id segment : {segment_id(0), segment_id(255)})
      for (const std::uint64_t offset : {std::uint64_t(0), max_segment_bytes - 1}) {
        const ptr p(node, segment, offset);
        CHECK(p.node() == node);
        CHECK(p.segment() == segment);
        CHECK(p.offset() == offset);
        CHECK(ptr::from_bits(p.bits()) == p);
      }
  CHECK_THROWS_AS(ptr(0, 0, 0), std::out_of_range);
  CHECK_THROWS_AS(ptr(max_node + 1, 0, 0), std::out_of_range);
  CHECK_THROWS_AS(ptr(1, 0, max_segment_bytes), std::out_of_range);
}

TEST_CASE("arithmetic counts in elements") {
  const ptr p(7, 3, 4096);
  CHECK((p + 3).offset() == 4096 + 12);
  CHECK((3 + p) == p + 3);
  CHECK((p - 3).offset() == 4096 - 12);
  CHECK((p + std::int8_t(-3)) == p - 3u);
  CHECK((p + 3) - p == 3);
  CHECK(p - (p + 3) == -3);
  ptr q = p;
  CHECK(q++ == p);
  CHECK(q == p + 1);
  CHECK(--q == p);
  CHECK(q-- == p);
  CHECK(++q == p);
  q += 5;
  q -= 2;
  CHECK(q == p + 3);
}

TEST_CASE("arithmetic never leads to another segment or node") {
  const remote_ptr<char> p(7, 3, 0);
  for (const auto q : {p - 1, p + max_segment_bytes, p - std::uint64_t(5) * max_segment_bytes,
                       p + std::uint64_t(-1), p + std::int64_t(-1)}) {
    CHECK(q.node() == 7);
    CHECK(q.segment() == 3);
  }
  CHECK((p - 1).offset() == max_segment_bytes - 1);
  CHECK(p - 1 + 1 == p);
  const remote_ptr<char> end(max_node, 255, max_segment_bytes - 1);
  CHECK((end + 1).node() == max_node);
  CHECK((end + 1).offset() == 0);
}

TEST_CASE("members, in place of offsetof") {
  const remote_ptr<record> p(7, 3, 4096);
  const auto next = p.member<&record::next>();
  static_assert(std::is_same_v<decltype(next), const remote_ptr<remote_ptr<record>>>);
  CHECK(next.offset() == 4096 + offsetof(record, next));
  CHECK(next.node() == 7);
  CHECK(next.segment() == 3);
  const auto bytes = p.member<&record::head>().member<&header::bytes>();
  static_assert(std::is_same_v<decltype(bytes), const remote_ptr<std::uint32_t>>);
  CHECK(bytes.offset() == 4096 + offsetof(header, bytes));
  const remote_ptr<const record> c = p;
  static_assert(
      std::is_same_v<decltype(c.member<&record::next>()), remote_ptr<const remote_ptr<record>>>);
  CHECK(p.member<&record::name>().cast<char>().offset() == 4096 + offsetof(record, name));
  static_assert(std::is_same_v<decltype(p.member<&record::fixed>()), remote_ptr<const int>>);
}

TEST_CASE("order and hash are those of the place") {
  const std::set<ptr> ordered{ptr(2, 0, 0), ptr(1, 1, 0), ptr(1, 0, 8), nullptr};
  const std::array<ptr, 4> expected{ptr(), ptr(1, 0, 8), ptr(1, 1, 0), ptr(2, 0, 0)};
  CHECK(std::equal(ordered.begin(), ordered.end(), expected.begin(), expected.end()));
  std::unordered_set<ptr> hashed(expected.begin(), expected.end());
  CHECK(hashed.size() == 4);
  CHECK(hashed.count(ptr(1, 0, 8)) == 1);
  CHECK(hashed.count(ptr(1, 0, 12)) == 0);
}
