// SPDX-License-Identifier: BSL-1.0
#include "streams/stream_impl.hpp"

#include "streams/stream_bytes.hpp"
#include "streams/stream_linger.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {
namespace {

// The number of READs that are posted at a time beside the frames.
constexpr std::uint32_t reads = 9;

link_options link_options_of(const stream_options& o) {
  link_options result;
  result.receives = o.receives;
  result.receive_size = o.receive_size;
  result.max_receive_size = o.max_receive_size;
  result.sends = o.sends;
  result.keep_alive = o.keep_alive;
  result.read_timeout = o.read_timeout;
  result.own_domain = o.own_domain;
  result.queue_pair = o.queue_pair;
  result.queue_pair.send_depth = o.sends + reads;
  return result;
}

} // namespace

stream_impl::stream_impl(const asio::any_io_executor& ex, const memory_pool& pool,
                         const stream_options& o)
    : link_session(asio::query(ex, asio::execution::context), pool, handshake::kind::stream,
                   link_options_of(o)),
      stream_options_(o),
      usual_linger_(limited(o.linger)),
      linger_option_(false, 0),
      closer_(std::make_unique<closer>()),
      holder_(std::make_unique<holder>()) {
  stream_options_.linger = usual_linger_;
}

stream_impl::~stream_impl() = default;

error_code stream_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  return link_.open(std::move(queue));
}

error_code stream_impl::open(const std::shared_ptr<shared_receives_impl>& shared) {
  const error_code ec = link_.open(shared);
  stream_options_.receives = link_.options().receives;
  stream_options_.receive_size = link_.options().receive_size;
  stream_options_.max_receive_size = link_.options().max_receive_size;
  return ec;
}

void stream_impl::make_parts(frame_link& frames, const handshake& peer) {
  stream_limits o;
  o.reads = peer.max_reads != 0 && link_.announced_reads() != 0;
  o.blocks = stream_options_.sends;
  o.at_once = frame_transfer::payload_room;
  o.inbox.read_ahead = std::max<std::uint64_t>(
      o.inbox.read_ahead, std::uint64_t(stream_options_.receives) * stream_options_.receive_size);
  // If a later step throws, the frames are destroyed. The protocol uses the frames, so it is
  // created last.
  blocks_.resize(o.blocks);
  direct_ = std::make_unique<direct_pull>(*this);
  bytes_.emplace(frames, o, link_.completion_queue().rounds());
  bytes_->set_no_delay(no_delay_);
}

void stream_impl::on_connected(const connection_info& info) {
  {
    const auto guard = link_.lock();
    info_ = info;
    known_ = true;
  }
  link_.on_connected(info.remote);
}

// --- Starting --------------------------------------------------------------------------------

bool stream_impl::begin(stream_reading& op) {
  op.ec = {};
  if (op.size == 0 && op.request.what == stream_read::kind::copy)
    return false;
  op.ec = bytes_ ? error_code() : link_.check();
  if (!op.ec && !known_)
    op.ec = asio::error::not_connected;
  if (!op.ec && closed_) // the receives may have been released
    op.ec = asio::error::operation_aborted;
  if (!op.ec && !link_.is_usable(op.memory))
    op.ec = asio::error::invalid_argument;
  if (!op.ec && op.device_only) // the bytes may be in a receive already
    op.ec = asio::error::operation_not_supported;
  if (op.ec) {
    if (op.request.what == stream_read::kind::wait)
      op.ec = {};
    return false;
  }
  op.request.capacity = op.request.what == stream_read::kind::copy ? op.size : ~std::uint64_t(0);
  op.request.op = &op;
  op.request.direct =
      !op.blocking_ && op.part_count == 1 && op.size >= bytes_->direct_from() && find_keys(op);
  return true;
}

bool stream_impl::run_at_once(stream_reading& op, operation_list& done) {
  stream_action a;
  op.request.done = 0;
  while (bytes_->read_at_once(op.request, a))
    take(a);
  if (op.request.done == 0)
    return false;
  ended(op, op.request.done, done);
  return true;
}

void stream_impl::enqueue(stream_reading& op) { bytes_->read(op.request); }

bool stream_impl::begin(stream_writing& op) {
  const bool waits = op.request.what == stream_write::kind::wait;
  op.ec = {};
  if (op.size == 0 && !waits)
    return false;
  if (!known_ || !bytes_) {
    if (!waits)
      op.ec = asio::error::broken_pipe;
    return false;
  }
  if (!link_.is_usable(op.memory)) {
    op.ec = asio::error::invalid_argument;
    return false;
  }
  if (op.device_only) {
    if (!lend(op)) {
      op.ec = asio::error::operation_not_supported;
      return false;
    }
  } else if (!waits && !op.blocking_) {
    choose_way(op);
  }
  op.request.bytes = waits ? 1 : op.size;
  op.request.op = &op;
  return true;
}

bool stream_impl::run_at_once(stream_writing& op, operation_list& done) {
  if (op.request.what != stream_write::kind::copy || !link_.connected())
    return false;
  const link_action a = bytes_->write_at_once(op.request);
  if (a.what == link_action::kind::none)
    return false;
  link_.send(a); // if this fails, so does the link, and not the write
  ended(op, op.request.done, done);
  return true;
}

void stream_impl::enqueue(stream_writing& op) { bytes_->write(op.request); }

bool stream_impl::begin(stream_error_wait& op) {
  op.ec = {};
  return known_ && !link_.check();
}

// Sends registered memory in place (`lend`), unless a frame copies the bytes anyway.
void stream_impl::choose_way(stream_writing& op) const {
  op.request.whole = op.registered;
  if (op.size <= frame_transfer::payload_room || op.part_count > link_.frame_views() ||
      !find_keys(op))
    return;
  if (bytes_->lends(op.size, op.part_count == 1))
    op.request.what = stream_write::kind::lend;
  else
    op.request.whole = true;
}

// Sends device-only memory in place. A blocking write cannot: its operation ends with the call.
bool stream_impl::lend(stream_writing& op) const {
  if (op.blocking_ || !op.registered || link_.copies_frames())
    return false;
  if (op.part_count > (bytes_->offers(op.size) ? 1 : link_.frame_views())) {
    op.part_count = 1; // only contiguous memory is offered
    op.size = op.parts[0].length;
  }
  op.request.what = stream_write::kind::lend;
  op.request.in_place = true;
  return true;
}

// Whether all buffers lie in registered memory.
bool stream_impl::find_keys(stream_operation& op) const {
  if (op.registered)
    return true;
  for (std::size_t i = 0; i < op.part_count; ++i) {
    ibv_sge& part = op.parts[i];
    const auto found = link_.pool().find(reinterpret_cast<const void*>(part.addr), part.length);
    if (!found)
      return false;
    part.lkey = found->lkey();
  }
  return true;
}

template <class Op>
bool stream_impl::start_op(Op& op) {
  link_impl::visit v(link_);
  if (!begin(op))
    return false;
  link_.operation_starting(op);
  run_or_enqueue(op, v);
  return true;
}

bool stream_impl::start(stream_reading& op) { return start_op(op); }
bool stream_impl::start(stream_writing& op) { return start_op(op); }
bool stream_impl::start(stream_error_wait& op) { return start_op(op); }

// --- Carrying out actions --------------------------------------------------------------------

bool stream_impl::run_parts(operation_list& done) {
  assert(link_.is_locked());
  if (!bytes_)
    return false;
  if (link_.failing() || link_.has_failed_queue_pair())
    bytes_->copy_no_more();
  bool any = false;
  while (bytes_->has_news()) {
    const stream_action a = bytes_->next();
    if (a.what == stream_action::kind::none)
      break;
    any = true;
    run_action(a, done);
    if (link_.frames().has_news() && bytes_->has_news())
      return true;
  }
  if (error_waits_ == 0 || !link_.frames().stopped())
    return wait_for_peer(done) || any;
  const auto i = std::find_if(active_.begin(), active_.end(), [](const operation& op) {
    return static_cast<const stream_operation&>(op).what == stream_operation::kind::error;
  });
  finish(static_cast<stream_operation&>(*i), {}, 0, done);
  return true;
}

void stream_impl::run_action(const stream_action& a, operation_list& done) {
  switch (a.what) {
  case stream_action::kind::fill:
    return fill(a);
  case stream_action::kind::freed:
    (a.block != nullptr ? blocks_[a.block->index] : chunks_[a.chunk->index]->memory) = {};
    return;
  case stream_action::kind::expose:
    return expose(*a.write);
  case stream_action::kind::pull:
    return pull(a);
  case stream_action::kind::pull_direct:
    return pull_direct(a);
  case stream_action::kind::stop:
    return direct_->stop();
  case stream_action::kind::await_idle:
    return link_.visit_when_idle();
  case stream_action::kind::wrote:
    return end_write(*static_cast<stream_writing::request_type&>(*a.write).op, done);
  case stream_action::kind::take:
    take(a);
    if (!a.last)
      return;
    [[fallthrough]];
  case stream_action::kind::read:
    return finish(*static_cast<stream_reading::request_type&>(*a.read).op, a.read->ec, a.read->done,
                  done);
  case stream_action::kind::none:
    return;
  }
}

void stream_impl::on_idle(bool quiet) {
  if (bytes_)
    bytes_->on_idle(quiet);
}

// The peer's access ends before the operation completes.
void stream_impl::end_write(stream_writing& op, operation_list& done) {
  if (!link_.begin_end(op))
    finish(op, op.request.ec, op.request.done, done);
}

void stream_impl::on_key_ended(offered& o, operation_list& done) {
  auto& op = static_cast<stream_writing&>(o);
  finish(op, op.request.ec, op.request.done, done);
}

// Ends an operation that the protocol has forgotten, before it had an effect.
void stream_impl::end_withdrawn(stream_operation& op, operation_list& done) {
  if (op.what == stream_operation::kind::write)
    link_.drop_offer(static_cast<stream_writing&>(op), op.memory);
  finish(op, asio::error::operation_aborted, 0, done);
}

void stream_impl::finish(stream_operation& op, const error_code& ec, std::uint64_t bytes,
                         operation_list& done) {
  active_.erase(operation_list::s_iterator_to(op));
  error_waits_ -= op.what == stream_operation::kind::error;
  op.ec = ec && closed_ && ec != error::device_keeps_memory
              ? error_code(asio::error::operation_aborted)
              : ec;
  if (op.what == stream_operation::kind::write) {
    auto& w = static_cast<stream_writing&>(op);
    link_.count_sent(w.request.taken());
    if (!link_.end_offer(w, w.memory, w.access))
      op.ec = error::device_keeps_memory;
  }
  ended(op, bytes, done);
}

// The operation has its error, and is in no list.
void stream_impl::ended(stream_operation& op, std::uint64_t bytes, operation_list& done) {
  link_.drop(op.access);
  link_.drop(op.memory);
  op.value = bytes;
  if (op.blocking_) {
    op.finished_ = true;
    if (op.waiter_ != nullptr)
      op.waiter_->wake();
  } else {
    done.push_back(op);
  }
}

// --- Cancelling ------------------------------------------------------------------------------

// Returns false if the operation continues.
bool stream_impl::withdraw_op(stream_operation& op) {
  if (op.what == stream_operation::kind::read)
    return bytes_->cancel(static_cast<stream_reading&>(op).request);
  if (op.what == stream_operation::kind::write)
    return bytes_->cancel(static_cast<stream_writing&>(op).request);
  return true;
}

void stream_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  link_impl::visit v(link_);
  const auto found = std::find_if(active_.begin(), active_.end(),
                                  [id](const operation& op) { return op.id == id; });
  if (found == active_.end())
    return;
  auto& op = static_cast<stream_operation&>(*found);
  if (op.what == stream_operation::kind::write &&
      link_impl::is_ending(static_cast<stream_writing&>(op))) {
    if ((type & asio::cancellation_type::terminal) != asio::cancellation_type::none)
      link_.fail(asio::error::operation_aborted); // only the end of the key is outstanding
    return v.run();
  }
  if (!may_leave_effects(type) && op.what == stream_operation::kind::write &&
      bytes_->has_begun(static_cast<stream_writing&>(op).request))
    return;
  if (withdraw_op(op))
    end_withdrawn(op, v.done);
  v.advance();
}

void stream_impl::withdraw_all(operation_list& done) {
  for (auto i = active_.begin(); i != active_.end();) {
    auto& op = static_cast<stream_operation&>(*i++);
    if (withdraw_op(op))
      end_withdrawn(op, done);
  }
}

void stream_impl::cancel() {
  link_impl::visit v(link_);
  withdraw_all(v.done);
  v.advance();
}

// --- State -----------------------------------------------------------------------------------

std::size_t stream_impl::available() {
  look_here();
  link_impl::visit v(link_);
  v.advance();
  return bytes_ ? bytes_->available() : 0;
}

error_code stream_impl::shutdown(asio::socket_base::shutdown_type what) {
  link_impl::visit v(link_);
  if (!known_ || !bytes_)
    return asio::error::not_connected;
  if (link_.frames().stopped()) // after the peer's close nothing is left to shut down
    return link_.frames().said_goodbye() ? error_code() : error_code(asio::error::not_connected);
  if (what != asio::socket_base::shutdown_receive)
    bytes_->shut_down_writes();
  if (what != asio::socket_base::shutdown_send)
    bytes_->shut_down_reads();
  v.advance();
  return {};
}

error_code stream_impl::endpoint(endpoint_type& result, bool remote) const {
  const auto guard = link_.lock();
  result = remote ? info_.remote : info_.local;
  return known_ || !remote ? error_code() : error_code(asio::error::not_connected);
}

void stream_impl::set_no_delay(bool on) {
  link_impl::visit v(link_);
  no_delay_ = on;
  if (bytes_)
    bytes_->set_no_delay(on);
  v.advance();
}

bool stream_impl::no_delay() const {
  const auto guard = link_.lock();
  return no_delay_;
}

} // namespace asio_rdma::detail
