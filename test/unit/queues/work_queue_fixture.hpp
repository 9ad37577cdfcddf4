// SPDX-License-Identifier: BSL-1.0
//
// A work queue whose device accepts or refuses each post.
#pragma once

#include <catch.hpp>

#include "queues/work_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace work_queue_test {

using namespace asio_rdma;
using namespace asio_rdma::detail;

struct test_operation final : operation {
  explicit test_operation(std::uint64_t n) : operation([](operation*, disposal) {}) { id = n; }
  bool silent = true;
};

using ids = std::vector<std::uint64_t>;

inline ids ids_of(const operation_list& list) {
  ids result;
  for (const operation& op : list)
    result.push_back(op.id);
  return result;
}

/// A queue whose device is a list of chains. It refuses the work requests that the test names.
class test_queue final : public work_queue {
public:
  test_queue(detail::biased_mutex& m, std::uint32_t depth, bool ordered)
      : work_queue(m, depth), ordered_(ordered) {}

  void let_some_wait() noexcept { ask_allowed_before(); }

  void on_completion(operation& op, const ibv_wc&, operation_list& ready) override {
    complete(op, ready);
  }
  bool start(operation& op) {
    operation_list ended;
    return work_queue::start(op, ended);
  }
  void complete(operation& op, operation_list& ready) {
    if (ordered_)
      complete_silent(op, &test_queue::is_silent, ready);
    work_queue::complete(op, ready);
  }

  std::vector<ids> chains;
  ids retired;
  std::function<int(std::uint64_t)> refuse; // gives an errno value, 0 to accept
  ids apart;                                // wait for those before, not for one another
  ids pairs;                                // at most two of them are posted at a time
  std::size_t most_posted = 0;              // the most that the device had at a time
  std::size_t posted_now = 0;

private:
  int post(operation_list::iterator first, operation_list::iterator last, operation*& failed,
           operation_list&) override {
    ids chain;
    for (auto i = first; i != last; ++i) {
      if (refuse) {
        if (const int e = refuse(i->id)) {
          if (!chain.empty())
            chains.push_back(chain);
          failed = &*i;
          return e;
        }
      }
      chain.push_back(i->id);
      most_posted = std::max(most_posted, ++posted_now);
    }
    chains.push_back(chain);
    return 0;
  }
  std::uint32_t allowed_before(const operation& op) const noexcept override {
    return is_in(apart, op) ? 0 : is_in(pairs, op) ? 1 : any_number;
  }
  bool waits_for(const operation& op, const operation& earlier) const noexcept override {
    return is_in(pairs, op) ? is_in(pairs, earlier) : !is_in(apart, earlier) && !is_silent(earlier);
  }
  static bool is_in(const ids& list, const operation& op) {
    return std::find(list.begin(), list.end(), op.id) != list.end();
  }
  static bool is_silent(const operation& op) {
    return static_cast<const test_operation&>(op).silent;
  }
  void on_retired(operation& op) noexcept override {
    retired.push_back(op.id);
    --posted_now;
  }

  bool ordered_;
};

struct fixture {
  explicit fixture(std::uint32_t depth, bool ordered = true) : queue(mutex, depth, ordered) {
    for (std::uint64_t i = 0; i <= 20; ++i)
      ops.push_back(std::make_unique<test_operation>(i));
  }
  test_operation& op(std::uint64_t n) { return *ops[n]; }
  void start(std::uint64_t first, std::uint64_t last) {
    for (; first <= last; ++first)
      REQUIRE(queue.start(op(first)));
  }
  void complete(std::uint64_t n) { queue.complete(op(n), ready); }
  /// The first operations have completions of their own.
  void signal_up_to(std::uint64_t last) {
    for (std::uint64_t n = 1; n <= last; ++n)
      op(n).silent = false;
  }

  detail::biased_mutex mutex;
  const std::lock_guard<detail::biased_mutex> lock{mutex};
  test_queue queue;
  operation_list ready;
  std::vector<std::unique_ptr<test_operation>> ops;
};

} // namespace work_queue_test
