// SPDX-License-Identifier: BSL-1.0
// The effect of the segments and messages that have come to a wire.
#include "wire/iwarp_wire.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <utility>

namespace soft {

using iwarp::failure;
using iwarp::opcode;
using iwarp::rdmap_error_code;
using iwarp::rdmap_error_type;

namespace {

failure operation_error(rdmap_error_code code) {
  return iwarp::rdmap_error(rdmap_error_type::remote_operation, code);
}

} // namespace

failure iwarp_wire::end_segment(const iwarp::segment_header& h) noexcept {
  if (!takes_segments())
    return {};
  if (!std::exchange(heard_, true)) {
    may_send_ = true;
    deadline_ = clock::time_point::max();
    if (owner_ != nullptr)
      owner_->heard();
    if (qp_ == nullptr)
      return {};
  }
  if (!h.last)
    return {};
  switch (h.op) {
  case opcode::rdma_write:
    written_ = h.message_offset + h.length;
    return {};
  case opcode::rdma_read_response:
  case opcode::atomic_response:
    return end_response(h);
  case opcode::rdma_read_request:
    return end_read_request(h.msn);
  case opcode::atomic_request:
    return end_atomic_request();
  case opcode::terminate:
    end_terminate(h.message_offset + h.length);
    return {};
  default:
    return end_send(h);
  }
}

failure iwarp_wire::end_send(const iwarp::segment_header& h) {
  if (std::exchange(message_, message::none) == message::dropped) {
    written_ = is_immediate(h.op) ? 0 : written_;
    return {};
  }
  if (!std::exchange(receive_taken_, false))
    qp_->take_receive();
  queue_pair::arrival a;
  a.bytes = h.message_offset + h.length;
  a.solicited = iwarp::traits(h.op).solicited;
  ibv_wc_opcode as = IBV_WC_RECV;
  ibv_wc_status status = IBV_WC_SUCCESS;
  switch (h.op) {
  case opcode::immediate_data:
  case opcode::immediate_data_with_se:
    as = IBV_WC_RECV_RDMA_WITH_IMM;
    a.bytes = std::exchange(written_, 0);
    a.flags = IBV_WC_WITH_IMM;
    std::memcpy(&a.immediate, payload_.data(), sizeof(a.immediate));
    break;
  case opcode::send_with_immediate:
  case opcode::send_with_se_and_immediate:
    a.flags = IBV_WC_WITH_IMM;
    a.immediate = htonl(h.stag);
    break;
  case opcode::send_with_invalidate:
  case opcode::send_with_se_and_invalidate:
    a.flags = IBV_WC_WITH_INV;
    a.immediate = h.stag;
    if (!memory_table::get().invalidate(qp_->qp_base, h.stag))
      status = IBV_WC_REM_ACCESS_ERR;
    break;
  default:
    break;
  }
  qp_->received(receive_wr_, status, a, as);
  if (status == IBV_WC_SUCCESS)
    return {};
  if (!is_reliable()) { // the sender does not learn of it
    qp_->fail();
    return {};
  }
  return iwarp::rdmap_error(rdmap_error_type::remote_protection,
                            rdmap_error_code::stag_cannot_be_invalidated);
}

// RFC 5040, section 7.2
iwarp::protocol_error read_error(refusal why) {
  const auto code = [why] {
    switch (why) {
    case refusal::other_domain:
      return rdmap_error_code::stag_not_associated_with_stream;
    case refusal::no_right:
      return rdmap_error_code::access_rights_violation;
    case refusal::out_of_bounds:
      return rdmap_error_code::base_or_bounds_violation;
    default:
      return rdmap_error_code::invalid_stag;
    }
  }();
  return iwarp::rdmap_error(rdmap_error_type::remote_protection, code);
}

// A peer that keeps to the agreed number finds room (RFC 6581, section 9.1): an answer leaves
// `answers_` before the peer gets its end. Otherwise the queue of read requests has no buffer for
// the message (RFC 5041, section 7.1).
failure iwarp_wire::too_many_requests() {
  if (answers_.size() < ird_)
    return {};
  qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
  return iwarp::ddp_error(iwarp::ddp_untagged_code::invalid_msn_no_buffer);
}

failure iwarp_wire::end_read_request(std::uint32_t msn) {
  if (const failure f = too_many_requests())
    return f;
  iwarp::read_request r;
  decode(std::span<const std::byte, iwarp::read_request_size>(payload_.data(),
                                                              iwarp::read_request_size),
         r);
  refusal why{};
  if (r.length != 0 && qp_->remote_memory(r.source_stag, r.source_offset, r.length,
                                          IBV_ACCESS_REMOTE_READ, why) == nullptr) {
    qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
    return read_error(why);
  }
  answer a{.op = opcode::rdma_read_response, .length = r.length, .msn = msn};
  a.sink = r.sink_stag;
  a.sink_offset = r.sink_offset;
  a.source = r.source_stag;
  a.source_offset = r.source_offset;
  answers_.push_back(a);
  return {};
}

failure iwarp_wire::end_atomic_request() {
  if (const failure f = too_many_requests())
    return f;
  iwarp::atomic_request r;
  if (const failure f = decode(std::span<const std::byte, iwarp::atomic_request_size>(
                                   payload_.data(), iwarp::atomic_request_size),
                               r))
    return f;
  refusal why{};
  std::byte* const memory = qp_->remote_memory(r.stag, r.offset, 8, IBV_ACCESS_REMOTE_ATOMIC, why);
  if (memory == nullptr || r.offset % 8 != 0 || !is_aligned_word(memory)) {
    qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
    // RFC 7306, section 8.2
    return memory == nullptr ? read_error(why)
                             : operation_error(rdmap_error_code::catastrophic_stream);
  }
  auto* const word = reinterpret_cast<std::uint64_t*>(memory);
  std::uint64_t before = __atomic_load_n(word, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(word, &before, iwarp::result_of(r, before), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
  answer a{.op = opcode::atomic_response, .length = iwarp::atomic_response_size};
  const auto bytes = encode(iwarp::atomic_response{r.request_id, before});
  std::copy(bytes.begin(), bytes.end(), a.bytes.begin());
  answers_.push_back(a);
  return {};
}

// Answers come in the order of the requests.
failure iwarp_wire::end_response(const iwarp::segment_header& h) {
  const bool read = h.op == opcode::rdma_read_response;
  if (read && std::exchange(ready_waits_, false)) { // the first message's answer, of no bytes
    --reads_;
    return {};
  }
  const auto f = awaited(read);
  if (f == flights_.end() && broken_)
    return {};
  if (f == flights_.end() || (read && h.message_offset + h.length != f->memory.bytes))
    return operation_error(rdmap_error_code::unexpected_opcode);
  if (!read) {
    iwarp::atomic_response r;
    decode(std::span<const std::byte, iwarp::atomic_response_size>(payload_.data(),
                                                                   iwarp::atomic_response_size),
           r);
    if (r.request_id != f->id)
      return operation_error(rdmap_error_code::catastrophic_stream);
    if (!has_memory(*f)) {
      lose_memory(*f);
      return {};
    }
    spans from;
    from.add(reinterpret_cast<std::byte*>(&r.original), 8);
    transfer(f->memory, from);
  }
  f->done = true;
  f->result.bytes = static_cast<std::uint32_t>(f->memory.bytes);
  --reads_;
  return {};
}

} // namespace soft
