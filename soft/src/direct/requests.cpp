// SPDX-License-Identifier: BSL-1.0
// Requests of a queue pair whose peer is in the same process: from memory to memory.
#include "device/queue_pair.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>

namespace soft {
namespace {

constexpr outcome wait_for_more{.is = outcome::later};

// The time of a receiver that is not ready, by its code (InfiniBand specification, table 45), in
// units of 10 us.
constexpr unsigned not_ready_times[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                          16,    24,   32,   48,    64,    96,    128,   192,
                                          256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                          4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

bool has_immediate(ibv_wr_opcode o) {
  return o == IBV_WR_SEND_WITH_IMM || o == IBV_WR_RDMA_WRITE_WITH_IMM;
}

} // namespace

queue_pair* queue_pair::peer() const {
  return peer_is_here_ && !is_cut_ ? find(attributes_.dest_qp_num) : nullptr;
}

// The peer, if it takes requests of this queue pair.
queue_pair* queue_pair::ready_peer() const {
  queue_pair* const to = peer();
  return to != nullptr && (to->present() == IBV_QPS_RTR || to->present() == IBV_QPS_RTS) &&
                 to->attributes_.dest_qp_num == qp_base.qp_num &&
                 to->attributes_.rq_psn == attributes_.sq_psn
             ? to
             : nullptr;
}

bool queue_pair::gather(send_work& r, unsigned access, spans& to) const {
  if ((r.flags & IBV_SEND_INLINE) == 0)
    return memory_table::get().resolve(qp_base.pd, {r.elements(), r.count}, access, to);
  to.add(r.data(), r.inline_bytes);
  return true;
}

std::optional<spans> queue_pair::sink(receive_work& r) const {
  spans to;
  if (!memory_table::get().resolve(receive_domain(), {r.elements(), r.count},
                                   IBV_ACCESS_LOCAL_WRITE, to))
    return std::nullopt;
  return to;
}

outcome queue_pair::carry(send_work& r) {
  if (needs_attention(request_attention)) [[unlikely]]
    if (outcome set; meets_settings(0, r, set))
      return set;
  if (r.opcode == IBV_WR_BIND_MW || r.opcode == IBV_WR_LOCAL_INV)
    return failed(carry_locally(r));
  return qp_base.qp_type == IBV_QPT_UD ? carry_datagram(r) : carry_connected(r);
}

bool queue_pair::offers(ibv_wr_opcode o) const noexcept { return is_reliable() || !fetches(o); }

outcome queue_pair::carry_connected(send_work& r) {
  if (!offers(r.opcode))
    return failed(IBV_WC_LOC_QP_OP_ERR);
  spans memory;
  if (!gather(r, rights_for(r.opcode), memory))
    return failed(IBV_WC_LOC_PROT_ERR);
  if (memory.bytes > message_bytes_)
    return failed(IBV_WC_LOC_LEN_ERR);
  if (fetches(r.opcode) && attributes_.max_rd_atomic == 0)
    return failed(IBV_WC_LOC_QP_OP_ERR);
  if (is_interrupted())
    return is_reliable() ? no_answer() : outcome{};
  queue_pair* const to = ready_peer();
  if (to == nullptr)
    return is_reliable() ? no_answer() : lost();
  if (!to->established_told_) {
    to->established_told_ = true;
    if (to->present() == IBV_QPS_RTR)
      to->tell(IBV_EVENT_COMM_EST);
  }
  if (r.opcode == IBV_WR_RDMA_WRITE && needs_attention(is_late) && write_late(r, *to, memory))
    return {};
  if (late_ && !late_writes_arrive(*to)) [[unlikely]]
    return failed(IBV_WC_REM_ACCESS_ERR);
  switch (r.opcode) {
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
  case IBV_WR_SEND_WITH_INV:
    return send(r, *to, memory);
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return write(r, *to, memory);
  case IBV_WR_RDMA_READ:
    return read(r, *to, memory);
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return atomic(r, *to, memory);
  default:
    return failed(IBV_WC_LOC_QP_OP_ERR);
  }
}

outcome queue_pair::send(send_work& r, queue_pair& to, const spans& from) {
  receive_work* const receive = to.receives().front();
  if (receive == nullptr)
    return no_receive(to);
  const auto into = to.sink(*receive);
  if (!into) {
    to.refuse_receive(IBV_WC_LOC_PROT_ERR);
    to.fail_receiving();
    return is_reliable() ? failed(IBV_WC_REM_OP_ERR) : outcome{};
  }
  if (from.bytes > into->bytes) {
    to.refuse_receive(IBV_WC_LOC_LEN_ERR);
    to.fail_receiving();
    return is_reliable() ? failed(IBV_WC_REM_INV_REQ_ERR) : outcome{};
  }
  if (r.opcode == IBV_WR_SEND_WITH_INV &&
      !memory_table::get().invalidate(to.qp_base, r.immediate)) {
    to.fail_receiving();
    return is_reliable() ? failed(IBV_WC_REM_INV_REQ_ERR) : outcome{};
  }
  if (!to.is_for_poll(to.qp_base.recv_cq, *into, from))
    transfer(*into, from);
  deliver(to, r, from.bytes);
  return {};
}

outcome queue_pair::refuse(ibv_wc_status why) {
  fail_by_peer(IBV_EVENT_QP_ACCESS_ERR);
  return failed(why);
}

outcome queue_pair::write(send_work& r, queue_pair& to, const spans& from) {
  if (r.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && to.receives().front() == nullptr)
    return no_receive(to);
  if (from.bytes != 0) {
    std::byte* const memory =
        to.remote_memory(r.key, r.address, from.bytes, IBV_ACCESS_REMOTE_WRITE);
    if (memory == nullptr) {
      if (!is_reliable())
        return {};
      return to.refuse(IBV_WC_REM_ACCESS_ERR);
    }
    spans into;
    into.add(memory, from.bytes);
    transfer(into, from);
  }
  if (r.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
    deliver(to, r, from.bytes, IBV_WC_RECV_RDMA_WITH_IMM);
  return {};
}

outcome queue_pair::read(send_work& r, queue_pair& to, const spans& into) {
  if (to.attributes_.max_dest_rd_atomic == 0)
    return to.refuse(IBV_WC_REM_INV_REQ_ERR);
  if (into.bytes != 0) {
    std::byte* const memory =
        to.remote_memory(r.key, r.address, into.bytes, IBV_ACCESS_REMOTE_READ);
    if (memory == nullptr)
      return to.refuse(IBV_WC_REM_ACCESS_ERR);
    spans from;
    from.add(memory, into.bytes);
    if (made_of.sq_sig_all == 0 || !is_for_poll(qp_base.send_cq, into, from))
      transfer(into, from);
  }
  return {.bytes = static_cast<std::uint32_t>(into.bytes)};
}

outcome queue_pair::atomic(send_work& r, queue_pair& to, const spans& into) {
  if (into.bytes != 8)
    return failed(IBV_WC_LOC_LEN_ERR);
  if (r.address % 8 != 0 || to.attributes_.max_dest_rd_atomic == 0)
    return to.refuse(IBV_WC_REM_INV_REQ_ERR);
  std::byte* const memory = to.remote_memory(r.key, r.address, 8, IBV_ACCESS_REMOTE_ATOMIC);
  if (memory == nullptr)
    return to.refuse(IBV_WC_REM_ACCESS_ERR);
  if (!is_aligned_word(memory))
    return to.refuse(IBV_WC_REM_INV_REQ_ERR);
  auto* const word = reinterpret_cast<std::uint64_t*>(memory);
  std::uint64_t before = r.compare_add;
  if (r.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    before = __atomic_fetch_add(word, r.compare_add, __ATOMIC_SEQ_CST);
  else
    __atomic_compare_exchange_n(word, &before, r.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  spans result;
  result.add(reinterpret_cast<std::byte*>(&before), 8);
  transfer(into, result);
  return {.bytes = 8};
}

void queue_pair::deliver(queue_pair& to, const send_work& r, std::uint64_t bytes,
                         ibv_wc_opcode as) {
  arrival a;
  a.bytes = static_cast<std::uint32_t>(bytes);
  a.source = qp_base.qp_num;
  a.solicited = (r.flags & IBV_SEND_SOLICITED) != 0;
  a.immediate = r.immediate;
  if (has_immediate(r.opcode))
    a.flags = IBV_WC_WITH_IMM;
  else if (r.opcode == IBV_WR_SEND_WITH_INV)
    a.flags = IBV_WC_WITH_INV;
  const std::uint64_t taken = to.receives().front()->wr_id;
  to.take_receive();
  to.received(taken, IBV_WC_SUCCESS, a, as);
}

void queue_pair::refuse_receive(ibv_wc_status why) {
  const std::uint64_t taken = receives().front()->wr_id;
  take_receive();
  received(taken, why, {});
}

void queue_pair::take_receive() {
  receives().take();
  if (shared_ != nullptr)
    shared_->taken();
}

void queue_pair::received(std::uint64_t receive, ibv_wc_status status, const arrival& a,
                          ibv_wc_opcode as) {
  if (status == IBV_WC_SUCCESS && needs_attention(bit_of(place::receive))) [[unlikely]]
    status = meet_receive();
  ibv_wc wc{};
  wc.wr_id = receive;
  wc.status = status;
  wc.opcode = as;
  wc.byte_len = a.bytes;
  wc.qp_num = qp_base.qp_num;
  wc.src_qp = a.source;
  wc.imm_data = a.immediate;
  wc.wc_flags = a.flags;
  if (qp_base.qp_type == IBV_QPT_UD) {
    wc.wc_flags |= IBV_WC_GRH;
    wc.sl = a.service_level;
  }
  report(qp_base.recv_cq, wc, a.solicited || status != IBV_WC_SUCCESS);
}

std::byte* queue_pair::remote_memory(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                                     ibv_access_flags access, refusal& why) const {
  if ((attributes_.qp_access_flags & static_cast<unsigned>(access)) != 0)
    return memory_table::get().remote(qp_base, key, address, bytes, access, why);
  why = refusal::no_right;
  return nullptr;
}

ibv_wc_status queue_pair::carry_locally(send_work& r) {
  if (r.opcode == IBV_WR_BIND_MW)
    return memory_table::get().bind(qp_base, r.key, r.binding);
  return memory_table::get().invalidate(qp_base, r.immediate) ? IBV_WC_SUCCESS
                                                              : IBV_WC_LOC_QP_OP_ERR;
}

outcome queue_pair::no_receive(queue_pair& at) {
  if (!is_reliable())
    return {};    // lost
  given_up_ = {}; // that is an answer
  const auto now = clock::now();
  if (attributes_.rnr_retry != 7 && now >= next_try_) { // 7: without limit
    if (tries_ == attributes_.rnr_retry)
      return failed(IBV_WC_RNR_RETRY_EXC_ERR);
    ++tries_;
    next_try_ =
        now + std::chrono::microseconds(10) * not_ready_times[at.attributes_.min_rnr_timer & 31];
    engine::get().schedule_at(*this, next_try_);
  }
  at.receives().wait(waits_);
  return wait_for_more;
}

// A message of type UC without a receiver.
outcome queue_pair::lost() {
  if (!search_ || clock::now() >= found_by_)
    return {};
  engine::get().schedule_at(*this, found_by_);
  return wait_for_more;
}

clock::duration queue_pair::answer_time() const noexcept {
  if (attributes_.timeout == 0)
    return {};
  return std::chrono::nanoseconds((4096ll << attributes_.timeout) * (attributes_.retry_cnt + 1));
}

outcome queue_pair::no_answer() {
  const auto now = clock::now();
  auto next = now < down_until_ ? down_until_ : clock::time_point::max();
  if (answer_time().count() != 0) { // 0: without limit
    if (given_up_ == clock::time_point{})
      given_up_ = now + answer_time();
    if (now >= given_up_)
      return failed(IBV_WC_RETRY_EXC_ERR);
    next = std::min(next, given_up_);
  }
  if (next != clock::time_point::max())
    engine::get().schedule_at(*this, next);
  return wait_for_more;
}

} // namespace soft
