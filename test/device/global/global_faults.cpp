// SPDX-License-Identifier: BSL-1.0
// Faults of a device during lock operations and batches of a global memory: every operation ends
// once.
#include "catch.hpp"
#include "device/locks/alock_support.hpp"

#include "interposer/faults.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace test::global_faults_tests {
using faults::call;

namespace {

/// Takes the lock, gives it back, and ends.
struct taker {
  void start(alock& lock) {
    lock.async_lock([this](error_code e, alock_guard g) {
      ++calls;
      ec = e;
      guard = std::move(g);
      if (guard)
        guard.unlock();
    });
  }
  int calls = 0;
  error_code ec;
  alock_guard guard;
};

struct fault_scene : lock_scene {
  global_memory third{io, pool, 77};
  alock other{third, at};
  std::array<taker, 6> takers;

  /// Starts two parties of each node, so that there are queues, and waits until all have ended.
  void contend() {
    for (std::size_t i = 0; i < takers.size(); ++i)
      takers[i].start(i % 3 == 0 ? local : i % 3 == 1 ? remote : other);
    until([&] {
      return std::all_of(takers.begin(), takers.end(), [](const taker& t) { return t.calls != 0; });
    });
  }
  int granted() const {
    return int(std::count_if(takers.begin(), takers.end(), [](const taker& t) { return !t.ec; }));
  }
};

} // namespace

TEST_CASE("a post that is refused while locks are taken keeps no party waiting") {
  std::uint64_t posts = 0;
  {
    fault_scene s;
    if (!s.atomics())
      return;
    REQUIRE(!s.join(s.third).ec);
    const faults::injector faults(s.dev.native_handle());
    s.contend();
    s.until([&] { return s.is_free(); });
    CHECK(s.granted() == 6);
    posts = faults.counts()[call::post_send];
  }
  REQUIRE(posts > 10);
  int abandoned = 0;
  for (std::uint64_t first = 1; first <= posts; ++first) {
    CAPTURE(first);
    fault_scene s;
    REQUIRE(!s.join(s.third).ec);
    faults::injector faults(s.dev.native_handle());
    faults.fail(call::post_send, ENOMEM, {first, 1});
    s.contend();
    for (const taker& t : s.takers)
      CHECK(t.calls == 1);
    // A later party gets the lock, or the error `owner_dead`.
    const auto late = s.take(s.local);
    CHECK((late.guard || late.ec == error::owner_dead));
    abandoned += late.ec == error::owner_dead;
  }
  CHECK(abandoned != 0); // at least one fault hit a party in the queue
}

TEST_CASE("a batch whose post is refused ends, and its memory is released") {
  for (std::uint64_t first = 1; first <= 3; ++first) {
    CAPTURE(first);
    world w;
    const auto p = w.make<std::uint64_t>(200);
    const auto blocks = w.pool.statistics().blocks_in_use;
    faults::injector faults(w.dev.native_handle());
    global_memory::batch b(w.guest, host_id);
    for (std::uint64_t i = 0; i < 200; ++i) // more than are posted at a time
      b.write(p + i, i + 1);
    faults.fail(call::post_send, ENOMEM, {first, 1});
    outcome<void> posted;
    b.async_post(posted.handler());
    w.until([&] { return posted.done(); });
    CHECK(posted.calls == 1);
    if (faults.counts().refused_of(call::post_send) != 0) {
      CHECK(posted.ec == boost::system::errc::not_enough_memory);
      CHECK(w.read(p).ec); // the connection has failed
    }
    w.guest.close();
    w.until([&] { return w.pool.statistics().blocks_in_use < blocks; });
  }
}

} // namespace test::global_faults_tests
