// SPDX-License-Identifier: BSL-1.0
// The asymmetric lock, used by nodes of one process.
#include "catch.hpp"
#include "device/locks/alock_support.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace test::alock_tests {
TEST_CASE("a free lock is taken by its own node without a device") {
  lock_scene s;
  for (int i = 0; i < 3; ++i) {
    auto held = s.take(s.local);
    CHECK(!held.ec);
    CHECK(held.guard);
    CHECK(!s.give_back(s.local, std::move(held.guard)));
  }
}

TEST_CASE("a free lock is taken by another node") {
  lock_scene s;
  for (int i = 0; i < 3; ++i) {
    auto held = s.take(s.remote);
    if (!s.dev.has_atomics()) {
      CHECK(held.ec == asio::error::operation_not_supported);
      CHECK(!held.guard);
      continue;
    }
    CHECK(!held.ec);
    CHECK(held.guard);
    CHECK(!s.give_back(s.remote, std::move(held.guard)));
  }
}

TEST_CASE("one party at a time has the lock, and the next gets it when a guard is destroyed") {
  lock_scene s;
  if (!s.atomics())
    return;
  for (const auto& [first, second] :
       {std::pair(&s.local, &s.remote), std::pair(&s.remote, &s.local),
        std::pair(&s.local, &s.local), std::pair(&s.remote, &s.remote)}) {
    CAPTURE(first == &s.local, second == &s.local);
    auto held = s.take(*first);
    REQUIRE(held.guard);
    acquisition next;
    second->async_lock(next.handler());
    for (int i = 0; i < 20; ++i)
      CHECK(s.read(root_of(host_id)).succeeded());
    CHECK(!next.done);
    held.guard = {};
    s.until([&] { return next.done; });
    CHECK(!next.ec);
    CHECK(!s.give_back(*second, std::move(next.guard)));
  }
}

TEST_CASE("an acquisition at an address without a lock posts nothing") {
  lock_scene s;
  const auto error_of = [&](remote_ptr<alock_words> p, global_memory& m) {
    alock lock(m, p);
    return s.take(lock).ec;
  };
  for (global_memory* m : {&s.host, &s.guest}) {
    CAPTURE(m == &s.host);
    CHECK(error_of({host_id, 0, 64 + 8}, *m) == error::misaligned);
    CHECK(error_of({host_id, 0, segment_bytes}, *m) == error::remote_range);
    CHECK(error_of({host_id, 3, 64}, *m) == error::remote_range);
    CHECK(error_of({host_id + 1, 0, 64}, *m) == error::node_unknown);
    CHECK(error_of(nullptr, *m) == error::node_unknown);
  }
  CHECK_THROWS_AS(alock(s.host, s.at, {0, 1}), system_error);
  CHECK_THROWS_AS(alock(s.host, s.at, {1, 0}), system_error);
  CHECK(s.ask<void>([&](auto h) { s.local.async_unlock({}, h); }).ec ==
        asio::error::invalid_argument);
  s.guest.close();
  CHECK(s.take(s.remote).ec == asio::error::bad_descriptor);
}

TEST_CASE("a segment without room for descriptors") {
  lock_scene s;
  if (!s.atomics())
    return;
  std::vector<remote_ptr<char>> all;
  for (std::uint64_t bytes = segment_bytes / 2; bytes != 0; bytes /= 2)
    for (;;) {
      const auto made = s.ask<remote_ptr<char>>(
          [&](auto h) { s.host.async_allocate<char>(host_id, 0, bytes, h); });
      if (made.ec)
        break;
      all.push_back(made.value);
    }
  CHECK(s.take(s.remote).ec == boost::system::errc::not_enough_memory);
  CHECK(s.take(s.local).guard);
  for (const auto p : all)
    CHECK(!s.ask<void>([&](auto h) { s.host.async_free(p, h); }).ec);
  CHECK(s.take(s.remote).guard);
}

TEST_CASE("a lock is taken by many parties of both cohorts") {
  lock_scene s;
  if (!s.atomics())
    return;
  std::vector<std::unique_ptr<global_memory>> nodes;
  for (int i = 0; i < 2; ++i) {
    nodes.push_back(std::make_unique<global_memory>(s.io, s.pool, node_id(100 + i)));
    REQUIRE(!s.join(*nodes.back()).ec);
  }
  const auto p = s.make<protectorate>();
  const int locals = GENERATE(0, 1, 3), remotes = GENERATE(1, 2, 6);
  constexpr int times = 60;
  CAPTURE(locals, remotes);
  tally t;
  const auto start = [&](global_memory& m) {
    asio::co_spawn(s.io, raise(m, s.at, p, times, t), asio::detached);
  };
  for (int i = 0; i < locals; ++i)
    start(s.host);
  for (int i = 0; i < remotes; ++i)
    start(*nodes[std::size_t(i) % nodes.size()]);
  s.until([&] { return t.left == locals + remotes; });
  CHECK(t.entered == (locals + remotes) * times);
  CHECK(t.broken == 0);
  for (const auto& w : s.host.local(p)->words)
    CHECK(w.load() == std::uint64_t(t.entered));
  CHECK(!t.ec);
}

} // namespace test::alock_tests
