// SPDX-License-Identifier: BSL-1.0
// The asymmetric lock between processes: some parties are threads on the lock's own node, others
// use the device.
#include "catch.hpp"
#include "device/locks/alock_support.hpp"
#include "device/support/child_process.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace test::alock_processes_tests {
namespace {

constexpr remote_ptr<alock_words> lock_at(host_id, 0, 64);
constexpr remote_ptr<protectorate> protected_at(host_id, 0, 128);
constexpr int owner_died = 3; // an exit status

int variable(const char* name) { return child_process::variable(name); }

/// A process that runs the test case `what` on the lock.
child_process start_child(lock_scene& s, const char* what, int number, int times) {
  return {what,
          {"ALOCK_PORT=" + std::to_string(s.host.local_endpoint().port()),
           "ALOCK_NODE=" + std::to_string(200 + number), "ALOCK_TIMES=" + std::to_string(times)}};
}

/// The node of a child process.
struct child_node {
  child_node() {
    outcome<node_id> joined;
    memory.async_join(
        endpoint(device_address(dev), static_cast<std::uint16_t>(variable("ALOCK_PORT"))),
        joined.handler());
    until(io, [&] { return joined.done(); });
    REQUIRE(joined.value == host_id);
    io.restart();
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io{1};
  global_memory memory{io, pool, static_cast<node_id>(variable("ALOCK_NODE"))};
};

/// Coroutines of the host on their own thread.
class local_thread {
public:
  local_thread(global_memory& host, int coroutines, int times)
      : memory_(io_, host), coroutines_(coroutines) {
    for (int i = 0; i < coroutines; ++i)
      asio::co_spawn(io_, raise(memory_, lock_at, protected_at, times, result), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }
  void join() {
    thread_.join();
    CHECK(result.left == coroutines_);
    CHECK(result.broken == 0);
  }

private:
  asio::io_context io_{1};
  global_memory memory_;
  int coroutines_;
  std::thread thread_;

public:
  tally result;
};

struct share {
  int processes, coroutines, of_each;        // remote
  int threads, local_coroutines, local_each; // and local

  int sections() const {
    return processes * coroutines * of_each + threads * local_coroutines * local_each;
  }
};

void prepare(lock_scene& s) {
  REQUIRE(s.at == lock_at);
  REQUIRE(s.make<protectorate>() == protected_at);
}

void contend(const share& how) {
  lock_scene s;
  if (!s.atomics())
    return;
  prepare(s);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<child_process> children;
  for (int i = 0; i < how.processes; ++i)
    children.push_back(start_child(s, "a process that takes the lock", i, how.of_each));
  std::vector<std::unique_ptr<local_thread>> threads;
  for (int i = 0; i < how.threads; ++i)
    threads.push_back(std::make_unique<local_thread>(s.host, how.local_coroutines, how.local_each));
  std::thread joins([&] { s.io.run(); }); // until the host closes
  for (child_process& c : children)
    CHECK(c.wait() == 0);
  for (const auto& t : threads) {
    t->join();
    CHECK(!t->result.ec);
  }
  asio::post(s.io, [&] {
    s.guest.close();
    s.host.close();
  });
  joins.join();
  for (const auto& w : s.host.local(protected_at)->words)
    CHECK(w.load() == std::uint64_t(how.sections()));
  CHECK(s.is_free());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("alock: %d critical sections of %d processes and %d threads in %.1f s\n",
              how.sections(), how.processes, how.threads, took.count());
}

} // namespace

TEST_CASE("a process that takes the lock", "[.peer]") {
  if (variable("ALOCK_PORT") < 0)
    return;
  child_node n;
  constexpr int coroutines = 2;
  tally t;
  for (int i = 0; i < coroutines; ++i)
    asio::co_spawn(n.io, raise(n.memory, lock_at, protected_at, variable("ALOCK_TIMES"), t),
                   asio::detached);
  n.io.run();
  CHECK(t.left == coroutines);
  CHECK(t.broken == 0);
  if (t.ec == error::owner_dead)
    std::exit(owner_died);
  CHECK(!t.ec);
}

TEST_CASE("critical sections of any processes do not overlap") { contend({3, 2, 50, 2, 2, 1000}); }

TEST_CASE("a million critical sections", "[.million]") { contend({4, 2, 2'500, 2, 2, 245'000}); }

TEST_CASE("a process that will be killed", "[.peer]") {
  if (variable("ALOCK_PORT") < 0)
    return;
  child_node n;
  alock lock(n.memory, lock_at);
  acquisition a;
  lock.async_lock(a.handler());
  until(n.io, [&] { return a.done; });
  n.memory.async_write(protected_at.cast<shared_word<std::uint64_t>>(), 1, asio::detached);
  n.io.restart();
  n.io.run();
  for (;;) // it keeps the lock
    ::pause();
}

TEST_CASE("a holder is killed: the waiting parties are notified") {
  lock_scene s;
  if (!s.atomics())
    return;
  prepare(s);
  alock local(s.host, lock_at), remote(s.guest, lock_at);
  const bool holds = GENERATE(true, false);
  CAPTURE(holds);
  acquisition first, from_local, from_remote;
  if (!holds)
    s.queue(remote, first);
  const auto before = s.tails();
  child_process victim = start_child(s, "a process that will be killed", 0, 0);
  const auto& has_it = s.host.local(protected_at)->words[0];
  s.until([&] { return holds ? has_it.load() == 1 : s.tails()[1] != before[1]; });
  s.queue(remote, from_remote);
  if (holds)
    s.queue(local, from_local);
  s.pass_time();
  CHECK(!from_remote.done);
  victim.kill();
  CHECK(victim.wait() == -SIGKILL);
  if (!holds) {
    CHECK(first.guard);
    first.guard.unlock();
  }
  s.until([&] { return from_remote.done && (!holds || from_local.done); });
  CHECK(from_remote.ec == error::owner_dead);
  if (holds)
    CHECK(from_local.ec == error::owner_dead);
  CHECK(s.take(remote).ec == error::owner_dead);
  CHECK(s.take(local).ec == error::owner_dead);
  child_process late = start_child(s, "a process that takes the lock", 1, 1);
  std::thread joins([&] { s.io.run(); });
  CHECK(late.wait() == owner_died);
  asio::post(s.io, [&] {
    s.guest.close();
    s.host.close();
  });
  joins.join();
}

TEST_CASE("a process is killed at any moment: no party waits for ever or finds partial changes") {
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    lock_scene s;
    if (!s.atomics())
      return;
    prepare(s);
    constexpr int endless = 1'000'000'000;
    std::vector<child_process> children;
    for (int i = 0; i < 3; ++i)
      children.push_back(start_child(s, "a process that takes the lock", i, endless));
    local_thread locals(s.host, 2, endless);
    std::thread joins([&] { s.io.run(); });
    protectorate& p = *s.host.local(protected_at);
    const auto remotes_came = [&] {
      return s.host.knows(200) && s.host.knows(201) && s.host.knows(202);
    };
    while (!remotes_came() || p.words[0].load() < 50 + std::uint64_t(round) * 7)
      std::this_thread::yield();
    children[0].kill();
    CHECK(children[0].wait() == -SIGKILL);
    // The process may have died outside of the queue; then the others continue until they are
    // stopped.
    const std::uint64_t after = p.words[0].load();
    while (locals.result.left == 0 && p.words[0].load() < after + 500)
      std::this_thread::yield();
    p.stop.store(1);
    int died = 0;
    for (int i = 1; i < 3; ++i) {
      const int status = children[std::size_t(i)].wait();
      CHECK((status == 0 || status == owner_died));
      died += status == owner_died;
    }
    locals.join();
    CHECK((!locals.result.ec || locals.result.ec == error::owner_dead));
    std::printf("alock: killed after %llu sections, %d of 2 processes got owner_dead\n",
                static_cast<unsigned long long>(after), died);
    asio::post(s.io, [&] {
      s.guest.close();
      s.host.close();
    });
    joins.join();
  }
}

} // namespace test::alock_processes_tests
