// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/cm_connection.hpp>

#include <asio_rdma/detail/handshake.hpp>

#include "cm_device.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace asio_rdma::detail {
namespace {

class link final : public connection_link {
public:
  explicit link(std::shared_ptr<cm_connection> c) noexcept : connection_(std::move(c)) {}
  ~link() override { connection_->close(); }
  void disconnect(const error_code& why) noexcept override { connection_->disconnect(why); }
  bool lingers() const noexcept override { return connection_->lingers(); }
  void keep(std::shared_ptr<void> queue_pair) noexcept override {
    connection_->keep(std::move(queue_pair));
  }

private:
  std::shared_ptr<cm_connection> connection_;
};

} // namespace

cm_connection::cm_connection(cm_service& service, const asio::any_io_executor& executor)
    : service_(service), timer_(executor) {}

cm_connection::~cm_connection() {
  if (id_ != nullptr)
    rdma_destroy_id(id_);
  for (rdma_cm_id* id : lingering_)
    rdma_destroy_id(id);
}

error_code cm_connection::connect(connect_operation& op, std::shared_ptr<queue_pair_impl> qp,
                                  std::vector<asio::ip::tcp::endpoint> endpoints,
                                  connect_options options) {
  if (endpoints.empty())
    return asio::error::not_found;
  if (op.target) {
    if (!options.data.empty())
      return asio::error::invalid_argument;
    options.data = op.target->hello();
  }
  const auto attached =
      std::make_shared<link>(std::static_pointer_cast<cm_connection>(shared_from_this()));
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (const error_code ec = qp->attach(attached))
      return ec;
    service_.operations().operation_starting();
    op_ = &op;
    qp_ = std::move(qp);
    endpoints_ = std::move(endpoints);
    options_ = std::move(options);
    next_endpoint(asio::error::not_found, left);
  }
  settle(left);
  return {};
}

void cm_connection::adopt(rdma_cm_id* id) {
  const std::lock_guard lock(mutex_);
  id_ = id;
  id_->context = static_cast<cm_handler*>(this);
  state_ = state::requested;
}

// The kernel keeps the events of a request to itself until it is accepted (ucma_event_handler in
// drivers/infiniband/core/ucma.c), so it is asked. siw does not know.
bool cm_connection::withdrawn() const {
  const std::lock_guard lock(mutex_);
  if (state_ != state::requested)
    return true;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  int mask = 0;
  return rdma_init_qp_attr(id_, &attr, &mask) != 0 && errno == EINVAL;
}

connection_info cm_connection::info() const {
  const std::lock_guard lock(mutex_);
  connection_info result;
  if (id_ == nullptr)
    return result;
  result.local = endpoint_of(rdma_get_local_addr(id_));
  result.remote = endpoint_of(rdma_get_peer_addr(id_));
  result.data = request_.data;
  return result;
}

std::string cm_connection::device_name() const {
  const std::lock_guard lock(mutex_);
  return id_ != nullptr && id_->verbs != nullptr ? ibv_get_device_name(id_->verbs->device) : "";
}

rdma_cm_id* cm_connection::native_handle() const {
  const std::lock_guard lock(mutex_);
  return id_;
}

error_code cm_connection::check_accept(connect_operation& op, const queue_pair_impl& qp,
                                       const private_data& data) {
  if (op.target && !data.empty())
    return asio::error::invalid_argument;
  if (state_ != state::requested)
    return asio::error::connection_aborted;
  if (!same_device(id_->verbs, qp.get_protection_domain().get_device().native_handle()))
    return error::wrong_device;
  if (data.size() > most_data(id_->verbs, 196))
    return asio::error::message_size;
  return {};
}

// Of an attached queue pair nobody else makes anything.
error_code cm_connection::hear(connection_target& target) {
  const error_code ec = target.on_hello(request_.data, true);
  if (ec == error::incompatible_peer) {
    const auto why = encode(verdict::incompatible);
    rdma_reject(id_, why.data(), static_cast<std::uint8_t>(why.size()));
    state_ = state::closed;
  }
  return ec;
}

error_code cm_connection::accept(connect_operation& op, std::shared_ptr<queue_pair_impl> qp,
                                 const accept_options& options, bool counted) {
  const auto attached =
      std::make_shared<link>(std::static_pointer_cast<cm_connection>(shared_from_this()));
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (const error_code ec = check_accept(op, *qp, options.data))
      return ec;
    if (const error_code ec = qp->attach(attached))
      return ec;
    if (const error_code ec = op.target ? hear(*op.target) : error_code()) {
      qp->detach();
      return ec;
    }
    if (!counted)
      service_.operations().operation_starting();
    op_ = &op;
    qp_ = std::move(qp);
    state_ = state::accepting;
    const std::uint8_t own = qp_->options().max_reads;
    const std::uint8_t out = std::min(own, request_.initiator_depth);
    const std::uint8_t in = std::min(own, request_.responder_resources);
    error_code ec;
    for (const ibv_qp_state to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
      if (!ec)
        ec = prepare_queue_pair(to, out, in);
    if (!ec) {
      const private_data data = op.target ? op.target->hello() : options.data;
      rdma_conn_param p = parameters(data);
      p.initiator_depth = out;
      p.responder_resources = in;
      if (rdma_accept(id_, &p) != 0)
        ec = cm_error(errno);
    }
    if (ec)
      finish(ec, left);
    else
      arm_timer(options.timeout);
  }
  settle(left);
  return {};
}

error_code cm_connection::reject(const private_data& data) {
  const std::lock_guard lock(mutex_);
  if (state_ != state::requested)
    return asio::error::connection_aborted;
  if (data.size() > most_data(id_->verbs, 148))
    return asio::error::message_size;
  state_ = state::closed;
  return rdma_reject(id_, data.data(), static_cast<std::uint8_t>(data.size())) == 0
             ? error_code()
             : cm_error(errno);
}

// Gives the operation its result. After a failure the id goes, and the queue pair may be used for
// another attempt unless it has left its first state.
void cm_connection::finish(const error_code& ec, leftovers& left) {
  ++attempt_;
  timer_.cancel();
  connect_operation& op = *std::exchange(op_, nullptr);
  op.ec = ec;
  if (id_ != nullptr && in_event_) {
    op.info.local = endpoint_of(rdma_get_local_addr(id_));
    op.info.remote = endpoint_of(rdma_get_peer_addr(id_));
  }
  op.info.data = request_.id != nullptr ? request_.data : std::move(reply_);
  left.done.push_back(op);
  if (!ec) {
    state_ = state::established;
    qp_->connected();
    left.connected = std::move(op.target);
    left.info = op.info;
    return;
  }
  left.detached = std::move(qp_);
  if (state_ == state::accepting || spent_) {
    left.failed = left.detached;
    left.why = asio::error::connection_reset;
  }
  retire_id(left);
  state_ = state::closed;
}

// On iWARP destroying an id whose connection is under way would wait for the peer (iw_destroy_cm_id
// in the kernel), and so would destroying its queue pair.
bool cm_connection::destroying_would_wait() const noexcept {
  return state_ == state::connecting && id_ != nullptr && id_->verbs != nullptr &&
         is_iwarp(id_->verbs);
}

// It stays until its last event if it has to.
void cm_connection::retire_id(leftovers& left) {
  if (id_ == nullptr)
    return;
  const bool lingers = destroying_would_wait();
  rdma_cm_id* id = std::exchange(id_, nullptr);
  if (!lingers) {
    left.ids.push_back(id);
    return;
  }
  lingering_.push_back(id);
  service_.linger(shared_from_this());
}

void cm_connection::settle(leftovers& left) {
  if (left.failed) // its end needs to know that the id lingers, so it stays attached
    left.failed->fail(left.why);
  else if (left.detached)
    left.detached->detach();
  if (left.connected)
    left.connected->on_connected(left.info);
  for (rdma_cm_id* id : left.ids)
    rdma_destroy_id(id);
  service_.operations().complete(left.done);
  bool unlinger = false;
  {
    const std::lock_guard lock(mutex_);
    unlinger = !left.ids.empty() && lingering_.empty();
  }
  if (unlinger)
    service_.unlinger(*this);
}

void cm_connection::disconnect(const error_code& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::established && id_ != nullptr) {
      rdma_disconnect(id_);
      return;
    }
    // A peer's refusal makes siw give back the receives, and that may be seen before its event,
    // which tells more.
    if (state_ == state::connecting && why == asio::error::connection_reset) {
      spent_ = true;
      return;
    }
  }
  close(why);
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

bool cm_connection::waits_for_peer() const noexcept {
  return !lingering_.empty() || destroying_would_wait();
}

void cm_connection::close() { close(asio::error::operation_aborted); }

void cm_connection::close(const error_code& why) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (op_ != nullptr)
      finish(why, left);
    retire_id(left);
    state_ = state::closed;
    left.detached.reset(); // the queue pair closes, or is about to
    qp_.reset();
  }
  settle(left);
}

void cm_connection::cancel() {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (op_ != nullptr)
      finish(asio::error::operation_aborted, left);
  }
  settle(left);
}

void cm_connection::cancel(std::uint64_t operation_id) {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (op_ != nullptr && op_->id == operation_id)
      finish(asio::error::operation_aborted, left);
  }
  settle(left);
}

} // namespace asio_rdma::detail
