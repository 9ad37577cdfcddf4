// SPDX-License-Identifier: BSL-1.0
// Handlers that block, throw or stop the context, beside idle threads: every kind of operation
// behaves as Asio's own operations do in the same program.
#include "catch.hpp"
#include "device/asio/asio_idle_kinds.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

namespace test::asio_idle_threads_tests {
namespace {

std::vector<kind> kinds() {
  std::vector<kind> all = asio_idle_objects::kinds();
  for (const auto& more :
       {asio_idle_manager::kinds(), asio_idle_links::kinds(), asio_idle_global::kinds()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The handlers that have begun, in their order.
class record {
public:
  void begin(int i) {
    const std::lock_guard lock(mutex_);
    begun_.push_back(i);
    changed_.notify_all();
  }
  /// Returns false only after a failure.
  bool wait_for(std::size_t n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return begun_.size() >= n; });
  }
  std::vector<int> begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> begun_;
};

std::vector<int> all_in_order() {
  std::vector<int> result(started_count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

/// The handlers that have begun; sorted if their order is not specified.
std::vector<int> begun_of(record& r, const kind& k) {
  auto result = r.begun();
  if (!k.ordered)
    std::sort(result.begin(), result.end());
  return result;
}

/// Threads that run a context. A thread that catches an exception does not run the context again.
class two_threads {
public:
  explicit two_threads(asio::io_context& io) : io_(io), work_(io.get_executor()) {
    for (int i = 0; i < 2; ++i)
      threads_.emplace_back([this] {
        try {
          io_.run();
        } catch (int) {
        }
      });
    for (int i = 0; i < 2; ++i) // both threads are in the context before any operation completes
      asio::post(io, [this] {
        there_.begin(0);
        there_.wait_for(2);
      });
    there_.wait_for(2);
  }
  ~two_threads() {
    work_.reset();
    io_.stop();
    for (std::thread& t : threads_)
      t.join();
  }

private:
  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  record there_;
  std::vector<std::thread> threads_;
};

} // namespace

TEST_CASE(
    "a handler that blocks until all others have begun does not keep an idle thread from them") {
  const kind k = GENERATE(from_range(kinds()));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  constexpr int blocks = 1;
  for (int i = 0; i < started_count; ++i)
    ops->start([&r, i] {
      r.begin(i);
      if (i == blocks)
        r.wait_for(started_count);
    });
  {
    const two_threads threads(io);
    ops->complete();
    CHECK(r.wait_for(started_count));
  }
  auto begun = begun_of(r, k);
  CHECK(std::erase(begun, blocks) == 1);
  auto others = all_in_order();
  std::erase(others, blocks);
  CHECK(begun == others);
}

TEST_CASE(
    "a handler that lets operations complete and waits for them has them run by an idle thread") {
  const kind k = GENERATE(from_range(kinds()));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  for (int i = 0; i < started_count; ++i)
    ops->start([&r, i] { r.begin(i); });
  bool all = false;
  record over;
  {
    const two_threads threads(io);
    asio::post(io, [&] {
      ops->complete();
      all = r.wait_for(started_count);
      over.begin(0);
    });
    over.wait_for(1);
  }
  CHECK(all);
  CHECK(begun_of(r, k) == all_in_order());
}

TEST_CASE("handlers behind one that throws are run by an idle thread") {
  const kind k = GENERATE(from_range(kinds()));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  constexpr int throws = 1;
  for (int i = 0; i < started_count; ++i)
    ops->start([&r, i] {
      r.begin(i);
      if (i == throws)
        throw i;
    });
  {
    const two_threads threads(io);
    ops->complete();
    CHECK(r.wait_for(started_count));
  }
  auto begun = begun_of(r, k);
  CHECK(std::erase(begun, throws) == 1);
  auto others = all_in_order();
  std::erase(others, throws);
  CHECK(begun == others);
}

TEST_CASE("run_one runs one handler, and after stop none begins") {
  const kind k = GENERATE(from_range(kinds()));
  const bool stops = GENERATE(false, true);
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  for (int i = 0; i < started_count; ++i)
    ops->start([&, i] {
      r.begin(i);
      if (stops)
        io.stop();
    });
  ops->complete();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::size_t most = 0;
  for (std::size_t before = 0;
       before < started_count && std::chrono::steady_clock::now() < give_up;) {
    if (stops) {
      io.restart();
      io.run();
    } else {
      io.run_one();
    }
    const std::size_t after = r.begun().size();
    most = std::max(most, after - before);
    before = after;
  }
  CHECK(most == 1);
  CHECK(begun_of(r, k) == all_in_order());
}

} // namespace test::asio_idle_threads_tests
