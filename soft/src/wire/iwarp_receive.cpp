// SPDX-License-Identifier: BSL-1.0
// The receiving side of a wire: start frames and segments. Without CRCs, long payload is read into
// its place directly.
#include "wire/iwarp_wire.hpp"

#include <algorithm>
#include <cerrno>
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

// Whether a queue pair of type UC takes this message.
bool is_unreliable(opcode op) {
  switch (op) {
  case opcode::rdma_write:
  case opcode::send:
  case opcode::send_with_se:
  case opcode::send_with_immediate:
  case opcode::send_with_se_and_immediate:
  case opcode::send_with_invalidate:
  case opcode::send_with_se_and_invalidate:
  case opcode::immediate_data:
  case opcode::immediate_data_with_se:
  case opcode::terminate:
    return true;
  default:
    return false;
  }
}

// A receive whose memory is not registered.
constexpr iwarp::protocol_error lost_receive =
    iwarp::rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::catastrophic_stream);

constexpr std::size_t piece = 1 << 16;  // bytes of one read(2) without a place of their own
constexpr std::size_t few = piece / 16; // bytes that are rather copied than read by a further call
constexpr std::size_t long_segment = piece / 4;
constexpr int reads_a_turn = 16; // reads before other tasks get their turn

} // namespace

void iwarp_wire::receive() {
  const auto self = find(number_);
  static auto& buffer = *new std::array<std::byte, piece>; // with the engine locked
  if (reader_ && !takes_segments())
    return;
  if (reader_ && reader_->state() == iwarp::reader_state::stopped)
    reader_->resume();
  if (reader_ && reader_->payload_pending() != 0)
    if (const failure f = check_place())
      return fail(*f);
  if (!input_.empty() && stage_ == stage::running) {
    std::vector<std::byte> input;
    input.swap(input_);
    const std::size_t taken = reader_->feed(input);
    if (!takes_segments())
      return;
    input_.assign(input.begin() + static_cast<std::ptrdiff_t>(taken), input.end());
  }
  if (reader_ && reader_->state() == iwarp::reader_state::failed)
    return fail(reader_->error());
  int turn = 0;
  for (; turn < reads_a_turn; ++turn) {
    if (stage_ != stage::running && stage_ != stage::starting)
      return;
    if (reader_ && reader_->state() == iwarp::reader_state::stopped)
      break; // until a receive is posted
    iovec v[iwarp::placement::max_parts + 1];
    int count = 0;
    std::size_t placed = 0;
    if (stage_ == stage::running && input_.empty() && reader_->payload_pending() > few) {
      for (const auto& t : reader_->targets()) {
        v[count++] = {t.data(), t.size()};
        placed += t.size();
      }
    }
    // Behind a long segment another may come, whose payload is then read into its place.
    const bool after_long =
        stage_ == stage::running && !writer_->crc() && reader_->segment().length >= long_segment;
    const std::size_t beyond = after_long ? few : buffer.size();
    v[count++] = {buffer.data(), beyond};
    const ssize_t n = readv(socket_, v, count);
    if (n > 0) {
      const auto in_place = std::min(static_cast<std::size_t>(n), placed);
      const std::span<const std::byte> bytes(buffer.data(), static_cast<std::size_t>(n) - in_place);
      if (stage_ == stage::starting) {
        receive_start(bytes);
      } else {
        reader_->placed(in_place);
        const std::size_t taken = reader_->feed(bytes);
        input_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(taken), bytes.end());
      }
    }
    if (n == 0)
      return lose_peer(0);
    if (n < 0) {
      if (errno == EINTR)
        continue;
      if (errno != EAGAIN)
        return lose_peer(errno);
      break;
    }
    if (reader_ && !takes_segments())
      return;
    if (reader_ && reader_->state() == iwarp::reader_state::failed)
      return fail(reader_->error());
    // Nothing more has come, or epoll(7) reports it again.
    if (static_cast<std::size_t>(n) < placed + beyond)
      break;
  }
  if (kept_by_engine_ != 0)
    --kept_by_engine_;
  if (reader_ && reader_->state() == iwarp::reader_state::stopped)
    watch(watched_ & ~static_cast<std::uint32_t>(EPOLLIN));
  else if (stage_ == stage::running || stage_ == stage::starting)
    watch(watched_ | EPOLLIN);
  if (turn == reads_a_turn && stage_ == stage::running &&
      watched_by_ != &engine::get().descriptors())
    completion_queue::of(qp_->qp_base.recv_cq).wires().leave_rest();
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
  deadline_ = clock::time_point::max();
  watch(0);
  const iwarp::start_frame f = start_->frame();
  owner_->started(f);
}

// A program may deregister memory at any time.
bool iwarp_wire::has_receive_memory() {
  return memory_table::get().still_has(qp_->receive_domain(), receive_memory_,
                                       IBV_ACCESS_LOCAL_WRITE, receive_as_of_);
}
bool iwarp_wire::has_memory(flight& f) {
  return memory_table::get().still_has(qp_->qp_base.pd, f.memory, rights_for(f.request->opcode),
                                       f.as_of);
}

// The memory of the segment that has begun may not be registered any more, or the key of a window
// may name other memory. A WRITE of type UC is dropped then.
failure iwarp_wire::check_place() {
  const iwarp::segment_header& h = reader_->segment();
  if (h.length == 0 || qp_ == nullptr)
    return {};
  if (h.op == opcode::rdma_read_response) {
    const auto f = awaited(true);
    if (f != flights_.end() && !has_memory(*f)) {
      lose_memory(*f);
      reader_->discard();
    }
    return {};
  }
  if (h.op == opcode::rdma_write) {
    refusal why{};
    if (write_dropped_ || qp_->remote_memory(h.stag, h.tagged_offset, h.length,
                                             IBV_ACCESS_REMOTE_WRITE, why) == write_place_)
      return {};
    if (is_reliable())
      return refuse_write(why);
    write_dropped_ = true;
    reader_->discard();
    return {};
  }
  if (message_ != message::placed || is_immediate(h.op) || has_receive_memory())
    return {};
  const begin_result r = refuse_message(IBV_WC_LOC_PROT_ERR, lost_receive);
  if (r.action == iwarp::begin_action::fail)
    return r.error;
  reader_->discard();
  return {};
}

// The request that the next answer to a READ, or to an atomic, belongs to.
std::deque<iwarp_wire::flight>::iterator iwarp_wire::awaited(bool read) {
  return std::find_if(flights_.begin(), flights_.end(), [read](const flight& i) {
    const ibv_wr_opcode o = i.request->opcode;
    return !i.done && fetches(o) && read == (o == IBV_WR_RDMA_READ);
  });
}

// Segments are dropped if the queue pair has failed, as it detaches the wire soon, and if the wire
// has ended or is silent.
bool iwarp_wire::takes_segments() const noexcept {
  return stage_ == stage::running && qp_ != nullptr && qp_->present() != IBV_QPS_ERR;
}

begin_result iwarp_wire::begin_segment(const iwarp::segment_header& h,
                                       iwarp::placement& to) noexcept {
  if (!takes_segments())
    return begin_result::discard();
  if (!is_reliable() && !is_unreliable(h.op))
    return begin_result::fail(iwarp::rdmap_error(rdmap_error_type::remote_operation,
                                                 rdmap_error_code::unexpected_opcode));
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

// DDP has no code for a missing right (RFC 5041, section 7.2).
iwarp::protocol_error iwarp_wire::refuse_write(refusal why) {
  qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
  switch (why) {
  case refusal::other_domain:
    return iwarp::ddp_error(ddp_tagged_code::stag_not_associated_with_stream);
  case refusal::out_of_bounds:
    return iwarp::ddp_error(ddp_tagged_code::base_or_bounds_violation);
  default:
    return iwarp::ddp_error(ddp_tagged_code::invalid_stag);
  }
}

begin_result iwarp_wire::begin_tagged(const iwarp::segment_header& h, iwarp::placement& to) {
  if (h.first)
    write_dropped_ = false;
  if (write_dropped_)
    return begin_result::discard();
  if (h.length == 0)
    return begin_result::place();
  if (h.op == opcode::rdma_write) {
    refusal why{};
    std::byte* const memory =
        qp_->remote_memory(h.stag, h.tagged_offset, h.length, IBV_ACCESS_REMOTE_WRITE, why);
    if (memory == nullptr && !is_reliable()) {
      write_dropped_ = true;
      return begin_result::discard();
    }
    if (memory == nullptr)
      return begin_result::fail(refuse_write(why));
    write_place_ = memory;
    to.add({memory, h.length});
    return begin_result::place();
  }
  if (h.stag != sink_key)
    return begin_result::fail(iwarp::ddp_error(ddp_tagged_code::invalid_stag));
  if (ready_waits_)
    return begin_result::fail(iwarp::ddp_error(ddp_tagged_code::base_or_bounds_violation));
  const auto f = awaited(true);
  if (f == flights_.end() && broken_) // it has failed for lack of its memory
    return begin_result::discard();
  if (f == flights_.end() || h.tagged_offset < f->base ||
      h.tagged_offset - f->base > f->memory.bytes ||
      h.length > f->memory.bytes - (h.tagged_offset - f->base))
    return begin_result::fail(iwarp::ddp_error(ddp_tagged_code::base_or_bounds_violation));
  if (!has_memory(*f)) {
    lose_memory(*f);
    return begin_result::discard();
  }
  std::span<std::byte> parts[iwarp::placement::max_parts];
  const unsigned n = slice(f->memory, h.tagged_offset - f->base, h.length, parts);
  for (unsigned i = 0; i < n; ++i)
    to.add(parts[i]);
  return begin_result::place();
}

// A message that begins gets the first receive. A result: the message cannot be placed.
std::optional<begin_result> iwarp_wire::take_receive() {
  receive_work* const r = qp_->receives().front();
  if (r == nullptr) {
    qp_->receives().wait(waits_);
    return begin_result::not_now();
  }
  receive_wr_ = r->wr_id;
  const auto memory = qp_->sink(*r);
  if (!memory)
    return refuse_message(IBV_WC_LOC_PROT_ERR, lost_receive);
  // If a connection of type UC ends within a message, the next message gets the receive.
  receive_taken_ = is_reliable() || qp_->qp_base.srq != nullptr;
  if (receive_taken_)
    qp_->take_receive();
  message_ = message::placed;
  receive_memory_ = *memory;
  receive_as_of_ = memory_table::get().removals();
  return std::nullopt;
}

// The receive completes with an error. A sender of type UC does not learn of it.
begin_result iwarp_wire::refuse_message(ibv_wc_status status, const iwarp::protocol_error& e) {
  if (!std::exchange(receive_taken_, false))
    qp_->take_receive();
  qp_->received(receive_wr_, status, {});
  if (is_reliable())
    return begin_result::fail(e);
  qp_->fail();
  message_ = message::dropped;
  return begin_result::discard();
}

begin_result iwarp_wire::begin_send(const iwarp::segment_header& h, iwarp::placement& to) {
  if (message_ == message::none) {
    if (!is_reliable() &&
        (qp_->receives().front() == nullptr || (is_immediate(h.op) && write_dropped_)))
      message_ = message::dropped;
    else if (const auto result = take_receive())
      return *result;
  }
  if (message_ == message::dropped)
    return begin_result::discard();
  if (is_immediate(h.op)) {
    to.add(std::span(payload_).subspan(h.message_offset, h.length));
    return begin_result::place();
  }
  if (std::uint64_t(h.message_offset) + h.length > receive_memory_.bytes)
    return refuse_message(IBV_WC_LOC_LEN_ERR,
                          iwarp::ddp_error(ddp_untagged_code::message_too_long));
  if (!has_receive_memory())
    return refuse_message(IBV_WC_LOC_PROT_ERR, lost_receive);
  std::span<std::byte> parts[iwarp::placement::max_parts];
  const unsigned n = slice(receive_memory_, h.message_offset, h.length, parts);
  for (unsigned i = 0; i < n; ++i)
    to.add(parts[i]);
  return begin_result::place();
}

} // namespace soft
