// SPDX-License-Identifier: BSL-1.0
// The order in which operations are posted and completed.
#include <catch.hpp>

#include "queues/work_queue.hpp"
#include "unit/queues/work_queue_fixture.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

using namespace work_queue_test;

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

TEST_CASE("any interleaving keeps the order, the depth and every operation") {
  // Completions in the order of a small generator here: the same run each time.
  const bool ordered = GENERATE(true, false);
  const std::uint32_t depth = GENERATE(1u, 2u, 7u);
  detail::biased_mutex m;
  const std::lock_guard<detail::biased_mutex> lock(m);
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
  f.queue.let_some_wait();
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
  f.queue.let_some_wait();
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
