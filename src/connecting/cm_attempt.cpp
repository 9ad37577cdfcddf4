// SPDX-License-Identifier: BSL-1.0
// An attempt to connect: its steps and its end.
#include "connecting/cm_connect_call.hpp"
#include "connecting/cm_device.hpp"
#include "connecting/handshake.hpp"
#include "core/logging.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace asio_rdma::detail {
namespace {

// The reasons of InfiniBand's connection manager (enum ib_cm_rej_reason) that have errors of their
// own.
constexpr int reject_no_listener = 8;
constexpr int reject_timeout = 4;

// The peer has a connection of an earlier queue pair of this number, whose end it has missed. With
// this rejection its kernel begins to end that connection (cm_match_req in
// drivers/infiniband/core/cm.c). SPDK asks again five times, after 10 ms each. Here the pause is
// doubled each time.
constexpr int reject_stale = 10;
constexpr std::chrono::milliseconds first_pause{10};

// milliseconds::max() overflows in nanoseconds.
constexpr std::chrono::hours longest{24 * 365};

// The kernel misses a neighbour's answer that arrives before the kernel waits for it, as between
// namespaces of one machine. It looks again only when the given time is over (process_one_req in
// drivers/infiniband/core/addr.c). So the time begins short and is doubled after each attempt.
constexpr std::chrono::milliseconds first_patience{100}, most_patience{600000};

error_code rejection(const cm_event& event) {
  if (event.status == reject_no_listener)
    return error::peer_not_listening;
  if (event.status == reject_timeout)
    return asio::error::timed_out;
  return error::rejected;
}

// The kind of the object that is being connected.
handshake::kind kind_of(const connection_target* target) {
  handshake own;
  return target != nullptr && !decode(target->hello(), own) ? own.what : handshake::kind::raw;
}

// siw takes a local port for each connect, which may be in use for a moment.
constexpr int most_port_trials = 3;

// ENODEV: no device leads to the address.
error_code way_error(int value) {
  return value == ENODEV ? error_code(error::unreachable) : cm_error(value);
}

// librdmacm opens the device on the way to the address, and reports a failure to do so.
error_code way_failure(int status) {
  switch (status) {
  case -ETIMEDOUT:
    return asio::error::timed_out;
  case -EMFILE:
  case -ENFILE:
  case -ENOMEM:
    return system_error_code(-status);
  case -ENXIO: // librdmacm asks the kernel for the addresses of the id
    return cm_error(-status);
  default:
    return error::unreachable;
  }
}

} // namespace

// Whether the queue pair's own device was removed. An endpoint may lead to another device.
bool cm_connection::lost_device(const error_code& why) const {
  if (why != error::device_removed)
    return false;
  const device& own = qp_->member_device();
  const ibv_context* const tried = in_event_ && id_ != nullptr ? id_->verbs : nullptr;
  return tried == nullptr || same_device(tried, own.native_handle()) || own.is_removed();
}

// After each failed step, at once or later, the attempt continues with the next endpoint. Without
// its device the queue pair can be connected to none.
void cm_connection::next_endpoint(error_code why, leftovers& left) {
  assert(mutex_.held() && op_ != nullptr && next_ <= endpoints_.size());
  if (end_has_effects()) {
    finish(why, left);
    return;
  }
  do {
    if (lost_device(why)) {
      finish(why, left);
      return;
    }
    const auto own = own_address_for_loopback();
    // For a loopback address that no device leads to, devices report different errors.
    const bool nowhere = why == error::unreachable || (why == asio::error::invalid_argument &&
                                                       !loopback_replaced_ && !options_.local);
    if (tries_foreign_loopback() && !own && nowhere)
      why = error::loopback_address;
    loopback_replaced_ = own.has_value();
    const bool again = why == boost::system::errc::address_not_available && !options_.local &&
                       next_ != 0 && port_trials_++ < most_port_trials;
    if (!own && !again) {
      if (next_ == endpoints_.size()) {
        finish(why, left);
        return;
      }
      port_trials_ = 0;
      if (next_ != 0 && logs(log_severity::info)) [[unlikely]]
        write_log({.severity = log_severity::info, .event = log_event::connect, .error = why},
                  "the attempt to connect to %s failed, and the next endpoint is tried",
                  endpoint_text(to_).c_str());
    }
    why = resolve(own ? *own : again ? asio::ip::tcp::endpoint(to_) : endpoints_[next_++], left);
  } while (why);
  pause_ = first_pause;
  arm_timer(options_.timeout);
}

// Asks the endpoint that has rejected the request as stale again, if its time allows for it.
bool cm_connection::asks_again(const cm_event& event) {
  if (event.type != RDMA_CM_EVENT_REJECTED || event.status != reject_stale || spent_ ||
      state_ != state::idle)
    return false;
  const auto again = std::chrono::steady_clock::now() + pause_;
  if (again >= deadline_)
    return false;
  if (logs(log_severity::info)) [[unlikely]]
    write_log({.severity = log_severity::info, .event = log_event::connect},
              "%s has rejected the request as stale, and is asked again after %lld ms",
              endpoint_text(to_).c_str(), static_cast<long long>(pause_.count()));
  pause_ *= 2;
  state_ = state::pausing;
  wake_at(again);
  return true;
}

// Whether a loopback address is being resolved that is none of the queue pair's device.
bool cm_connection::tries_foreign_loopback() const {
  if (next_ == 0 || state_ != state::resolving || !endpoints_[next_ - 1].address().is_loopback())
    return false;
  const auto own = qp_->get_protection_domain().get_device().addresses();
  return std::find(own.begin(), own.end(), endpoints_[next_ - 1].address()) == own.end();
}

// The loopback interface seldom has an RDMA device; the queue pair's own device reaches the same
// machine by the device's own address.
std::optional<asio::ip::tcp::endpoint> cm_connection::own_address_for_loopback() const {
  if (loopback_replaced_ || !tries_foreign_loopback())
    return {};
  const asio::ip::tcp::endpoint& tried = endpoints_[next_ - 1];
  for (const auto& address : qp_->get_protection_domain().get_device().addresses())
    if (address.is_v4() == tried.address().is_v4())
      return asio::ip::tcp::endpoint(address, tried.port());
  return {};
}

error_code cm_connection::resolve(const asio::ip::tcp::endpoint& to, leftovers& left) {
  retire_id(left);
  left.destroy_ids_here(); // the next id is bound to the same port
  state_ = state::resolving;
  if (to.address().is_unspecified()) // the kernel would fail in a later step
    return error::unreachable;
  if (!end_)
    end_ = std::make_shared<cm_id_end>();
  error_code ec;
  id_ = service_->make_id(shared_from_this(), ec);
  if (ec)
    return ec;
  to_ = to;
  patience_ = first_patience;
  if (options_.type_of_service) {
    std::uint8_t tos = *options_.type_of_service;
    if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) != 0)
      return cm_error(errno);
  }
  return resolve_address();
}

error_code cm_connection::resolve_address() {
  const auto timeout = std::clamp<std::chrono::milliseconds::rep>(
      std::min(patience_, options_.timeout).count(), 1, most_patience.count());
  sockaddr* from = options_.local ? static_cast<sockaddr*>(options_.local->data()) : nullptr;
  if (service_->resolve_address(id_, from, static_cast<sockaddr*>(to_.data()),
                                static_cast<int>(timeout)) == 0)
    return {};
  return way_error(errno);
}

void cm_connection::on_cm_event(const cm_event& event) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return;
    if (call_ && event.id == call_->id && event.ids_made == ids_made) {
      call_->keep(event);
    } else if (event.id == lingering_ && event.ids_made == ids_made) {
      end_lingering(left);
    } else if (event.id == id_ && event.ids_made == ids_made && state_ != state::closed) {
      in_event_ = true;
      or_no_memory(left, [&] { take_event(event, left); });
      in_event_ = false;
    }
    if (!waits_for_peer())
      left.kept = std::move(kept_);
  }
  settle(left);
}

void cm_connection::take_event(const cm_event& event, leftovers& left) {
  assert(mutex_.held() && in_event_ && event.id == id_);
  error_code ec;
  switch (event.type) {
  case RDMA_CM_EVENT_ADDR_RESOLVED:
    ec = on_address_resolved();
    break;
  case RDMA_CM_EVENT_ROUTE_RESOLVED:
    ec = on_route_resolved();
    break;
  case RDMA_CM_EVENT_CONNECT_RESPONSE:
    ec = on_response(event);
    if (!ec)
      finish({}, left);
    break;
  case RDMA_CM_EVENT_ESTABLISHED:
    if (state_ == state::connecting) // iWARP: accepted and connected in one step
      ec = on_reply(event);
    if (op_ != nullptr && !ec)
      finish({}, left);
    break;
  case RDMA_CM_EVENT_ADDR_ERROR:
    if (event.status == -ETIMEDOUT && op_ != nullptr) {
      if (logs(log_severity::debug)) [[unlikely]]
        write_log({.severity = log_severity::debug, .event = log_event::connect},
                  "the address of %s was not resolved within %lld ms, and is resolved again",
                  endpoint_text(to_).c_str(), static_cast<long long>(patience_.count()));
      patience_ = std::min(2 * patience_, most_patience); // until the timer ends the attempt
      ec = resolve_address();
      break;
    }
    [[fallthrough]];
  case RDMA_CM_EVENT_ROUTE_ERROR:
    ec = way_failure(event.status);
    break;
  case RDMA_CM_EVENT_UNREACHABLE: // the kernel's own timeout: no answer (10 s by siw)
    ec = event.status == -ETIMEDOUT ? error_code(asio::error::timed_out)
                                    : error_code(error::unreachable);
    break;
  case RDMA_CM_EVENT_REJECTED:
    reply_ = event.data;
    ec =
        state_ == state::accepting ? error_code(asio::error::connection_aborted) : rejection(event);
    if (op_ != nullptr && ec == error::rejected)
      decode_refusal(event.data.bytes(), kind_of(op_->target.get()), ec);
    break;
  case RDMA_CM_EVENT_CONNECT_ERROR:
    ec = event.status < 0 ? cm_error(-event.status) : error_code(error::unreachable);
    break;
  case RDMA_CM_EVENT_DISCONNECTED:
    ec = asio::error::connection_reset;
    break;
  // With mlx5 this event comes before calls on the device fail: the kernel's parts lose a device in
  // the reverse order of their start (disable_device in drivers/infiniband/core/device.c), and
  // mlx5's driver needs ib_uverbs, but not rdma_cm.
  case RDMA_CM_EVENT_DEVICE_REMOVAL:
    ec = error::device_removed;
    break;
  default:
    break;
  }
  if (ec && state_ == state::connecting)
    state_ = state::idle; // the attempt has ended by itself
  if (ec && state_ == state::established) {
    rdma_disconnect(id_); // the answer that the peer waits for
    end_handshake();
    left.failed = qp_;
    left.why = ec;
  } else if (ec && op_ != nullptr && state_ != state::accepting) {
    if (!asks_again(event))
      next_endpoint(ec, left);
  } else if (ec && op_ != nullptr) {
    finish(ec, left);
  } else if (ec) {
    count(&acceptor_tallies::aborted);
    state_ = state::closed; // a request that was withdrawn before it was answered
  }
}

error_code cm_connection::on_address_resolved() {
  assert(state_ == state::resolving && qp_ != nullptr);
  if (id_->verbs == nullptr)
    return error::loopback_address;
  const ibv_context* const own = qp_->get_protection_domain().get_device().native_handle();
  if (!same_device(id_->verbs, own))
    return describe_wrong_device(*id_->verbs, *own);
  if (options_.data.size() > most_data(id_->verbs, 56))
    return asio::error::message_size;
  const int timeout = static_cast<int>(
      std::clamp<std::chrono::milliseconds::rep>(options_.timeout.count(), 1, 600000));
  return rdma_resolve_route(id_, timeout) == 0 ? error_code() : way_error(errno);
}

error_code cm_connection::on_route_resolved() {
  assert(state_ == state::resolving && qp_ != nullptr);
  if (const error_code ec = prepare_queue_pair(IBV_QPS_INIT, 0, 0))
    return ec;
  if (const error_code ec = offer_features())
    return ec;
  return start_call();
}

error_code cm_connection::on_reply(const cm_event& event) {
  reply_ = event.data;
  reads_out_ = std::min(qp_->options().max_reads, event.initiator_depth);
  if (qp_->state() == queue_pair_state::failed) {
    spent_ = true;
    return qp_->check_attach(); // the reason
  }
  return op_ != nullptr && op_->target ? op_->target->on_hello(reply_.bytes(), false)
                                       : error_code();
}

// The response says how many READs the responder starts and answers; rdma_cm has matched the
// numbers.
error_code cm_connection::on_response(const cm_event& event) {
  const std::uint8_t in = std::min(qp_->options().max_reads, event.responder_resources);
  queue_pair_change rtr;
  const error_code gone = find_change(IBV_QPS_RTR, 0, in, rtr);
  if (gone && qp_->state() != queue_pair_state::failed)
    return gone; // the next endpoint can be tried
  if (const error_code ec = on_reply(event))
    return ec;
  spent_ = op_ != nullptr && op_->target; // the target has taken this peer's hello
  if (const error_code ec = take_features())
    return ec;
  if (const error_code ec = apply(rtr))
    return ec;
  if (const error_code ec = prepare_queue_pair(IBV_QPS_RTS, reads_out_, in))
    return ec;
  return rdma_establish(id_) == 0 ? error_code() : step_error(errno);
}

// EINVAL: the peer has given up, so no step can follow, though its event is still to come.
error_code cm_connection::step_error(int value) const {
  if (value != EINVAL)
    return cm_error(value);
  if (state_ == state::requested || state_ == state::accepting)
    return given_up() ? error_code(asio::error::connection_aborted) : system_error_code(value);
  return state_ == state::connecting ? error_code(error::rejected) : system_error_code(value);
}

void cm_connection::arm_timer(std::chrono::milliseconds timeout) {
  deadline_ =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, longest);
  wake_at(deadline_);
}

void cm_connection::wake_at(std::chrono::steady_clock::time_point time) {
  assert(timer_); // it is destroyed when the attempt ends
  const std::uint64_t attempt = ++attempt_;
  timer_->expires_at(time);
  timer_->async_wait([weak = weak_from_this(), attempt](const error_code& ec) {
    if (ec)
      return;
    if (const auto self = std::static_pointer_cast<cm_connection>(weak.lock()))
      self->on_timer(attempt);
  });
}

void cm_connection::on_timer(std::uint64_t attempt) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (attempt != attempt_ || op_ == nullptr || !begin(left))
      return;
    or_no_memory(left, [&] {
      if (state_ == state::accepting)
        finish(asio::error::timed_out, left);
      else if (state_ != state::pausing)
        next_endpoint(pause_ == first_pause ? error_code(asio::error::timed_out)
                                            : error_code(error::rejected),
                      left); // as the endpoint has answered last
      else if (const error_code ec = resolve(asio::ip::tcp::endpoint(to_), left))
        next_endpoint(ec, left);
      else
        wake_at(deadline_);
    });
  }
  settle(left);
}

} // namespace asio_rdma::detail
