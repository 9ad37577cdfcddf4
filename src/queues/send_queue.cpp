// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/flush.hpp>
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "core/probe.hpp"
#include "queues/queue_pair_impl.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>

namespace asio_rdma::detail {
namespace {

bool is_silent(const operation& op) noexcept {
  return (static_cast<const send_operation&>(op).wr.send_flags & IBV_SEND_SIGNALED) == 0;
}

bool is_fenced(const operation& op) noexcept {
  return (static_cast<const send_operation&>(op).wr.send_flags & IBV_SEND_FENCE) != 0;
}

bool is_bind(const operation& op) noexcept {
  return static_cast<const send_operation&>(op).wr.opcode == IBV_WR_BIND_MW;
}

bool is_read(const operation& op) noexcept {
  return static_cast<const send_operation&>(op).wr.opcode == IBV_WR_RDMA_READ;
}

bool is_flush(const operation& op) noexcept {
  return static_cast<const send_operation&>(op).wr.opcode == flush_opcode;
}

/// A fence waits for such operations.
bool is_answered(const operation& op) noexcept {
  return is_read(op) || is_flush(op) || is_atomic(static_cast<const send_operation&>(op).wr.opcode);
}

} // namespace

send_queue::send_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept
    : work_queue(qp.mutex_, depth), qp_(qp) {}

error_code send_queue::reserve_results() {
  assert(results_.empty() && empty());
  results_.resize(depth());
  free_results_.resize(depth());
  for (std::uint32_t i = 0; i < depth(); ++i)
    free_results_[i] = depth() - 1 - i;
  error_code ec;
  results_region_ = memory_region(qp_.pd_, results_.data(), results_.size() * sizeof(results_[0]),
                                  access::local_write, ec);
  return ec;
}

// `must_signal`: operations wait, or the queue is full after this operation. The operation must
// then be signaled: without its completion nothing might be posted any more, or nothing reports
// that it has completed. So must an operation that a later one may wait for.
void send_queue::prepare(send_operation& op, bool must_signal) noexcept {
  if (fences_here_)
    op.wr.send_flags &= ~unsigned(IBV_SEND_FENCE); // what the fence waits for has completed
  use_inline(op, qp_.options_.max_inline, is_fenced(op));
  const bool overtaken = reads_overtaken_ && is_read(op);
  const bool waited_for = fences_here_ && is_answered(op);
  if (must_signal || overtaken || waited_for || !is_silent(op) ||
      ++unsignaled_run_ >= depth() / 2) {
    op.wr.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_run_ = 0;
  }
  if (!is_atomic(op.wr.opcode))
    return;
  assert(!free_results_.empty());
  op.result_slot = free_results_.back();
  free_results_.pop_back();
  op.wr.sg_list[0] =
      element_of({&results_[op.result_slot], sizeof(std::uint64_t), results_region_.lkey()});
}

int send_queue::post(operation_list::iterator first, operation_list::iterator last,
                     operation*& failed, operation_list& ended) {
  if (is_flush_known && qp_.supports(flush_opcode)) [[unlikely]]
    return post_with_flushes(first, last, failed, ended);
  return post_chain(first, last, failed, ended);
}

// A FLUSH is posted by another function than a chain, so it divides the chain.
int send_queue::post_with_flushes(operation_list::iterator first, operation_list::iterator last,
                                  operation*& failed, operation_list& ended) {
  while (first != last && qp_.state_ != queue_pair_state::failed) {
    auto behind = first;
    int e = 0;
    if (is_flush(*first)) {
      ++behind;
      auto& op = static_cast<send_operation&>(*first);
      prepare(op, behind == last && (room() == 0 || any_waiting()));
      ASIO_RDMA_PROBE(post, static_cast<operation*>(&op), qp_.number(), op.wr.opcode);
      // After an error the request may be posted, and only the doorbell have failed.
      if (const int refused = post_flush(qp_.qp_, op.wr))
        qp_.enter_failed(system_error_code(refused), ended);
    } else {
      behind = std::find_if(first, last, &is_flush);
      e = post_chain(first, behind, failed, ended);
    }
    if (e != 0)
      return e;
    first = behind;
  }
  // The queue pair has failed: the rest ends with it, as if it had been posted.
  for (; first != last; ++first)
    prepare(static_cast<send_operation&>(*first), false);
  return 0;
}

int send_queue::post_chain(operation_list::iterator first, operation_list::iterator last,
                           operation*& failed, operation_list& ended) {
  assert(first != last && qp_.qp_ != nullptr);
  ibv_send_wr* head = nullptr;
  ibv_send_wr** next = &head;
  bool all_usual = true;
  for (auto i = first; i != last;) {
    auto& op = static_cast<send_operation&>(*i);
    ++i;
    if (op.usual) [[likely]] {
      use_inline(op, qp_.options_.max_inline, false);
      unsignaled_run_ = 0;
    } else {
      prepare(op, i == last && (room() == 0 || any_waiting()));
      all_usual = false;
    }
    ASIO_RDMA_PROBE(post, static_cast<operation*>(&op), qp_.number(), op.wr.opcode);
    *next = &op.wr;
    next = &op.wr.next;
  }
  *next = nullptr;
  ibv_send_wr* bad = head;
  const int e = std::abs(ibv_post_send(qp_.qp_, head, &bad)); // siw negates the error
  if (e == 0) [[likely]] {
    if (!all_usual)
      note_bound(first, last);
    return 0;
  }
  if (bad == nullptr) { // all were accepted, but the doorbell failed
    qp_.enter_failed(system_error_code(e), ended);
    return 0;
  }
  failed = reinterpret_cast<operation*>(bad->wr_id);
  const auto refused = operation_list::s_iterator_to(*failed);
  note_bound(first, refused);
  for (auto i = refused; i != last; ++i)
    on_retired(*i);
  return e;
}

void send_queue::note_bound(operation_list::iterator first,
                            operation_list::iterator last) noexcept {
  for (; first != last; ++first)
    if (ibv_send_wr& wr = static_cast<send_operation&>(*first).wr; is_bind(*first))
      wr.bind_mw.mw->rkey = wr.bind_mw.rkey; // the provider expects it in the next bind
}

void send_queue::on_retired(operation& op) noexcept {
  auto& send = static_cast<send_operation&>(op);
  if (!is_atomic(send.wr.opcode))
    return;
  assert(send.result_slot < results_.size());
  if (!send.ec)
    send.value = results_[send.result_slot];
  free_results_.push_back(send.result_slot);
}

std::uint32_t send_queue::allowed_before(const operation& op) const noexcept {
  if ((binds_repeated_ && is_bind(op)) || (fences_here_ && is_fenced(op)))
    return 0;
  return is_siw() && is_read(op) ? siw_reads_ - 1 : any_number;
}

// A bind does not wait for operations that stay unsignaled: their completion would go unnoticed.
bool send_queue::waits_for(const operation& op, const operation& earlier) const noexcept {
  if (binds_repeated_ && is_bind(op))
    return !is_bind(earlier) && (!is_silent(earlier) || is_answered(earlier));
  return is_answered(earlier);
}

// Without the operation behind it, nothing would report that an unsignaled one has completed.
bool send_queue::may_become_last(operation& earlier, bool posted) noexcept {
  if (!is_silent(earlier))
    return true;
  if (!posted)
    static_cast<send_operation&>(earlier).wr.send_flags |= IBV_SEND_SIGNALED;
  return !posted;
}

// Unsignaled operations before it may have depended on its completion.
// A refused request fails its link, and nothing behind it may reach the peer, such as an offer
// whose bind was refused.
void send_queue::on_refused(const operation& refused, operation_list& ended) {
  if (refused.internal)
    return qp_.enter_failed(refused.ec, ended);
  if (!any_posted() || !is_silent(last_posted()))
    return;
  if (any_waiting())
    unsignaled_run_ = depth(); // so that the next operation is signaled
  else
    qp_.enter_failed(refused.ec, ended);
}

bool send_queue::awaits_report() const noexcept {
  bool any = false;
  each_posted([&any](const operation& op) { any = any || !is_silent(op); });
  return any;
}

void send_queue::on_completion(operation& op, const ibv_wc& wc, operation_list& ready) {
  operation_list behind;
  operation_list* done = &ready;
  const bool stays = may_complete_again(op, wc);
  if (wc.status != IBV_WC_SUCCESS) {
    const error_code why = qp_.completion_failure(wc, behind);
    done = &qp_.list_of_failed(ready);
    if (!op.ec && !(stays && done != &ready)) // else a READ that has failed, or has no reason yet
      op.fail(why);
  }
  complete_silent(op, &is_silent, ready);
  if (!stays)
    complete(op, *done);
  ready.splice(ready.end(), behind);
}

// When siw flushes a READ that it was about to send, it completes the READ twice. An operation that
// has failed stays posted until the teardown, after which the device completes nothing.
bool send_queue::may_complete_again(const operation& op, const ibv_wc& wc) const noexcept {
  return is_siw() && is_read(op) && wc.status != IBV_WC_SUCCESS;
}

} // namespace asio_rdma::detail
