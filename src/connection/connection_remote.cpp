// SPDX-License-Identifier: BSL-1.0
// Operations of a connection on the peer's memory.
#include <asio_rdma/detail/queues/request.hpp>

#include "connection/connection_impl.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace asio_rdma::detail {

error_code connection_impl::check_work(const remote_work& w) const {
  if (const error_code ec = link_.check())
    return ec;
  if (link_.frames().closing())
    return link_.frames().peer_closed() ? asio::error::broken_pipe : asio::error::operation_aborted;
  if (!link_.queue_pair()->supports(w.opcode))
    return asio::error::operation_not_supported;
  if (w.region != nullptr) {
    if (const error_code ec = check_region(*w.region))
      return ec;
    const access needed = w.opcode == IBV_WR_RDMA_READ ? access::remote_read
                          : is_atomic(w.opcode)        ? access::remote_atomic
                                                       : access::remote_write;
    if (!has(w.region->rights(), needed))
      return error::rights_refused;
  }
  if (is_atomic(w.opcode)) {
    if (w.target.size < sizeof(std::uint64_t))
      return error::remote_range;
    return w.target.address % sizeof(std::uint64_t) != 0 ? error_code(error::misaligned)
                                                         : error_code();
  }
  const registered_buffer* const owner = w.local->owner;
  if (owner != nullptr && !link_.is_usable(*owner))
    return asio::error::invalid_argument;
  const std::uint64_t bytes = owner != nullptr ? owner->size() : w.local->bytes;
  if (bytes > w.target.size)
    return error::remote_range;
  if (bytes > elements<1>::max_bytes)
    return asio::error::message_size;
  return w.local->too_many ? error_code(error::too_many_buffers) : error_code();
}

// Registered memory is used in place. Other memory is replaced by memory of the pool.
error_code connection_impl::fill(remote_record& r, const remote_work& w) {
  const bool reads = w.opcode == IBV_WR_RDMA_READ;
  r.wr.opcode = w.opcode;
  r.wr.send_flags = IBV_SEND_SIGNALED;
  r.wr.imm_data = 0;
  r.inline_bytes = send_operation::never_inline;
  if (is_atomic(w.opcode)) {
    r.wr.num_sge = 1;
    r.usual = false;
    r.wr.wr.atomic = {w.target.address, w.compare_add, w.swap, w.target.rkey};
    return {};
  }
  r.wr.wr.rdma = {w.target.address, w.target.rkey};
  const payload& p = *w.local;
  std::uint64_t bytes = p.bytes;
  error_code ec;
  std::size_t n = 0;
  if (p.owner != nullptr) {
    bytes = p.owner->size();
    ec = reads ? r.access.try_begin_write(*p.owner) : r.access.try_begin_read(*p.owner);
    if (bytes != 0)
      r.elements[n++] = element_of(*p.owner);
  } else if (p.registered && !(reads && p.count > member_device().max_read_buffers())) {
    if (p.count > remote_record::max_views)
      return error::too_many_buffers;
    r.caller_keeps = true;
    for (; n < p.count; ++n)
      r.elements[n] = element_of(p.parts[n]);
  } else {
    if (reads && p.count > remote_record::max_views)
      return error::too_many_buffers;
    r.memory = link_.pool().allocate(bytes, ec);
    if (ec)
      return ec;
    if (bytes != 0)
      r.elements[n++] = element_of(r.memory);
    if (!reads)
      asio::buffer_copy(mutable_buffer(r.memory), std::span(p.parts, p.count));
    else
      for (; r.target_count < p.count; ++r.target_count)
        r.targets[r.target_count] = element_of(p.parts[r.target_count]);
  }
  r.wr.num_sge = static_cast<int>(n);
  if (reads)
    r.wr.num_sge = give_read_element(r.elements.data(), r.wr.num_sge);
  r.usual = r.wr.num_sge == 1;
  if (!reads)
    r.inline_bytes = static_cast<std::uint32_t>(bytes);
  else if (!ec)
    ec = link_.open_sink(r);
  return ec;
}

bool connection_impl::start(remote_operation& op, std::span<const remote_work> chain) {
  link_impl::visit v(link_);
  remote_record* first = nullptr;
  remote_record** end = &first;
  const remote_work& head = chain.front();
  const bool chained = chain.size() > 1;
  message_record* notice = nullptr;
  try {
    for (const remote_work& w : chain) {
      op.ec = check_work(w);
      if (op.ec)
        break;
      remote_record& r = remote_records_.take(*this);
      r.next = nullptr;
      *std::exchange(end, &r.next) = &r;
      op.ec = fill(r, w);
      if (op.ec)
        break;
      r.found = w.found != nullptr ? w.found : &op.value;
    }
    if (!op.ec && head.immediate && !chained)
      notice = &records_.take();
  } catch (const std::bad_alloc&) {
    op.ec = asio::error::no_memory;
  }
  if (op.ec) {
    while (first != nullptr)
      end_remote(*std::exchange(first, first->next), v.done);
    return false;
  }
  begin(op);
  op.value = is_atomic(head.opcode)         ? 0
             : head.local->owner != nullptr ? head.local->owner->size()
                                            : head.local->bytes;
  op.count = op.pending = chain.size();
  if (chained)
    link_.queue_pair()->hold();
  while (first != nullptr) {
    remote_record& r = *std::exchange(first, first->next);
    r.waiter = &op;
    r.id = link_.next_id();
    r.under_way = true;
    ++remote_under_way_;
    if (chained)
      r.usual = false;
    if (first != nullptr)
      r.wr.send_flags = 0; // it has completed when the last work request has
    if (!link_.post(r)) {
      remote_done(r, v.done);
      if (notice != nullptr)
        give_back(*notice);
    } else if (notice != nullptr) {
      notice->what = message_out::kind::written;
      notice->bytes = 0;
      notice->immediate = head.immediate;
      notice->write = &r;
      r.notice = notice;
      messages_->send(*notice);
    }
  }
  if (chained)
    link_.queue_pair()->release();
  v.run();
  return true;
}

remote_record::remote_record(connection_impl& connection) noexcept
    : link_transfer(connection.link(),
                    [](link_transfer& t, operation_list& done) {
                      auto& self = static_cast<remote_record&>(t);
                      self.owner.remote_done(self, done);
                    }),
      owner(connection) {}

void connection_impl::remote_done(remote_record& r, operation_list& done) {
  r.under_way = false;
  --remote_under_way_;
  link_.drop(r.access);
  if (r.ec) {
    r.result = r.ec; // the result of a notice does not matter then
  } else {
    remote_operations_.add();
    for (int i = 0; i < r.wr.num_sge; ++i)
      remote_bytes_.add(r.wr.sg_list[i].length);
  }
  if (!r.ec && r.waiter != nullptr && is_atomic(r.wr.opcode))
    *r.found = r.value;
  if (!r.ec && r.waiter != nullptr)
    scatter(r.memory.data(), {r.targets.data(), r.target_count}, 0, r.memory.size());
  end_remote(r, done);
}

// The access ends when it is done and its notice has been sent.
void connection_impl::end_remote(remote_record& r, operation_list& done) {
  if (r.under_way || r.notice != nullptr)
    return;
  if (r.waiter != nullptr) {
    remote_operation& op = *std::exchange(r.waiter, nullptr);
    if (!op.first)
      op.first = r.result;
    if (--op.pending == 0)
      complete(op, op.first, done);
  }
  link_.close_sink(r);
  link_.drop(r.access);
  link_.drop(r.memory);
  r.target_count = 0;
  r.caller_keeps = false;
  r.result = {};
  remote_records_.give_back(r);
}

// Whether the operation may have had an effect: it does not only read, and the device has, or had,
// some of its work requests. A write whose notice waits behind it counts too, because the notice is
// not withdrawn. Call with the queue held.
bool connection_impl::has_begun(const remote_operation& op) {
  std::size_t reads = 0, waiting = 0;
  for (const remote_record& r : remote_records_.all()) {
    if (r.waiter != &op)
      continue;
    reads += r.wr.opcode == IBV_WR_RDMA_READ ? 1u : 0u;
    const bool silent = r.notice == nullptr || r.notice->where() == message_out::state::waiting;
    const bool waits = r.under_way && (r.withdrawn || link_.queue_pair()->is_waiting(r.id));
    waiting += silent && waits ? 1u : 0u;
  }
  return reads != op.count && waiting != op.count;
}

// Returns false if the operation continues: the device may use the caller's memory, or may have
// carried it out.
bool connection_impl::cancel(remote_operation& op, asio::cancellation_type_t type,
                             operation_list& done) {
  const error_code aborted = asio::error::operation_aborted;
  bool kept = false;
  struct held {
    explicit held(queue_pair_impl& q) : qp(q) { qp.hold(); }
    ~held() { qp.release(); }
    queue_pair_impl& qp;
  };
  const held what_waits(*link_.queue_pair()); // holds waiting work requests until this returns
  if (!may_leave_effects(type) && has_begun(op))
    return false;
  for (remote_record& r : remote_records_.all()) {
    if (r.waiter != &op)
      continue;
    const bool silent = r.notice == nullptr || r.notice->where() == message_out::state::waiting;
    if (silent && r.under_way && link_.withdraw(r)) {
      if (r.notice != nullptr && messages_->cancel(*r.notice))
        give_back(*std::exchange(r.notice, nullptr));
    } else if (r.caller_keeps && r.under_way) {
      kept = true;
    } else {
      r.waiter = nullptr;
      op.first = aborted;
      --op.pending;
    }
  }
  if (op.pending == 0)
    complete(op, aborted, done);
  return !kept;
}

} // namespace asio_rdma::detail
