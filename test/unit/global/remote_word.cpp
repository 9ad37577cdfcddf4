// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

using namespace asio_rdma;

namespace {

using word = std::uint64_t;

struct plain {
  int a;
  char b[9];
};
struct with_word {
  word a;
  cpu_atomic<word> b;
};
struct padded {
  std::uint32_t a;
  std::uint8_t b;
};

// The permitted operations of each kind. An operation that is false here does not compile.
template <class T, bool Read, bool Write, bool Atomic>
constexpr bool allows =
    remote_readable<T> == Read&& remote_writable<T> == Write&& remote_atomic<T> == Atomic;

static_assert(allows<plain, true, true, false>);
static_assert(allows<word, true, true, false>);
static_assert(allows<const word, true, false, false>);
static_assert(allows<nic_atomic<word>, true, false, true>);
static_assert(allows<const nic_atomic<word>, true, false, false>);
static_assert(allows<cpu_atomic<word>, true, false, false>);
static_assert(allows<shared_word<word>, true, true, false>);
static_assert(allows<const shared_word<word>, true, false, false>);
static_assert(allows<with_word, false, false, false>);
static_assert(allows<word[2], false, false, false>);
static_assert(allows<std::string, false, false, false>);
static_assert(allows<void, false, false, false>);
static_assert(std::is_same_v<remote_value_t<nic_atomic<remote_ptr<int>>>, remote_ptr<int>>);
static_assert(std::is_same_v<remote_value_t<const plain>, plain>);

// The permitted operations of the owner's CPU.
template <class W>
concept stores = requires(W w) {
  w.store({});
};
template <class W>
concept exchanges = requires(W w, typename W::value_type v) {
  w.exchange(v);
  w.compare_exchange(v, v);
};
template <class W>
concept adds = requires(W w) {
  w.fetch_add(1);
};
template <class W>
concept loads = requires(const W w) {
  w.load();
};
static_assert(loads<nic_atomic<word>> && !stores<nic_atomic<word>> &&
              !exchanges<nic_atomic<word>> && !adds<nic_atomic<word>>);
static_assert(loads<cpu_atomic<word>> && stores<cpu_atomic<word>> && exchanges<cpu_atomic<word>> &&
              adds<cpu_atomic<word>>);
static_assert(loads<shared_word<word>> && stores<shared_word<word>> &&
              !exchanges<shared_word<word>> && !adds<shared_word<word>>);
static_assert(!adds<cpu_atomic<remote_ptr<int>>>);
static_assert(!std::is_copy_constructible_v<nic_atomic<word>>);
static_assert(!std::is_assignable_v<nic_atomic<word>&, word>);
static_assert(!std::is_assignable_v<shared_word<word>&, const shared_word<word>&>);

// A word value has 8 bytes without padding.
static_assert(word_value<std::int64_t> && word_value<remote_ptr<void>> && word_value<void*>);
static_assert(!word_value<std::uint32_t> && !word_value<double> && !word_value<padded>);
static_assert(!word_value<const word>);
static_assert(sizeof(nic_atomic<word>) == 8 && alignof(nic_atomic<word>) == 8);
static_assert(std::is_standard_layout_v<nic_atomic<word>>);
static_assert(std::is_trivially_destructible_v<cpu_atomic<word>>);

} // namespace

TEMPLATE_TEST_CASE("a word begins with the value that it is given", "", nic_atomic<word>,
                   cpu_atomic<word>, shared_word<word>) {
  CHECK(TestType().load() == 0);
  CHECK(TestType(word(-5)).load() == word(-5));
}

TEST_CASE("a word of the CPU's is changed as an atomic one") {
  cpu_atomic<std::int64_t> w(5);
  w.store(6);
  CHECK(w.exchange(7) == 6);
  CHECK(w.fetch_add(-10) == 7);
  std::int64_t expected = 0;
  CHECK(!w.compare_exchange(expected, 9));
  CHECK(expected == -3);
  CHECK(w.compare_exchange(expected, 9));
  CHECK(w.load() == 9);
  w.store(INT64_MAX);
  CHECK(w.fetch_add(1) == INT64_MAX);
  CHECK(w.load() == INT64_MIN);
  cpu_atomic<remote_ptr<int>> p;
  CHECK(p.exchange(remote_ptr<int>(1, 2, 8)) == nullptr);
  CHECK(p.load() == remote_ptr<int>(1, 2, 8));
}

TEST_CASE("threads that add to a word lose nothing") {
  cpu_atomic<word> w;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 10000; ++n)
        w.fetch_add(1);
    });
  for (std::thread& t : threads)
    t.join();
  CHECK(w.load() == 40000);
}
