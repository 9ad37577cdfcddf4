// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/queue_pair_impl.hpp>

#include <asio_rdma/detail/shared_receive_queue_impl.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <utility>

namespace asio_rdma::detail {
namespace {

std::uint32_t random_packet_number() {
  std::random_device source;
  return source() & 0xffffff;
}

} // namespace

// --- The send queue --------------------------------------------------------------------------

queue_pair_impl::send_queue::send_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept
    : work_queue(qp.mutex_, depth), qp_(qp) {}

error_code queue_pair_impl::send_queue::reserve_results() {
  results_.resize(depth());
  free_results_.resize(depth());
  for (std::uint32_t i = 0; i < depth(); ++i)
    free_results_[i] = depth() - 1 - i;
  error_code ec;
  results_region_ = memory_region(qp_.pd_, results_.data(), results_.size() * sizeof(results_[0]),
                                  access::local_write, ec);
  return ec;
}

// `full`: nothing more fits behind this one, so it must be heard of, or nothing would be posted
// any more.
void queue_pair_impl::send_queue::prepare(send_operation& op, bool full) noexcept {
  if (op.inline_bytes <= qp_.options_.max_inline)
    op.wr.send_flags |= IBV_SEND_INLINE;
  const bool overtaken = qp_.reads_overtaken_ && op.wr.opcode == IBV_WR_RDMA_READ;
  if (op.unsignaled && !full && !overtaken && ++unsignaled_run_ < depth() / 2)
    op.wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
  else
    unsignaled_run_ = 0;
  if (!op.is_atomic())
    return;
  op.result_slot = free_results_.back();
  free_results_.pop_back();
  op.wr.sg_list[0] = {reinterpret_cast<std::uintptr_t>(&results_[op.result_slot]),
                      sizeof(std::uint64_t), results_region_.lkey()};
}

int queue_pair_impl::send_queue::post(operation_list::iterator first, operation_list::iterator last,
                                      operation*& failed) {
  auto* head = static_cast<send_operation*>(&*first);
  send_operation* tail = nullptr;
  for (auto i = first; i != last;) {
    auto& op = static_cast<send_operation&>(*i);
    ++i;
    prepare(op, i == last && room() == 0);
    op.wr.next = nullptr;
    if (tail != nullptr)
      tail->wr.next = &op.wr;
    tail = &op;
  }
  ibv_send_wr* bad = &head->wr;
  const int e = ibv_post_send(qp_.qp_, &head->wr, &bad);
  if (e == 0) [[likely]] {
    for (auto i = first; i != last; ++i)
      if (ibv_send_wr& wr = static_cast<send_operation&>(*i).wr; wr.opcode == IBV_WR_BIND_MW) {
        wr.bind_mw.mw->rkey = wr.bind_mw.rkey; // by which the provider finds it the next time
        qp_.has_bound_windows_ = true;
      }
    return 0;
  }
  const error_code ec = system_error_code(std::abs(e)); // siw turns the sign
  if (bad ==
      nullptr) { // taken, but the device could not be told: only its destruction gives it back
    qp_.fail_on_service(ec);
    return 0;
  }
  failed = reinterpret_cast<operation*>(bad->wr_id);
  for (auto i = operation_list::s_iterator_to(*failed); i != last; ++i)
    on_retired(*i);
  return ec.value(); // the value is the error (ibv_post_send(3))
}

void queue_pair_impl::send_queue::on_retired(operation& op) noexcept {
  auto& send = static_cast<send_operation&>(op);
  if (!send.is_atomic())
    return;
  send.value = results_[send.result_slot];
  free_results_.push_back(send.result_slot);
}

void queue_pair_impl::send_queue::on_completion(operation& op, const ibv_wc& wc,
                                                operation_list& ready) {
  if (wc.status == IBV_WC_SUCCESS && static_cast<send_operation&>(op).usual &&
      complete_oldest(op, ready)) [[likely]]
    return;
  complete_slowly(op, wc, ready);
}

void queue_pair_impl::send_queue::complete_slowly(operation& op, const ibv_wc& wc,
                                                  operation_list& ready) {
  operation_list behind;
  if (wc.status != IBV_WC_SUCCESS)
    op.fail(qp_.completion_failure(wc, behind));
  complete(op, ready);
  ready.splice(ready.end(), behind);
}

// --- The receive queue -----------------------------------------------------------------------

queue_pair_impl::receive_queue::receive_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept
    : work_queue(qp.mutex_, depth), qp_(qp) {}

int queue_pair_impl::receive_queue::post(operation_list::iterator first,
                                         operation_list::iterator last, operation*& failed) {
  ibv_recv_wr* bad = nullptr;
  ibv_recv_wr* head = link_receives(first, last);
  const int e = ibv_post_recv(qp_.qp_, head, &bad);
  if (e == 0) [[likely]]
    return 0;
  failed = reinterpret_cast<operation*>((bad != nullptr ? bad : head)->wr_id);
  return std::abs(e);
}

void queue_pair_impl::receive_queue::on_completion(operation& op, const ibv_wc& wc,
                                                   operation_list& ready) {
  take_receive_result(op, wc);
  if (wc.status == IBV_WC_SUCCESS && complete_oldest(op, ready)) [[likely]]
    return;
  operation_list behind;
  if (wc.status != IBV_WC_SUCCESS)
    op.fail(qp_.completion_failure(wc, behind));
  complete(op, ready);
  ready.splice(ready.end(), behind);
}

ibv_recv_wr* link_receives(operation_list::iterator first, operation_list::iterator last) noexcept {
  ibv_recv_wr* head = nullptr;
  ibv_recv_wr** next = &head;
  for (auto i = first; i != last; ++i) {
    auto& op = static_cast<receive_operation&>(*i);
    *next = &op.wr;
    next = &op.wr.next;
  }
  *next = nullptr;
  return head;
}

void give_element(receive_operation& op, const device& d) noexcept {
  if (op.wr.num_sge != 0 || d.type() != transport::iwarp)
    return;
  op.wr.sg_list[0] = {};
  op.wr.num_sge = 1;
}

void take_receive_result(operation& op, const ibv_wc& wc) noexcept {
  op.qp_num = wc.qp_num;
  op.bytes = wc.byte_len;
  op.flags = wc.wc_flags;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0)
    op.word = ntohl(wc.imm_data);
  else if ((wc.wc_flags & IBV_WC_WITH_INV) != 0)
    op.word = wc.invalidated_rkey;
}

// --- The queue pair --------------------------------------------------------------------------

queue_pair_impl::queue_pair_impl(asio::execution_context& context, const protection_domain& pd,
                                 const queue_pair_options& options)
    : service_(completion_service::of(context)),
      pd_(pd),
      options_(options),
      packet_number_(random_packet_number()),
      send_(*this, options.send_depth),
      receive_(*this, options.receive_depth) {}

queue_pair_impl::~queue_pair_impl() = default;

error_code queue_pair_impl::open(std::shared_ptr<completion_queue_impl> queue,
                                 std::shared_ptr<shared_receive_queue_impl> receives) {
  const device& d = pd_.get_device();
  find_unsupported();
  const ibv_device_attr& limits = d.attributes();
  const auto limit = [](std::uint32_t& value, int most) {
    value = std::min(value, static_cast<std::uint32_t>(std::max(most, 1)));
  };
  limit(options_.send_depth, limits.max_qp_wr);
  limit(options_.receive_depth, limits.max_qp_wr);
  limit(options_.max_send_sge, limits.max_sge);
  limit(options_.max_receive_sge, limits.max_sge);
  options_.max_reads = static_cast<std::uint8_t>(std::clamp<int>(
      std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 1, options_.max_reads));
  if (options_.port == 0)
    options_.port = d.first_port();
  send_.set_depth(options_.send_depth);
  receive_.set_depth(options_.receive_depth);

  srq_ = std::move(receives);
  if (srq_)
    queue = srq_->completion_queue();
  reserved_ = options_.send_depth + (srq_ ? 0 : options_.receive_depth);
  error_code ec;
  if (!queue) {
    queue = service_.shared_queue(d, reserved_, ec);
  } else if (queue->get_device() != d) {
    ec = error::wrong_device;
  } else if (!queue->reserve(reserved_)) {
    ec = error::completion_queue_full;
  }
  if (ec)
    return ec;
  cq_ = std::move(queue);

  ibv_qp_init_attr init{};
  init.qp_context = this;
  init.send_cq = init.recv_cq = cq_->native_handle();
  init.srq = srq_ ? srq_->native_handle() : nullptr;
  init.qp_type = options_.type;
  init.cap.max_send_wr = options_.send_depth;
  init.cap.max_recv_wr = srq_ ? 0 : options_.receive_depth;
  init.cap.max_send_sge = options_.max_send_sge;
  init.cap.max_recv_sge = srq_ ? 0 : options_.max_receive_sge;
  init.cap.max_inline_data = options_.max_inline;
  errno = 0; // libsiw need not set it
  qp_ = ibv_create_qp(pd_.native_handle(), &init);
  if (qp_ == nullptr && options_.max_inline != 0) { // the one limit that no attribute tells
    options_.max_inline = init.cap.max_inline_data = 0;
    qp_ = ibv_create_qp(pd_.native_handle(), &init);
  }
  if (qp_ == nullptr) {
    ec = system_error_code(errno != 0 ? errno : ENOMEM);
    cq_->unreserve(reserved_);
    return ec;
  }
  number_ = qp_->qp_num;
  options_.max_inline = std::min(options_.max_inline, init.cap.max_inline_data);
  if (d.has_atomics() && options_.type == IBV_QPT_RC)
    ec = send_.reserve_results();
  if (!ec)
    ec = initialize();
  if (!ec)
    service_.add(*this, ec);
  if (ec) {
    ibv_destroy_qp(std::exchange(qp_, nullptr));
    cq_->unreserve(reserved_);
    return ec;
  }
  if (srq_)
    srq_->attach();
  state_ = queue_pair_state::open;
  return {};
}

void queue_pair_impl::find_unsupported() noexcept {
  const device& d = pd_.get_device();
  const auto without = [this](std::initializer_list<ibv_wr_opcode> opcodes) {
    for (const ibv_wr_opcode o : opcodes)
      unsupported_ |= 1u << o;
  };
  reads_overtaken_ = d.type() == transport::iwarp;
  if (!d.has_immediate())
    without({IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM});
  if (!d.has_atomics())
    without({IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD});
  if (!d.has_memory_windows())
    without({IBV_WR_BIND_MW});
  if (!d.has_invalidation())
    without({IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV});
  if (options_.type != IBV_QPT_RC)
    without({IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD});
}

// All that the device can: the rights of each region decide.
unsigned queue_pair_impl::access_flags() const noexcept {
  const device& d = pd_.get_device();
  unsigned flags = IBV_ACCESS_REMOTE_WRITE;
  if (options_.type == IBV_QPT_RC)
    flags |= IBV_ACCESS_REMOTE_READ;
  if (options_.type == IBV_QPT_RC && d.has_atomics())
    flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (d.has_memory_windows())
    flags |= IBV_ACCESS_MW_BIND;
  return flags;
}

error_code queue_pair_impl::initialize() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = options_.port;
  attr.qp_access_flags = access_flags();
  const int e = ibv_modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return e == 0 ? error_code() : system_error_code(e);
}

error_code queue_pair_impl::adopt(std::shared_ptr<completion_queue_impl> queue, ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (const int e = ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_PORT, &init))
    return system_error_code(e);
  if (!queue || qp->send_cq != queue->native_handle() || qp->recv_cq != queue->native_handle() ||
      qp->srq != nullptr)
    return asio::error::invalid_argument;
  options_.type = qp->qp_type;
  find_unsupported();
  options_.send_depth = init.cap.max_send_wr;
  options_.receive_depth = init.cap.max_recv_wr;
  options_.max_send_sge = init.cap.max_send_sge;
  options_.max_receive_sge = init.cap.max_recv_sge;
  options_.max_inline = init.cap.max_inline_data;
  send_.set_depth(options_.send_depth);
  receive_.set_depth(options_.receive_depth);
  reserved_ = options_.send_depth + options_.receive_depth;
  if (!queue->reserve(reserved_))
    return error::completion_queue_full;
  cq_ = std::move(queue);
  error_code ec;
  if (pd_.get_device().has_atomics() && options_.type == IBV_QPT_RC)
    ec = send_.reserve_results();
  if (!ec)
    service_.add(*this, ec);
  if (ec) {
    cq_->unreserve(reserved_);
    return ec;
  }
  qp_ = qp;
  number_ = qp->qp_num;
  options_.port = attr.port_num != 0 ? attr.port_num : pd_.get_device().first_port();
  switch (attr.qp_state) {
  case IBV_QPS_RTS:
    state_ = queue_pair_state::connected;
    break;
  case IBV_QPS_ERR:
  case IBV_QPS_SQE:
    state_ = queue_pair_state::failed;
    reason_ = asio::error::connection_reset;
    break;
  default:
    state_ = queue_pair_state::open;
  }
  return {};
}

queue_pair_state queue_pair_impl::state() const { return state_; }

error_code queue_pair_impl::check_start(queue_pair_state least) const {
  const queue_pair_state now = state_.load(std::memory_order_relaxed);
  if (now == least || now == queue_pair_state::connected) [[likely]]
    return {};
  if (now == queue_pair_state::failed)
    return reason_;
  if (now == queue_pair_state::closed)
    return asio::error::bad_descriptor;
  return asio::error::not_connected;
}

// What holds an operation up, or lets it wait.
template <class Operation>
bool queue_pair_impl::start_slowly(work_queue& queue, Operation& op, std::uint32_t max_sge,
                                   queue_pair_state least) {
  op.ec = check_start(least);
  if (!op.ec && op.wr.num_sge > static_cast<int>(max_sge))
    op.ec = error::too_many_buffers;
  if (op.ec)
    return false;
  cq_->operation_starting();
  const bool started = queue.start(op);
  if (started)
    cq_->operation_started();
  else
    cq_->operation_not_started();
  return started;
}

bool queue_pair_impl::start(send_operation& op) {
  mutex_.lock();
  if (state_.load(std::memory_order_relaxed) != queue_pair_state::connected || !op.usual ||
      !send_.may_post()) [[unlikely]] {
    const bool started =
        start_slowly(send_, op, options_.max_send_sge, queue_pair_state::connected);
    mutex_.unlock();
    return started;
  }
  cq_->operation_starting();
  if (op.inline_bytes <= options_.max_inline)
    op.wr.send_flags |= IBV_SEND_INLINE;
  send_.posting(op);
  ibv_send_wr* bad = &op.wr;
  if (const int e = ibv_post_send(qp_, &op.wr, &bad)) [[unlikely]] {
    if (bad == nullptr) { // as in send_queue::post
      send_.posted(op);
      fail_on_service(system_error_code(std::abs(e)));
      mutex_.unlock();
      return true;
    }
    mutex_.unlock();
    cq_->operation_not_started();
    op.fail(system_error_code(std::abs(e)));
    return false;
  }
  send_.posted(op);
  mutex_.unlock();
  cq_->operation_started();
  return true;
}

bool queue_pair_impl::start(receive_operation& op) {
  if (srq_) {
    op.ec = asio::error::operation_not_supported;
    return false;
  }
  give_element(op, pd_.get_device());
  const std::lock_guard lock(mutex_);
  return start_slowly(receive_, op, options_.max_receive_sge, queue_pair_state::open);
}

bool queue_pair_impl::start(operation& op) {
  const std::lock_guard lock(mutex_);
  op.ec = check_start(queue_pair_state::open);
  if (op.ec)
    return false;
  service_.operation_starting();
  waiters_.push_back(op);
  return true;
}

void queue_pair_impl::hold() {
  const std::lock_guard lock(mutex_);
  send_.hold();
  receive_.hold();
}

void queue_pair_impl::release() {
  operation_list failed;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    receive_.release(failed);
    send_.release(failed);
  }
  cq_->operation_started();
  cq_->complete(failed);
}

error_code queue_pair_impl::completion_failure(const ibv_wc& wc, operation_list& ready) {
  const bool flushed = wc.status == IBV_WC_WR_FLUSH_ERR;
  if (state_ != queue_pair_state::failed && state_ != queue_pair_state::closed)
    enter_failed(asio::error::connection_reset, ready);
  return flushed ? reason_ : completion_error(wc.status);
}

void queue_pair_impl::mark_failed(const error_code& why) {
  state_ = queue_pair_state::failed;
  reason_ = why;
  for (operation& op : waiters_)
    op.fail(why);
  service_.complete(waiters_);
  teardown_.keep(shared_from_this());
}

// A device need not give back what is posted to a queue pair in the error state: siw does not, and
// none does after a fatal error. Destroying the queue pair gives it back for certain. That may
// wait for an event to be acknowledged, so it is done later, where nothing is locked.
void queue_pair_impl::enter_failed(const error_code& why, operation_list& ready) {
  mark_failed(why);
  send_.fail_waiting(why, ready);
  receive_.fail_waiting(why, ready);
  cq_->operation_starting();
  ready.push_back(teardown_);
}

// The same from where no list is at hand; what waits is left to the teardown.
void queue_pair_impl::fail_on_service(const error_code& why) {
  if (state_ == queue_pair_state::failed || state_ == queue_pair_state::closed)
    return;
  mark_failed(why);
  operation_list later;
  service_.operation_starting();
  later.push_back(teardown_);
  service_.complete(later);
}

void queue_pair_impl::teardown::run(operation* base, disposal how) {
  auto& self = static_cast<teardown&>(*base);
  const auto keep = std::move(self.self_);
  if (how != disposal::destroy) // else the context shuts down, and the queue pair with it
    self.qp_.release_failed();
}

bool queue_pair_impl::any_posted() const {
  const std::lock_guard lock(mutex_);
  return send_.any_posted() || receive_.any_posted();
}

// A queue pair that windows are bound to stays until it is closed: rxe cannot destroy it before
// them. Devices with windows do flush.
void queue_pair_impl::release_failed() {
  ibv_qp* qp = nullptr;
  std::shared_ptr<connection_link> link;
  error_code why;
  operation_list left;
  {
    const std::lock_guard lock(mutex_);
    if (qp_ == nullptr)
      return;
    link = link_;
    why = reason_;
    if (has_bound_windows_) {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_ERR;
      ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
      send_.fail_waiting(why, left);
      receive_.fail_waiting(why, left);
    } else {
      qp = std::exchange(qp_, nullptr);
    }
  }
  if (qp != nullptr) {
    release_device(qp, link, why);
    return;
  }
  if (link)
    link->disconnect();
  cq_->complete(left);
}

// After the destruction of the queue pair the device uses none of its memory, and after one more
// look at the completion queue none of its requests is left there. What is still in the queues
// will never complete.
void queue_pair_impl::release_device(ibv_qp* qp, const std::shared_ptr<connection_link>& link,
                                     const error_code& why) {
  // The queue pair goes before what it was made of.
  std::shared_ptr<void> device_object(
      qp, [cq = cq_, srq = srq_, pd = pd_](ibv_qp* p) { ibv_destroy_qp(p); });
  if (link)
    link->disconnect();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp, &attr, IBV_QP_STATE); // so that a shared receive that it had taken comes back
  cq_->drain();
  if (link && link->lingers() && !any_posted())
    link->keep(device_object);
  device_object.reset();
  cq_->drain();
  operation_list left;
  {
    const std::lock_guard lock(mutex_);
    send_.fail_all(why, left);
    receive_.fail_all(why, left);
  }
  cq_->unreserve(reserved_);
  cq_->complete(left);
  if (srq_)
    srq_->detach();
}

void queue_pair_impl::fail(const error_code& why) {
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != queue_pair_state::open && state_ != queue_pair_state::connected)
      return;
    enter_failed(why, ready);
  }
  cq_->complete(ready);
}

void queue_pair_impl::cancel() {
  operation_list ready;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    const error_code aborted = asio::error::operation_aborted;
    send_.fail_waiting(aborted, ready);
    receive_.fail_waiting(aborted, ready);
    for (operation& op : waiters_)
      op.fail(aborted);
    service_.complete(waiters_);
    if ((send_.any_posted() || receive_.any_posted()) && state_ != queue_pair_state::failed)
      enter_failed(aborted, ready);
  }
  cq_->complete(ready);
}

void queue_pair_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  const error_code aborted = asio::error::operation_aborted;
  operation_list ready, done;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    operation* op = send_.remove_waiting(id);
    if (op == nullptr)
      op = receive_.remove_waiting(id);
    const auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                                     [id](const operation& o) { return o.id == id; });
    if (op != nullptr) {
      op->fail(aborted);
      ready.push_back(*op);
    } else if (waiter != waiters_.end()) {
      waiter->ec = aborted;
      done.splice(done.end(), waiters_, waiter);
    } else if ((type & asio::cancellation_type::terminal) != asio::cancellation_type::none &&
               (send_.is_posted(id) || receive_.is_posted(id)) &&
               state_ != queue_pair_state::failed) {
      enter_failed(aborted, ready);
    }
  }
  cq_->complete(ready);
  service_.complete(done);
}

void queue_pair_impl::close() {
  operation_list left, waiters;
  ibv_qp* qp = nullptr;
  std::shared_ptr<connection_link> link;
  const error_code aborted = asio::error::operation_aborted;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == queue_pair_state::closed)
      return;
    state_ = queue_pair_state::closed;
    reason_ = aborted;
    send_.fail_waiting(aborted, left);
    receive_.fail_waiting(aborted, left);
    for (operation& op : waiters_)
      op.fail(aborted);
    waiters.swap(waiters_);
    qp = std::exchange(qp_, nullptr);
    link = std::move(link_);
  }
  service_.remove(*this);
  cq_->complete(left);
  service_.complete(waiters);
  if (qp != nullptr) // else it has failed, and its teardown ends what is posted
    release_device(qp, link, aborted);
}

void queue_pair_impl::on_device_event(const ibv_async_event& event) {
  switch (event.event_type) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR: {
    {
      const std::lock_guard lock(mutex_);
      if (event.element.qp != qp_)
        return;
    }
    fail(error::queue_pair_fatal);
    break;
  }
  case IBV_EVENT_QP_LAST_WQE_REACHED: { // with shared receives, all that tells of the error state
    {
      const std::lock_guard lock(mutex_);
      if (event.element.qp != qp_)
        return;
    }
    fail(asio::error::connection_reset);
    break;
  }
  case IBV_EVENT_DEVICE_FATAL:
    fail(error::device_fatal);
    break;
  case IBV_EVENT_CQ_ERR:
    if (event.element.cq == cq_->native_handle())
      fail(error::queue_pair_fatal);
    break;
  default:
    break;
  }
}

// --- Connecting ------------------------------------------------------------------------------

error_code queue_pair_impl::local_address(queue_pair_address& result) const {
  const device& d = pd_.get_device();
  error_code ec;
  const ibv_port_attr port = d.port(options_.port, ec);
  if (ec)
    return ec;
  result.number = number_;
  result.packet_number = packet_number_;
  result.lid = port.lid;
  result.mtu = options_.path_mtu != 0 ? options_.path_mtu : port.active_mtu;
  result.max_reads = options_.max_reads;
  if (const auto gid = d.best_gid(options_.port))
    result.gid = gid->gid;
  else if (port.link_layer == IBV_LINK_LAYER_ETHERNET)
    return error::no_gid;
  return {};
}

error_code queue_pair_impl::connect(const queue_pair_address& peer) {
  const device& d = pd_.get_device();
  if (d.type() == transport::iwarp)
    return asio::error::operation_not_supported; // only its connection manager can
  queue_pair_address local;
  if (const error_code ec = local_address(local))
    return ec;
  error_code ec;
  const bool routed = d.port(options_.port, ec).link_layer == IBV_LINK_LAYER_ETHERNET;
  const auto gid = d.best_gid(options_.port);

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = std::min(local.mtu, peer.mtu);
  attr.dest_qp_num = peer.number;
  attr.rq_psn = peer.packet_number;
  attr.max_dest_rd_atomic = options_.max_reads;
  attr.min_rnr_timer = options_.min_rnr_timer;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.sl = options_.service_level;
  attr.ah_attr.port_num = options_.port;
  attr.ah_attr.is_global = routed ? 1 : 0;
  if (routed) {
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid->index);
    attr.ah_attr.grh.hop_limit = options_.hop_limit;
    attr.ah_attr.grh.traffic_class = options_.traffic_class;
  }
  const bool reliable = options_.type == IBV_QPT_RC;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (reliable)
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const std::lock_guard lock(mutex_);
  if (state_ != queue_pair_state::open)
    return state_ == queue_pair_state::connected ? error_code(asio::error::already_connected)
                                                 : check_start(queue_pair_state::connected);
  if (const int e = ibv_modify_qp(qp_, &attr, mask))
    return system_error_code(e);

  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = packet_number_;
  attr.timeout = options_.timeout;
  attr.retry_cnt = options_.retry_count;
  attr.rnr_retry = options_.rnr_retry;
  attr.max_rd_atomic = std::min(options_.max_reads, std::max<std::uint8_t>(peer.max_reads, 1));
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (reliable)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (const int e = ibv_modify_qp(qp_, &attr, mask))
    return system_error_code(e);
  state_ = queue_pair_state::connected;
  return {};
}

error_code queue_pair_impl::attach(std::shared_ptr<connection_link> link) {
  const std::lock_guard lock(mutex_);
  if (state_ == queue_pair_state::connected || (state_ == queue_pair_state::open && link_))
    return asio::error::already_connected;
  if (const error_code ec = check_start(queue_pair_state::open))
    return ec;
  link_ = std::move(link);
  return {};
}

void queue_pair_impl::detach() {
  std::shared_ptr<connection_link> link;
  {
    const std::lock_guard lock(mutex_);
    link = std::move(link_);
  }
}

void queue_pair_impl::connected() {
  const std::lock_guard lock(mutex_);
  if (state_ == queue_pair_state::open)
    state_ = queue_pair_state::connected;
}

error_code queue_pair_impl::modify(ibv_qp_attr& attr, int mask) {
  const std::lock_guard lock(mutex_);
  if (const error_code ec = check_start(queue_pair_state::open))
    return ec;
  const int e = ibv_modify_qp(qp_, &attr, mask);
  return e == 0 ? error_code() : system_error_code(std::abs(e));
}

} // namespace asio_rdma::detail
