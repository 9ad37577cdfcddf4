// SPDX-License-Identifier: BSL-1.0
// Operations that are refused, removed or failed.
#include <catch.hpp>

#include <boost/asio/error.hpp>

#include "queues/work_queue.hpp"
#include "unit/queues/work_queue_fixture.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <vector>

namespace {

using namespace work_queue_test;

const error_code no_memory{ENOMEM, boost::system::system_category()};
const error_code aborted = asio::error::operation_aborted;

std::function<int(std::uint64_t)> refusing(ids which) {
  return [which](std::uint64_t id) {
    return std::find(which.begin(), which.end(), id) != which.end() ? ENOMEM : 0;
  };
}

} // namespace

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
