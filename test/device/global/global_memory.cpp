// SPDX-License-Identifier: BSL-1.0
// Operations on global memory.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace test::global_memory_tests {
namespace {

using word = std::uint64_t;

struct point {
  std::int32_t x;
  double y;
  char name[30];
};

struct shape {
  word kind;
  point corner;
  remote_ptr<shape> next;
};

// An operation that the kind of a word forbids does not compile.
template <class T>
concept reads = requires(global_memory m, remote_ptr<T> p) {
  m.async_read(p, [](auto&&...) {});
};
template <class T>
concept writes = requires(global_memory m, remote_ptr<T> p, remote_value_t<T> v) {
  m.async_write(p, v, [](auto&&...) {});
};
template <class T>
concept exchanges = requires(global_memory m, remote_ptr<T> p, remote_value_t<T> v) {
  m.async_compare_exchange(p, v, v, [](auto&&...) {});
};
template <class T>
concept adds = requires(global_memory m, remote_ptr<T> p, remote_value_t<T> v) {
  m.async_fetch_add(p, v, [](auto&&...) {});
};
static_assert(reads<shape> && writes<shape> && !exchanges<shape> && !adds<shape>);
static_assert(reads<word> && writes<word> && !exchanges<word> && !adds<word>);
static_assert(reads<const word> && !writes<const word>);
static_assert(reads<nic_atomic<word>> && !writes<nic_atomic<word>>);
static_assert(exchanges<nic_atomic<word>> && adds<nic_atomic<word>>);
static_assert(exchanges<nic_atomic<remote_ptr<int>>> && !adds<nic_atomic<remote_ptr<int>>>);
template <class T>
concept allocates = requires(global_memory m, remote_ptr<T> p) {
  m.async_allocate<T>(1, 0, [](auto&&...) {});
  m.local(p);
};
struct with_virtual {
  virtual void f();
};
static_assert(allocates<word> && allocates<nic_atomic<word>> && allocates<shape>);
static_assert(!allocates<std::string> && !allocates<with_virtual> && !allocates<int*>);
static_assert(!reads<int*> && !writes<int*>);
template <class T>
concept is_batched = requires(global_memory::batch b, remote_ptr<T> p, remote_value_t<T> v) {
  b.write(p, v);
};
static_assert(is_batched<shared_word<word>> && !is_batched<nic_atomic<word>>);
static_assert(reads<cpu_atomic<word>> && !writes<cpu_atomic<word>> && !adds<cpu_atomic<word>>);
static_assert(reads<shared_word<word>> && writes<shared_word<word>> && !adds<shared_word<word>>);

} // namespace

TEST_CASE("many requests to a node wait for the answers to earlier ones") {
  world w;
  constexpr std::size_t count = 300;
  std::vector<outcome<remote_ptr<std::uint64_t>>> made(count);
  asio::cancellation_signal signal;
  for (std::size_t i = 0; i + 1 < count; ++i)
    w.guest.async_allocate<std::uint64_t>(host_id, 0, made[i].handler());
  w.guest.async_allocate<std::uint64_t>(
      host_id, 0, asio::bind_cancellation_slot(signal.slot(), made.back().handler()));
  signal.emit(asio::cancellation_type::total);
  w.until([&] { return std::all_of(made.begin(), made.end(), [](auto& m) { return m.done(); }); });
  std::set<std::uint64_t> places;
  for (auto& m : made) {
    CHECK(m.calls == 1);
    if (&m == &made.back()) {
      CHECK(m.ec == asio::error::operation_aborted);
    } else {
      REQUIRE(m.succeeded());
      CHECK(places.insert(m.value.offset()).second);
    }
  }
  std::vector<outcome<void>> freed(count - 1);
  for (std::size_t i = 0; i < freed.size(); ++i)
    w.guest.async_free(made[i].value, freed[i].handler());
  w.until(
      [&] { return std::all_of(freed.begin(), freed.end(), [](auto& f) { return f.done(); }); });
  CHECK(std::all_of(freed.begin(), freed.end(), [](auto& f) { return f.succeeded(); }));
}

TEST_CASE("a pointer is followed to another node as one on the same machine") {
  world w;
  const auto first = w.make<shape>(), second = w.make<shape>();
  CHECK(first.node() == host_id);
  CHECK(first != second);
  CHECK(w.read(first).value.next == nullptr); // allocated memory is zeroed
  CHECK(!w.write(second, {2, {5, 0.5, "corner"}, nullptr}));
  CHECK(!w.write(first, {1, {}, second}));
  CHECK(!w.write(root_of(host_id), first));

  const auto root = w.read(root_of(host_id));
  CHECK(root.succeeded());
  const auto found = w.read(root.value.cast<shape>());
  CHECK(found.value.kind == 1);
  const auto corner = w.read(found.value.next.member<&shape::corner>());
  CHECK(corner.succeeded());
  CHECK(corner.value.x == 5);
  CHECK(corner.value.y == 0.5);
  CHECK(std::strcmp(corner.value.name, "corner") == 0);
  CHECK(w.host.local(second)->corner.x == 5); // the owner sees the write
  CHECK(w.guest.local(second) == nullptr);
  CHECK(w.host.local(root_of(host_id))->load() == first);
}

TEST_CASE("a flushed write has reached the memory") {
  world w;
  const auto p = w.make<shape>();
  const auto written = w.ask<void>([&](auto h) {
    w.guest.async_write(p, {7, {}, p}, visibility::flushed, h);
  });
  CHECK(written.succeeded());
  CHECK(w.host.local(p)->kind == 7);
  CHECK(w.host.local(p)->next == p);
}

TEST_CASE("buffers, registered or not, from any place on") {
  world w;
  const auto p = w.make<char>(100000);
  const registered_buffer owned = w.pool.allocate(60000);
  std::memset(owned.data(), 'x', owned.size());
  std::string text(1000, 'y');
  CHECK(w.ask<std::size_t>([&](auto h) {
           w.guest.async_write(p + 3, owned, visibility::flushed, h);
         }).value == 60000);
  CHECK(w.ask<std::size_t>([&](auto h) {
           w.guest.async_write(p + 5, asio::buffer(text), h);
         }).value == 1000);
  const registered_buffer back = w.pool.allocate(60003);
  CHECK(w.ask<std::size_t>([&](auto h) { w.guest.async_read(p, back, h); }).value == 60003);
  const auto* bytes = static_cast<const char*>(back.data());
  CHECK(std::string(bytes, 6) == std::string("\0\0\0xxy", 6));
  CHECK(bytes[1004] == 'y');
  CHECK(bytes[1005] == 'x');
  CHECK(bytes[60002] == 'x');
  CHECK(w.ask<std::size_t>([&](auto h) {
           w.guest.async_read(p + 1004, asio::buffer(text), h);
         }).succeeded());
  CHECK(text[0] == 'y');
  CHECK(text[1] == 'x');
}

TEST_CASE("atomic operations return the value that they saw, or report that the device has none") {
  world w;
  const auto p = w.make<nic_atomic<std::int64_t>>();
  const auto link = w.make<nic_atomic<remote_ptr<shape>>>();
  using seen = exchange_result<std::int64_t>;
  if (!w.dev.has_atomics()) {
    CHECK(w.guest.atomics(host_id) == IBV_ATOMIC_NONE);
    CHECK(w.ask<seen>([&](auto h) { w.guest.async_compare_exchange(p, 0, 1, h); }).ec ==
          asio::error::operation_not_supported);
    CHECK(w.ask<std::int64_t>([&](auto h) { w.guest.async_fetch_add(p, 1, h); }).ec ==
          asio::error::operation_not_supported);
    CHECK(w.ask<std::int64_t>([&](auto h) { w.guest.async_exchange(p, 1, h); }).ec ==
          asio::error::operation_not_supported);
    CHECK(w.read(p).value == 0);
    return;
  }
  CHECK(w.guest.atomics(host_id) == w.dev.attributes().atomic_cap);
  CHECK(w.ask<std::int64_t>([&](auto h) { w.guest.async_fetch_add(p, -5, h); }).value == 0);
  const auto missed = w.ask<seen>([&](auto h) { w.guest.async_compare_exchange(p, 5, 6, h); });
  CHECK(missed.succeeded());
  CHECK(!missed.value.exchanged);
  CHECK(missed.value.seen == -5);
  const auto done = w.ask<seen>([&](auto h) { w.guest.async_compare_exchange(p, -5, 6, h); });
  CHECK(done.value.exchanged);
  CHECK(done.value.seen == -5);
  CHECK(w.ask<std::int64_t>([&](auto h) { w.guest.async_exchange(p, 9, h); }).value == 6);
  CHECK(w.read(p).value == 9);
  CHECK(w.host.local(p)->load() == 9);
  const remote_ptr<shape> target(3, 4, 64);
  CHECK(w.ask<remote_ptr<shape>>([&](auto h) { w.guest.async_exchange(link, target, h); }).value ==
        nullptr);
  CHECK(w.read(link).value == target);
}

TEST_CASE("a batch is carried out in order, and returns its results") {
  world w;
  const auto p = w.make<shape>(4);
  const auto n = w.make<nic_atomic<word>>();
  const auto after = w.make<shared_word<word>>();
  global_memory::batch b(w.guest, host_id);
  const auto post = [&] {
    return w.ask<void>([&](auto h) { b.async_post(h); }).ec;
  };
  CHECK(!post()); // an empty batch
  b.write(p + 1, {1, {2, 0.25, "one"}, p});
  const auto whole = b.read(p + 1);
  b.write((p + 1).member<&shape::kind>(), 9);
  const auto kind = b.read((p + 1).member<&shape::kind>());
  CHECK(b.size() == 4);
  for (int i = 0; i < 2; ++i) { // the batch can be posted again
    CHECK(!post());
    CHECK(b[whole].corner.y == 0.25);
    CHECK(b[kind] == 9);
    CHECK(w.host.local(p + 1)->next == p);
  }
  b.clear();
  CHECK(b.size() == 0);
  if (w.dev.has_atomics()) {
    const auto before = b.fetch_add(n, word(5));
    const auto seen = b.compare_exchange(n, word(5), word(7));
    const auto missed = b.compare_exchange(n, word(5), word(8));
    const auto now = b.read(n);
    CHECK(!post());
    CHECK(b[before] == 0);
    CHECK(b[seen] == 5);
    CHECK(b[missed] == 7);
    CHECK(b[now] == 7);
  } else {
    b.write(after, 1);
    b.fetch_add(n, word(5));
    CHECK(post() == asio::error::operation_not_supported);
    CHECK(w.read(after).value == 0); // no operation of the batch was posted
  }
  // More operations than the queue pair takes at a time.
  b.clear();
  const auto many = w.make<word>(1000);
  for (word i = 0; i < 1000; ++i)
    b.write(many + i, i);
  const auto last = b.read(many + 999);
  CHECK(!post());
  CHECK(b[last] == 999);
  for (word i = 0; i < 1000; ++i)
    REQUIRE(*w.host.local(many + i) == i);
  // If one operation is invalid, none is posted.
  b.clear();
  b.write(after, 1);
  b.write(remote_ptr<word>(host_id, 0, segment_bytes), 1);
  CHECK(post() == error::remote_range);
  b.clear();
  b.write(after, 1);
  b.read(remote_ptr<word>(guest_id, 0, 64));
  CHECK(post() == asio::error::invalid_argument);
  CHECK(w.read(after).value == 0);
  w.guest.close();
  b.clear();
  CHECK(post() == asio::error::bad_descriptor);
}

TEST_CASE("an operation added to a posted batch, or a second post of the batch, is refused") {
  world w;
  const auto p = w.make<word>(100);
  global_memory::batch b(w.guest, host_id);
  b.write(p, 1);
  const auto first = b.read(p);
  outcome<void> posted, again, grown;
  b.async_post(posted.handler());
  b.async_post(again.handler());
  for (word i = 0; i < 100; ++i) // would reallocate the batch's storage
    b.write(p + i, 2);
  const auto last = b.read(p + 99);
  b.async_post(grown.handler());
  w.until([&] { return posted.done() && again.done() && grown.done(); });
  CHECK(posted.succeeded());
  CHECK(again.ec == asio::error::already_started);
  CHECK(grown.ec == asio::error::already_started);
  CHECK(w.read(p).value == 1);
  CHECK(w.read(p + 99).value == 0);
  static_cast<void>(first);
  global_memory::batch other(w.guest, host_id);
  CHECK(other[last] == 0); // the result belongs to another batch
  b.clear();
  b.write(p, 3);
  const auto now = b.read(p);
  CHECK(!w.ask<void>([&](auto h) { b.async_post(h); }).ec);
  CHECK(b[now] == 3);
  outcome<void> dropped;
  b.async_post(dropped.handler());
  b.clear(); // the posted operations continue
  CHECK(b.size() == 0);
  w.until([&] { return dropped.done(); });
  CHECK(dropped.succeeded());
}

TEST_CASE("an access to an invalid address is refused before it is posted, and everything lives") {
  world w;
  const remote_ptr<word> nowhere, unknown(guest_id + 1, 0, 64), none(host_id, 1, 64),
      end(host_id, 0, segment_bytes), last(host_id, 0, segment_bytes - 8),
      across(host_id, 0, segment_bytes - 7), odd(host_id, 0, 68);
  CHECK(w.read(nowhere).ec == error::node_unknown);
  CHECK(w.read(unknown).ec == error::node_unknown);
  CHECK(w.read(remote_ptr<word>::from_bits(64)).ec == error::node_unknown);
  CHECK(w.read(none).ec == error::remote_range);
  CHECK(w.read(end).ec == error::remote_range);
  CHECK(w.read(across).ec == error::remote_range);
  CHECK(w.read(odd).ec == error::misaligned);
  CHECK(w.write(end, 1) == error::remote_range);
  CHECK(w.write(odd, 1) == error::misaligned);
  const auto atomic = odd.cast<nic_atomic<word>>();
  CHECK(w.ask<word>([&](auto h) { w.guest.async_fetch_add(atomic, 1, h); }).ec ==
        error::misaligned);
  CHECK(w.ask<exchange_result<word>>([&](auto h) {
           w.guest.async_compare_exchange(end.cast<nic_atomic<word>>(), 0, 1, h);
         }).ec == error::remote_range);
  const registered_buffer big = w.pool.allocate(segment_bytes);
  CHECK(w.ask<std::size_t>([&](auto h) {
           w.guest.async_read(remote_ptr<char>(host_id, 0, 1), big, h);
         }).ec == error::remote_range);
  CHECK(w.read(last).succeeded());
  CHECK(w.host.local(last) != nullptr);
  CHECK(w.host.local(end) == nullptr);
  CHECK(w.host.local(odd) == nullptr);
  CHECK(w.host.local(none) == nullptr);
  w.guest.close();
  CHECK(w.read(last).ec == asio::error::bad_descriptor);
}

TEST_CASE("memory is requested from the owner, and freed") {
  world w;
  std::vector<remote_ptr<word>> all;
  const auto p = w.make<word>(1000);
  CHECK(!w.write(p, 1));
  CHECK(!w.ask<void>([&](auto h) { w.guest.async_free(p, h); }).ec);
  CHECK(w.ask<void>([&](auto h) { w.guest.async_free(p, h); }).ec == asio::error::invalid_argument);
  const auto again = w.make<word>(1000);
  CHECK(again == p);
  CHECK(w.read(again).value == 0);
  const auto ask = [&](node_id node, segment_id segment, std::uint64_t count) {
    return w.ask<remote_ptr<word>>(
        [&](auto h) { w.guest.async_allocate<word>(node, segment, count, h); });
  };
  CHECK(ask(host_id, 0, segment_bytes).ec == error::peer_out_of_memory);
  CHECK(ask(host_id, 0, UINT64_MAX).ec == boost::system::errc::not_enough_memory);
  CHECK(ask(host_id, 0, 0).ec == asio::error::invalid_argument);
  CHECK(ask(host_id, 1, 1).ec == asio::error::invalid_argument);
  CHECK(ask(guest_id, 0, 1).ec == asio::error::invalid_argument); // it hosts no memory
  CHECK(ask(3, 0, 1).ec == error::node_unknown);
  // Memory of the owner itself, and several requests at a time.
  outcome<remote_ptr<word>> own, a, b;
  w.host.async_allocate<word>(host_id, 0, own.handler());
  w.guest.async_allocate<word>(host_id, 0, a.handler());
  w.guest.async_allocate<word>(host_id, 0, b.handler());
  w.until([&] { return own.done() && a.done() && b.done(); });
  CHECK(own.succeeded());
  CHECK(a.value != b.value);
  CHECK(own.value != a.value);
  CHECK(w.host.local(own.value) != nullptr);
}

TEST_CASE("a cancelled operation ends at once") {
  world w;
  asio::cancellation_signal stop;
  const auto cancelled = [&](auto&& start) {
    int calls = 0;
    error_code result;
    start(asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, auto&&...) {
      ++calls;
      result = ec;
    }));
    stop.emit(asio::cancellation_type::terminal);
    w.until([&] { return calls != 0; });
    CHECK(calls == 1);
    return result;
  };
  const remote_ptr<word> p(host_id, 0, 64);
  const error_code aborted = asio::error::operation_aborted;
  CHECK(cancelled([&](auto h) { w.guest.async_read(p, h); }) == aborted);
  CHECK(cancelled([&](auto h) { w.guest.async_write(p, 1, visibility::flushed, h); }) == aborted);
  CHECK(cancelled([&](auto h) { w.guest.async_allocate<word>(host_id, 0, h); }) == aborted);
  global_memory::batch b(w.guest, host_id);
  b.write(p, 2);
  b.read(p);
  CHECK(cancelled([&](auto h) { b.async_post(h); }) == aborted);
  CHECK(cancelled([&](auto h) { w.guest.async_join(w.host.local_endpoint(), h); }) == aborted);
  // The memory of the cancelled request was given back: the next request gets the same block.
  const auto q = w.make<word>();
  CHECK(!w.ask<void>([&](auto h) { w.guest.async_free(q, h); }).ec);
  CHECK(cancelled([&](auto h) { w.guest.async_allocate<word>(host_id, 0, h); }) == aborted);
  const auto r = w.make<word>();
  CHECK(!w.ask<void>([&](auto h) { w.guest.async_free(r, h); }).ec);
  CHECK(w.read(p).succeeded());
}

TEST_CASE("a context that is destroyed destroys every pending operation") {
  device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  const auto held = std::make_shared<int>(0);
  int calls = 0;
  {
    asio::io_context io(1);
    auto host = std::make_unique<global_memory>(io, pool, host_id);
    auto guest = std::make_unique<global_memory>(io, pool, guest_id);
    host->host(segment_bytes);
    host->listen({device_address(dev), 0});
    outcome<node_id> joined;
    guest->async_join(host->local_endpoint(), joined.handler());
    until(io, [&] { return joined.done(); });
    const remote_ptr<word> p(host_id, 0, 64);
    const auto handler = [&calls, held](error_code, auto&&...) {
      ++calls;
    };
    guest->async_read(p, handler);
    guest->async_write(p, 5, handler);
    guest->async_allocate<word>(host_id, 0, handler);
    guest->async_join(host->local_endpoint(), handler);
    if (dev.has_atomics())
      guest->async_exchange(p.cast<nic_atomic<word>>(), 5, handler);
    asio::co_spawn(
        io,
        [](std::unique_ptr<global_memory> g, std::unique_ptr<global_memory> h,
           std::shared_ptr<int>) -> asio::awaitable<void> {
          co_await g->async_allocate<word>(host_id, 0, asio::use_awaitable);
          static_cast<void>(h);
        }(std::move(guest), std::move(host), held),
        asio::detached);
  }
  CHECK(calls == 0);
  CHECK(held.use_count() == 1);
  CHECK(pool.statistics().blocks_in_use == 0);
}

} // namespace test::global_memory_tests
