// SPDX-License-Identifier: BSL-1.0
// The receiving side of a wire: start frames and segments. Payload is read into its place directly.
#include "wire/iwarp_wire.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

namespace soft {

using iwarp::begin_result;
using iwarp::ddp_tagged_code;
using iwarp::ddp_untagged_code;
using iwarp::failure;
using iwarp::opcode;
using iwarp::rdmap_error_code;
using iwarp::rdmap_error_type;

namespace {

failure operation_error(rdmap_error_code code) {
  return iwarp::rdmap_error(rdmap_error_type::remote_operation, code);
}

// DDP has no code for a missing right (RFC 5041, section 7.2).
iwarp::protocol_error write_error(refusal why) {
  switch (why) {
  case refusal::other_domain:
    return iwarp::ddp_error(ddp_tagged_code::stag_not_associated_with_stream);
  case refusal::out_of_bounds:
    return iwarp::ddp_error(ddp_tagged_code::base_or_bounds_violation);
  default:
    return iwarp::ddp_error(ddp_tagged_code::invalid_stag);
  }
}

constexpr std::size_t piece = 64 * 1024;   // bytes of one read(2) without a place of their own
constexpr int turns = 16;                  // reads before other tasks get their turn
constexpr std::size_t most_answers = 1024; // requests of the peer that are not answered

} // namespace

void iwarp_wire::receive() {
  const auto self = find(number_);
  static auto& buffer = *new std::array<std::byte, piece>; // the engine's thread alone receives
  if (reader_ && reader_->state() == iwarp::reader_state::stopped)
    reader_->resume();
  if (reader_ && reader_->payload_pending() != 0)
    if (const failure f = place_is_gone())
      return fail(*f);
  if (!input_.empty() && stage_ == stage::running) {
    std::vector<std::byte> input;
    input.swap(input_);
    const std::size_t taken = reader_->feed(input);
    if (stage_ == stage::running)
      input_.assign(input.begin() + static_cast<std::ptrdiff_t>(taken), input.end());
  }
  if (reader_ && reader_->state() == iwarp::reader_state::failed)
    return fail(reader_->error());
  for (int turn = 0; turn < turns; ++turn) {
    if (stage_ != stage::running && stage_ != stage::starting)
      return;
    if (reader_ && reader_->state() == iwarp::reader_state::stopped) {
      watch(watched_ & ~static_cast<std::uint32_t>(EPOLLIN)); // until a receive is posted
      return;
    }
    ssize_t n = 0;
    const auto targets =
        stage_ == stage::running ? reader_->targets() : std::span<const std::span<std::byte>>();
    if (!targets.empty() && input_.empty() && reader_->payload_pending() > piece / 16) {
      iovec v[iwarp::placement::max_parts + 1];
      int count = 0;
      std::size_t placed = 0;
      for (const auto& t : targets) {
        v[count++] = {t.data(), t.size()};
        placed += t.size();
      }
      v[count++] = {buffer.data(), buffer.size()};
      n = readv(socket_, v, count);
      if (n > 0) {
        const auto in_place = std::min(static_cast<std::size_t>(n), placed);
        reader_->placed(in_place);
        const std::size_t rest = static_cast<std::size_t>(n) - in_place;
        if (rest != 0 && stage_ == stage::running) {
          const std::size_t taken = reader_->feed({buffer.data(), rest});
          input_.assign(buffer.begin() + static_cast<std::ptrdiff_t>(taken),
                        buffer.begin() + static_cast<std::ptrdiff_t>(rest));
        }
      }
    } else {
      n = read(socket_, buffer.data(), buffer.size());
      if (n > 0) {
        const std::span<const std::byte> bytes(buffer.data(), static_cast<std::size_t>(n));
        if (stage_ == stage::starting) {
          receive_start(bytes);
        } else {
          const std::size_t taken = reader_->feed(bytes);
          input_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(taken), bytes.end());
        }
      }
    }
    if (n == 0)
      return end(0);
    if (n < 0) {
      if (errno == EINTR)
        continue;
      if (errno != EAGAIN)
        return end(errno);
      break;
    }
    if (reader_ && reader_->state() == iwarp::reader_state::failed)
      return fail(reader_->error());
  }
  if (reader_ && reader_->state() == iwarp::reader_state::stopped)
    watch(watched_ & ~static_cast<std::uint32_t>(EPOLLIN));
  else if (stage_ == stage::running || stage_ == stage::starting)
    watch(watched_ | EPOLLIN);
  pump();
}

// A start frame is the only thing on its way, but a peer may be ahead.
void iwarp_wire::receive_start(std::span<const std::byte> bytes) {
  const auto r = start_->feed(bytes);
  if (r.state == iwarp::start_reader::status::failed)
    return end(EPROTO);
  input_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(r.consumed), bytes.end());
  if (r.state == iwarp::start_reader::status::more || owner_ == nullptr)
    return;
  stage_ = stage::waiting;
  watch(0);
  const iwarp::start_frame f = start_->frame();
  owner_->started(f);
}

// Whether the memory of the segment that has begun is not registered any more.
failure iwarp_wire::place_is_gone() {
  const iwarp::segment_header& h = reader_->segment();
  refusal why{};
  if (h.op != opcode::rdma_write || h.length == 0 || qp_ == nullptr ||
      qp_->remote_memory(h.stag, h.tagged_offset, h.length, IBV_ACCESS_REMOTE_WRITE, why) !=
          nullptr)
    return {};
  return write_error(why);
}

begin_result iwarp_wire::begin_segment(const iwarp::segment_header& h,
                                       iwarp::placement& to) noexcept {
  switch (h.op) {
  case opcode::rdma_write:
  case opcode::rdma_read_response:
    return begin_tagged(h, to);
  case opcode::rdma_read_request:
  case opcode::atomic_request:
  case opcode::atomic_response:
  case opcode::terminate:
    to.add(std::span(payload_).subspan(h.message_offset, h.length));
    return begin_result::place();
  default:
    return begin_send(h, to);
  }
}

begin_result iwarp_wire::begin_tagged(const iwarp::segment_header& h, iwarp::placement& to) {
  if (h.length == 0)
    return begin_result::place();
  if (h.op == opcode::rdma_write) {
    refusal why{};
    std::byte* const memory =
        qp_->remote_memory(h.stag, h.tagged_offset, h.length, IBV_ACCESS_REMOTE_WRITE, why);
    if (memory == nullptr) {
      qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
      return begin_result::fail(write_error(why));
    }
    to.add({memory, h.length});
    return begin_result::place();
  }
  if (h.stag != sink_key)
    return begin_result::fail(iwarp::ddp_error(ddp_tagged_code::invalid_stag));
  const auto f = std::find_if(flights_.begin(), flights_.end(), [](const flight& i) {
    return i.request->opcode == IBV_WR_RDMA_READ && !i.done;
  });
  if (f == flights_.end() || h.tagged_offset < f->base ||
      h.tagged_offset - f->base > f->memory.bytes ||
      h.length > f->memory.bytes - (h.tagged_offset - f->base))
    return begin_result::fail(iwarp::ddp_error(ddp_tagged_code::base_or_bounds_violation));
  std::span<std::byte> parts[iwarp::placement::max_parts];
  const unsigned n = slice(f->memory, h.tagged_offset - f->base, h.length, parts);
  for (unsigned i = 0; i < n; ++i)
    to.add(parts[i]);
  return begin_result::place();
}

begin_result iwarp_wire::begin_send(const iwarp::segment_header& h, iwarp::placement& to) {
  if (!receive_taken_) {
    receive_work* const r = qp_->receives().front();
    if (r == nullptr) {
      qp_->receives().wait(waits_);
      return begin_result::not_now();
    }
    receive_wr_ = r->wr_id;
    const auto memory = qp_->sink(*r);
    qp_->take_receive();
    if (!memory) {
      qp_->received(receive_wr_, IBV_WC_LOC_PROT_ERR, {});
      return begin_result::fail(iwarp::rdmap_error(rdmap_error_type::remote_operation,
                                                   rdmap_error_code::catastrophic_stream));
    }
    receive_taken_ = true;
    receive_memory_ = *memory;
  }
  if (h.op == opcode::immediate_data || h.op == opcode::immediate_data_with_se) {
    to.add(std::span(payload_).subspan(h.message_offset, h.length));
    return begin_result::place();
  }
  if (std::uint64_t(h.message_offset) + h.length > receive_memory_.bytes) {
    receive_taken_ = false;
    qp_->received(receive_wr_, IBV_WC_LOC_LEN_ERR, {});
    return begin_result::fail(iwarp::ddp_error(ddp_untagged_code::message_too_long));
  }
  std::span<std::byte> parts[iwarp::placement::max_parts];
  const unsigned n = slice(receive_memory_, h.message_offset, h.length, parts);
  for (unsigned i = 0; i < n; ++i)
    to.add(parts[i]);
  return begin_result::place();
}

failure iwarp_wire::end_segment(const iwarp::segment_header& h) noexcept {
  if (!std::exchange(heard_, true)) {
    may_send_ = true;
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
  receive_taken_ = false;
  qp_->received(receive_wr_, status, a, as);
  if (status == IBV_WC_SUCCESS)
    return {};
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

failure iwarp_wire::end_read_request(std::uint32_t msn) {
  iwarp::read_request r;
  decode(std::span<const std::byte, iwarp::read_request_size>(payload_.data(),
                                                              iwarp::read_request_size),
         r);
  refusal why{};
  if (answers_.size() >= most_answers)
    return operation_error(rdmap_error_code::catastrophic_stream);
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
  iwarp::atomic_request r;
  if (const failure f = decode(std::span<const std::byte, iwarp::atomic_request_size>(
                                   payload_.data(), iwarp::atomic_request_size),
                               r))
    return f;
  if (answers_.size() >= most_answers)
    return operation_error(rdmap_error_code::catastrophic_stream);
  refusal why{};
  std::byte* const memory = qp_->remote_memory(r.stag, r.offset, 8, IBV_ACCESS_REMOTE_ATOMIC, why);
  if (memory == nullptr || r.offset % 8 != 0) {
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
  const auto f = std::find_if(flights_.begin(), flights_.end(), [&](const flight& i) {
    const ibv_wr_opcode o = i.request->opcode;
    return !i.done && fetches(o) && read == (o == IBV_WR_RDMA_READ);
  });
  if (f == flights_.end() || (read && h.message_offset + h.length != f->memory.bytes))
    return operation_error(rdmap_error_code::unexpected_opcode);
  if (!read) {
    iwarp::atomic_response r;
    decode(std::span<const std::byte, iwarp::atomic_response_size>(payload_.data(),
                                                                   iwarp::atomic_response_size),
           r);
    if (r.request_id != f->id)
      return operation_error(rdmap_error_code::catastrophic_stream);
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
