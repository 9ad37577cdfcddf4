// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/scatter_gather.hpp>
#include <asio_rdma/shared_receives.hpp>

#include "link/link_impl.hpp"
#include "link/shared_receives_impl.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace asio_rdma::detail {
namespace {

// The number of completion queue entries that a link's queue pair usually needs. Determines the
// size of a new completion queue.
constexpr std::uint64_t entries_of_link = 32;

shared_receive_queue_options queue_options(const shared_receives_options& o) {
  shared_receive_queue_options result;
  result.depth = o.receives;
  result.max_sge = 1;
  return result;
}

} // namespace

// --- Receives --------------------------------------------------------------------------------

void shared_receive::run(operation* base, disposal how) {
  auto& self = static_cast<shared_receive&>(*base);
  self.owner_.on_receive(self, how);
}

// Internal operations of a completion queue are disposed of one after another. The last operation
// of a link's queue pair, which removes the link, follows the receives of that queue pair: a link
// that is found here is alive.
void shared_receives_impl::on_receive(shared_receive& r, disposal how) {
  if (how != disposal::destroy)
    srq_->completion_queue()->background_ending();
  std::shared_ptr<shared_receives_impl> last;
  shared_source* link = nullptr;
  const error_code ec = r.ec; // saved: `r` may be posted again and complete on another thread
  {
    const std::lock_guard guard(mutex_);
    unposted(last);
    if (how == disposal::destroy || closed_)
      return;
    const auto found = links_.find(r.qp_num);
    if (found != links_.end())
      link = found->second.front();
    // A receive that a queue pair took but did not fill, or one of an unknown queue pair.
    if (ec || link == nullptr)
      post(r);
  }
  if (link == nullptr)
    return;
  if (!ec)
    link->on_receive(r);
  else if (ec.category() == completion_category())
    link->link().end(ec); // more precise than the error that its queue pair will report
}

void shared_receives_impl::unposted(std::shared_ptr<shared_receives_impl>& last) {
  if (--posted_ == 0)
    last = std::move(self_);
}

// A refused receive is retried like one without memory. If the queue has failed, its queue pairs
// end, and so do the links.
bool shared_receives_impl::post(shared_receive& r) {
  if (closed_)
    return false;
  if (r.fill(pool_, options_.receive_size)) {
    if (posted_++ == 0)
      self_ = shared_from_this();
    if (srq_->start(r))
      return true;
    std::shared_ptr<shared_receives_impl> last;
    unposted(last); // the caller keeps this object alive
  }
  starved_.push_back(r.slot);
  starving_ = true;
  shares_.lost();
  return false;
}

void shared_receives_impl::refill() {
  const std::lock_guard guard(mutex_);
  while (!starved_.empty()) {
    const std::uint32_t slot = starved_.back();
    starved_.pop_back();
    shares_.found();
    if (!post(receives_[slot])) // other receives have the same size and would fail too
      return;
  }
  starving_ = false;
}

// --- Opening and closing ---------------------------------------------------------------------

/// The object that users share. Posted receives keep only `impl` alive.
struct shared_receives_impl::user {
  explicit user(std::shared_ptr<shared_receives_impl> i) noexcept : impl(std::move(i)) {}
  user(const user&) = delete;
  ~user() { impl->end(); }

  std::shared_ptr<shared_receives_impl> impl;
};

std::shared_ptr<shared_receives_impl>
shared_receives_impl::make(asio::execution_context& context, const memory_pool& pool,
                           std::shared_ptr<completion_queue_impl> queue,
                           const shared_receives_options& options, error_code& ec) {
  const auto impl = std::make_shared<shared_receives_impl>(context, pool, options);
  const auto users = std::make_shared<user>(impl);
  ec = impl->open(std::move(queue));
  if (ec)
    return nullptr;
  return {users, impl.get()};
}

shared_receives_impl::shared_receives_impl(asio::execution_context& context,
                                           const memory_pool& pool,
                                           const shared_receives_options& options)
    : context_(context),
      pool_(pool),
      options_(options),
      srq_(std::make_shared<shared_receive_queue_impl>(context, pool.get_protection_domain(),
                                                       queue_options(options))),
      shares_(0, 0) {}

shared_receives_impl::~shared_receives_impl() = default;

error_code shared_receives_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  if (options_.per_link < credits::minimum || options_.per_link > options_.receives ||
      options_.per_link > std::numeric_limits<std::uint16_t>::max() ||
      options_.receive_size < frame_link::min_receive_size)
    return asio::error::invalid_argument;
  error_code ec;
  if (!queue && pool_.get_protection_domain().is_open()) {
    const device& d = pool_.get_protection_domain().get_device();
    const std::uint64_t links = options_.receives / options_.per_link;
    const auto entries = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(options_.receives + links * entries_of_link,
                                static_cast<std::uint32_t>(std::max(d.attributes().max_cqe, 1))));
    queue = completion_service::of(context_).use_queue(nullptr, d, entries, ec);
    if (ec)
      return ec;
    queue->unreserve(entries);
  }
  ec = srq_->open(std::move(queue));
  if (ec)
    return ec;
  srq_->completion_queue()->expect_internal();
  const std::lock_guard guard(mutex_);
  options_.receives = std::min(options_.receives, srq_->options().depth);
  shares_ = receive_shares(options_.receives, options_.per_link);
  starved_.reserve(options_.receives); // so that adding a slot never fails
  for (std::uint32_t i = 0; i < options_.receives; ++i)
    if (!receives_.emplace_back(*this, i).fill(pool_, options_.receive_size))
      return receives_.back().ec;
  for (shared_receive& r : receives_)
    if (!post(r))
      return r.ec;
  return {};
}

bool shared_receives_impl::is_open() const {
  const std::lock_guard guard(mutex_);
  return !closed_;
}

void shared_receives_impl::end() {
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
  }
  srq_->close();
}

// Call with the mutex locked.
std::vector<std::shared_ptr<link_impl>> shared_receives_impl::links() const {
  std::vector<std::shared_ptr<link_impl>> result;
  for (const auto& [number, links] : links_)
    for (shared_source* const share : links)
      result.push_back(share->link().reference());
  return result;
}

void shared_receives_impl::close() {
  std::vector<std::shared_ptr<link_impl>> users;
  {
    const std::lock_guard guard(mutex_);
    if (closed_)
      return;
    users = links(); // may throw
    closed_ = true;
  }
  for (const auto& link : users)
    link->end(error::shared_receives_closed);
  srq_->close();
}

shared_receives_statistics shared_receives_impl::statistics() const {
  const std::lock_guard guard(mutex_);
  shared_receives_statistics result;
  result.links = shares_.links();
  result.room = shares_.unclaimed() / options_.per_link;
  result.posted = posted_;
  result.missing = shares_.missing();
  result.unconfirmed = srq_->unconfirmed();
  return result;
}

// --- Links -----------------------------------------------------------------------------------

error_code shared_receives_impl::join() {
  if (starved()) // there may be no link that looks for memory
    refill();
  const std::lock_guard guard(mutex_);
  if (closed_)
    return error::shared_receives_closed;
  return shares_.join() ? error_code() : error_code(error::shared_receives_full);
}

void shared_receives_impl::leave() {
  const std::lock_guard guard(mutex_);
  shares_.leave(options_.per_link, 0);
}

void shared_receives_impl::add(shared_source& link, std::uint32_t queue_pair) {
  const std::lock_guard guard(mutex_);
  std::vector<shared_source*> only{&link};
  const auto [place, added] = links_.try_emplace(queue_pair, std::move(only));
  if (!added)
    place->second.push_back(&link);
}

void shared_receives_impl::remove(shared_source& link, std::uint32_t queue_pair,
                                  std::uint32_t share, std::uint32_t kept) {
  const std::lock_guard guard(mutex_);
  shares_.leave(share, kept);
  std::erase(waiting_, &link);
  const auto found = links_.find(queue_pair);
  std::erase(found->second, &link);
  if (found->second.empty())
    links_.erase(found);
}

bool shared_receives_impl::take(bool below_promise) {
  const std::lock_guard guard(mutex_);
  return shares_.take(below_promise);
}

void shared_receives_impl::give_back(shared_receive& r, bool below_promise) {
  const std::lock_guard guard(mutex_);
  shares_.give_back(below_promise);
  post(r);
}

void shared_receives_impl::discard(shared_receive& r) {
  const std::lock_guard guard(mutex_);
  post(r);
}

void shared_receives_impl::wait(shared_source& link) {
  const std::lock_guard guard(mutex_);
  if (std::find(waiting_.begin(), waiting_.end(), &link) == waiting_.end())
    waiting_.push_back(&link);
  waits_ = true;
}

void shared_receives_impl::wake() {
  for (;;) {
    shared_source* share = nullptr;
    std::shared_ptr<link_impl> link;
    {
      const std::lock_guard guard(mutex_);
      waits_ = !waiting_.empty();
      if (waiting_.empty() || !shares_.any_left())
        return;
      share = waiting_.back();
      link = share->link().reference();
      waiting_.pop_back();
    }
    share->on_found();
  }
}

} // namespace asio_rdma::detail

namespace asio_rdma {

shared_receives::shared_receives(asio::execution_context& context, const memory_pool& pool,
                                 const completion_queue& queue,
                                 const shared_receives_options& options, error_code& ec)
    : impl_(detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec)) {}

shared_receives::shared_receives(asio::execution_context& context, const memory_pool& pool,
                                 const completion_queue& queue,
                                 const shared_receives_options& options) {
  error_code ec;
  impl_ = detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec);
  detail::throw_if(ec, "shared_receives");
}

bool shared_receives::is_open() const noexcept { return impl_ != nullptr && impl_->is_open(); }

const memory_pool& shared_receives::pool() const noexcept { return impl_->pool(); }

const shared_receives_options& shared_receives::options() const noexcept {
  return impl_->options();
}

shared_receives_statistics shared_receives::statistics() const { return impl_->statistics(); }

void shared_receives::close() {
  if (impl_)
    impl_->close();
}

} // namespace asio_rdma
