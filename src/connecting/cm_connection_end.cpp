// SPDX-License-Identifier: BSL-1.0
// The end of an attempt, of a connection, and of their ids.
#include "connecting/cm_connection.hpp"

#include "connecting/cm_connect_call.hpp"
#include "connecting/cm_device.hpp"
#include "connecting/handshake.hpp"
#include "core/logging.hpp"
#include "core/probe.hpp"

#include <cassert>
#include <new>
#include <string>
#include <utility>

namespace asio_rdma::detail {
namespace {

void destroy(rdma_cm_id*& id) noexcept {
  if (id != nullptr)
    rdma_destroy_id(std::exchange(id, nullptr));
}

} // namespace

cm_connection::~cm_connection() {
  if (unheard_)
    unheard_->under_way.end(*this);
  destroy(id_);
  destroy(lingering_);
}

void cm_connection::leftovers::destroy_ids() noexcept {
  destroy_ids_here();
  destroy(unused);
  if (!ended.empty())
    service->end_ids(ended);
}

void cm_connection::leftovers::destroy_ids_here() noexcept {
  while (ended_here.pop()) {
  }
}

// From here on the queue pair's context reads the events of the connection. Called in the last
// event that was read, so all events are acknowledged.
error_code cm_connection::move_home(leftovers& left) noexcept {
  assert(home_ != nullptr && id_ != nullptr);
  if (home_ == service_)
    return {};
  if (!left.home.begun())
    return asio::error::operation_aborted; // that context is being destroyed
  if (const error_code ec = home_->adopt_id(id_))
    return ec;
  service_ = home_;
  gate_ = home_gate_;
  return {};
}

// Gives the operation its result. After a failure the id is retired. The queue pair can be used for
// another attempt unless it has left its initial state.
void cm_connection::finish(const error_code& result, leftovers& left) noexcept {
  assert(mutex_.held() && op_ != nullptr && left.done == nullptr);
  ++attempt_;
  timer_.reset();
  const bool has_effects = end_has_effects();
  connect_operation& op = *std::exchange(op_, nullptr);
  if (id_ != nullptr && in_event_) {
    op.info.local = scoped_endpoint(*id_, rdma_get_local_addr(id_));
    op.info.remote = scoped_endpoint(*id_, rdma_get_peer_addr(id_));
  }
  auto data = request_.id != nullptr ? request_.data.bytes() : reply_.bytes();
  if (op.target)
    data = program_data(data);
  op.info.data.assign(data.begin(), data.end()); // the memory is reserved
  op.ec = result ? result : move_home(left);
  ASIO_RDMA_PROBE(connect, qp_->number(), op.ec.value(), request_.id != nullptr ? 1 : 0);
  if (request_.id != nullptr) {
    count_accept(op.ec);
  } else {
    log_connect(op.ec);
    op.ec = with_endpoint(op.ec);
  }
  left.done = &op;
  if (!result && op.ec)
    rdma_disconnect(id_); // the peer is connected, or about to be
  if (!op.ec) {
    state_ = state::established;
    qp_->connected(reads_out_);
    left.connected = std::move(op.target);
    return;
  }
  left.dropped = std::move(op.target);
  left.detached = std::move(qp_);
  if (has_effects) {
    left.failed = left.detached;
    left.why = asio::error::connection_reset;
  }
  retire_id(left);
  state_ = state::closed;
}

namespace {

const char* text_of(acceptor_tallies::counter what) noexcept {
  if (what == &acceptor_tallies::refused_backlog)
    return "the backlog is full";
  if (what == &acceptor_tallies::refused_incompatible)
    return "the peer's protocol is another one";
  if (what == &acceptor_tallies::refused_admission)
    return "accept_options::admit does not admit it";
  if (what == &acceptor_tallies::rejected)
    return "the program rejects the request";
  return what == &acceptor_tallies::aborted ? "the connector has given up"
                                            : "the request cannot be accepted here";
}

} // namespace

// Each request is counted once.
void cm_connection::count(acceptor_tallies::counter what, const error_code& why,
                          const char* thrown) noexcept {
  assert(mutex_.held());
  if (!tallies_)
    return;
  ++((*tallies_).*what);
  const auto tallies = std::move(tallies_);
  const bool given_up = what == &acceptor_tallies::rejected || what == &acceptor_tallies::aborted;
  const log_severity s = given_up ? log_severity::info : log_severity::warning;
  std::uint64_t omitted = 0;
  if (logs(s) && tallies->refusals.admits(log_rate::clock::now(), omitted)) [[unlikely]]
    write_log({.severity = s, .event = log_event::refuse, .error = why},
              "a request of %s was refused: %s%s%s%s", endpoint_text(to_).c_str(), text_of(what),
              thrown != nullptr ? ", as it has thrown: " : "", thrown != nullptr ? thrown : "",
              omitted_text(omitted).c_str());
}

void cm_connection::count_end(acceptor_tallies::counter what, const error_code& why) noexcept {
  const std::lock_guard lock(mutex_);
  count(what, why);
}

// Errors that the connector or the network causes are no failures of this side.
void cm_connection::count_accept(const error_code& result) noexcept {
  assert(mutex_.held());
  const bool is_connectors = result == asio::error::connection_aborted ||
                             result == asio::error::connection_reset ||
                             result == asio::error::broken_pipe ||
                             result == asio::error::timed_out || result == error::unreachable;
  const auto tallies = std::move(tallies_);
  if (tallies) {
    // On iWARP the answer establishes the connection. A connection or a stream ends the handshake
    // by the peer's first frame (`connection_link::on_heard`).
    if (result)
      tallies->under_way.end(*this);
    else if (is_iwarp(id_->verbs) && expects_frame_)
      unheard_ = tallies;
    else
      tallies->under_way.confirm(*this, pending_handshakes::clock::now());
    ++(!result         ? tallies->accepted
       : gives_way_    ? tallies->gave_way
       : is_connectors ? tallies->aborted
                       : tallies->failed);
  }
  const log_severity s = result ? log_severity::warning : log_severity::info;
  std::uint64_t omitted = 0;
  if (!logs(s) || (result && tallies && !tallies->refusals.admits(log_rate::clock::now(), omitted)))
      [[likely]]
    return;
  write_log(
      {.severity = s, .event = log_event::accept, .error = result, .queue_pair = qp_->number()},
      result ? "a request of %s was not accepted%s" : "accepted %s%s", endpoint_text(to_).c_str(),
      omitted_text(omitted).c_str());
}

void cm_connection::end_handshake() noexcept {
  assert(mutex_.held());
  if (unheard_)
    std::exchange(unheard_, nullptr)->under_way.end(*this);
}

void cm_connection::log_connect(const error_code& result) const noexcept {
  assert(mutex_.held());
  const bool ended_here = result == asio::error::operation_aborted;
  const log_severity s = result && !ended_here ? log_severity::warning : log_severity::info;
  if (logs(s)) [[unlikely]]
    write_log(
        {.severity = s, .event = log_event::connect, .error = result, .queue_pair = qp_->number()},
        result ? "the attempt to connect to %s failed" : "connected to %s",
        endpoint_text(to_).c_str());
}

// The errors that concern the endpoint name it, as one of several may have been the last. There may
// be many endpoints, so few texts are kept.
error_code cm_connection::with_endpoint(const error_code& why) const noexcept {
  assert(mutex_.held());
  constexpr std::size_t most = 200;
  const auto endpoint = [this] {
    return std::string(endpoint_text(to_).c_str());
  };
  if (why == error::peer_not_listening)
    return describe(
        error::peer_not_listening, [&] { return "nothing listens at " + endpoint(); }, most);
  if (why == error::rejected)
    return describe(
        error::rejected, [&] { return endpoint() + " rejected the connection"; }, most);
  const auto unreachable = [&] {
    return endpoint() + " could not be reached over RDMA by " + qp_->member_device().name() +
           " (no route, or no answer)";
  };
  return why == error::unreachable ? describe(error::unreachable, unreachable, most) : why;
}

// On iWARP, to destroy an id that is being connected would wait for the peer (iw_destroy_cm_id in
// the kernel), as would destroying its queue pair.
bool cm_connection::destroying_would_wait() const noexcept {
  return state_ == state::connecting && id_ != nullptr && id_->verbs != nullptr &&
         is_iwarp(id_->verbs) && (!call_ || is_calling());
}

// Destroys the id, or keeps it until its last event if destroying it would wait for that. If a call
// uses the id, the id outlives the call. On iWARP it then lingers; else the call's return destroys
// it. InfiniBand's connection manager, too, may wait: for answers of a peer that ends its side at
// the same time (cm_destroy_id in the kernel). The program may use the port of an id again, so an
// id with a port of the program's choice is destroyed at once.
void cm_connection::retire_id(leftovers& left) noexcept {
  assert(mutex_.held());
  if (id_ == nullptr)
    return;
  take_back_call();
  if (is_calling() && !call_->iwarp) {
    id_ = nullptr;
    call_.reset();
    return;
  }
  if (destroying_would_wait()) {
    assert(lingering_ == nullptr); // else that id would not be destroyed
    lingering_ = std::exchange(id_, nullptr);
    self_ = shared_from_this();
    return;
  }
  call_.reset();
  end_->set(std::exchange(id_, nullptr), shared_from_this());
  if (request_.id != nullptr)
    end_->count(ending_, to_.address());
  const bool has_port = options_.local && options_.local->port() != 0;
  (has_port ? left.ended_here : left.ended).push(std::move(end_));
}

void cm_connection::end_lingering(leftovers& left) noexcept {
  assert(mutex_.held() && !call_ && left.unused == nullptr);
  left.unused = std::exchange(lingering_, nullptr);
  left.self = std::move(self_);
}

void cm_connection::settle(leftovers& left) noexcept {
  assert(!mutex_.held());
  if (left.failed) // its teardown must know that the id lingers, so it stays attached
    left.failed->fail(left.why);
  else if (left.detached)
    left.detached->detach();
  if (left.connected) {
    try {
      left.connected->on_connected(left.done->info);
    } catch (const std::bad_alloc&) {
      left.done->ec = asio::error::no_memory;
      left.connected->target_queue_pair()->fail(left.done->ec);
    }
  }
  left.destroy_ids();
  if (left.done != nullptr) {
    operation_list done;
    done.push_back(*left.done);
    left.operations->complete(done);
  }
}

void cm_connection::disconnect(const error_code& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::established && id_ != nullptr) {
      rdma_disconnect(id_);
      return;
    }
    // If a peer refuses, siw flushes the receives, perhaps before the event, which gives the
    // precise reason.
    if (state_ == state::connecting && why == asio::error::connection_reset) {
      spent_ = true;
      return;
    }
  }
  give_up(why);
}

bool cm_connection::lingers() const noexcept {
  const std::lock_guard lock(mutex_);
  return waits_for_peer();
}

void cm_connection::keep(std::shared_ptr<void> queue_pair) noexcept {
  const std::lock_guard lock(mutex_);
  if (waits_for_peer())
    kept_ = std::move(queue_pair);
}

// The connector sends only after it has taken the acceptance. If its confirmation is lost, the
// connection manager would wait until it repeats the acceptance (rdma_notify(3)).
void cm_connection::on_first_receive() noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    if (state_ == state::accepting && id_ != nullptr && !is_iwarp(id_->verbs))
      rdma_notify(id_, IBV_EVENT_COMM_EST);
  }
  settle(left);
}

bool cm_connection::waits_for_peer() const noexcept {
  assert(mutex_.held());
  return lingering_ != nullptr || destroying_ || destroying_would_wait();
}

// Ends the attempt with `why`, or the connection.
void cm_connection::end(const error_code& why, leftovers& left) noexcept {
  if (op_ != nullptr)
    finish(why, left);
  count(&acceptor_tallies::rejected); // a request that the program drops
  end_handshake();
  retire_id(left);
  timer_.reset();
  state_ = state::closed;
  qp_.reset();
}

void cm_connection::give_way() noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    if (state_ == state::accepting && op_ != nullptr) {
      gives_way_ = true;
      finish(asio::error::timed_out, left);
    } else if (state_ == state::established && unheard_) {
      unheard_.reset();
      left.failed = qp_;
      left.why = asio::error::timed_out;
    }
  }
  settle(left);
}

void cm_connection::give_up(const error_code& why) noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    end(why, left);
    left.detached.reset(); // the queue pair closes, or is about to
  }
  settle(left);
}

// Either context ends an attempt: the attempt's own, or the queue pair's. The other context lives
// on, so the queue pair is detached, or fails. An id must not outlive its event channel, which
// belongs to the attempt's own context. So a lingering id is kept until that context ends.
void cm_connection::close(const cm_service& by) {
  rdma_cm_id* lingering = nullptr;
  {
    leftovers left;
    {
      const std::lock_guard lock(mutex_);
      if ((&by != service_ && &by != home_) || !begin(left)) // moved away, or closed
        return;
      end(asio::error::operation_aborted, left);
      if (&by == service_ && !call_) { // else this is called again when the call has returned
        lingering = std::exchange(lingering_, nullptr);
        destroying_ = lingering != nullptr;
      } else if (&by != service_ && kept_) {
        std::exchange(home_, nullptr)->keep(kept_); // once
      }
    }
    settle(left);
  }
  if (lingering == nullptr)
    return;
  rdma_destroy_id(lingering); // waits for the peer, so no gate is entered
  cm_use home;
  std::shared_ptr<void> kept;
  std::shared_ptr<cm_handler> self;
  const std::lock_guard lock(mutex_);
  home.begin(home_gate_); // if that context has ended, it no longer needs the gate
  destroying_ = false;
  kept = std::move(kept_);
  self = std::move(self_);
}

void cm_connection::cancel() {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    if (op_ != nullptr)
      finish(asio::error::operation_aborted, left);
  }
  settle(left);
}

// If there are none, an attempt that has not begun its call does not begin it any more.
bool cm_connection::end_has_effects() noexcept {
  assert(mutex_.held());
  if (state_ == state::accepting || spent_)
    return true;
  take_back_call();
  return call_uses_queue_pair();
}

// `total` does not end an attempt whose end fails the queue pair.
void cm_connection::cancel(std::uint64_t operation_id, asio::cancellation_type_t type) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    if (op_ != nullptr && op_->id == operation_id &&
        (may_leave_effects(type) || !end_has_effects()))
      finish(asio::error::operation_aborted, left);
  }
  settle(left);
}

} // namespace asio_rdma::detail
