// SPDX-License-Identifier: BSL-1.0
// Objects of one node that share its lanes.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/alock.hpp>
#include <asio_rdma/global_counter.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace test::global_lanes_tests {
namespace {

using word = std::uint64_t;

constexpr node_id shared_id = 9;
const remote_ptr<word> place(host_id, 0, 64);

global_memory_options sharing(std::size_t lanes) {
  global_memory_options o;
  o.shared_lanes = lanes;
  return o;
}

/// An object of a node on its own context, which its own thread runs.
struct on_thread {
  on_thread(const memory_pool& pool, std::size_t lanes)
      : memory(io, pool, shared_id, sharing(lanes)) {
    memory.host(4096);
  }
  on_thread(const on_thread& same, std::size_t lanes) : memory(io, same.memory, sharing(lanes)) {}
  ~on_thread() {
    work.reset();
    memory.close();
    thread.join();
  }

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  global_memory memory;
  std::thread thread{[this] {
    io.run();
  }};
};

asio::awaitable<int> use(global_memory& m, std::thread::id here, int times) {
  int elsewhere = 0;
  const remote_ptr<nic_atomic<word>> counter = place.cast<nic_atomic<word>>();
  const bool counts = m.atomics(host_id) != IBV_ATOMIC_NONE;
  for (int i = 0; i < times; ++i) {
    if (counts)
      co_await m.async_fetch_add(counter, 1, asio::use_awaitable);
    else
      co_await m.async_read(place, asio::use_awaitable);
    elsewhere += std::this_thread::get_id() != here;
  }
  co_return elsewhere;
}

} // namespace

TEST_CASE("objects that share lanes reach the nodes that one of them has joined, each on its own "
          "thread") {
  world w;
  std::vector<std::unique_ptr<on_thread>> all;
  all.push_back(std::make_unique<on_thread>(w.pool, 1));
  for (int i = 0; i < 3; ++i)
    all.push_back(std::make_unique<on_thread>(*all.front(), 1));
  std::thread serves([&] { w.io.run(); }); // until the host and its guest close
  CHECK_FALSE(all.back()->memory.knows(host_id));
  CHECK(all[1]->memory.async_join(w.host.local_endpoint(), asio::use_future).get() == host_id);
  constexpr int times = 200;
  std::vector<std::future<int>> elsewhere;
  for (const auto& one : all) {
    CHECK(one->memory.knows(host_id));
    for (int i = 0; i < 2; ++i)
      elsewhere.push_back(
          asio::co_spawn(one->io, use(one->memory, one->thread.get_id(), times), asio::use_future));
  }
  for (auto& one : elsewhere)
    CHECK(one.get() == 0);
  if (w.dev.has_atomics())
    CHECK(*w.host.local(place) == word(times) * elsewhere.size());
  else
    not_on_this_device("atomic operations");
  while (!all.empty()) // the maker of the lanes last: its context works until they end
    all.pop_back();
  asio::post(w.io, [&] {
    w.guest.close();
    w.host.close();
  });
  serves.join();
}

TEST_CASE("shared lanes end with the last object that uses them") {
  world w;
  std::vector<std::unique_ptr<global_memory>> all;
  all.push_back(std::make_unique<global_memory>(w.io, w.pool, shared_id, sharing(1)));
  all.front()->host(4096);
  for (int i = 0; i < 2; ++i)
    all.push_back(std::make_unique<global_memory>(w.io, *all.front(), sharing(1)));
  REQUIRE(w.join(*all.front()).value == host_id);
  const auto reaches = [&](global_memory& from, remote_ptr<word> p) {
    return w.ask<word>([&](auto h) { from.async_read(p, h); }).succeeded();
  };
  const remote_ptr<word> back(shared_id, 0, 64);
  while (!all.empty()) {
    CHECK(reaches(*all.back(), place));
    CHECK(reaches(w.host, back));
    all.erase(all.begin()); // the object that made the lanes
  }
  for (int i = 0; i < 1000 && reaches(w.host, back); ++i)
    continue; // until the host is notified
  CHECK_FALSE(reaches(w.host, back));
}

TEST_CASE("a node gets as many lanes as the objects are to share, and no more") {
  world w;
  global_memory first(w.io, w.pool, shared_id, sharing(2));
  global_memory second(w.io, first, sharing(2)), third(w.io, first, sharing(2)),
      fourth(w.io, first, sharing(2)), own(w.io, first);
  const auto know = [&] {
    return int(first.knows(host_id)) + int(second.knows(host_id)) + int(third.knows(host_id)) +
           int(fourth.knows(host_id)) + int(own.knows(host_id));
  };
  REQUIRE(!w.join(first).ec);
  CHECK(know() == 2);
  REQUIRE(!w.join(second).ec);
  CHECK(know() == 4);
  REQUIRE(!w.join(own).ec);
  CHECK(know() == 5);
  first.close();
  third.close(); // one of these two shared its lane with the first
  fourth.close();
  CHECK(know() == 2);
  global_memory fifth(w.io, second, sharing(2));
  CHECK_FALSE(fifth.knows(host_id));
}

TEST_CASE("the context of the object that made the lanes is destroyed before the others") {
  world w;
  auto io = std::make_unique<asio::io_context>(1);
  global_memory maker(*io, w.pool, shared_id, sharing(1));
  maker.host(4096);
  global_memory other(w.io, maker, sharing(1));
  outcome<node_id> joined;
  other.async_join(w.host.local_endpoint(), joined.handler());
  while (!joined.done()) // neither context sleeps while the other has work
    for (asio::io_context* const one : {io.get(), &w.io}) {
      one->restart();
      one->poll();
      std::this_thread::yield();
    }
  REQUIRE(joined.value == host_id);
  int calls = 0;
  const auto held = std::make_shared<int>(0);
  const auto pending = [&calls, held](auto&&...) {
    ++calls;
  };
  for (int i = 0; i < 300; ++i) // more than may be in flight
    other.async_read(place, pending);
  alock lock(other, remote_ptr<alock_words>(host_id, 0, 128));
  lock.async_lock(pending);
  other.async_join(w.host.local_endpoint(), pending);
  other.async_allocate<word>(host_id, 0, pending);
  io.reset();
  while (w.io.poll() != 0)
    continue;
  const int refused = w.dev.has_atomics() ? 0 : 1; // the lock is refused at once
  CHECK(calls == refused);
  CHECK(held.use_count() == 2);
  CHECK(w.ask<word>([&](auto h) { other.async_read(place, h); }).ec);
  CHECK(w.ask<node_id>([&](auto h) { other.async_join(w.host.local_endpoint(), h); }).ec);
  CHECK(w.ask<remote_ptr<word>>([&](auto h) { other.async_allocate<word>(host_id, 0, h); }).ec);
  CHECK(w.ask<remote_ptr<word>>([&](auto h) { other.async_allocate<word>(shared_id, 0, h); }).ec);
  CHECK(w.ask<alock_guard>([&](auto h) { lock.async_lock(h); }).ec);
  error_code ec;
  other.listen({device_address(w.dev), 0}, ec);
  CHECK(ec);
  global_memory anew(w.io, other, sharing(1));
  CHECK(w.join(anew).value == host_id);
}

TEST_CASE("locks are taken by objects that share lanes") {
  world w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<alock_words>();
  const auto raised = w.make<shared_word<word>>();
  on_thread first(w.pool, 1), second(first, 1);
  std::thread serves([&] { w.io.run(); });
  first.memory.async_join(w.host.local_endpoint(), asio::use_future).get();
  constexpr int times = 50;
  const auto raise = [&](global_memory& m) -> asio::awaitable<void> {
    alock lock(m, at);
    for (int i = 0; i < times; ++i) {
      alock_guard held = co_await lock.async_lock(asio::use_awaitable);
      const word seen = co_await m.async_read(raised, asio::use_awaitable);
      co_await m.async_write(raised, seen + 1, asio::use_awaitable);
      co_await lock.async_unlock(std::move(held), asio::use_awaitable);
    }
  };
  std::vector<std::future<void>> all;
  for (on_thread* const one : {&first, &second})
    for (int i = 0; i < 2; ++i)
      all.push_back(asio::co_spawn(one->io, raise(one->memory), asio::use_future));
  for (auto& one : all)
    one.get();
  CHECK(w.host.local(raised)->load() == 4 * times);
  asio::post(w.io, [&] {
    w.guest.close();
    w.host.close();
  });
  serves.join();
}

} // namespace test::global_lanes_tests
