// SPDX-License-Identifier: BSL-1.0
#include "queues/device_events_impl.hpp"

#include <asio_rdma/detail/core/open_impl.hpp>

#include "verbs/device_listeners.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {
namespace {

device_event describe(const ibv_async_event& from) noexcept {
  device_event event;
  event.type = from.event_type;
  if (const ibv_qp* const qp = queue_pair_of(from))
    event.queue_pair_number = qp->qp_num;
  switch (from.event_type) {
  case IBV_EVENT_PORT_ACTIVE:
  case IBV_EVENT_PORT_ERR:
  case IBV_EVENT_LID_CHANGE:
  case IBV_EVENT_PKEY_CHANGE:
  case IBV_EVENT_SM_CHANGE:
  case IBV_EVENT_CLIENT_REREGISTER:
  case IBV_EVENT_GID_CHANGE:
    event.port = static_cast<std::uint8_t>(from.element.port_num);
    break;
  default:
    break;
  }
  return event;
}

} // namespace

void set_event(operation& op, const device_event& event) noexcept {
  op.value = static_cast<std::uint64_t>(event.type);
  op.word = event.port;
  op.qp_num = event.queue_pair_number;
}

device_event get_event(const operation& op) noexcept {
  return {static_cast<ibv_event_type>(op.value), static_cast<std::uint8_t>(op.word), op.qp_num};
}

device_events_impl::device_events_impl(asio::execution_context& context, const device& d)
    : service_(completion_service::of(context)), device_(d) {}

error_code device_events_impl::open() {
  if (!device_.is_open())
    return asio::error::bad_descriptor;
  error_code ec;
  open_ = true;
  if (!service_.add(*this, ec)) // from here on events arrive
    open_ = false;
  return ec;
}

bool device_events_impl::start(operation& op) {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    if (!open_) {
      op.ec = asio::error::bad_descriptor;
      return false;
    }
    service_.operation_starting();
    if (kept_ == 0) {
      waiters_.push_back(op);
      return true;
    }
    assert(first_ < most_kept && kept_ <= most_kept);
    set_event(op, events_[first_]);
    first_ = (first_ + 1) % most_kept;
    --kept_;
    done.push_back(op);
  }
  service_.complete(done);
  return true;
}

void device_events_impl::on_device_event(const ibv_async_event& event) noexcept {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    if (!open_)
      return;
    if (waiters_.empty()) {
      events_[(first_ + kept_) % most_kept] = describe(event);
      if (kept_ == most_kept) // the oldest event has been overwritten
        first_ = (first_ + 1) % most_kept;
      else
        ++kept_;
      return;
    }
    operation& op = waiters_.front();
    waiters_.pop_front();
    set_event(op, describe(event));
    done.push_back(op);
  }
  service_.complete(done);
}

void device_events_impl::cancel() {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    for (operation& op : waiters_)
      op.fail(asio::error::operation_aborted);
    done.swap(waiters_);
  }
  if (!done.empty()) // else the context may be destroyed
    service_.complete(done);
}

void device_events_impl::cancel(std::uint64_t id, asio::cancellation_type_t) {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(waiters_.begin(), waiters_.end(),
                                [id](const operation& op) { return op.id == id; });
    if (i == waiters_.end())
      return;
    i->fail(asio::error::operation_aborted);
    done.splice(done.end(), waiters_, i);
  }
  service_.complete(done);
}

void device_events_impl::close() {
  {
    const std::lock_guard lock(mutex_);
    if (!open_)
      return;
    open_ = false;
  }
  service_.remove(*this);
  cancel();
}

// --- The other functions of device_events_face.hpp ----------------------------------------------

std::shared_ptr<device_events_impl> open_device_events(asio::execution_context& context,
                                                       const device& d, error_code& ec) {
  return make_open<device_events_impl>(
      ec, [](device_events_impl& i) { return i.open(); }, context, d);
}

ibv_context* native_handle(const device_events_impl& impl) noexcept {
  return impl.get_device().native_handle();
}
void close(device_events_impl& impl) { impl.close(); }
void cancel(device_events_impl& impl) { impl.cancel(); }
bool start(device_events_impl& impl, operation& op) { return impl.start(op); }
void cancel(device_events_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(device_events_impl& impl) noexcept { return impl.next_id(); }

} // namespace asio_rdma::detail
