// SPDX-License-Identifier: BSL-1.0
// The asymmetric lock, by nodes of one process.
#include "catch.hpp"
#include "global_support.hpp"

#include <asio_rdma/alock.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace test;
using word = std::uint64_t;

/// A guard that a handler was given.
struct acquisition {
  auto handler() {
    return [this](error_code e, alock_guard g) {
      ec = e;
      guard = std::move(g);
      done = true;
    };
  }
  error_code ec;
  alock_guard guard;
  bool done = false;
};

struct scene : world {
  acquisition take(alock& lock) {
    acquisition a;
    lock.async_lock(a.handler());
    until([&] { return a.done; });
    return a;
  }
  error_code give_back(alock& lock, alock_guard g) {
    return ask<void>([&](auto h) { lock.async_unlock(std::move(g), h); }).ec;
  }
  bool atomics() {
    if (!dev.has_atomics())
      not_on_this_device("atomic operations");
    return dev.has_atomics();
  }

  remote_ptr<alock_words> at = make<alock_words>();
  alock local{host, at}, remote{guest, at};
};

} // namespace

TEST_CASE("a free lock is taken by its own node without a device") {
  scene s;
  for (int i = 0; i < 3; ++i) {
    auto held = s.take(s.local);
    CHECK(!held.ec);
    CHECK(held.guard);
    CHECK(!s.give_back(s.local, std::move(held.guard)));
  }
}

TEST_CASE("a free lock is taken by another node") {
  scene s;
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

TEST_CASE("one at a time, and the next when a guard goes") {
  scene s;
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

TEST_CASE("where there is no lock nothing is posted") {
  scene s;
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
  scene s;
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

namespace {

/// What the lock protects: three words in the host's segment, changed by one at a time.
struct protectorate {
  shared_word<word> words[3];
};

template <std::size_t I>
remote_ptr<shared_word<word>> member(remote_ptr<protectorate> p) {
  return p.cast<shared_word<word>>() + I;
}

struct tally {
  int inside = 0, entered = 0, broken = 0, left = 0;
};

/// Raises each of the words, by the device or, on their own node, the CPU.
asio::awaitable<void> raise(global_memory& m, remote_ptr<alock_words> at,
                            remote_ptr<protectorate> p, int times, tally& t) {
  alock lock(m, at);
  protectorate* const here = m.local(p);
  for (int i = 0; i < times; ++i) {
    alock_guard held = co_await lock.async_lock(asio::use_awaitable);
    t.broken += t.inside++ != 0;
    ++t.entered;
    word seen[3];
    if (here != nullptr) {
      for (int w = 0; w < 3; ++w)
        seen[w] = here->words[w].load();
      co_await asio::post(m.get_executor(), asio::use_awaitable);
      for (int w = 0; w < 3; ++w)
        here->words[w].store(seen[w] + 1);
    } else {
      seen[0] = co_await m.async_read(member<0>(p), asio::use_awaitable);
      global_memory::batch b(m, p.node());
      const auto one = b.read(member<1>(p)), two = b.read(member<2>(p));
      co_await b.async_post(asio::use_awaitable);
      seen[1] = b[one];
      seen[2] = b[two];
      b.clear();
      b.write(member<0>(p), seen[0] + 1);
      b.write(member<1>(p), seen[1] + 1);
      b.write(member<2>(p), seen[2] + 1);
      co_await b.async_post(asio::use_awaitable);
    }
    t.broken += seen[0] != seen[1] || seen[1] != seen[2];
    --t.inside;
    if (i % 2 == 0)
      co_await lock.async_unlock(std::move(held), asio::use_awaitable);
  }
  --t.left;
}

} // namespace

TEST_CASE("a lock that many want, of both cohorts") {
  scene s;
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
  t.left = locals + remotes;
  const auto start = [&](global_memory& m) {
    asio::co_spawn(s.io, raise(m, s.at, p, times, t), asio::detached);
  };
  for (int i = 0; i < locals; ++i)
    start(s.host);
  for (int i = 0; i < remotes; ++i)
    start(*nodes[std::size_t(i) % nodes.size()]);
  s.until([&] { return t.left == 0; });
  CHECK(t.entered == (locals + remotes) * times);
  CHECK(t.broken == 0);
  for (const auto& w : s.host.local(p)->words)
    CHECK(w.load() == word(t.entered));
}
