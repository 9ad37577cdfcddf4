// SPDX-License-Identifier: BSL-1.0
#include "core/background_calls.hpp"

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace test::background_calls_tests {
namespace {

using asio_rdma::detail::background_call;
using asio_rdma::detail::background_calls;

/// The calls of a test, which return when the test has called `let`.
class scene {
public:
  ~scene() { let(1000); }

  std::shared_ptr<background_call> call(std::uint64_t group) {
    return std::make_shared<one>(*this, group);
  }
  /// Lets further calls return.
  void let(std::size_t n) {
    const std::lock_guard lock(mutex_);
    may_return_ += n;
    changed_.notify_all();
  }
  void start(background_calls& calls, std::initializer_list<std::uint64_t> groups) {
    for (const std::uint64_t group : groups)
      REQUIRE_FALSE(calls.start(call(group)));
  }

  /// Whether calls of these groups have begun, in all, after some patience.
  bool begun(std::vector<std::uint64_t> groups) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30),
                      [&] { return begun_.size() >= groups.size(); });
    std::vector<std::uint64_t> found = begun_;
    std::sort(found.begin(), found.end());
    return found == groups;
  }

private:
  struct one final : background_call {
    one(scene& s, std::uint64_t g) : of(s), number(g) {}
    void run(const std::shared_ptr<background_call>&) noexcept override { of.run(number); }
    std::uint64_t group() const noexcept override { return number; }

    scene& of;
    const std::uint64_t number;
  };

  void run(std::uint64_t group) {
    std::unique_lock lock(mutex_);
    begun_.push_back(group);
    changed_.notify_all();
    changed_.wait(lock, [this] { return may_return_ != 0; });
    --may_return_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> begun_;
  std::size_t may_return_ = 0;
};

} // namespace

TEST_CASE("calls of one group leave threads to others") {
  background_calls calls(4, 2);
  scene s;
  s.start(calls, {1U, 1U, 1U, 1U, 2U});
  CHECK(s.begun({1, 1, 2}));
  s.let(1000);
  calls.finish();
  CHECK(s.begun({1, 1, 1, 1, 2}));
}

TEST_CASE("a thread makes the next call of the group with the fewest threads") {
  background_calls calls(2, 2);
  scene s;
  s.start(calls, {1U, 1U});
  CHECK(s.begun({1, 1}));
  s.start(calls, {1U, 2U, 2U});
  s.let(1);
  CHECK(s.begun({1, 1, 2}));
  s.let(1000);
  calls.finish();
  CHECK(s.begun({1, 1, 1, 2, 2}));
}

TEST_CASE("the last calls are made by more threads") {
  background_calls calls(2, 1);
  scene s;
  s.start(calls, {1U, 1U, 1U, 2U, 1U});
  CHECK(s.begun({1, 2}));
  std::thread finishing([&] { calls.finish(5); });
  CHECK(s.begun({1, 1, 1, 1, 2}));
  s.let(1000);
  finishing.join();
  CHECK(calls.start(s.call(1)) == boost::asio::error::operation_aborted);
}

TEST_CASE("a call that waits is taken back, and the others of its group are made") {
  background_calls calls(1);
  scene s;
  REQUIRE_FALSE(calls.start(s.call(9)));
  CHECK(s.begun({9}));
  std::vector<std::shared_ptr<background_call>> waiting;
  for (const std::uint64_t group : {1U, 1U, 1U, 2U})
    REQUIRE_FALSE(calls.start(waiting.emplace_back(s.call(group))));
  CHECK(calls.take_back(*waiting[0])); // the first of its group
  CHECK(calls.take_back(*waiting[2]));
  CHECK_FALSE(calls.take_back(*waiting[2]));
  s.let(1000);
  calls.finish();
  CHECK(s.begun({1, 2, 9}));
}

TEST_CASE("calls that no thread has begun are dropped at a stop") {
  background_calls calls(1);
  scene s;
  s.start(calls, {1U, 1U, 2U, 2U});
  CHECK(s.begun({1}));
  std::thread stopping([&] { calls.stop(); });
  while (!calls.start(s.call(3)))
    std::this_thread::yield();
  s.let(1000);
  stopping.join();
  CHECK(s.begun({1}));
}

} // namespace test::background_calls_tests
