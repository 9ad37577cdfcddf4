// SPDX-License-Identifier: BSL-1.0
// The wait for a peer that takes no bytes, and the end of a stream.
#include "streams/stream_linger.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

// If the timer fires so late, the context may have been blocked.
constexpr std::chrono::milliseconds late(100);

// How long a stopped context gives the device, when the context is destroyed.
constexpr std::chrono::milliseconds last_sends(100);

// The least time for a peer to report how much of a withdrawn offer it has read.
constexpr std::chrono::milliseconds least_for_answer(1000);

} // namespace

void stream_impl::close() {
  bool lingers = true;
  {
    link_impl::visit v(link_);
    v.changed();
    if (!std::exchange(closed_, true))
      framed_before_close_ = bytes_ ? bytes_->framed() : 0;
    link_.run_parts_always(true); // the wait begins, also if the link has no news
    lingers = stream_options_.linger > stream_options_.linger.zero();
    wait_anew();
    withdraw_all(v.done);
  }
  closer_->stream = std::static_pointer_cast<stream_impl>(shared_from_this());
  if (lingers && link_.start_close(*closer_))
    return;
  closer_->stream.reset();
  link_.close();
}

// The new wait may be of another length.
void stream_impl::wait_anew() noexcept {
  waits_.reset();
  looking_ = false;
}

// Whether an open stream waits for the answer to a withdrawal. The peer's library sends that
// answer, not its application.
bool stream_impl::waits_for_answer() const noexcept { return !closed_ && bytes_->withdrawing(); }

// The longest time without progress of the peer. The linger option concerns a close only.
std::chrono::milliseconds stream_impl::patience() const noexcept {
  if (closed_)
    return stream_options_.linger;
  return waits_for_answer() ? std::max(usual_linger_, least_for_answer) : usual_linger_;
}

// A closed stream is work of the context that the program cannot end. So a peer must not only take
// some bytes from time to time, but many in all.
bool stream_impl::has_time() const noexcept {
  if (!closed_)
    return true;
  const std::uint64_t lingers =
      most_lingers + (bytes_->framed() - framed_before_close_) / bytes_of_linger;
  return waited_ < std::chrono::duration<double>(stream_options_.linger) * double(lingers);
}

// A wait of a closed stream has ended. It counts for two lingers at most, however long the context
// was blocked.
void stream_impl::count_wait(protocol_clock::time_point now) noexcept {
  if (closed_ && waits_)
    waited_ += std::min<protocol_clock::duration>(now - *waits_, 2 * patience());
}

// A peer that takes other bytes may still owe the answer. When a closed stream has had its time,
// the peer gives no further sign.
std::uint64_t stream_impl::signs_of_peer() const noexcept {
  if (!has_time())
    return signs_;
  return waits_for_answer() ? bytes_->answered() : bytes_->taken();
}

// Whether progress of the peer is still possible. Once asked, the peer has the same time again to
// answer.
bool stream_impl::may_progress(protocol_clock::time_point now) const noexcept {
  const auto limit = patience();
  return waits_ && limit != limit.zero() && (!asked_ || now - *asked_ < limit);
}

// Called when no action is left. Returns true if there is an action now.
bool stream_impl::wait_for_peer(operation_list& done) {
  assert(bytes_);
  // Bytes that wait for further writes are not yet the peer's concern, so the clock is not read.
  // The visit that follows is work of the context.
  if (bytes_->awaits_idle() && !closed_ && !bytes_->withdrawing() && !link_.failing())
    return false;
  const bool owes = bytes_->owes();
  const bool waits =
      owes || closed_ || waits_ || withdrawing_ || holder_->now != holder::state::idle;
  link_.run_parts_always(waits); // the end of any SEND may end the wait
  if (!waits) [[likely]]
    return false;
  if (bytes_->withdrawing() != withdrawing_) // the patience changes
    wait_anew();
  withdrawing_ = bytes_->withdrawing();
  bool possible = false;
  if ((!owes && !closed_) || link_.failing()) {
    waits_.reset();
  } else if (looking_ && waits_ && !asked_ && !closed_ && !bytes_->withdrawing()) {
    possible = true; // the clock is not read at each sign: `look` finds out whether there was one
  } else {
    const auto now = protocol_clock::now();
    if (!waits_ || signs_of_peer() != signs_) {
      count_wait(now);
      waits_ = now;
      asked_.reset();
    }
    signs_ = signs_of_peer();
    possible = may_progress(now);
    if (possible && !asked_ && now - *waits_ >= patience()) {
      asked_ = now;
      bytes_->ask();
      return true;
    }
  }
  // In mode `manual`, the end of the holder would wait for the user.
  const bool holds = owes && possible && link_.frames().sends_under_way() == 0 &&
                     link_.completion_queue().options().mode != completion_mode::manual;
  if (holds && holder_->now == holder::state::idle) {
    holder_->now = holder::state::holding;
    link_.operation_starting(*holder_);
  } else if (!holds && holder_->now == holder::state::holding) {
    holder_->now = holder::state::ending;
    holder_->stream = std::static_pointer_cast<stream_impl>(shared_from_this());
    done.push_back(*holder_);
  }
  if (possible && !looking_)
    look_later();
  return false;
}

void stream_impl::look() {
  looking_ = false;
  if (!waits_ || !asked_ || signs_of_peer() != signs_)
    return;
  const auto now = protocol_clock::now();
  const auto limit = patience();
  const auto waited = now - *asked_;
  if (waited < limit) // the wait has begun anew
    return;
  count_wait(now);
  // If the context was blocked, the signs may be unread.
  if (waited > limit + std::max(limit / 2, late) && has_time())
    waits_.reset();
  else if (closed_ || bytes_->withdrawing())
    link_.fail(asio::error::timed_out);
}

// Called by the stream's destructor too, so this does not throw.
void stream_impl::look_later() {
  try {
    link_.call_at(link_impl::timer::look, asked_.value_or(*waits_) + patience(),
                  [this] { look(); });
    looking_ = true;
  } catch (const std::bad_alloc&) {
    link_.fail(make_error_code(boost::system::errc::not_enough_memory));
  }
}

void stream_impl::set_linger(const asio::socket_base::linger& option) {
  link_impl::visit v(link_);
  linger_option_ = option;
  stream_options_.linger =
      option.enabled() ? limited(std::chrono::seconds(option.timeout())) : usual_linger_;
  wait_anew();
  v.advance();
}

asio::socket_base::linger stream_impl::linger() const {
  const auto guard = link_.lock();
  return linger_option_;
}

// Sends bytes that were written, as the kernel does for a socket. If the program has stopped the
// context, only what the device has already, and what it completes at once: no peer is waited for.
completion_queue_impl* stream_impl::last_work() {
  if (!is_closed())
    close();
  link_impl::visit v(link_);
  if (link_.check() || link_.frames().told_goodbye())
    return nullptr;
  const auto now = protocol_clock::now();
  if (!leaving_since_) {
    leaving_since_ = now;
    wait_anew();
  }
  v.advance();
  completion_queue_impl& queue = link_.completion_queue();
  const bool goes_on = queue.was_stopped() ? link_.frames().sends_under_way() != 0 &&
                                                 now - *leaving_since_ < last_sends
                                           : may_progress(now);
  return goes_on ? &queue : nullptr;
}

bool stream_impl::is_closed() const {
  const auto guard = link_.lock();
  return closed_;
}

} // namespace asio_rdma::detail
