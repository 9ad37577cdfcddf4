// SPDX-License-Identifier: BSL-1.0
// The calls of an attempt that a background thread makes. While they run, librdmacm and the kernel
// use the id, and inside rdma_connect(3) on iWARP the kernel uses the queue pair.
#include "connecting/cm_attempt_call.hpp"
#include "connecting/cm_device.hpp"

#include <cassert>
#include <cerrno>
#include <utility>

namespace asio_rdma::detail {

error_code cm_connection::attempt_call::make() noexcept {
  switch (step) {
  case cm_queue_pair::step::request:
    return request();
  case cm_queue_pair::step::answer:
    return answer();
  default:
    return confirm();
  }
}

error_code cm_connection::attempt_call::request() const noexcept {
  if (const error_code ec = queue_pair_.prepare(IBV_QPS_INIT, {}))
    return ec;
  if (const error_code ec = queue_pair_.offer_features())
    return ec;
  rdma_conn_param p = queue_pair_.parameters(data_);
  return rdma_connect(id, &p) == 0 ? error_code() : cm_error(errno);
}

error_code cm_connection::attempt_call::answer() const noexcept {
  if (const error_code ec = queue_pair_.prepare(IBV_QPS_INIT, reads_))
    return ec;
  if (const error_code ec = queue_pair_.take_features())
    return ec;
  for (const ibv_qp_state to : {IBV_QPS_RTR, IBV_QPS_RTS})
    if (const error_code ec = queue_pair_.prepare(to, reads_))
      return ec;
  if (const error_code ec = queue_pair_.offer_features())
    return ec;
  rdma_conn_param p = queue_pair_.parameters(data_);
  p.initiator_depth = reads_.out;
  p.responder_resources = reads_.in;
  return rdma_accept(id, &p) == 0 ? error_code() : queue_pair_.error_of(errno);
}

error_code cm_connection::attempt_call::confirm() noexcept {
  if (const error_code ec = queue_pair_.apply(change_))
    return ec;
  if (const error_code ec = queue_pair_.prepare(IBV_QPS_RTS, reads_))
    return ec;
  return rdma_establish(id) == 0 ? error_code() : queue_pair_.error_of(errno);
}

std::shared_ptr<cm_connection::attempt_call>
cm_connection::make_call(cm_queue_pair::step step, private_data data, std::uint8_t reads_in) {
  assert(mutex_.held() && id_ != nullptr);
  return std::make_shared<attempt_call>(
      std::static_pointer_cast<cm_connection>(shared_from_this()), cm_queue_pair{id_, qp_, step},
      step == cm_queue_pair::step::request && is_iwarp(id_->verbs), std::move(data),
      cm_queue_pair::read_limits{reads_out_, reads_in});
}

// Returns the error if this thread has made the call, or if no call can be made. A thread is
// indispensable only for a request, which may block for minutes.
error_code cm_connection::start_call(const std::shared_ptr<attempt_call>& call) {
  assert(mutex_.held() && call_ == nullptr);
  error_code ec;
  if (service_->has_background_calls()) {
    ec = service_->calls().start(call);
    if (!ec)
      call_ = call;
    if (!ec || call->step == cm_queue_pair::step::request)
      return ec;
  }
  ec = call->make();
  spent_ = spent_ || (!ec && call->lingers);
  return ec;
}

// Afterwards a call that is left has begun, or has returned.
void cm_connection::take_back_call() noexcept {
  assert(mutex_.held());
  if (!is_calling() || !service_->calls().take_back(*call_))
    return;
  call_.reset();
  if (state_ == state::connecting)
    state_ = state::idle;
}

bool cm_connection::is_calling() const noexcept {
  assert(mutex_.held());
  return call_ != nullptr && !call_->returned;
}

// On iWARP the call of rdma_connect passes the queue pair to the kernel, which connects it.
bool cm_connection::call_uses_queue_pair() const noexcept { return is_calling() && call_->lingers; }

// Called by the background thread, and runs no code of the user's: if the attempt has ended
// meanwhile, destroys what the call has used. Other results are taken by a thread of the context,
// unless there is nothing to do.
void cm_connection::on_returned(const std::shared_ptr<attempt_call>& call,
                                const error_code& error) noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (call_ != call) {
      assert(!call->lingers);
      if (home_gate_)
        left.home.begin(home_gate_); // else that context has ended, and does not need the gate
      left.ids[0] = call->id;
    } else {
      const bool exists = begin(left); // the context waits for the call
      assert(exists);
      static_cast<void>(exists);
      call->returned = true;
      call->error = error;
      if (!error)
        spent_ = spent_ || call->lingers;
      else if (state_ == state::connecting)
        state_ = state::idle; // no event will follow
      if (id_ != call->id) {
        call_.reset();
        if (error || call->events != 0)
          end_lingering(left);
      } else if (!error && call->events == 0 && call->step != cm_queue_pair::step::confirm) {
        call_.reset();
      } else {
        service_->give_back(call);
      }
      if (!waits_for_peer())
        left.kept = std::move(kept_);
    }
    left.used = call->release_queue_pair();
  }
  settle(left);
}

void cm_connection::take_result(const std::shared_ptr<attempt_call>& call) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (call_ != call || !begin(left))
      return;
    call_.reset();
    in_event_ = true;
    if (op_ != nullptr)
      or_no_memory(left, [&] { on_result(*call, left); });
    in_event_ = false;
  }
  settle(left);
  if (!call->error)
    for (std::size_t i = 0; i != call->events; ++i)
      on_cm_event(call->early[i]);
}

void cm_connection::on_result(const attempt_call& call, leftovers& left) {
  if (call.error && call.step == cm_queue_pair::step::answer)
    finish(call.error, left);
  else if (call.error)
    next_endpoint(call.error, left);
  else if (call.step == cm_queue_pair::step::confirm)
    finish({}, left);
}

} // namespace asio_rdma::detail
