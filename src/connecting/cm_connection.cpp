// SPDX-License-Identifier: BSL-1.0
#include "connecting/cm_connection.hpp"

#include "connecting/cm_device.hpp"
#include "connecting/handshake.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <exception>
#include <utility>

namespace asio_rdma::detail {
namespace {

class attached_link final : public connection_link {
public:
  /// `of`: the acceptor's, if the connection is accepted.
  explicit attached_link(std::shared_ptr<cm_connection> c,
                         std::shared_ptr<acceptor_tallies> of = nullptr) noexcept
      : connection_(std::move(c)), tallies_(std::move(of)) {}
  ~attached_link() override {
    if (started_)
      connection_->give_up(asio::error::operation_aborted);
  }
  /// From here on the connection, or its attempt, ends with this.
  void start() noexcept { started_ = true; }
  void disconnect(const error_code& why) noexcept override { connection_->disconnect(why); }
  bool lingers() const noexcept override { return connection_->lingers(); }
  void keep(std::shared_ptr<void> queue_pair) noexcept override {
    connection_->keep(std::move(queue_pair));
  }
  void on_first_receive() noexcept override { connection_->on_first_receive(); }
  void on_heard() noexcept override {
    if (tallies_)
      tallies_->under_way.confirm(*connection_, pending_handshakes::clock::now());
  }

private:
  std::shared_ptr<cm_connection> connection_;
  const std::shared_ptr<acceptor_tallies> tallies_;
  std::atomic<bool> started_{false};
};

} // namespace

cm_connection::cm_connection(cm_service& service, const asio::any_io_executor& executor)
    : context_(asio::query(executor, asio::execution::context)),
      ending_(service.ending()),
      service_(&service),
      gate_(service.gate()),
      timer_(executor),
      end_(std::make_shared<cm_id_end>()) {}

// Returns false once the service has shut down; the connection is closed then.
bool cm_connection::begin(leftovers& left) noexcept {
  assert(mutex_.held());
  if (!left.own.begin(gate_))
    return false;
  if (home_gate_ && home_gate_ != gate_)
    left.home.begin(home_gate_);
  left.service = service_;
  left.operations = &service_->operations();
  return true;
}

error_code cm_connection::check(const connect_operation& op, const queue_pair_impl& qp,
                                const private_data& data) {
  if (qp.options().type != IBV_QPT_RC)
    return asio::error::operation_not_supported;
  return op.target && !data.empty() ? error_code(asio::error::invalid_argument) : error_code();
}

cm_home cm_connection::home_of(const queue_pair_impl& qp, error_code& ec) {
  cm_service& service = cm_service::of(qp.context());
  ec = service.prepare();
  return {&service, service.gate()};
}

/// The home of a connection whose attempt is about to start. Before that, a request belongs to
/// the context of no queue pair.
class cm_connection::new_home {
public:
  explicit new_home(cm_connection& c) noexcept : connection_(c) {}
  new_home(const new_home&) = delete;
  ~new_home() {
    if (started_)
      return;
    connection_.home_ = nullptr;
    connection_.home_gate_.reset();
  }

  error_code set(const cm_home& home, leftovers& left) {
    if (home.gate != connection_.gate_ && !left.home.begin(home.gate))
      return asio::error::operation_aborted; // that context is being destroyed
    connection_.home_ = home.service;
    connection_.home_gate_ = home.gate;
    return home.service->expect(connection_.shared_from_this());
  }
  void started() noexcept { started_ = true; }

private:
  cm_connection& connection_;
  bool started_ = false;
};

error_code cm_connection::connect(connect_operation& op, std::shared_ptr<queue_pair_impl> qp,
                                  std::vector<asio::ip::tcp::endpoint> endpoints,
                                  connect_options options) {
  if (endpoints.empty())
    return asio::error::not_found;
  if (qp->options().type != IBV_QPT_RC)
    return asio::error::operation_not_supported;
  if (op.target && options.data.size() > handshake::most_data)
    return asio::error::message_size;
  error_code home_error;
  const cm_home home = home_of(*qp, home_error);
  if (home_error)
    return home_error;
  if (op.target)
    options.data = with_data(op.target->hello(), options.data);
  op.info.data.reserve(cm_data::most); // so that the end of the attempt allocates nothing
  const auto attached =
      std::make_shared<attached_link>(std::static_pointer_cast<cm_connection>(shared_from_this()));
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return asio::error::operation_aborted;
    new_home moving(*this);
    if (const error_code ec = moving.set(home, left))
      return ec;
    if (const error_code ec = qp->attach(attached))
      return ec;
    moving.started();
    attached->start();
    left.operations->operation_starting();
    op_ = &op;
    qp_ = std::move(qp);
    endpoints_ = std::move(endpoints);
    options_ = std::move(options);
    or_no_memory(left, [&] { next_endpoint(asio::error::not_found, left); });
  }
  settle(left);
  return {};
}

void cm_connection::adopt(const cm_event& request,
                          std::shared_ptr<acceptor_tallies> tallies) noexcept {
  const std::lock_guard lock(mutex_);
  assert(state_ == state::idle && id_ == nullptr);
  tallies_ = std::move(tallies);
  ++tallies_->requests;
  request_ = request;
  id_ = request.id;
  id_->context = static_cast<cm_handler*>(this);
  to_ = endpoint_of(rdma_get_peer_addr(id_));
  state_ = state::requested;
}

// Until the queue pair has the connection as its link, no event may reach the connection: a
// disconnect would be lost. All memory is allocated before the queue pair changes its owner.
std::shared_ptr<queue_pair_impl>
cm_connection::adopt(cm_service& service, const asio::any_io_executor& executor, rdma_cm_id* id,
                     const std::function<std::shared_ptr<queue_pair_impl>(error_code&)>& adopt_its,
                     error_code& ec) {
  const auto self = std::make_shared<cm_connection>(service, executor);
  const auto attached = std::make_shared<attached_link>(self);
  ec = service.expect(self);
  if (ec)
    return nullptr;
  std::shared_ptr<queue_pair_impl> qp;
  const auto no_events = service.hold_events();
  ec = service.take_id(id, *self, [&] {
    error_code failure;
    try {
      qp = adopt_its(failure);
    } catch (const std::bad_alloc&) {
      failure = asio::error::no_memory;
    }
    if (qp) {
      self->take_established(id, qp);
      qp->adopted(attached);
      attached->start();
    }
    return failure;
  });
  return qp;
}

// librdmacm must not use the queue pair any more.
void cm_connection::take_established(rdma_cm_id* id, std::shared_ptr<queue_pair_impl> qp) noexcept {
  const std::lock_guard lock(mutex_);
  timer_.reset();
  home_ = service_;
  home_gate_ = gate_;
  id_ = id;
  id_->qp = nullptr;
  qp_ = std::move(qp);
  state_ = state::established;
}

// The kernel holds back the events of a request until the request is accepted (ucma_event_handler
// in drivers/infiniband/core/ucma.c), so the kernel is asked. siw has no answer. ENXIO: the device
// of the request was removed.
bool cm_connection::withdrawn() const {
  const std::lock_guard lock(mutex_);
  return state_ != state::requested || given_up();
}

bool cm_connection::given_up() const {
  assert(mutex_.held() && id_ != nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  int mask = 0;
  return rdma_init_qp_attr(id_, &attr, &mask) != 0 && (errno == EINVAL || errno == ENXIO);
}

connection_info cm_connection::info() const {
  const std::lock_guard lock(mutex_);
  connection_info result;
  if (id_ == nullptr)
    return result;
  result.local = scoped_endpoint(*id_, rdma_get_local_addr(id_));
  result.remote = scoped_endpoint(*id_, rdma_get_peer_addr(id_));
  const auto data = program_data(request_.data.bytes());
  result.data.assign(data.begin(), data.end());
  return result;
}

std::string cm_connection::device_name() const {
  const std::lock_guard lock(mutex_);
  return id_ != nullptr && id_->verbs != nullptr ? ibv_get_device_name(id_->verbs->device) : "";
}

asio::ip::tcp::endpoint cm_connection::remote_endpoint() const noexcept {
  const std::lock_guard lock(mutex_);
  return id_ != nullptr ? scoped_endpoint(*id_, rdma_get_peer_addr(id_))
                        : asio::ip::tcp::endpoint();
}

rdma_cm_id* cm_connection::native_handle() const {
  const std::lock_guard lock(mutex_);
  return id_;
}

error_code cm_connection::check_accept(const queue_pair_impl& qp, const private_data& data) {
  if (state_ != state::requested)
    return asio::error::connection_aborted;
  return check_fit(id_->verbs, qp, data);
}

error_code cm_connection::check_fit(const ibv_context* device, const queue_pair_impl& qp,
                                    const private_data& data) {
  const ibv_context* const own = qp.get_protection_domain().get_device().native_handle();
  if (device != nullptr && !same_device(device, own))
    return describe_wrong_device(*device, *own);
  return data.size() > most_data(own, 196) ? error_code(asio::error::message_size) : error_code();
}

// While attached, a queue pair is not connected by any other operation. A record with an address is
// for `async_exchange`, and has no data of the program's: it is not put to `accept_options::admit`,
// so it is refused (`has_hello`).
error_code cm_connection::read_hello(connection_target& target) {
  assert(mutex_.held() && state_ == state::requested);
  const std::span<const std::byte> record = request_.data.bytes();
  const error_code ec = is_record(record) ? target.on_hello(record, true) : incompatible(record);
  if (ec == error::incompatible_peer) {
    const refusal_bytes why = encode_refusal(target.hello());
    rdma_reject(id_, why.data(), static_cast<std::uint8_t>(why.size()));
    count(&acceptor_tallies::refused_incompatible, ec);
    state_ = state::closed;
  }
  return ec;
}

bool cm_connection::has_hello() const noexcept {
  const std::lock_guard lock(mutex_);
  return is_record(request_.data.bytes());
}

bool cm_connection::is_admitted(const admit_function& admit) {
  const connection_info asked = info();
  {
    const std::lock_guard lock(mutex_);
    if (state_ != state::requested)
      return true;
  }
  try {
    if (admit(asked.data, asked.remote))
      return true;
    refuse_admission(nullptr);
  } catch (const std::exception& e) {
    refuse_admission(e.what());
  } catch (...) {
    refuse_admission("an exception of an unknown type");
  }
  return false;
}

void cm_connection::refuse_admission(const char* thrown) noexcept {
  const std::lock_guard lock(mutex_);
  if (state_ != state::requested)
    return;
  rdma_reject(id_, nullptr, 0);
  count(&acceptor_tallies::refused_admission, {}, thrown);
  state_ = state::closed;
}

std::shared_ptr<acceptor_tallies> cm_connection::tallies() const {
  const std::lock_guard lock(mutex_);
  return tallies_;
}

error_code cm_connection::accept(connect_operation& op, const std::shared_ptr<queue_pair_impl>& qp,
                                 const cm_home& home, const accept_options& options, bool counted) {
  if (const error_code ec = check(op, *qp, options.data))
    return ec;
  op.info.data.reserve(cm_data::most);
  const auto attached = std::make_shared<attached_link>(
      std::static_pointer_cast<cm_connection>(shared_from_this()), tallies());
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (!begin(left))
      return asio::error::operation_aborted;
    if (const error_code ec = check_accept(*qp, options.data))
      return ec;
    new_home moving(*this);
    if (const error_code ec = moving.set(home, left))
      return ec;
    if (const error_code ec = qp->attach(attached, true))
      return ec;
    error_code unfit;
    try {
      if (op.target)
        unfit = read_hello(*op.target);
    } catch (...) {
      qp->detach();
      throw;
    }
    if (unfit) {
      qp->detach();
      return unfit;
    }
    moving.started();
    attached->start();
    if (!counted)
      left.operations->operation_starting();
    op_ = &op;
    qp_ = qp;
    state_ = state::accepting;
    expects_frame_ = op.target != nullptr;
    or_no_memory(left, [&] {
      if (tallies_)
        tallies_->under_way.begin(std::static_pointer_cast<cm_connection>(shared_from_this()),
                                  to_.address(), options.timeout, pending_handshakes::clock::now());
      if (const error_code ec = answer(options))
        finish(ec, left);
      else
        arm_timer(options.timeout);
    });
  }
  settle(left);
  return {};
}

error_code cm_connection::answer(const accept_options& options) {
  assert(state_ == state::accepting && op_ != nullptr && qp_ != nullptr);
  const std::uint8_t own = qp_->options().max_reads;
  reads_out_ = std::min(own, request_.initiator_depth);
  const std::uint8_t in = std::min(own, request_.responder_resources);
  if (const error_code ec = prepare_queue_pair(IBV_QPS_INIT, reads_out_, in))
    return ec;
  if (const error_code ec = take_features())
    return ec;
  for (const ibv_qp_state to : {IBV_QPS_RTR, IBV_QPS_RTS})
    if (const error_code ec = prepare_queue_pair(to, reads_out_, in))
      return ec;
  if (const error_code ec = offer_features())
    return ec;
  const private_data data = op_->target ? op_->target->hello() : options.data;
  rdma_conn_param p = parameters(data);
  p.initiator_depth = reads_out_;
  p.responder_resources = in;
  return rdma_accept(id_, &p) == 0 ? error_code() : step_error(errno);
}

error_code cm_connection::reject(const private_data& data) {
  const std::lock_guard lock(mutex_);
  if (state_ != state::requested)
    return asio::error::connection_aborted;
  if (data.size() > most_data(id_->verbs, 148))
    return asio::error::message_size;
  const int failed = rdma_reject(id_, data.data(), static_cast<std::uint8_t>(data.size()));
  const error_code ec = failed == 0 ? error_code() : step_error(errno);
  count(failed == 0 ? &acceptor_tallies::rejected : &acceptor_tallies::aborted);
  state_ = state::closed;
  return ec;
}

} // namespace asio_rdma::detail
