// SPDX-License-Identifier: BSL-1.0
#include "link/receive_source.hpp"

#include "link/link_impl.hpp"
#include "link/shared_receives_impl.hpp"
#include "memory/memory_pool_impl.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {

// --- Own receives ----------------------------------------------------------------------------

void link_receive::run(operation* base, disposal how) {
  auto& self = static_cast<link_receive&>(*base);
  self.link_.on_receive(self, how);
}

error_code own_source::make() {
  error_code ec;
  link_.limit_receives(link_.queue_pair()->options().receive_depth);
  const std::uint32_t receives = link_.options().receives;
  receives_.reserve(receives);
  starved_.reserve(receives); // so that adding a slot never fails
  for (std::uint32_t i = 0; i < receives && !ec; ++i) {
    receives_.push_back(std::make_unique<link_receive>(link_, i));
    if (!receives_.back()->fill(link_.pool(), link_.options().receive_size))
      ec = receives_.back()->ec;
  }
  return ec;
}

void own_source::begin() {
  for (std::uint32_t i = 0; i < receives_.size() && !link_.failing(); ++i)
    post(i);
}

bool own_source::post(std::uint32_t slot) {
  assert(slot < receives_.size());
  link_receive& r = *receives_[slot];
  const std::uint32_t size = link_.receive_size();
  if (!r.fits(size) && !larger_.empty()) {
    r.replace(std::move(larger_.back()));
    larger_.pop_back();
  }
  if (!r.fill(link_.pool(), size)) {
    starved_.push_back(slot);
    link_.look_for_memory();
    return false;
  }
  link_.posting();
  if (link_.queue_pair()->start(static_cast<receive_operation&>(r)))
    return true;
  link_.not_posted();
  link_.fail(r.ec);
  return false;
}

// Allocates memory for all receives at once, so that no receive lacks memory afterwards. Not more
// than half of the pool's limit may then be in use.
bool own_source::grow(std::uint32_t size) {
  if (!link_.pool().impl()->leaves_half(std::uint64_t(size) * receives_.size()))
    return false;
  error_code ec;
  std::vector<registered_buffer> fresh;
  try {
    fresh.reserve(receives_.size());
  } catch (const std::bad_alloc&) {
    return false;
  }
  while (!ec && fresh.size() != receives_.size())
    fresh.push_back(link_.pool().allocate(size, ec));
  if (!ec) // otherwise the memory of an earlier growth is still needed
    larger_.swap(fresh);
  return !ec;
}

void own_source::free(std::uint32_t slot) {
  if (!link_.failing() && post(slot))
    link_.frames().reposted();
}

void own_source::take() {
  while (!starved_.empty()) {
    const std::uint32_t slot = starved_.back();
    starved_.pop_back();
    if (!post(slot)) // other receives have the same size and would fail too
      return;
    link_.frames().reposted();
  }
}

void own_source::drop_memory(dropped_blocks& to) {
  for (const auto& r : receives_)
    to.drop(r->memory);
  for (registered_buffer& memory : larger_)
    to.drop(memory);
}

// --- Shared receives -------------------------------------------------------------------------

link_end::link_end(shared_source& source) noexcept : operation(&link_end::run), source_(source) {
  internal = true;
}

void link_end::run(operation* base, disposal how) {
  static_cast<link_end&>(*base).source_.on_end(how);
}

shared_source::shared_source(link_impl& link, std::shared_ptr<shared_receives_impl> shared) noexcept
    : receive_source(link), shared_(std::move(shared)) {}

shared_source::~shared_source() {
  while (!in_hands_.empty()) {
    auto& r = static_cast<shared_receive&>(in_hands_.front());
    in_hands_.pop_front();
    shared_->give_back(r, false);
  }
  leave();
}

error_code shared_source::join() {
  const error_code ec = shared_->join();
  if (!ec)
    state_ = state::joined;
  return ec;
}

void shared_source::leave() noexcept {
  if (state_ != state::joined)
    return;
  shared_->leave();
  state_ = state::apart;
}

std::shared_ptr<shared_receive_queue_impl> shared_source::queue() const { return shared_->queue(); }

std::uint16_t shared_source::promise() const noexcept {
  return static_cast<std::uint16_t>(shared_->options().per_link);
}

void shared_source::begin() {
  assert(state_ == state::joined);
  shared_->add(*this, link_.queue_pair()->number());
  state_ = state::sharing;
  link_.posting();
  if (link_.queue_pair()->start_last(end_))
    return;
  link_.not_posted();
  shared_->remove(*this, link_.queue_pair()->number(), shared_->options().per_link, 0);
  state_ = state::left;
  link_.fail(end_.ec);
}

frame_receive& shared_source::receive(std::uint32_t slot) noexcept {
  return shared_->receive(slot);
}

// A link that has left the shared receives no longer counts on any.
void shared_source::free(std::uint32_t slot) {
  assert(hands_ != 0);
  shared_receive& r = shared_->receive(slot);
  in_hands_.erase(operation_list::s_iterator_to(r));
  --hands_;
  link_.frames().freed();
  shared_->give_back(r, state_ == state::sharing && link_.frames().below_promise());
  if (!link_.failing())
    take();
}

void shared_source::take() {
  if (shared_->starved()) {
    shared_->refill();
    if (shared_->starved())
      link_.look_for_memory(); // another link that looked may have ended
  }
  while (link_.frames().wants_receive()) {
    if (shared_->take(link_.frames().below_promise())) {
      link_.frames().granted();
    } else {
      if (link_.frames().below_promise())
        shared_->wait(*this);
      return;
    }
  }
}

bool shared_source::starved() const noexcept { return shared_->starved(); }

std::shared_ptr<shared_receives_impl> shared_source::waited_for() const {
  return is_waited_for() ? shared_ : nullptr;
}

bool shared_source::is_waited_for() const noexcept { return shared_->anyone_waits(); }

void shared_source::on_receive(shared_receive& r) {
  link_impl::visit v(link_);
  link_.saw_sign();
  bool taken = false;
  link_.do_or_fail([&] { taken = link_.take_frame(r); });
  if (taken) {
    in_hands_.push_back(r);
    ++hands_;
  } else {
    shared_->discard(r);
  }
  if (shared_->starved())
    link_.do_or_fail([this] { link_.look_for_memory(); });
  v.run();
}

void shared_source::on_found() { link_impl::visit(link_).run(); }

// Comes after all receives of the queue pair.
void shared_source::on_end(disposal how) {
  if (how == disposal::destroy)
    end_.fail(asio::error::operation_aborted);
  else
    link_.completion_queue().background_ending();
  link_.returned(how, [this](operation_list&) {
    link_.fail(end_.ec);
    state_ = state::left;
    shared_->remove(
        *this, link_.queue_pair()->number(),
        link_.knows_peer() ? link_.frames().flow().share() : shared_->options().per_link, hands_);
  });
}

} // namespace asio_rdma::detail
