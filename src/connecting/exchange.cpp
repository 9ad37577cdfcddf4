// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/exchange.hpp>

#include "connecting/connection_target.hpp"
#include "connecting/handshake.hpp"
#include "queues/queue_pair_impl.hpp"

#include <cassert>
#include <memory>
#include <utility>

namespace asio_rdma::detail {
namespace {

// The handshake of this side. If the queue pair has no address for connecting, the handshake has
// none, and `ec` is the reason.
handshake hello_of(const connection_end& end, error_code& ec) {
  const queue_pair_impl& qp = *end.queue_pair;
  const device& d = qp.get_protection_domain().get_device();
  handshake result;
  if (end.target) {
    ec = decode(end.target->hello(), result);
  } else {
    result.max_reads = qp.options().max_reads;
    result.atomics = d.attributes().atomic_cap;
  }
  if (qp.state() == queue_pair_state::closed) {
    ec = asio::error::bad_descriptor;
  } else if (d.type() == transport::iwarp) {
    ec = asio::error::operation_not_supported;
  } else {
    queue_pair_address address;
    ec = qp.local_address(address);
    if (!ec)
      result.address.emplace(handshake_address{address, qp.options().type});
  }
  return result;
}

// The link by which an exchange occupies its queue pair: no other attempt can attach meanwhile.
class exchange_link final : public connection_link {
public:
  void disconnect(const error_code&) noexcept override {}
  bool lingers() const noexcept override { return false; }
  void keep(std::shared_ptr<void>) noexcept override {}
};

// Connects the queue pair, even if its object was closed meanwhile. If another attempt has the
// queue pair, the result is `already_connected`, and the other attempt continues.
error_code connect(const connection_end& end, const handshake& peer,
                   const std::shared_ptr<connection_link>& place) {
  assert(peer.address);
  queue_pair_impl& qp = *end.queue_pair;
  if (qp.state() == queue_pair_state::closed)
    return asio::error::operation_aborted;
  if (!end.target)
    return qp.connect(peer.address->address);
  if (const error_code ec = qp.attach(place))
    return ec == asio::error::bad_descriptor ? error_code(asio::error::operation_aborted) : ec;
  // The target must know the peer before the peer's first frame arrives.
  if (const error_code ec = end.target->on_hello(encode(peer), false)) {
    qp.detach();
    return ec;
  }
  const error_code ec = qp.connect(peer.address->address, place.get());
  if (ec)
    qp.fail(ec);
  return ec;
}

} // namespace

class exchange_state {
public:
  exchange_state(connection_end e, const handshake& local, const error_code& why)
      : end(std::move(e)), steps(local, why) {}

  /// Connects if that is the next step.
  exchange_step next() {
    using action = exchange_steps::action;
    if (steps.next() == action::connect)
      steps.on_connected(connect(end, steps.peer(), place));
    return steps.next() == action::finish  ? exchange_step::finish
           : steps.next() == action::write ? exchange_step::write
                                           : exchange_step::read;
  }

  connection_end end;
  exchange_steps steps;
  std::shared_ptr<connection_link> place = std::make_shared<exchange_link>();
};

std::shared_ptr<exchange_state> begin_exchange(connection_end end) {
  error_code ec;
  const handshake local = hello_of(end, ec);
  return std::make_shared<exchange_state>(std::move(end), local, ec);
}

exchange_step first_step(exchange_state& state) { return state.next(); }

exchange_step next_step(exchange_state& state, const error_code& ec, std::size_t bytes) {
  if (state.steps.next() == exchange_steps::action::write)
    state.steps.on_written(ec);
  else
    state.steps.on_read(ec, bytes);
  return state.next();
}

asio::const_buffer exchange_output(const exchange_state& state) noexcept {
  return state.steps.output();
}

asio::mutable_buffer exchange_input(exchange_state& state) noexcept { return state.steps.input(); }

void abort(exchange_state& state) {
  if (state.steps.connected())
    state.end.queue_pair->fail(asio::error::operation_aborted);
}

error_code finish(exchange_state& state) {
  error_code ec = state.steps.result();
  if (!ec && state.end.queue_pair->state() == queue_pair_state::closed)
    ec = asio::error::operation_aborted;
  if (ec && state.steps.connected())
    state.end.queue_pair->fail(ec);
  return ec;
}

bool has_target(const exchange_state& state) noexcept { return state.end.target != nullptr; }

void report_endpoints(exchange_state& state, const connection_info& info) {
  state.end.target->on_connected(info);
}

} // namespace asio_rdma::detail
