// SPDX-License-Identifier: BSL-1.0
// Contexts that are destroyed while lock operations are pending.
#include "catch.hpp"
#include "device/lifetime/context_property.hpp"
#include "device/locks/alock_support.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace test::alock_contexts_tests {
namespace {

/// A view of a node on its own context, which can be destroyed before the view.
struct abroad {
  abroad(lock_scene& s, node_id id) : memory(std::in_place, *io, s.pool, id) { enter(s); }
  abroad(lock_scene& s, global_memory& same_node) : memory(std::in_place, *io, same_node) {
    enter(s);
  }
  ~abroad() { io.reset(); }

  /// A completion handler; its destruction and its call are counted.
  auto handler() {
    return [this, p = context_property(*io, owned)](auto&&...) mutable {
      ++calls;
    };
  }

  context_property::count owned;
  int calls = 0;
  std::unique_ptr<asio::io_context> io = std::make_unique<asio::io_context>(1);
  std::optional<global_memory> memory;

private:
  void enter(lock_scene& s) {
    outcome<node_id> joined;
    memory->async_join(s.host.local_endpoint(), joined.handler());
    until({&s.io, io.get()}, [&] { return joined.done(); });
    if (joined.ec)
      throw system_error(joined.ec, "join");
  }
};

} // namespace

TEST_CASE("a handler that waits for a lock is destroyed before its context's services") {
  lock_scene s;
  const bool asks = GENERATE(true, false), object_first = GENERATE(true, false);
  CAPTURE(asks, object_first);
  if (!s.atomics())
    return;
  abroad a(s, 77);
  alock lock(*a.memory, s.at);
  acquisition held = s.take(s.local);
  if (!asks) { // it has descriptors, and enters the queue
    acquisition first;
    alock other(*a.memory, s.make<alock_words>());
    other.async_lock(first.handler());
    until({&s.io, a.io.get()}, [&] { return first.done; });
  }
  lock.async_lock(a.handler());
  lock.async_lock(a.handler());
  if (object_first)
    a.memory.reset();
  a.io.reset();
  CHECK(a.owned.alive == 0);
  CHECK(a.owned.late == 0);
  CHECK(a.calls == 0);
}

TEST_CASE("a handler that waits for a guard of another context is destroyed with its own") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool own_node = GENERATE(true, false), object_first = GENERATE(true, false),
             guard_goes_on = GENERATE(true, false);
  CAPTURE(own_node, object_first, guard_goes_on);
  std::optional<abroad> a;
  if (own_node)
    a.emplace(s, s.guest);
  else
    a.emplace(s, 77);
  alock elsewhere(*a->memory, s.at);
  acquisition held = s.take(s.remote);
  REQUIRE(held.guard);
  elsewhere.async_unlock(std::move(held.guard), a->handler());
  if (object_first)
    a->memory.reset();
  if (!guard_goes_on)
    s.guest.close();
  a->io.reset();
  CHECK(a->owned.alive == 0);
  CHECK(a->owned.late == 0);
  if (guard_goes_on)
    s.until([&] { return s.is_free(); });
  CHECK(a->calls == 0);
}

TEST_CASE("a lock is given back by an object of another context") {
  lock_scene s;
  if (!s.atomics())
    return;
  abroad a(s, 77);
  alock elsewhere(*a.memory, s.at);
  const bool closed = GENERATE(true, false);
  CAPTURE(closed);
  acquisition held = s.take(s.remote);
  outcome<void> given_back;
  elsewhere.async_unlock(std::move(held.guard), given_back.handler());
  if (closed)
    a.memory.reset();
  until({&s.io, a.io.get()}, [&] { return given_back.done() && s.is_free(); });
  CHECK(given_back.calls == 1);
  CHECK(given_back.ec == (closed ? error_code(asio::error::operation_aborted) : error_code()));
}

TEST_CASE("a lock is given back while the context of its lanes is destroyed") {
  lock_scene s;
  if (!s.atomics())
    return;
  const bool local = GENERATE(true, false); // the lock is on the same node
  CAPTURE(local);
  global_memory_options shares;
  shares.shared_lanes = 1;
  for (int i = 0; i < 20; ++i) {
    asio::io_context own(1); // the context of the handlers
    auto of_lanes = std::make_unique<asio::io_context>(1);
    global_memory first(*of_lanes, s.pool, 77, shares), second(own, first, shares);
    first.host(segment_bytes);
    const auto wait = [&](const bool& done) {
      until({&s.io, of_lanes.get(), &own}, [&] { return done; });
    };
    bool done = false;
    first.async_join(s.host.local_endpoint(), [&](error_code, node_id) { done = true; });
    wait(done);
    remote_ptr<alock_words> here;
    done = false;
    first.async_allocate<alock_words>(77, 0, [&](error_code, remote_ptr<alock_words> p) {
      here = p;
      done = true;
    });
    wait(done);
    alock lock(second, local ? here : s.make<alock_words>());
    acquisition held;
    lock.async_lock(held.handler());
    wait(held.done);
    REQUIRE(held.guard);
    auto handler = std::make_shared<int>();
    const std::weak_ptr<int> alive = handler;
    int calls = 0;
    std::atomic<bool> go{false};
    std::thread gives_back([&] {
      go.wait(false);
      lock.async_unlock(std::move(held.guard),
                        [&, h = std::move(handler)](error_code) { ++calls; });
    });
    go = true;
    go.notify_one();
    of_lanes.reset();
    gives_back.join();
    own.restart();
    own.poll();
    CHECK(alive.expired());
    CHECK(calls <= 1);
  }
}

} // namespace test::alock_contexts_tests
