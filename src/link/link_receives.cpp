// SPDX-License-Identifier: BSL-1.0
// The receives of a link: its own, or shared with others.
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "link/link_impl.hpp"

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {

void link_receive::run(operation* base, disposal how) {
  auto& self = static_cast<link_receive&>(*base);
  self.link_.on_receive(self, how);
}

link_end::link_end(link_impl& link) noexcept : operation(&link_end::run), link_(link) {
  internal = true;
}

void link_end::run(operation* base, disposal how) {
  static_cast<link_end&>(*base).link_.on_end(how);
}

error_code link_impl::make_receives() {
  error_code ec;
  options_.receives = std::min(options_.receives, qp_->options().receive_depth);
  starved_.reserve(options_.receives); // so that adding a slot never fails
  for (std::uint32_t i = 0; i < options_.receives && !ec; ++i) {
    receives_.push_back(std::make_unique<link_receive>(*this, i));
    if (!receives_.back()->fill(pool_, options_.receive_size))
      ec = receives_.back()->ec;
  }
  return ec;
}

// From here on the link keeps itself alive until its queue pair has ended.
error_code link_impl::begin(std::shared_ptr<shared_receives_impl> shared) {
  turn t(*this);
  t.changed();
  if (shared) {
    shared->add(*this, qp_->number());
    shared_ = std::move(shared);
    posted();
    if (!qp_->start_last(end_)) {
      --posted_;
      shared_->remove(*this, qp_->number(), shared_->options().per_link, 0);
      left_ = true;
      fail(end_.ec);
    }
  }
  for (std::uint32_t i = 0; i < receives_.size() && !failing(); ++i)
    post_receive(i);
  return reason_;
}

bool link_impl::post_receive(std::uint32_t slot) {
  link_receive& r = *receives_[slot];
  if (!r.fill(pool_, options_.receive_size)) {
    starved_.push_back(slot);
    look_for_memory();
    return false;
  }
  posted();
  if (qp_->start(static_cast<receive_operation&>(r)))
    return true;
  --posted_;
  fail(r.ec);
  return false;
}

// A link that has left the shared receives no longer counts on any.
void link_impl::free_receive(std::uint32_t slot) {
  if (!shared_) {
    if (post_receive(slot))
      link_->reposted();
    return;
  }
  shared_receive& r = shared_->receive(slot);
  in_hands_.erase(operation_list::s_iterator_to(r));
  --hands_;
  link_->freed();
  shared_->give_back(r, !left_ && link_->below_promise());
  if (shared_->starved())
    look_for_memory();
}

// A pool does not report freed memory, and the peer may be waiting, so this polls.
void link_impl::look_for_memory() {
  constexpr std::chrono::milliseconds pause(10);
  if (failing())
    return;
  call_at(timer::memory, protocol_clock::now() + pause, [](link_impl& self) {
    if (self.shared_ && self.shared_->starved())
      self.look_for_memory(); // in case `run`, which follows, finds no memory
  });
}

void link_impl::take_receives() {
  if (!shared_) {
    while (!starved_.empty()) {
      const std::uint32_t slot = starved_.back();
      starved_.pop_back();
      if (!post_receive(slot)) // other receives have the same size and would fail too
        return;
      link_->reposted();
    }
    return;
  }
  if (shared_->starved())
    shared_->refill();
  while (link_->wants_receive()) {
    if (shared_->take(link_->below_promise())) {
      link_->granted();
    } else {
      if (link_->below_promise())
        shared_->wait(*this);
      return;
    }
  }
}

void link_impl::on_shared_receive(shared_receive& r) {
  turn t(*this);
  probe_.saw_sign();
  bool taken = false;
  do_or_fail([&] { taken = link_ && link_->on_received(r.slot, received_bytes(r)); });
  if (taken) {
    frames_received_.add();
    in_hands_.push_back(r);
    ++hands_;
  } else {
    shared_->discard(r);
  }
  if (shared_->starved())
    do_or_fail([this] { look_for_memory(); });
  if (std::exchange(holding_, false))
    qp_->release();
  t.run_event();
}

// `why` is this link's own reason, or more precise than the error that its queue pair will report.
void link_impl::on_shared_failure(const error_code& why) {
  turn t(*this);
  fail(why);
  t.run();
}

void link_impl::on_shared_found() { turn(*this).run(); }

} // namespace asio_rdma::detail
