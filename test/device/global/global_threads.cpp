// SPDX-License-Identifier: BSL-1.0
// Objects of a global memory on strands of one context that several threads run.
#include "catch.hpp"
#include "device/global/global_support.hpp"
#include "device/locks/alock_support.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace test::global_threads_tests {
namespace {

using word = std::uint64_t;

/// A context that several threads run during the lifetime of this object, and then until it has no
/// work.
class threads {
public:
  explicit threads(int n) {
    for (int i = 0; i < n; ++i)
      all_.emplace_back([this] { io.run(); });
  }
  ~threads() { join(); }
  void join() {
    work_.reset();
    for (std::thread& t : all_)
      t.join();
    all_.clear();
  }

  asio::io_context io;

private:
  asio::executor_work_guard<asio::io_context::executor_type> work_{io.get_executor()};
  std::vector<std::thread> all_;
};

struct member {
  member(threads& t, world& w, node_id id) : memory(asio::make_strand(t.io), w.pool, id) {
    asio::co_spawn(memory.get_executor(), join(w), asio::use_future).get();
  }
  asio::awaitable<void> join(world& w) {
    co_await memory.async_join(w.host.local_endpoint(), asio::use_awaitable);
  }
  /// Works until an operation fails.
  asio::awaitable<error_code> work(remote_ptr<word> at, std::atomic<int>& done) {
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    for (;;) {
      co_await memory.async_write(at, 1, visibility::flushed, token);
      if (ec)
        co_return ec;
      co_await memory.async_read(at, token);
      if (ec)
        co_return ec;
      const auto p = co_await memory.async_allocate<word>(host_id, 0, token);
      if (ec)
        co_return ec;
      co_await memory.async_free(p, token);
      if (ec)
        co_return ec;
      ++done;
    }
  }
  void close() {
    asio::post(memory.get_executor(), [this] { memory.close(); });
  }

  global_memory memory;
};

/// The host's context, run by its own thread.
struct served : world {
  served() : thread([this] { io.run(); }) {}
  ~served() {
    end();
    thread.join();
  }
  void end() {
    asio::post(io, [this] {
      guest.close();
      host.close();
    });
  }
  std::thread thread;
};

void wait_for(const std::atomic<int>& n, int least) {
  while (n.load() < least)
    std::this_thread::yield();
}

} // namespace

TEST_CASE("one object is closed while others work, on many threads") {
  served w;
  threads t(3);
  std::vector<std::unique_ptr<member>> all;
  for (node_id id = 100; id < 103; ++id)
    all.push_back(std::make_unique<member>(t, w, id));
  std::atomic<int> done[3] = {};
  std::vector<std::future<error_code>> ends;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::uint64_t k = 0; k < 2; ++k)
      ends.push_back(
          asio::co_spawn(all[i]->memory.get_executor(),
                         all[i]->work(remote_ptr<word>(host_id, 0, 64 + 64 * i + 8 * k), done[i]),
                         asio::use_future));
  for (std::size_t i = 0; i < 3; ++i) {
    for (const auto& n : done)
      if (&n >= &done[i]) // objects that are open continue
        wait_for(n, n.load() + 20);
    all[i]->close();
    for (std::size_t k = 0; k < 2; ++k) {
      const error_code ec = ends[2 * i + k].get();
      CHECK((ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor));
    }
  }
  t.join();
}

TEST_CASE("the node of the memory ends while others work, on many threads") {
  served w;
  threads t(3);
  std::vector<std::unique_ptr<member>> all;
  std::atomic<int> done{0};
  std::vector<std::future<error_code>> ends;
  for (node_id id = 100; id < 103; ++id) {
    all.push_back(std::make_unique<member>(t, w, id));
    ends.push_back(asio::co_spawn(all.back()->memory.get_executor(),
                                  all.back()->work(remote_ptr<word>(host_id, 0, 64), done),
                                  asio::use_future));
  }
  wait_for(done, 50);
  w.end();
  for (auto& one : ends)
    CHECK(one.get());
  t.join();
}

TEST_CASE("a lock is taken by objects on many threads, one of which is closed meanwhile") {
  const bool closes = GENERATE(false, true);
  CAPTURE(closes);
  served w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  threads t(3);
  const auto at = remote_ptr<alock_words>(host_id, 0, 64);
  const auto p = remote_ptr<protectorate>(host_id, 0, 128);
  constexpr int times = 40;
  std::vector<std::unique_ptr<member>> all;
  std::vector<std::unique_ptr<tally>> tallies; // each is used by one strand
  std::vector<std::future<void>> ends;
  for (node_id id = 100; id < 104; ++id) {
    all.push_back(std::make_unique<member>(t, w, id));
    tallies.push_back(std::make_unique<tally>());
    ends.push_back(asio::co_spawn(all.back()->memory.get_executor(),
                                  raise(all.back()->memory, at, p, times, *tallies.back()),
                                  asio::use_future));
  }
  const auto& raised = w.host.local(p)->words[0];
  if (closes) {
    while (raised.load() < 10)
      std::this_thread::yield();
    all.front()->close();
  }
  for (auto& one : ends)
    one.get();
  int entered = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(tallies[i]->broken == 0);
    entered += tallies[i]->entered;
    if (closes && i != 0)
      CHECK((!tallies[i]->ec || tallies[i]->ec == error::owner_dead));
    else if (!closes)
      CHECK(!tallies[i]->ec);
  }
  if (!closes) {
    CHECK(entered == 4 * times);
    CHECK(raised.load() == word(entered));
  }
  for (const auto& one : all)
    one->close();
  t.join();
}

} // namespace test::global_threads_tests
