// SPDX-License-Identifier: BSL-1.0
// Locks while an allocation fails: each handler is called once, and no party is left in a queue.
#include "device/locks/alock_support.hpp"
#include "device/support/allocation_scene.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

namespace test::alock_allocation_tests {
namespace {

struct scene : lock_scene {
  using lock_scene::lock_scene;

  void close() {
    guest.close();
    host.close();
  }

protected:
  /// Takes the lock and gives it back at once.
  void take(handler_accounts& accounts, const char* name, alock& lock) {
    accounts.start(
        name, [&](auto handler) { lock.async_lock(std::move(handler)); },
        [](error_code, alock_guard g) { g.unlock(); });
  }
  /// Runs until all operations have completed, and then until the lock is free.
  void finish(handler_accounts& accounts) {
    accounts.run(io);
    if (!accounts.any_failed() && !accounts.refused())
      until([this] { return is_free(); });
  }
};

/// Local parties wait while the other cohort has the lock.
struct locals_behind_remote : scene {
  alock_guard held = take_first();

  alock_guard take_first() { return scene::lock_scene::take(remote).guard; }
  void play(handler_accounts& accounts) {
    scene::take(accounts, "first local lock", local);
    scene::take(accounts, "second local lock", local);
    for (int i = 0; i < 20; ++i)
      io.poll_one();
    held.unlock();
    finish(accounts);
  }
};

/// Remote parties of one object wait while the other cohort has the lock.
struct remotes_behind_local : scene {
  alock_guard held = scene::lock_scene::take(local).guard;

  void play(handler_accounts& accounts) {
    scene::take(accounts, "first remote lock", remote);
    scene::take(accounts, "second remote lock", remote);
    for (int i = 0; i < 200; ++i)
      io.poll_one();
    held.unlock();
    finish(accounts);
  }
};

/// A remote party gives a lock back behind a batch, so that its accesses need more memory than the
/// lane has used before.
struct given_back : scene {
  explicit given_back(const global_memory_options& of_guest = {}) : scene(of_guest) {
    for (int i = 0; i < 20; ++i)
      static_cast<void>(reads.read(root_of(host_id)));
  }

  void play(handler_accounts& accounts) {
    accounts.start("batch", [&](auto handler) { reads.async_post(std::move(handler)); });
    held.unlock();
    accounts.run(io);
    error_code ec;
    accounts.start(
        "lock of the other cohort", [&](auto handler) { local.async_lock(std::move(handler)); },
        [&ec](error_code e, alock_guard) { ec = e; });
    accounts.run_to_last(io);
    if (ec == error::owner_dead)
      throw std::runtime_error("the party has died");
  }

private:
  global_memory::batch reads{guest, host_id};
  alock_guard held = scene::lock_scene::take(remote).guard;
};

/// Like given_back, but the batch waits for the only place, and the accesses wait behind the batch.
struct given_back_in_turn : given_back {
  static global_memory_options one_place() {
    global_memory_options o;
    o.in_flight = 1;
    return o;
  }
  global_memory third{io, pool, 77};

  given_back_in_turn() : given_back(one_place()) {
    third.host(segment_bytes);
    third.listen({device_address(dev), 0});
    outcome<node_id> joined;
    guest.async_join(third.local_endpoint(), joined.handler());
    until([&] { return joined.done(); });
    if (joined.ec)
      throw std::runtime_error("join");
  }
  void play(handler_accounts& accounts) {
    accounts.start("read of another node",
                   [&](auto handler) { guest.async_read(root_of(77), std::move(handler)); });
    given_back::play(accounts);
  }
  void close() {
    third.close();
    given_back::close();
  }
};

/// Local and remote parties with a remote party of another node, and guards that are given back by
/// operations.
struct all_contend : scene {
  global_memory third{io, pool, 77};
  alock other{third, at};

  all_contend() {
    if (join(third).ec)
      throw std::runtime_error("join");
  }
  void play(handler_accounts& accounts) {
    for (int i = 0; i < 2; ++i) {
      scene::take(accounts, "local", local);
      scene::take(accounts, "remote", remote);
      scene::take(accounts, "other", other);
      accounts.start(
          "local, given back by an operation",
          [&](auto handler) { local.async_lock(std::move(handler)); },
          [&, this](error_code, alock_guard g) { give_back(accounts, local, std::move(g)); });
      accounts.start(
          "remote, given back by an operation",
          [&](auto handler) { remote.async_lock(std::move(handler)); },
          [&, this](error_code, alock_guard g) { give_back(accounts, remote, std::move(g)); });
    }
    finish(accounts);
  }
  void close() {
    third.close();
    scene::close();
  }

private:
  void give_back(handler_accounts& accounts, alock& lock, alock_guard g) {
    if (g)
      accounts.start("unlock",
                     [&](auto handler) { lock.async_unlock(std::move(g), std::move(handler)); });
  }
};

/// Options by which the guest's lane often checks that its peer lives.
global_memory_options watchful() {
  global_memory_options o;
  o.lanes.keep_alive = std::chrono::milliseconds(100); // a busy machine answers in that time
  return o;
}

/// Makes the guest's lane fail: there is no memory for its next check of the peer.
void starve(lock_scene& s) {
  error_code ec;
  while (!ec) {
    try {
      const failing_allocation next(1);
      s.io.run_one();
    } catch (const std::bad_alloc&) { // thrown by another function
    }
    ec = s.read(root_of(host_id)).ec;
  }
  REQUIRE(ec == boost::system::errc::not_enough_memory);
}

bool has_atomics() {
  const bool result = open_device().has_atomics();
  if (!result)
    not_on_this_device("atomic operations");
  return result;
}

} // namespace

TEST_CASE("local parties wait for a lock while an allocation fails") {
  if (has_atomics())
    fail_each_allocation<locals_behind_remote>();
}

TEST_CASE("remote parties wait for a lock while an allocation fails") {
  if (has_atomics())
    fail_each_allocation<remotes_behind_local>();
}

TEST_CASE("a lock is given back while an allocation fails") {
  if (!has_atomics())
    return;
  SECTION("at once") { fail_each_allocation<given_back>(); }
  SECTION("when its turn comes") { fail_each_allocation<given_back_in_turn>(); }
}

TEST_CASE("parties of both cohorts contend for a lock while an allocation fails") {
  if (has_atomics())
    fail_each_allocation<all_contend>();
}

TEST_CASE("parties whose lane has failed for lack of memory end") {
  if (!has_atomics())
    return;
  lock_scene s(watchful());
  SECTION("with the lock") {
    auto held = s.take(s.remote);
    REQUIRE(held.guard);
    starve(s);
    CHECK(s.give_back(s.remote, std::move(held.guard)));
  }
  SECTION("waiting for it") {
    const auto held = s.take(s.local);
    acquisition a;
    s.queue(s.remote, a);
    starve(s);
    s.until([&] { return a.done; });
    CHECK(a.ec);
  }
  s.guest.close();
  s.host.close();
  test::drain(s.io);
}

TEST_CASE("a local party whose next turn is still to come on one context is not used on another") {
  if (!has_atomics())
    return;
  lock_scene s;
  asio::io_context other(1);
  global_memory same_node(other, s.host);
  alock elsewhere(same_node, s.at);
  /// Starts an operation with the nth allocation failing. False if there were fewer allocations.
  const auto start = [](std::size_t nth, auto initiate) {
    const failing_allocation failing(nth);
    try {
      initiate();
    } catch (const std::bad_alloc&) {
    }
    return failing.failed();
  };
  bool first_fails = true;
  for (std::size_t first = 1; first_fails; ++first) {
    bool second_fails = true;
    for (std::size_t second = 1; second_fails; ++second) {
      CAPTURE(first, second);
      acquisition held = s.take(s.remote), given_up, taken;
      REQUIRE(held.guard);
      asio::cancellation_signal stop;
      first_fails = start(first, [&] {
        elsewhere.async_lock(asio::bind_cancellation_slot(stop.slot(), given_up.handler()));
      });
      stop.emit(asio::cancellation_type::all);
      bool started = false;
      second_fails = start(second, [&] {
        s.local.async_lock(taken.handler());
        started = true;
      });
      held.guard.unlock();
      s.until([&] { return taken.done || !started; }); // the other context is not run
      taken.guard.unlock();
      s.until([&] { return s.is_free(); });
      other.restart();
      other.poll();
    }
  }
}

} // namespace test::alock_allocation_tests
