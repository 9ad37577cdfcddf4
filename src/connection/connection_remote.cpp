// SPDX-License-Identifier: BSL-1.0
// Operations of a connection on the peer's memory.
#include <asio_rdma/detail/queues/request.hpp>

#include "connection/connection_impl.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace asio_rdma::detail {
namespace {

std::uint64_t bytes_of(const remote_work& w) noexcept {
  if (is_atomic(w.opcode))
    return sizeof(std::uint64_t);
  return w.local->owner != nullptr ? w.local->owner->size() : w.local->bytes;
}

std::uint64_t bytes_of(const ibv_send_wr& wr) noexcept {
  std::uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i)
    bytes += wr.sg_list[i].length;
  return bytes;
}

// The parts of a payload, as far as they are in the portion. Returns their number.
std::size_t views_of(const payload& p, remote_portion which, std::span<ibv_sge> to) noexcept {
  std::size_t n = 0;
  for (const payload::part& part : std::span(p.parts, p.count)) {
    const const_buffer view = (const_buffer(part) + which.at).first(which.bytes);
    which.at -= std::min<std::uint64_t>(which.at, part.bytes);
    which.bytes -= view.size();
    if (view.size() != 0)
      to[n++] = element_of(view);
  }
  return n;
}

void copy_from(const payload& p, const remote_portion& which, const mutable_buffer& to) {
  std::uint64_t skip = which.at;
  std::size_t copied = 0;
  for (const payload::part& part : std::span(p.parts, p.count)) {
    copied += asio::buffer_copy(to + copied, const_buffer(part) + skip);
    skip -= std::min<std::uint64_t>(skip, part.bytes);
  }
}

} // namespace

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
  if (bytes_of(w) > w.target.size)
    return error::remote_range;
  return w.local->too_many ? error_code(error::too_many_buffers) : error_code();
}

// Registered memory is used in place. Other memory is replaced by memory of the pool, unless it is
// device-only.
error_code connection_impl::fill(remote_record& r, const remote_work& w, const remote_portion& of) {
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
  r.wr.wr.rdma = {w.target.address + of.at, w.target.rkey};
  const payload& p = *w.local;
  if (p.count > remote_record::max_views && (p.registered || reads))
    return error::too_many_buffers;
  error_code ec;
  std::size_t n = 0;
  if (p.owner != nullptr) {
    const auto begin = [&](const registered_buffer& memory) {
      ec = reads ? r.access.try_begin_write(memory) : r.access.try_begin_read(memory);
      if (of.bytes != 0)
        r.elements[n++] = element_of(memory);
    };
    of.bytes == p.owner->size() ? begin(*p.owner) : begin(p.owner->slice(of.at, of.bytes));
  } else if (p.registered && p.count <= most_views(w.opcode)) {
    r.caller_keeps = true;
    n = views_of(p, of, r.elements);
  } else if (p.device_only) { // in more views than a work request has
    return asio::error::operation_not_supported;
  } else {
    r.memory = link_.pool().allocate(of.bytes, ec);
    if (ec)
      return ec;
    if (of.bytes != 0)
      r.elements[n++] = element_of(r.memory);
    if (reads)
      r.target_count = views_of(p, of, r.targets);
    else
      copy_from(p, of, r.memory);
  }
  r.wr.num_sge = static_cast<int>(n);
  if (reads)
    r.wr.num_sge = give_read_element(r.elements.data(), r.wr.num_sge);
  r.usual = r.wr.num_sge == 1;
  if (!reads && !p.device_only)
    r.inline_bytes = static_cast<std::uint32_t>(of.bytes);
  else if (reads && !ec)
    ec = link_.open_sink(r, p.device_only);
  return ec;
}

// The most views of the user's memory that one work request has.
std::size_t connection_impl::most_views(ibv_wr_opcode opcode) const noexcept {
  return opcode == IBV_WR_RDMA_READ ? member_device().max_read_buffers()
                                    : link_.queue_pair()->options().max_send_sge;
}

// Takes a record for each work request, in a chain from `first` on. After an error the chain has
// the records that were taken. Memory longer than the device's longest message needs several.
error_code connection_impl::fill(remote_operation& op, std::span<const remote_work> works,
                                 remote_record*& first) {
  const std::uint64_t most = member_device().max_message_bytes();
  remote_record** end = &first;
  for (const remote_work& w : works) {
    if (const error_code ec = check_work(w))
      return ec;
    const std::uint64_t all = bytes_of(w);
    remote_portion of{0, std::min(all, most)};
    do {
      remote_record& r = remote_records_.take(*this);
      r.next = nullptr;
      *std::exchange(end, &r.next) = &r;
      ++op.count;
      if (const error_code ec = fill(r, w, of))
        return ec;
      r.found = w.found != nullptr ? w.found : &op.value;
      of.at += of.bytes;
      of.bytes = std::min(all - of.at, most);
    } while (of.bytes != 0);
  }
  return {};
}

bool connection_impl::start(remote_operation& op, std::span<const remote_work> works) {
  link_impl::visit v(link_);
  remote_record* first = nullptr;
  const remote_work& head = works.front();
  message_record* notice = nullptr;
  op.count = 0; // it may be started again
  try {
    op.ec = fill(op, works, first);
    if (!op.ec && head.immediate && works.size() == 1)
      notice = &records_.take();
  } catch (const std::bad_alloc&) {
    op.ec = asio::error::no_memory;
  }
  if (op.ec) {
    while (first != nullptr)
      end_remote(*std::exchange(first, first->next), v.done);
    if (op.ec != asio::error::broken_pipe || !holds_ends())
      return false;
    begin(op);
    complete(op, op.ec, v.done);
    v.changed();
    return true;
  }
  begin(op);
  op.value = is_atomic(head.opcode) ? 0 : bytes_of(head);
  op.pending = op.count;
  const bool chained = op.count > 1;
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
    if (r.wr.opcode == IBV_WR_RDMA_READ)
      link_.read_posted(bytes_of(r.wr));
    if (!link_.post(r)) {
      remote_done(r, v.done);
      if (notice != nullptr)
        give_back(*std::exchange(notice, nullptr));
    } else if (notice != nullptr && first == nullptr) { // behind the last work request
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
  const std::uint64_t bytes = bytes_of(r.wr);
  if (r.wr.opcode == IBV_WR_RDMA_READ)
    link_.read_returned(bytes);
  if (r.ec) {
    r.result = r.ec; // the result of a notice does not matter then
  } else {
    remote_operations_.add();
    remote_bytes_.add(bytes);
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
