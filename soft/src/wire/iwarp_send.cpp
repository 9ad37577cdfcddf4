// SPDX-License-Identifier: BSL-1.0
// The sending side of a wire: requests of the queue pair, and answers to those of the peer.
#include "wire/iwarp_wire.hpp"

#include "device/in_force.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace soft {
namespace {

constexpr std::size_t most_on_the_way = 1 << 18; // bytes that wait for the socket
constexpr unsigned most_segments = 256;
constexpr std::size_t small = 2048; // a segment that is copied rather than sent at once

} // namespace

void iwarp_wire::pump() {
  if (!takes_segments() || !may_send_)
    return;
  // The socket takes no more bytes: EPOLLOUT continues. The most segments: others have their turn.
  unsigned segments = 0;
  const auto may_go_on = [&] {
    return takes_segments() && out_.size() - out_sent_ < most_on_the_way &&
           segments < most_segments;
  };
  for (bool more = true; more && may_go_on();) {
    while (may_go_on()) {
      more = !writer_->idle() || next_message();
      if (!more)
        break;
      ++segments;
      if (!writer_->idle())
        send_segment();
    }
    flush();
  }
  if (segments == most_segments)
    engine::get().schedule(*this);
  complete_requests();
  if (segments != 0 || !flights_.empty())
    watch_host();
}

// Completions come after the socket has taken the bytes, and in the order of the requests.
void iwarp_wire::complete_requests() {
  const std::uint64_t left = queued_ - (out_.size() - out_sent_); // to the socket
  while (qp_ != nullptr && !flights_.empty() && flights_.front().done &&
         flights_.front().end <= left) {
    const flight f = flights_.front();
    flights_.pop_front();
    qp_->complete_first(f.result);
  }
}

// Whether another READ or atomic may be outstanding. If none may ever be, the request fails.
bool iwarp_wire::may_fetch() const noexcept {
  const unsigned most = std::min(qp_->read_depth(), ord_);
  return reads_ < most || most == 0;
}

// False: there is nothing that may be sent now.
bool iwarp_wire::next_message() {
  if (!answers_.empty()) {
    const answer& a = answers_.front();
    sends_answer_ = true;
    writer_->start(
        {.op = a.op, .length = a.length, .stag = a.sink, .tagged_offset = a.sink_offset});
    return true;
  }
  if (!flights_.empty() && !flights_.back().sent &&
      !flights_.back().done) { // a WRITE is followed by its immediate data
    sends_answer_ = false;
    writer_->start({.op = (flights_.back().request->flags & IBV_SEND_SOLICITED) != 0
                              ? iwarp::opcode::immediate_data_with_se
                              : iwarp::opcode::immediate_data,
                    .length = iwarp::immediate_data_size});
    return true;
  }
  if (broken_)
    return false;
  send_work* const r = qp_->request(static_cast<unsigned>(flights_.size()));
  if (r == nullptr)
    return false;
  if ((fetches(r->opcode) && !may_fetch()) || ((r->flags & IBV_SEND_FENCE) != 0 && reads_ != 0))
    return false;
  sends_answer_ = false;
  outcome set;
  if (needs_attention(request_attention)) {
    const bool decided = qp_->meets_settings(static_cast<unsigned>(flights_.size()), *r, set);
    if (stage_ != stage::running || (decided && set.is == outcome::later))
      return false;
  }
  start_request(*r, set.status);
  return true;
}

// `set`: the status with which the settings fail it.
void iwarp_wire::start_request(send_work& r, ibv_wc_status set) {
  flight& f = flights_.emplace_back();
  f.request = &r;
  const auto failed = [&](ibv_wc_status why) {
    f.sent = f.done = true;
    f.result.status = why;
    broken_ = why != IBV_WC_SUCCESS;
  };
  if (set != IBV_WC_SUCCESS)
    return failed(set);
  if (r.opcode == IBV_WR_BIND_MW || r.opcode == IBV_WR_LOCAL_INV)
    return failed(qp_->carry_locally(r));
  if (!qp_->offers(r.opcode))
    return failed(IBV_WC_LOC_QP_OP_ERR);
  if (!qp_->gather(r, rights_for(r.opcode), f.memory))
    return failed(IBV_WC_LOC_PROT_ERR);
  f.as_of = memory_table::get().removals();
  if (fetches(r.opcode) && qp_->read_depth() == 0)
    return failed(IBV_WC_LOC_QP_OP_ERR);
  if (fetches(r.opcode) && ord_ == 0) // the peer answers none
    return failed(IBV_WC_REM_INV_REQ_ERR);
  if (f.memory.bytes > qp_->message_limit())
    return failed(IBV_WC_LOC_LEN_ERR);
  // The program waits for the answer at another queue, and does not visit this wire.
  if (fetches(r.opcode) && &completion_queue::of(qp_->qp_base.send_cq).wires() !=
                               &completion_queue::of(qp_->qp_base.recv_cq).wires())
    kept_by_engine_ = receives_until_visits;
  const auto bytes = static_cast<std::uint32_t>(f.memory.bytes);
  const bool solicited = (r.flags & IBV_SEND_SOLICITED) != 0;
  using iwarp::opcode;
  switch (r.opcode) {
  case IBV_WR_SEND:
    writer_->start({.op = solicited ? opcode::send_with_se : opcode::send, .length = bytes});
    break;
  case IBV_WR_SEND_WITH_INV:
    writer_->start(
        {.op = solicited ? opcode::send_with_se_and_invalidate : opcode::send_with_invalidate,
         .length = bytes,
         .stag = r.immediate});
    break;
  case IBV_WR_SEND_WITH_IMM:
    writer_->start(
        {.op = solicited ? opcode::send_with_se_and_immediate : opcode::send_with_immediate,
         .length = bytes,
         .stag = ntohl(r.immediate)});
    break;
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    writer_->start(
        {.op = opcode::rdma_write, .length = bytes, .stag = r.key, .tagged_offset = r.address});
    break;
  case IBV_WR_RDMA_READ: {
    f.base = next_base_;
    next_base_ += f.memory.bytes;
    const auto request = encode(iwarp::read_request{sink_key, f.base, bytes, r.key, r.address});
    std::copy(request.begin(), request.end(), request_.begin());
    writer_->start({.op = opcode::rdma_read_request, .length = iwarp::read_request_size});
    ++reads_;
    break;
  }
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD: {
    if (f.memory.bytes != 8)
      return failed(IBV_WC_LOC_LEN_ERR);
    iwarp::atomic_request a;
    a.request_id = f.id = ++atomic_id_;
    a.stag = r.key;
    a.offset = r.address;
    if (r.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
      a.op = iwarp::atomic_opcode::compare_swap;
      a.compare = r.compare_add;
      a.add_or_swap = r.swap;
      a.add_or_swap_mask = ~0ull;
    } else {
      a.add_or_swap = r.compare_add;
    }
    a.compare_mask = ~0ull;
    const auto request = encode(a);
    std::copy(request.begin(), request.end(), request_.begin());
    writer_->start({.op = opcode::atomic_request, .length = iwarp::atomic_request_size});
    ++reads_;
    break;
  }
  default:
    failed(IBV_WC_LOC_QP_OP_ERR);
  }
}

// The request fails, as its memory is not registered any more, and those behind it are not carried
// out. A message that is being sent ends with a Terminate message.
void iwarp_wire::lose_memory(flight& f) {
  const auto same = [&](const flight& i) {
    return &i == &f;
  };
  flights_.erase(std::next(std::find_if(flights_.begin(), flights_.end(), same)), flights_.end());
  f.sent = f.done = true;
  f.result.status = IBV_WC_LOC_PROT_ERR;
  f.end = queued_;
  broken_ = true;
  writer_->abandon();
  answers_.clear();
}

void iwarp_wire::send_segment() {
  iwarp::outgoing_segment s;
  writer_->next(s);
  std::span<std::byte> parts[iwarp::placement::max_parts + 1];
  unsigned count = 0;
  flight* const f = sends_answer_ ? nullptr : &flights_.back();
  if (s.length == 0) {
  } else if (sends_answer_) {
    const answer& a = answers_.front();
    std::byte* data = const_cast<std::byte*>(a.bytes.data());
    if (a.op == iwarp::opcode::rdma_read_response) {
      // Looked up for each segment, as it may have been deregistered meanwhile.
      refusal why{};
      data = qp_->remote_memory(a.source, a.source_offset + s.offset, s.length,
                                IBV_ACCESS_REMOTE_READ, why);
      if (data == nullptr) {
        qp_->tell(IBV_EVENT_QP_ACCESS_ERR);
        return fail_answer(a, s.offset, read_error(why));
      }
    }
    parts[count++] = {data, s.length};
  } else if (fetches(f->request->opcode)) {
    parts[count++] = {request_.data(), s.length};
  } else if (f->immediate_next) {
    std::memset(immediate_.data(), 0, immediate_.size());
    std::memcpy(immediate_.data(), &f->request->immediate, sizeof(f->request->immediate));
    parts[count++] = {immediate_.data(), s.length};
  } else if ((f->request->flags & IBV_SEND_INLINE) == 0 && !has_memory(*f)) {
    return lose_memory(*f);
  } else {
    count = slice(f->memory, s.offset, s.length, parts);
  }
  std::span<const std::byte> payload[iwarp::placement::max_parts + 1];
  std::copy(parts, parts + count, payload);

  if (out_.size() != out_sent_ || s.size() <= small || writer_->crc()) {
    write_out(s.header());
    for (unsigned i = 0; i < count; ++i)
      write_out(payload[i]);
    // The CRC is that of the copy: the program may be changing its memory.
    const std::span<const std::byte> copy[] = {std::span(out_).last(s.length)};
    writer_->seal(s, copy);
    write_out(s.trailer());
  } else {
    writer_->seal(s, {});
    iovec v[iwarp::placement::max_parts + 3];
    unsigned n = 0;
    const auto add = [&](std::span<const std::byte> p) {
      v[n++] = {const_cast<std::byte*>(p.data()), p.size()};
    };
    add(s.header());
    std::for_each(payload, payload + count, add);
    add(s.trailer());
    msghdr m{};
    m.msg_iov = v;
    m.msg_iovlen = n;
    const ssize_t sent = sendmsg(socket_, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    std::size_t skip = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    queued_ += skip;
    for (unsigned i = 0; i < n;
         ++i) { // what the socket did not take is copied, so that the memory is free
      const std::size_t gone = std::min(skip, v[i].iov_len);
      skip -= gone;
      write_out({static_cast<const std::byte*>(v[i].iov_base) + gone, v[i].iov_len - gone});
    }
  }
  if (!s.last)
    return;
  if (sends_answer_)
    return answers_.pop_front();
  if (f->request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !std::exchange(f->immediate_next, true))
    return;
  f->sent = true;
  if (!fetches(f->request->opcode)) {
    f->done = true;
    f->end = queued_;
  }
}

} // namespace soft
