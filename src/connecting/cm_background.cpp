// SPDX-License-Identifier: BSL-1.0
// The call of rdma_connect(3), which a background thread makes. While it runs, librdmacm and the
// kernel use the id, and on iWARP the kernel uses the queue pair.
#include "connecting/cm_connect_call.hpp"
#include "connecting/cm_device.hpp"

#include <cassert>
#include <cerrno>
#include <utility>

namespace asio_rdma::detail {

int cm_connection::connect_call::make() noexcept {
  return rdma_connect(id, &parameters_) == 0 ? 0 : errno;
}

error_code cm_connection::start_call() {
  assert(mutex_.held() && call_ == nullptr && id_ != nullptr);
  const bool iwarp = is_iwarp(id_->verbs);
  const auto call =
      std::make_shared<connect_call>(std::static_pointer_cast<cm_connection>(shared_from_this()),
                                     id_, iwarp, parameters(options_.data));
  if (!service_->has_background_calls()) {
    if (const int e = call->make())
      return cm_error(e);
    spent_ = iwarp;
  } else if (const error_code ec = service_->calls().start(call)) {
    return ec;
  } else {
    call_ = call;
  }
  state_ = state::connecting;
  return {};
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

// On iWARP the call passes the queue pair to the kernel, which connects it.
bool cm_connection::call_uses_queue_pair() const noexcept { return is_calling() && call_->iwarp; }

// Called by the background thread, and runs no code of the user's: if the attempt has ended
// meanwhile, destroys what the call has used. Other results are taken by a thread of the context,
// unless there is nothing to do.
void cm_connection::on_returned(const std::shared_ptr<connect_call>& call, int error) noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (call_ != call) {
      assert(!call->iwarp);
      left.unused = call->id;
    } else {
      const bool exists = begin(left); // the context waits for the call
      assert(exists);
      static_cast<void>(exists);
      call->returned = true;
      call->error = error;
      if (error == 0)
        spent_ = spent_ || call->iwarp;
      else if (state_ == state::connecting)
        state_ = state::idle; // no event will follow
      if (id_ != call->id) {
        call_.reset();
        if (error != 0 || call->events != 0)
          end_lingering(left);
      } else if (error == 0 && call->events == 0) {
        call_.reset();
      } else {
        service_->give_back(call);
      }
      if (!waits_for_peer())
        left.kept = std::move(kept_);
    }
  }
  settle(left);
}

void cm_connection::take_result(const std::shared_ptr<connect_call>& call) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (call_ != call || !begin(left))
      return;
    call_.reset();
    in_event_ = true;
    if (call->error != 0 && op_ != nullptr)
      or_no_memory(left, [&] { next_endpoint(call->failure(), left); });
    in_event_ = false;
  }
  settle(left);
  if (call->error == 0)
    for (std::size_t i = 0; i != call->events; ++i)
      on_cm_event(call->early[i]);
}

} // namespace asio_rdma::detail
