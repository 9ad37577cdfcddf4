// SPDX-License-Identifier: BSL-1.0
#include "queues/completion_service.hpp"

#include <asio_rdma/completion_queue.hpp>

#include "core/ready_runner.hpp"
#include "verbs/device_watch.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <poll.h>
#include <stdexcept>
#include <utility>

namespace asio_rdma::detail {

asio::execution_context::id completion_service::id;

struct completion_service::runner final : ready_runner<operation_list> {
  explicit runner(completion_service& s) : ready_runner(s.context(), s.mutex_, s.ready_) {}

private:
  void complete(operation& op) override {
    struct work {
      scheduler& of;
      ~work() { of.work_finished(); }
    } const w{context_scheduler};
    op.dispose(disposal::complete_here);
  }
};

// A context shuts its services down in the reverse order of their creation. The reactor comes
// first, so that timers and descriptors of this service, and of those above it, are usable until
// these services have shut down: another thread may be ending their objects meanwhile.
completion_service::completion_service(asio::execution_context& context)
    : asio::execution_context::service(context), runner_(std::make_unique<runner>(*this)) {
  asio::use_service<asio::detail::reactor>(context);
}

completion_service::~completion_service() { drop_ready(); }

completion_service& completion_service::of(asio::execution_context& context) {
  return asio::use_service<completion_service>(context);
}

std::shared_ptr<completion_queue_impl>
completion_service::remember(std::shared_ptr<completion_queue_impl> q, error_code& ec) {
  if (ec)
    return nullptr;
  const std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const auto& w) { return w.expired(); });
  queues_.push_back(q);
  return q;
}

std::shared_ptr<completion_queue_impl>
completion_service::make_queue(const device& d, const completion_queue_options& options,
                               error_code& ec) {
  if (!d.is_open()) {
    ec = asio::error::bad_descriptor;
    return nullptr;
  }
  return remember(std::make_shared<completion_queue_impl>(*this, d, options, ec), ec);
}

std::shared_ptr<completion_queue_impl>
completion_service::adopt_queue(const device& d, const completion_queue_options& options,
                                ibv_cq* cq, ownership owns, error_code& ec) {
  ec.clear();
  if (!d.is_open())
    ec = asio::error::bad_descriptor;
  else if (cq == nullptr)
    ec = asio::error::invalid_argument;
  else if (cq->context != d.native_handle())
    ec = error::wrong_device;
  if (ec)
    return nullptr;
  auto q = remember(std::make_shared<completion_queue_impl>(*this, d, options, cq, ec), ec);
  if (q) // else the completion queue stays the caller's
    q->own(owns);
  return q;
}

std::shared_ptr<completion_queue_impl>
completion_service::use_queue(std::shared_ptr<completion_queue_impl> queue, const device& d,
                              std::uint32_t entries, error_code& ec) {
  if (!queue)
    return shared_queue(d, entries, ec);
  if (&queue->context() != &context())
    ec = asio::error::invalid_argument; // handlers would run on another context
  else if (queue->get_device() != d)
    ec = error::wrong_device;
  else if (!queue->reserve(entries))
    ec = error::completion_queue_full;
  if (ec)
    return nullptr;
  return queue;
}

std::shared_ptr<completion_queue_impl>
completion_service::shared_queue(const device& d, std::uint32_t entries, error_code& ec) {
  std::vector<std::shared_ptr<completion_queue_impl>> candidates;
  completion_queue_options options;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(shared_, [](const auto& w) { return w.expired(); });
    for (const auto& weak : shared_)
      if (auto q = weak.lock(); q && q->get_device() == d)
        candidates.push_back(std::move(q));
    options = defaults_;
  }
  for (const auto& q : candidates)
    if (q->reserve(entries))
      return q;
  options.entries = std::max(options.entries, entries);
  auto q = make_queue(d, options, ec);
  if (!q)
    return nullptr;
  if (!q->reserve(entries)) {
    ec = error::completion_queue_full;
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  shared_.push_back(q);
  return q;
}

void completion_service::set_default_options(const completion_queue_options& options) {
  const std::lock_guard lock(mutex_);
  defaults_ = options;
}

void completion_service::operation_starting() noexcept {
  runner_->context_scheduler.work_started();
}

bool completion_service::is_leaving() {
  const std::lock_guard lock(mutex_);
  return leaving_;
}

bool completion_service::has_stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

// Callers may hold locks, so no handler is called or destroyed here.
void completion_service::complete(operation_list& done) {
  const std::lock_guard lock(mutex_);
  ready_.splice(ready_.end(), done);
  if (!ready_.empty() && !stopped_)
    runner_->queue();
}

// Disposing of an internal operation may complete other operations.
void completion_service::drop_ready() {
  for (;;) {
    operation_list dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped.swap(ready_);
    }
    if (dropped.empty())
      return;
    while (!dropped.empty()) {
      operation& op = dropped.front();
      dropped.pop_front();
      op.dispose(disposal::destroy);
    }
  }
}

std::vector<completion_service::watched>::iterator
completion_service::find_watch(const device& d) noexcept {
  return std::find_if(watches_.begin(), watches_.end(),
                      [&d](const watched& w) { return w.watch->is_of(d); });
}

// A watch whose device was closed, or is being closed while a program adopts its ibv_context again.
// A reactor accepts a descriptor only once.
std::shared_ptr<device_watch> completion_service::take_useless_watch(int descriptor) noexcept {
  const auto found = std::find_if(watches_.begin(), watches_.end(), [=](const watched& w) {
    return w.members == 0 && (w.watch->is_over() || w.watch->descriptor() == descriptor);
  });
  if (found == watches_.end())
    return nullptr;
  auto result = std::move(found->watch);
  watches_.erase(found);
  return result;
}

// The entries by which a member gets the events of queue pairs. They are removed again, unless
// kept.
class completion_service::noting {
public:
  noting(completion_service& s, context_member& member) : service_(s), member_(&member) {
    s.observers_.reserve(s.observers_.size() + 1);
    member.queue_pair_ = member.member_queue_pair();
    if (member.queue_pair_ != nullptr)
      s.queue_pairs_.add(member.queue_pair_, member);
    if (member.observes_queue_pairs())
      s.observers_.push_back(&member);
  }
  noting(const noting&) = delete;
  ~noting() {
    if (member_ != nullptr)
      service_.forget(*member_);
  }
  void keep() noexcept { member_ = nullptr; }

private:
  completion_service& service_;
  context_member* member_;
};

void completion_service::forget(context_member& member) noexcept {
  if (member.queue_pair_ != nullptr)
    queue_pairs_.remove(member.queue_pair_, member);
  std::erase(observers_, &member);
}

// Without a member the watch stays. The program may have closed all its objects, and the device may
// keep memory of them until its removal is complete, which an event reports.
completion_service::adding completion_service::try_add(context_member& member, error_code& ec,
                                                       std::shared_ptr<device_watch>& left) {
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    ec = asio::error::bad_descriptor;
    return adding::failed;
  }
  const device& d = member.member_device();
  auto found = find_watch(d);
  std::shared_ptr<device_watch> fresh;
  if (found == watches_.end()) {
    left = take_useless_watch(d.native_handle()->async_fd);
    if (left)
      return adding::again;
    watches_.reserve(watches_.size() + 1);
    fresh = std::make_shared<device_watch>(context(), *this, d);
  }
  noting noted(*this, member); // before the watch starts, because a lack of memory would leave it
  if (fresh) {
    ec = fresh->start();
    if (ec)
      return adding::failed;
    found = watches_.insert(watches_.end(), {std::move(fresh)});
  }
  noted.keep();
  if (found->members++ == 0)
    found->watch->resume();
  members_.push_back(member);
  return adding::done;
}

// A watch that stops waits for an event that is being reported, so no mutex is locked then.
bool completion_service::add(context_member& member, error_code& ec) {
  for (;;) {
    std::shared_ptr<device_watch> left;
    const adding how = try_add(member, ec, left);
    if (how != adding::again)
      return how == adding::done;
    left->stop();
  }
}

// A reactor accepts a descriptor only once, so a watch that stops leaves it before another watch is
// created.
void completion_service::remove(context_member& member) noexcept {
  std::shared_ptr<device_watch> last;
  bool rests = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_)
      return;
    members_.erase(decltype(members_)::s_iterator_to(member));
    forget(member);
    const auto found = find_watch(member.member_device());
    assert(found != watches_.end() && found->members != 0);
    if (--found->members != 0)
      return;
    last = found->watch;
    rests = last->rest();
    if (!rests) {
      watches_.erase(found);
      last->leave();
    }
  }
  rests ? last->await_report() : last->stop();
}

// Passes the members for which `is` is true to `add`.
template <class Is, class Add>
void completion_service::pin_members(Is is, Add add) {
  for (context_member& member : members_)
    if (is(member))
      if (auto pinned = member.weak_from_this().lock())
        add(std::move(pinned));
}

void completion_service::find_members(leaving_members& result) noexcept {
  const std::lock_guard lock(mutex_);
  pin_members([](const context_member&) { return true; },
              [&](auto member) { result.add(std::move(member)); });
}

// While a watch stops, the next watch of the device may get the same event. Only the next one
// reports the event, because each member gets one report and can be in one list. Many queue pairs
// may end at once, and each has an event, so an event of a queue pair goes to its own member.
void completion_service::broadcast(const device_watch& from, const ibv_async_event& event,
                                   notified_objects& notified) noexcept {
  notified_objects own;
  {
    const std::lock_guard lock(mutex_);
    if (std::none_of(watches_.begin(), watches_.end(),
                     [&from](const watched& w) { return w.watch.get() == &from; }))
      return;
    const auto keep = [&](context_member& member) {
      if (from.is_of(member.member_device()))
        if (auto pinned = member.weak_from_this().lock())
          own.keep(std::move(pinned));
    };
    if (const ibv_qp* const qp = queue_pair_of(event)) {
      if (context_member* const member = queue_pairs_.find(qp))
        keep(*member);
      for (context_member* const member : observers_)
        keep(*member);
    } else {
      for (context_member& member : members_)
        keep(member);
    }
  }
  own.for_each(
      [&event](notified_object& o) { static_cast<context_member&>(o).on_device_event(event); });
  notified.take(own);
}

std::vector<std::shared_ptr<context_member>> completion_service::members() {
  std::vector<std::shared_ptr<context_member>> result;
  const std::lock_guard lock(mutex_);
  pin_members([](const context_member&) { return true; },
              [&](auto member) { result.push_back(std::move(member)); });
  return result;
}

std::vector<std::shared_ptr<completion_queue_impl>> completion_service::queues() {
  std::vector<std::shared_ptr<completion_queue_impl>> result;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : queues_)
    if (auto q = weak.lock())
      result.push_back(std::move(q));
  return result;
}

void completion_service::broadcast(const device& d, const ibv_async_event& event) {
  std::vector<std::shared_ptr<context_member>> members;
  {
    const std::lock_guard lock(mutex_);
    pin_members([&d](const context_member& m) { return m.member_device() == d; },
                [&](auto member) { members.push_back(std::move(member)); });
  }
  for (const auto& member : members)
    member->on_device_event(event);
}

// Without memory for the list of descriptors, the loop sleeps for a short time instead of waiting
// for them.
void completion_service::do_last_work(int other, const std::function<void()>& look) {
  constexpr int patience = 50, nap = 1; // ms
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(leaving_, true))
      for (const auto& weak : queues_)
        if (const auto q = weak.lock())
          q->on_leaving();
  }
  leaving_members members;
  find_members(members);
  std::vector<pollfd> descriptors;
  for (;;) {
    look();
    descriptors.clear();
    completion_queue_impl* last = nullptr;
    bool worked = false, all_wake = true;
    const auto wait_for = [&](int descriptor) {
      try {
        descriptors.push_back({descriptor, POLLIN, 0}); // poll(2) ignores negative descriptors
      } catch (const std::bad_alloc&) {
        all_wake = false;
      }
    };
    wait_for(other);
    members.for_each([&](context_member& member) {
      completion_queue_impl* const q = member.last_work();
      if (q == nullptr || q == last)
        return;
      last = q;
      const auto found = q->last_look();
      worked = worked || found.worked;
      all_wake = all_wake && found.descriptor >= 0;
      wait_for(found.descriptor);
    });
    if (last == nullptr)
      return;
    if (!worked)
      ::poll(descriptors.data(), descriptors.size(), all_wake ? patience : nap);
  }
}

void completion_service::shutdown() {
  do_last_work(-1, [] {});
  leaving_members members;
  find_members(members);
  std::vector<std::weak_ptr<completion_queue_impl>> queues;
  std::vector<watched> watches;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    members_.clear();
    queue_pairs_.clear();
    observers_.clear();
    queues.swap(queues_);
    watches.swap(watches_);
  }
  for (const watched& w : watches)
    w.watch->stop();
  members.for_each([](context_member& member) { member.on_context_shutdown(); });
  open_queues_->close();
  for (const auto& weak : queues)
    if (const auto q = weak.lock())
      q->shutdown();
  drop_ready();
}

} // namespace asio_rdma::detail

// --- The public class ----------------------------------------------------------------------------

namespace asio_rdma {

using detail::completion_service;

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   const completion_queue_options& options, error_code& ec)
    : impl_(completion_service::of(context).make_queue(d, options, ec)) {}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   const completion_queue_options& options) {
  error_code ec;
  impl_ = completion_service::of(context).make_queue(d, options, ec);
  detail::throw_if(ec, "ibv_create_cq");
}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   native_handle_type cq, ownership owns,
                                   const completion_queue_options& options, error_code& ec)
    : impl_(completion_service::of(context).adopt_queue(d, options, cq, owns, ec)) {}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   native_handle_type cq, ownership owns,
                                   const completion_queue_options& options) {
  error_code ec;
  impl_ = completion_service::of(context).adopt_queue(d, options, cq, owns, ec);
  detail::throw_if(ec, "completion_queue");
}

completion_queue::native_handle_type completion_queue::native_handle() const noexcept {
  return impl_ ? impl_->native_handle() : nullptr;
}

completion_mode completion_queue::mode() const noexcept { return impl_->options().mode; }

std::uint32_t completion_queue::entries() const noexcept { return impl_->options().entries; }

completion_counters completion_queue::counters() const noexcept { return impl_->counters(); }

std::size_t completion_queue::poll() { return impl_->poll(); }

void completion_queue::set_default_options(asio::execution_context& context,
                                           const completion_queue_options& options) {
  completion_service::of(context).set_default_options(options);
}

} // namespace asio_rdma
