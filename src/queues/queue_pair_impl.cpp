// SPDX-License-Identifier: BSL-1.0
#include "queues/queue_pair_impl.hpp"

#include <asio_rdma/detail/core/open_impl.hpp>
#include <asio_rdma/detail/verbs/flush.hpp>

#include "core/device_files.hpp"
#include "core/logging.hpp"
#include "core/random_bits.hpp"
#include "queues/queue_pair_remains.hpp"
#include "queues/shared_receive_queue_impl.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/last_receive.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace asio_rdma::detail {
namespace {

std::uint32_t random_packet_number() { return random_bits<std::uint32_t>() & 0xffffff; }

bool is_connected_type(ibv_qp_type type) noexcept {
  return type == IBV_QPT_RC || type == IBV_QPT_UC;
}

// Requests of the library have no more elements, unless the device reports a higher limit.
constexpr std::uint32_t most_send_elements = 16;

// Limits of adapters lie between: 256 (qedr), 101 (irdma), 96 (bnxt_re, erdma), 48 (X722), 32
// (efa).
std::uint32_t next_smaller_inline(std::uint32_t bytes) noexcept {
  constexpr std::uint32_t steps[] = {512, 256, 128, 96, 64, 48, 32, 16};
  const auto found = std::find_if(std::begin(steps), std::end(steps),
                                  [bytes](std::uint32_t step) { return step < bytes; });
  return found != std::end(steps) ? *found : 0;
}

void limit_reads(queue_pair_options& options, const ibv_device_attr& limits) noexcept {
  const int most = std::max(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 1);
  options.max_reads = static_cast<std::uint8_t>(std::min<int>(options.max_reads, most));
}

} // namespace

queue_pair_impl::queue_pair_impl(asio::execution_context& context, const protection_domain& pd,
                                 const queue_pair_options& options)
    : service_(completion_service::of(context)),
      pd_(pd),
      options_(options),
      packet_number_(random_packet_number()),
      send_(*this, options.send_depth),
      receive_(*this, options.receive_depth) {}

queue_pair_impl::~queue_pair_impl() = default;

/// The use of the shared receive queue by a queue pair that is being opened. Constructed before the
/// verbs object is made: a queue pair leaves the shared receive queue when it has been destroyed.
class queue_pair_impl::joining {
public:
  explicit joining(queue_pair_impl& qp) noexcept : qp_(qp) {}
  joining(const joining&) = delete;
  ~joining() {
    if (succeeded_)
      return;
    qp_.state_ = queue_pair_state::closed;
    if (attached_)
      qp_.srq_->detach(qp_);
  }

  error_code attach(bool yet_to_be_made) {
    error_code ec;
    if (qp_.srq_)
      ec = qp_.srq_->attach(qp_, yet_to_be_made);
    attached_ = qp_.srq_ && !ec;
    return ec;
  }
  void succeeded() noexcept { succeeded_ = true; }

private:
  queue_pair_impl& qp_;
  bool attached_ = false, succeeded_ = false;
};

error_code queue_pair_impl::open(std::shared_ptr<completion_queue_impl> queue,
                                 std::shared_ptr<shared_receive_queue_impl> receives) {
  if (!pd_.is_open())
    return asio::error::bad_descriptor;
  if (!is_connected_type(options_.type) || options_.max_reads == 0)
    return asio::error::invalid_argument;
  const device& d = pd_.get_device();
  find_unsupported();
  const ibv_device_attr& limits = d.attributes();
  const auto limit = [](std::uint32_t& value, int most) {
    value = std::min(value, static_cast<std::uint32_t>(std::max(most, 1)));
  };
  limit(options_.send_depth, limits.max_qp_wr);
  limit(options_.receive_depth, limits.max_qp_wr);
  limit(options_.max_send_sge, std::max<int>(limits.max_sge, most_send_elements));
  limit(options_.max_receive_sge, limits.max_sge);
  limit_reads(options_, limits);
  if (limits.vendor_id == rxe_vendor)
    options_.retry_count = std::min(options_.retry_count, most_rxe_retries);
  if (options_.port == 0 && options_.local)
    if (const auto gid = d.best_gid(*options_.local))
      options_.port = gid->port;
  if (options_.port == 0)
    options_.port = d.first_port();
  send_.set_depth(options_.send_depth);
  receive_.set_depth(options_.receive_depth);

  srq_ = std::move(receives);
  if (srq_)
    queue = srq_->completion_queue();
  reserved_ = options_.send_depth + (srq_ ? 0 : options_.receive_depth);
  error_code ec;
  cq_ = service_.use_queue(std::move(queue), d, reserved_, ec);
  if (ec)
    return ec;
  joining joined(*this);
  member_opening attempt(qp_, &ibv_destroy_qp, *cq_, reserved_);
  prepare_end();
  ec = joined.attach(true);
  if (ec)
    return ec;

  ibv_qp_init_attr init{};
  init.qp_context = this;
  init.send_cq = init.recv_cq = cq_->native_handle();
  init.srq = srq_ ? srq_->native_handle() : nullptr;
  init.qp_type = options_.type;
  init.cap.max_send_wr = options_.send_depth;
  init.cap.max_recv_wr = srq_ ? 0 : options_.receive_depth;
  init.cap.max_recv_sge = srq_ ? 0 : options_.max_receive_sge;
  qp_ = create(init);
  if (qp_ == nullptr)
    return creation_error();
  find_flush(qp_);
  number_ = qp_->qp_num;
  expect_last_receive();
  if (d.has_atomics() && options_.type == IBV_QPT_RC)
    ec = send_.reserve_results();
  if (!ec)
    ec = initialize();
  if (!ec) {
    state_ = queue_pair_state::open;
    ec = attempt.finish(service_, *this);
  }
  if (!ec)
    joined.succeeded();
  return ec;
}

// No attribute reports how much inline data a device takes, nor how many elements to send:
// `max_sge` is the smaller of the limits to send and to receive (kernel, ib_uverbs_query_device). A
// provider refuses what exceeds them with EINVAL, or without an error number (bnxt_re). So smaller
// values are tried, the elements first, and the device's handle remembers those that were accepted.
ibv_qp* queue_pair_impl::create(ibv_qp_init_attr& init) {
  const device& d = pd_.get_device();
  queue_pair_limits& found = d.queue_pair_limits();
  const auto reported = static_cast<std::uint32_t>(std::max(d.attributes().max_sge, 1));
  const std::uint32_t most_elements = std::min(options_.max_send_sge, found.send_elements.load());
  const std::uint32_t most_inline = std::min(options_.max_inline, found.inline_bytes.load());
  std::uint32_t elements = most_elements, inline_bytes = most_inline;
  const ibv_qp_cap others = init.cap;
  for (;;) {
    init.cap = others; // a provider may have changed it
    init.cap.max_send_sge = elements;
    init.cap.max_inline_data = inline_bytes;
    errno = 0; // libsiw may leave it unset
    ibv_qp* made = nullptr;
    if (supports(flush_opcode))
      made = create_with_flush(pd_.native_handle(), init);
    if (made == nullptr && (errno == 0 || errno == EOPNOTSUPP))
      made = ibv_create_qp(pd_.native_handle(), &init);
    if (made != nullptr) {
      if (elements < most_elements)
        found.send_elements = elements;
      if (inline_bytes < most_inline)
        found.inline_bytes = inline_bytes;
      options_.max_send_sge = elements;
      options_.max_inline = std::min(inline_bytes, init.cap.max_inline_data);
      return made;
    }
    if (errno != 0 && errno != EINVAL)
      return nullptr;
    if (logs(log_severity::debug)) [[unlikely]] {
      const int e = errno;
      write_log({.severity = log_severity::debug, .event = log_event::open},
                "the device %s refuses a queue pair with %u elements and %u inline bytes",
                ibv_get_device_name(d.native_handle()->device), elements, inline_bytes);
      errno = e;
    }
    if (elements > reported) {
      elements = std::max(reported, elements / 2);
    } else if (inline_bytes != 0) {
      elements = most_elements;
      inline_bytes = next_smaller_inline(inline_bytes);
    } else {
      return nullptr;
    }
  }
}

void queue_pair_impl::find_unsupported() noexcept {
  const device& d = pd_.get_device();
  const auto without = [this](std::initializer_list<ibv_wr_opcode> opcodes) {
    for (const ibv_wr_opcode o : opcodes)
      unsupported_ |= 1u << o;
  };
  send_.set_reads_overtaken(d.type() == transport::iwarp);
  const std::uint32_t vendor = d.attributes().vendor_id;
  send_.set_binds_repeated(vendor == rxe_vendor);
  send_.set_fences_here(vendor == rxe_vendor || vendor == siw_vendor);
  if (!d.has_immediate())
    without({IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM});
  if (!d.has_atomics())
    without({IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD});
  if (!d.has_memory_windows())
    without({IBV_WR_BIND_MW});
  if (!d.has_invalidation())
    without({IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV});
  if (!d.has_flush())
    without({flush_opcode});
  if (options_.type != IBV_QPT_RC)
    without(
        {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, flush_opcode});
}

void queue_pair_impl::find_flush(ibv_qp* qp) noexcept {
  if (supports(flush_opcode) && !takes_flush(qp))
    unsupported_ |= 1u << flush_opcode;
}

// Allocates the parts of the queue pair's end: the end must not depend on memory.
void queue_pair_impl::prepare_end() {
  refused_ = std::make_unique<refused>();
  if (pd_.get_device().type() == transport::iwarp)
    lingering_ = std::make_shared<lingering>(*this);
}

// Only reliable connections have this event, and iWARP does not.
void queue_pair_impl::expect_last_receive() {
  if (srq_ && options_.type == IBV_QPT_RC && pd_.get_device().type() != transport::iwarp)
    last_receive_ = std::make_unique<last_receive>(pd_.get_device(), qp_);
}

void queue_pair_impl::may_receive(ibv_qp_state state) noexcept {
  if (last_receive_ && state != IBV_QPS_RESET && state != IBV_QPS_INIT && state != IBV_QPS_ERR)
    last_receive_->may_take();
}

// All accesses that the device can do: the rights of each memory region decide.
unsigned queue_pair_impl::access_flags() const noexcept {
  const device& d = pd_.get_device();
  unsigned flags = IBV_ACCESS_REMOTE_WRITE;
  if (options_.type == IBV_QPT_RC)
    flags |= IBV_ACCESS_REMOTE_READ;
  if (options_.type == IBV_QPT_RC && d.has_atomics())
    flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (d.has_memory_windows())
    flags |= IBV_ACCESS_MW_BIND;
  if (options_.type == IBV_QPT_RC && d.has_flush(placement::visible))
    flags |= visible_flush_access;
  if (options_.type == IBV_QPT_RC && d.has_flush(placement::persistent))
    flags |= persistent_flush_access;
  return flags;
}

error_code queue_pair_impl::initialize() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = options_.port;
  attr.pkey_index = options_.pkey_index;
  attr.qp_access_flags = access_flags();
  const int e = ibv_modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return e == 0 ? error_code() : system_error_code(e);
}

error_code queue_pair_impl::adopt(std::shared_ptr<completion_queue_impl> queue,
                                  std::shared_ptr<shared_receive_queue_impl> receives, ibv_qp* qp) {
  if (receives)
    queue = receives->completion_queue();
  if (!queue || &queue->context() != &context() || qp == nullptr ||
      !is_connected_type(qp->qp_type) || qp->pd != pd_.native_handle() ||
      qp->send_cq != queue->native_handle() || qp->recv_cq != queue->native_handle() ||
      qp->srq != (receives ? receives->native_handle() : nullptr))
    return asio::error::invalid_argument;
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (const int e = ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_PORT, &init))
    return system_error_code(e);
  options_.type = qp->qp_type;
  find_unsupported();
  find_flush(qp);
  options_.send_depth = init.cap.max_send_wr;
  options_.receive_depth = init.cap.max_recv_wr;
  options_.max_send_sge = init.cap.max_send_sge;
  options_.max_receive_sge = init.cap.max_recv_sge;
  options_.max_inline = init.cap.max_inline_data;
  limit_reads(options_, pd_.get_device().attributes());
  send_.set_depth(options_.send_depth);
  receive_.set_depth(options_.receive_depth);
  reserved_ = options_.send_depth + (receives ? 0 : options_.receive_depth);
  if (!queue->reserve(reserved_))
    return error::completion_queue_full;
  cq_ = std::move(queue);
  srq_ = std::move(receives);
  joining joined(*this);
  member_opening attempt(qp_, &ibv_destroy_qp, *cq_, reserved_);
  prepare_end();
  error_code ec = joined.attach(false);
  if (!ec && pd_.get_device().has_atomics() && options_.type == IBV_QPT_RC)
    ec = send_.reserve_results();
  if (ec)
    return ec;
  attempt.adopt(qp);
  number_ = qp->qp_num;
  expect_last_receive();
  may_receive(attr.qp_state);
  options_.port = attr.port_num != 0 ? attr.port_num : pd_.get_device().first_port();
  switch (attr.qp_state) {
  case IBV_QPS_RTS:
    connected_locked(reads_in_flight());
    break;
  case IBV_QPS_ERR:
  case IBV_QPS_SQE:
    state_ = queue_pair_state::failed;
    reason_ = asio::error::connection_reset;
    break;
  default:
    state_ = queue_pair_state::open;
  }
  ec = attempt.finish(service_, *this);
  if (!ec)
    joined.succeeded();
  return ec;
}

std::uint32_t queue_pair_impl::vendor_error() const {
  const std::lock_guard lock(mutex_);
  return vendor_error_;
}

error_code queue_pair_impl::first_failure() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

queue_pair_state queue_pair_impl::state() const { return state_; }

// --- The other functions of queue_pair_face.hpp -------------------------------------------------

std::shared_ptr<queue_pair_impl>
open_queue_pair(asio::execution_context& context, const protection_domain& pd,
                const queue_pair_options& options, std::shared_ptr<completion_queue_impl> queue,
                std::shared_ptr<shared_receive_queue_impl> receives, error_code& ec) {
  const auto open = [&](queue_pair_impl& i) {
    return i.open(std::move(queue), std::move(receives));
  };
  return make_open<queue_pair_impl>(ec, open, context, pd, options);
}

std::shared_ptr<queue_pair_impl>
adopt_queue_pair(asio::execution_context& context, const protection_domain& pd,
                 std::shared_ptr<completion_queue_impl> queue,
                 std::shared_ptr<shared_receive_queue_impl> receives, ibv_qp* qp, error_code& ec) {
  const auto adopt = [&](queue_pair_impl& i) {
    return i.adopt(std::move(queue), std::move(receives), qp);
  };
  return make_open<queue_pair_impl>(ec, adopt, context, pd, queue_pair_options());
}

queue_pair_state state(const queue_pair_impl& impl) { return impl.state(); }
ibv_qp* native_handle(const queue_pair_impl& impl) noexcept { return impl.native_handle(); }
const queue_pair_options& options(const queue_pair_impl& impl) noexcept { return impl.options(); }
const protection_domain& get_protection_domain(const queue_pair_impl& impl) noexcept {
  return impl.get_protection_domain();
}
error_code query(const queue_pair_impl& impl, ibv_qp_attr& attr, int mask) {
  return impl.query(attr, mask);
}
std::uint32_t vendor_error(const queue_pair_impl& impl) { return impl.vendor_error(); }
error_code local_address(const queue_pair_impl& impl, queue_pair_address& result) {
  return impl.local_address(result);
}
error_code connect(queue_pair_impl& impl, const queue_pair_address& peer) {
  return impl.connect(peer);
}
void set_connected(queue_pair_impl& impl) { impl.connected_by_caller(); }
bool start(queue_pair_impl& impl, operation& op) { return impl.start(op); }
void hold(queue_pair_impl& impl) { impl.hold(); }
void release(queue_pair_impl& impl) { impl.release(); }
void close(queue_pair_impl& impl) { impl.close(); }
void cancel(queue_pair_impl& impl) { impl.cancel(); }
void cancel(queue_pair_impl& impl, std::uint64_t id, asio::cancellation_type_t type) {
  impl.cancel(id, type);
}
std::uint64_t next_id_of(queue_pair_impl& impl) noexcept { return impl.next_id(); }

} // namespace asio_rdma::detail
