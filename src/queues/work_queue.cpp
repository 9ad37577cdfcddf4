// SPDX-License-Identifier: BSL-1.0
#include "queues/work_queue.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <iterator>

namespace asio_rdma::detail {

// `before`: the end of the waiting operations that will be posted before `op`.
bool work_queue::must_wait(const operation& op,
                           operation_list::const_iterator before) const noexcept {
  if (!asks_allowed_before_)
    return false;
  const std::uint32_t allowed = allowed_before(op);
  if (allowed == any_number)
    return false;
  const auto waited_for = [this, &op](const operation& earlier) {
    return waits_for(op, earlier);
  };
  return std::count_if(posted_.begin(), posted_.end(), waited_for) +
             std::count_if(waiting_.begin(), before, waited_for) >
         std::ptrdiff_t(allowed);
}

bool work_queue::start(operation& op, operation_list& ended) {
  assert(mutex_.is_locked());
  if (depth_ == 0) {
    op.fail(asio::error::invalid_argument);
    return false;
  }
  if (!may_post() || (used_ != 0 && must_wait(op, waiting_.begin()))) {
    wait(op);
    return true;
  }
  posting(op);
  posted(op);
  const auto first = std::prev(posted_.end());
  operation* failed = nullptr;
  const int e = post(first, posted_.end(), failed, ended);
  if (e == 0)
    return true;
  posted_.erase(first);
  --used_;
  op.fail(system_error_code(e));
  on_refused(op, ended);
  return false;
}

void work_queue::release(operation_list& ended) {
  assert(mutex_.is_locked() && holds_ != 0 && blocked_ >= holds_);
  --blocked_;
  if (--holds_ == 0)
    post_waiting(ended);
}

void work_queue::post_again() noexcept {
  assert(mutex_.is_locked() && holds_ != 0);
  waiting_.splice(waiting_.begin(), posted_);
  blocked_ += used_;
  used_ = 0;
}

void work_queue::post_waiting(operation_list& ended) {
  while (!waiting_.empty() && used_ != depth_ && holds_ == 0) {
    auto last = waiting_.end();
    std::uint32_t n = blocked_; // without holds, the number of waiting operations
    if (n > room() || asks_allowed_before_)
      for (n = 0, last = waiting_.begin();
           last != waiting_.end() && used_ + n != depth_ && !must_wait(*last, last); ++last)
        ++n;
    if (n == 0)
      return;
    const auto first = waiting_.begin();
    posted_.splice(posted_.end(), waiting_, first, last);
    used_ += n;
    blocked_ -= n;
    operation* bad = nullptr;
    const int e = post(first, posted_.end(), bad, ended);
    if (e == 0)
      continue;
    assert(bad != nullptr);
    // The operations behind the refused one are queued again in order. `on_refused` decides whether
    // they fail, too.
    const auto refused = operation_list::s_iterator_to(*bad);
    const auto behind = std::next(refused);
    const auto unposted = static_cast<std::uint32_t>(std::distance(refused, posted_.end()));
    used_ -= unposted;
    blocked_ += unposted - 1;
    waiting_.splice(waiting_.begin(), posted_, behind, posted_.end());
    posted_.erase(refused);
    bad->fail(system_error_code(e));
    ended.push_back(*bad);
    on_refused(*bad, ended);
  }
}

void work_queue::complete(operation& op, operation_list& ready) {
  assert(mutex_.is_locked() && used_ != 0 && op.queue.load() == this);
  --used_;
  on_retired(op);
  ready.splice(ready.end(), posted_, operation_list::s_iterator_to(op));
  if (!waiting_.empty())
    post_waiting(ready);
}

void work_queue::complete_silent(const operation& op, bool (*is_silent)(const operation&),
                                 operation_list& ready) {
  for (auto i = posted_.begin(); i != posted_.end() && &*i != &op;) {
    const auto before = i++;
    if (!is_silent(*before)) // it has its own completion, which siw may report later
      continue;
    assert(used_ != 0);
    --used_;
    on_retired(*before);
    ready.splice(ready.end(), posted_, before);
  }
}

operation* work_queue::remove_waiting(std::uint64_t id) noexcept {
  assert(mutex_.is_locked());
  const auto i = std::find_if(waiting_.begin(), waiting_.end(),
                              [id](const operation& op) { return op.id == id; });
  if (i == waiting_.end())
    return nullptr;
  operation& op = *i;
  const bool only = i == waiting_.begin();
  if (&op == &waiting_.back() && !(only && posted_.empty()) &&
      !may_become_last(only ? posted_.back() : *std::prev(i), only))
    return nullptr;
  waiting_.erase(i);
  assert(blocked_ > holds_);
  --blocked_;
  return &op;
}

bool work_queue::is_posted(std::uint64_t id) const noexcept {
  return std::any_of(posted_.begin(), posted_.end(),
                     [id](const operation& op) { return op.id == id; });
}

bool work_queue::is_waiting(std::uint64_t id) const noexcept {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [id](const operation& op) { return op.id == id; });
}

void work_queue::fail_waiting(const error_code& ec, operation_list& ready) noexcept {
  assert(mutex_.is_locked());
  for (operation& op : waiting_)
    op.fail(ec);
  blocked_ = holds_;
  ready.splice(ready.end(), waiting_);
}

void work_queue::fail_all(const error_code& ec, operation_list& ready) noexcept {
  for (operation& op : posted_) {
    on_retired(op);
    if (!op.ec || ec == error::device_keeps_memory) // else its own completion has failed
      op.fail(ec);
  }
  used_ = 0;
  ready.splice(ready.end(), posted_);
  fail_waiting(ec, ready);
}

} // namespace asio_rdma::detail
