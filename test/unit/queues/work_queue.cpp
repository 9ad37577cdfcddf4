// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include <boost/asio/error.hpp>

#include "queues/work_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

using namespace asio_rdma;
using namespace asio_rdma::detail;

namespace {

struct test_operation final : operation {
  explicit test_operation(std::uint64_t n) : operation([](operation*, disposal) {}) { id = n; }
  bool silent = true;
};

using ids = std::vector<std::uint64_t>;

ids ids_of(const operation_list& list) {
  ids result;
  for (const operation& op : list)
    result.push_back(op.id);
  return result;
}

/// A queue whose device is a list of chains. It refuses the work requests that the test names.
class test_queue final : public work_queue {
public:
  test_queue(detail::mutex& m, std::uint32_t depth, bool ordered)
      : work_queue(m, depth), ordered_(ordered) {}

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

  detail::mutex mutex;
  const std::lock_guard<detail::mutex> lock{mutex};
  test_queue queue;
  operation_list ready;
  std::vector<std::unique_ptr<test_operation>> ops;
};

const error_code no_memory{ENOMEM, boost::system::system_category()};
const error_code aborted = asio::error::operation_aborted;

std::function<int(std::uint64_t)> refusing(ids which) {
  return [which](std::uint64_t id) {
    return std::find(which.begin(), which.end(), id) != which.end() ? ENOMEM : 0;
  };
}

} // namespace

TEST_CASE("operations are posted one by one while there is room") {
  fixture f(3);
  CHECK(f.queue.empty());
  f.start(1, 3);
  CHECK(f.queue.chains == std::vector<ids>{{1}, {2}, {3}});
  CHECK(f.queue.any_posted());
  CHECK(f.op(1).queue == &f.queue);
  CHECK(f.queue.is_posted(2));
}

TEST_CASE(
    "a full send queue is no error: operations beyond its depth wait and are posted in order") {
  fixture f(2);
  f.start(1, 6);
  CHECK(f.queue.chains == std::vector<ids>{{1}, {2}});
  CHECK_FALSE(f.queue.is_posted(3));

  f.complete(1);
  CHECK(ids_of(f.ready) == ids{1});
  CHECK(f.queue.chains.back() == ids{3});
  f.complete(2);
  f.complete(3);
  f.complete(4);
  f.complete(5);
  f.complete(6);
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4, 5, 6});
  CHECK(f.queue.most_posted == 2);
  CHECK(f.queue.empty());
}

TEST_CASE("an operation does not overtake those that wait, even with room") {
  fixture f(4);
  f.queue.hold();
  f.start(1, 1);
  operation_list failed;
  f.queue.hold();
  f.queue.release(failed);
  f.start(2, 2); // still held once
  CHECK(f.queue.chains.empty());
  f.queue.release(failed);
  f.start(3, 3);
  CHECK(f.queue.chains == std::vector<ids>{{1, 2}, {3}});
  CHECK(failed.empty());
}

TEST_CASE("depth 1: one at a time") {
  fixture f(1);
  f.start(1, 4);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    CHECK(f.queue.is_posted(i));
    f.complete(i);
  }
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4});
  CHECK(f.queue.chains == std::vector<ids>{{1}, {2}, {3}, {4}});
  CHECK(f.queue.most_posted == 1);
}

TEST_CASE("a completion retires the unsignaled operations before it, in order, and posts as many") {
  fixture f(4);
  f.start(1, 8);
  f.complete(3);
  CHECK(ids_of(f.ready) == ids{1, 2, 3});
  CHECK(f.queue.retired == ids{1, 2, 3});
  CHECK(f.queue.chains.back() == ids{5, 6, 7}); // one chain
  CHECK(f.queue.most_posted == 4);
  f.complete(7);
  CHECK(f.queue.chains.back() == ids{8});
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("completions of a batch are neither reversed nor dropped after the first match") {
  fixture f(8);
  f.queue.hold();
  f.start(1, 8);
  operation_list failed;
  f.queue.release(failed);
  REQUIRE(f.queue.chains == std::vector<ids>{{1, 2, 3, 4, 5, 6, 7, 8}});
  for (std::uint64_t i = 1; i <= 8; ++i)
    f.complete(i);
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("receives may complete out of order: only the completed one is retired") {
  fixture f(3, false);
  f.start(1, 4);
  f.complete(2);
  CHECK(ids_of(f.ready) == ids{2});
  CHECK(f.queue.is_posted(1));
  CHECK(f.queue.is_posted(3));
  CHECK(f.queue.is_posted(4));
  f.complete(4);
  f.complete(1);
  f.complete(3);
  CHECK(ids_of(f.ready) == ids{2, 4, 1, 3});
}

TEST_CASE("a batch longer than the queue's depth is posted as room appears") {
  fixture f(3);
  f.queue.hold();
  f.start(1, 7);
  operation_list failed;
  f.queue.release(failed);
  CHECK(f.queue.chains == std::vector<ids>{{1, 2, 3}});
  f.complete(3);
  CHECK(f.queue.chains.back() == ids{4, 5, 6});
  f.complete(6);
  CHECK(f.queue.chains.back() == ids{7});
}

TEST_CASE("while held, completions make room but post nothing") {
  fixture f(2);
  f.start(1, 4);
  f.queue.hold();
  f.complete(2);
  CHECK(f.queue.chains == std::vector<ids>{{1}, {2}});
  operation_list failed;
  f.queue.release(failed);
  CHECK(f.queue.chains.back() == ids{3, 4});
}

TEST_CASE("a refused post gives the error back and keeps no trace of the operation") {
  fixture f(2);
  f.queue.refuse = refusing({1});
  CHECK_FALSE(f.queue.start(f.op(1)));
  CHECK(f.op(1).ec == no_memory);
  CHECK(f.queue.empty());
  CHECK_FALSE(f.queue.is_posted(1));
  f.start(2, 3); // the whole depth is still free
  CHECK(f.queue.is_posted(2));
  CHECK(f.queue.is_posted(3));
}

TEST_CASE("a refusal in the middle of a chain fails that operation alone") {
  fixture f(8);
  f.queue.hold();
  f.start(1, 5);
  f.queue.refuse = refusing({3});
  operation_list failed;
  f.queue.release(failed);
  CHECK(f.queue.chains == std::vector<ids>{{1, 2}, {4, 5}});
  CHECK(ids_of(failed) == ids{3});
  CHECK(f.op(3).ec == no_memory);
  for (const std::uint64_t n : ids{1, 2, 4, 5}) {
    CHECK(f.queue.is_posted(n));
    f.complete(n);
    CHECK_FALSE(f.op(n).ec);
  }
  CHECK(f.queue.empty());
}

TEST_CASE("refusals at the first and the last of a chain, and of all of it") {
  const ids refused = GENERATE(ids{1}, ids{4}, ids{1, 4}, ids{1, 2, 3, 4}, ids{2, 3});
  fixture f(4);
  f.queue.hold();
  f.start(1, 4);
  f.queue.refuse = refusing(refused);
  operation_list failed;
  f.queue.release(failed);
  CHECK(ids_of(failed) == refused);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    const bool was = std::find(refused.begin(), refused.end(), n) != refused.end();
    CHECK(f.queue.is_posted(n) != was);
  }
  // No room is lost.
  f.queue.refuse = nullptr;
  f.start(5, 4 + refused.size());
  for (std::uint64_t n = 5; n <= 4 + refused.size(); ++n)
    CHECK(f.queue.is_posted(n));
  CHECK(f.queue.most_posted <= 4);
}

TEST_CASE(
    "a refusal while a completion posts waiting operations is returned with the completed ones") {
  fixture f(2);
  f.start(1, 5);
  f.queue.refuse = refusing({3});
  f.complete(2);
  CHECK(ids_of(f.ready) == ids{1, 2, 3});
  CHECK_FALSE(f.op(2).ec);
  CHECK(f.op(3).ec == no_memory);
  CHECK(f.queue.is_posted(4));
  CHECK(f.queue.is_posted(5));
}

TEST_CASE("a waiting operation can be removed, a posted one cannot") {
  fixture f(2);
  f.start(1, 5);
  CHECK(f.queue.remove_waiting(1) == nullptr);
  CHECK(f.queue.remove_waiting(17) == nullptr);
  CHECK(f.queue.remove_waiting(4) == &f.op(4));
  CHECK(f.queue.remove_waiting(4) == nullptr);
  f.complete(1);
  f.complete(2);
  CHECK(f.queue.is_posted(3));
  CHECK(f.queue.is_posted(5));
}

TEST_CASE("failing the waiting operations leaves the posted ones") {
  fixture f(2);
  f.start(1, 4);
  f.queue.fail_waiting(aborted, f.ready);
  CHECK(ids_of(f.ready) == ids{3, 4});
  CHECK(f.op(3).ec == aborted);
  CHECK(f.op(4).ec == aborted);
  CHECK(f.queue.is_posted(1));
  CHECK_FALSE(f.op(1).ec);
  f.complete(1);
  f.start(5, 5);
  CHECK(f.queue.is_posted(5));
}

TEST_CASE("failing all gives each operation the error once, in order, and all the room back") {
  fixture f(3);
  f.start(1, 5);
  f.complete(1);
  f.queue.fail_all(aborted, f.ready);
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4, 5});
  CHECK_FALSE(f.op(1).ec);
  for (std::uint64_t n = 2; n <= 5; ++n)
    CHECK(f.op(n).ec == aborted);
  CHECK(f.queue.retired == ids{1, 2, 3, 4});
  CHECK(f.queue.empty());
  CHECK_FALSE(f.queue.any_posted());
  f.start(6, 8);
  CHECK(f.queue.posted_now == 3);
}

TEST_CASE("the short way: posted by the owner, completed at the front") {
  fixture f(2);
  CHECK(f.queue.may_post());
  f.queue.posting(f.op(1));
  CHECK(f.op(1).queue == &f.queue);
  f.queue.posted(f.op(1));
  CHECK(f.queue.room() == 1);
  CHECK(f.queue.may_post());
  f.queue.posting(f.op(2));
  f.queue.posted(f.op(2));
  CHECK_FALSE(f.queue.may_post());
  CHECK(f.queue.room() == 0);
  CHECK_FALSE(f.queue.complete_oldest(f.op(2), f.ready)); // not the oldest
  CHECK(f.queue.complete_oldest(f.op(1), f.ready));
  CHECK(ids_of(f.ready) == ids{1});
  CHECK(f.queue.may_post());

  f.start(3, 4); // 4 waits
  CHECK_FALSE(f.queue.may_post());
  CHECK_FALSE(f.queue.complete_oldest(f.op(2), f.ready)); // would forget it
  f.complete(2);
  CHECK(f.queue.is_posted(4));
  f.complete(4);
  CHECK(ids_of(f.ready) == ids{1, 2, 3, 4});
  CHECK(f.queue.empty());

  f.queue.hold();
  CHECK_FALSE(f.queue.may_post());
  operation_list failed;
  f.queue.release(failed);
  CHECK(f.queue.may_post());
}

TEST_CASE("operations that waited and were removed, failed or refused no longer keep others from "
          "the device") {
  const int how = GENERATE(0, 1, 2);
  fixture f(1);
  f.start(1, 2);
  if (how == 0)
    CHECK(f.queue.remove_waiting(2) == &f.op(2));
  else if (how == 1)
    f.queue.fail_waiting(aborted, f.ready);
  else
    f.queue.refuse = refusing({2});
  f.complete(1);
  CHECK(f.queue.may_post());
  f.queue.refuse = nullptr;
  f.start(3, 3);
  CHECK(f.queue.is_posted(3));
  f.queue.fail_all(aborted, f.ready);
  CHECK(f.queue.may_post());
}

TEST_CASE("any interleaving keeps the order, the depth and every operation") {
  // Completions in the order of a small generator here: the same run each time.
  const bool ordered = GENERATE(true, false);
  const std::uint32_t depth = GENERATE(1u, 2u, 7u);
  detail::mutex m;
  const std::lock_guard<detail::mutex> lock(m);
  test_queue queue(m, depth, ordered);
  std::uint32_t random = 12345;
  const auto roll = [&random](std::uint32_t n) {
    random = random * 1664525 + 1013904223;
    return (random >> 16) % n;
  };
  std::vector<std::unique_ptr<test_operation>> ops;
  operation_list ready;
  std::size_t rejected = 0, holds = 0;
  const std::uint64_t total = 2000;
  const auto complete_one = [&] {
    ids now;
    for (const auto& o : ops)
      if (queue.is_posted(o->id))
        now.push_back(o->id);
    if (!now.empty())
      queue.complete(*ops[now[roll(static_cast<std::uint32_t>(now.size()))]], ready);
    return !now.empty();
  };
  queue.refuse = [&](std::uint64_t) {
    return roll(10) == 0 ? ENOMEM : 0;
  };
  while (ops.size() < total) {
    switch (roll(8)) {
    case 0:
      queue.hold();
      ++holds;
      break;
    case 1:
      if (holds != 0) {
        --holds;
        queue.release(ready);
      }
      break;
    case 2:
    case 3:
      complete_one();
      break;
    default:
      ops.push_back(std::make_unique<test_operation>(ops.size()));
      if (!queue.start(*ops.back()))
        ++rejected;
    }
    REQUIRE(queue.posted_now <= depth);
  }
  for (; holds != 0; --holds)
    queue.release(ready);
  while (complete_one())
    continue;
  CHECK(queue.empty());
  CHECK(ready.size() + rejected == total);
  // The device got the operations in the order in which they were started.
  ids posted;
  for (const ids& chain : queue.chains)
    posted.insert(posted.end(), chain.begin(), chain.end());
  CHECK(std::is_sorted(posted.begin(), posted.end()));
  if (ordered)
    CHECK(std::is_sorted(queue.retired.begin(), queue.retired.end()));
  CHECK(posted.size() == queue.retired.size());
}

TEST_CASE("a completion retires the unsignaled operations before it, and no signaled ones") {
  fixture f(4);
  for (const std::uint64_t n : ids{1, 3, 4})
    f.op(n).silent = false;
  f.start(1, 4);
  f.complete(3); // before 1, as siw does with a write behind a read
  CHECK(ids_of(f.ready) == ids{2, 3});
  CHECK(f.queue.is_posted(1));
  f.complete(1);
  f.complete(4);
  CHECK(ids_of(f.ready) == ids{2, 3, 1, 4});
  CHECK(f.queue.empty());
}

TEST_CASE("an operation that must wait for those before it is posted when they have completed") {
  fixture f(10);
  f.queue.apart = {3, 4, 6};
  f.signal_up_to(7);
  SECTION("one by one") {
    f.start(1, 7);
    CHECK(f.queue.chains == std::vector<ids>{{1}, {2}});
  }
  SECTION("gathered") {
    f.queue.hold();
    f.start(1, 7);
    f.queue.release(f.ready);
    CHECK(f.queue.chains == std::vector<ids>{{1, 2}});
  }
  SECTION("behind another operation that must wait") {
    f.queue.apart = {1, 2, 3, 4, 6};
    f.start(1, 7);
    CHECK(f.queue.chains == std::vector<ids>{{1}, {2}, {3}, {4}, {5}});
    return;
  }
  SECTION("behind an unsignaled one") {
    f.op(2).silent = true;
    f.start(1, 3);
    CHECK(f.queue.chains == std::vector<ids>{{1}, {2}});
    f.complete(1);
    CHECK(f.queue.chains.back() == ids{3});
    return;
  }
  f.complete(1);
  CHECK(f.queue.posted_now == 1);
  f.complete(2);
  CHECK(f.queue.chains.back() == ids{3, 4, 5});
  for (std::uint64_t n = 3; n <= 5; ++n)
    f.complete(n);
  CHECK(f.queue.chains.back() == ids{6, 7});
}

TEST_CASE("an operation of a kind with a limit holds back the operations behind it") {
  fixture f(10);
  f.queue.pairs = {1, 3, 4, 6};
  f.signal_up_to(7);
  SECTION("one by one") {
    f.start(1, 7);
    CHECK(f.queue.chains == std::vector<ids>{{1}, {2}, {3}});
  }
  SECTION("gathered") {
    f.queue.hold();
    f.start(1, 7);
    f.queue.release(f.ready);
    CHECK(f.queue.chains == std::vector<ids>{{1, 2, 3}});
  }
  f.complete(2); // not one of them
  CHECK(f.queue.posted_now == 2);
  f.complete(1);
  CHECK(f.queue.chains.back() == ids{4, 5});
  f.complete(5);
  f.complete(3);
  CHECK(f.queue.chains.back() == ids{6, 7});
}
