// SPDX-License-Identifier: BSL-1.0
// The events and completions of a party, and its memory in the end.
#include "party.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cstddef>

namespace soft::test {
namespace {

ibv_wc_opcode completed_as(ibv_wr_opcode o) {
  switch (o) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  case IBV_WR_BIND_MW:
    return IBV_WC_BIND_MW;
  default:
    return IBV_WC_SEND;
  }
}

} // namespace

void party::fault(const std::string& what) {
  if (report_.fault[0] == '\0')
    what.copy(report_.fault.data(), report_.fault.size() - 1);
}

// ESTABLISHED, then DISCONNECTED; or one event of an error. If the connection ends while librdmacm
// makes the queue pair ready, DISCONNECTED may follow an error.
void party::take_event(const rdma_cm_event& e) {
  const auto unexpected = [&] {
    fault(std::string("an unexpected event: ") + rdma_event_str(e.event));
  };
  switch (e.event) {
  case RDMA_CM_EVENT_ESTABLISHED:
    if (report_.established || event_of_end_)
      unexpected();
    report_.established = true;
    break;
  case RDMA_CM_EVENT_DISCONNECTED:
    if (report_.disconnected || report_.established == event_of_end_)
      unexpected();
    report_.disconnected = event_of_end_ = true;
    break;
  case RDMA_CM_EVENT_REJECTED:
  case RDMA_CM_EVENT_CONNECT_ERROR:
  case RDMA_CM_EVENT_UNREACHABLE:
    if (report_.established || event_of_end_)
      unexpected();
    event_of_end_ = true;
    break;
  default:
    unexpected();
  }
}

void party::take_completions() {
  ibv_wc wc{};
  while (ibv_poll_cq(sends_.get(), 1, &wc) == 1) {
    if (has_succeeded(wc, sends_done_, report_.posted, sends_flushed_, "request "))
      check_sent(wc);
    ++sends_done_;
  }
  while (ibv_poll_cq(receives_.get(), 1, &wc) == 1) {
    if (has_succeeded(wc, receives_done_, posted_receives_, receives_flushed_, "receive "))
      check_received(wc);
    ++receives_done_;
    if (plays_ && !receives_flushed_ && posted_receives_ <= messages_.size())
      receive();
  }
}

// Completions come in the order of the posts. Behind one that is flushed all others are.
bool party::has_succeeded(const ibv_wc& wc, unsigned done, unsigned posted, bool& flushed,
                          const char* what) {
  const bool success = wc.status == IBV_WC_SUCCESS;
  if (wc.wr_id != done || done == posted)
    fault(what + std::to_string(wc.wr_id) + " completes instead of " + std::to_string(done));
  else if (success ? flushed : wc.status != IBV_WC_WR_FLUSH_ERR)
    fault(what + std::to_string(done) + (flushed ? ", behind one that is flushed: " : ": ") +
          ibv_wc_status_str(wc.status));
  else if (success)
    return true;
  flushed = flushed || !success;
  return false;
}

void party::check_sent(const ibv_wc& wc) {
  const request& q = own_[sends_done_];
  if (wc.opcode != completed_as(q.what))
    fault("request " + std::to_string(wc.wr_id) + " completes as another operation");
  if (q.fetches()) {
    const auto first = static_cast<std::ptrdiff_t>(q.from);
    if (!std::equal(memory_.begin() + first, memory_.begin() + first + q.bytes,
                    after_.begin() + first))
      fault("request " + std::to_string(wc.wr_id) + " fetches other bytes");
    report_.fetched = sends_done_ + 1;
  }
  ++report_.sent;
}

void party::check_received(const ibv_wc& wc) {
  if (receives_done_ >= messages_.size())
    return fault("there is a message more");
  const request& q = message(receives_done_);
  const auto wrong = [&](const char* what) {
    fault("message " + std::to_string(receives_done_) + what);
  };
  if (wc.byte_len != q.bytes)
    wrong(" has another size");
  if (wc.opcode != (q.writes() ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
    wrong(" completes as another operation");
  if (q.has_immediate() &&
      ((wc.wc_flags & IBV_WC_WITH_IMM) == 0 ||
       ntohl(wc.imm_data) != scene::immediate(messages_[receives_done_], other_of(role_))))
    wrong(" has other immediate data");
  if (q.what == IBV_WR_SEND_WITH_INV &&
      ((wc.wc_flags & IBV_WC_WITH_INV) == 0 || wc.invalidated_rkey != window_key_))
    wrong(" invalidates another window");
  const auto first = static_cast<std::ptrdiff_t>(q.to);
  if (!std::equal(memory_.begin() + first, memory_.begin() + first + q.bytes,
                  after_.begin() + first))
    wrong(" has other bytes");
  ++report_.received;
}

void party::look_at_memory() {
  for (std::size_t i = 0; i != memory_.size(); ++i)
    if (memory_[i] != before_[i] && memory_[i] != after_[i])
      return fault("byte " + std::to_string(i) + " of the memory is another one");
  unsigned message = 0;
  bool whole = true;
  for (unsigned i = 0; i != theirs_.size(); ++i) {
    const request& q = theirs_[i];
    const bool has_effect = q.is_message() || q.writes() || q.is_atomic();
    if (has_effect) {
      const std::size_t end = q.to + q.bytes;
      bool all = true, any = false;
      for (std::size_t at = q.to; at != end; ++at) {
        all = all && memory_[at] == after_[at];
        any = any || memory_[at] != before_[at];
      }
      if (q.is_message()) {
        all = message < report_.received;
        any = any || all;
        ++message;
      }
      whole = whole && all;
      if (any)
        report_.touched = i + 1;
    }
    if (whole)
      report_.carried = i + 1;
  }
}

} // namespace soft::test
