// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/memory_region.hpp>

#include "queues/work_queue.hpp"

#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

class queue_pair_impl;

/// Has a small payload copied when the operation is posted. Such a copy cannot follow a fence of
/// the device (`fenced`).
inline void use_inline(send_operation& op, std::uint32_t max_inline, bool fenced) noexcept {
  static_assert(send_operation::never_inline == 0); // less one, it exceeds each limit
  if (op.inline_bytes - 1 < max_inline && !fenced)
    op.wr.send_flags |= IBV_SEND_INLINE;
}

/// The send queue of a queue pair.
class send_queue final : public work_queue {
public:
  send_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept;

  /// Allocates the slots for results of atomic operations. None may be started before.
  error_code reserve_results();
  /// Releases the slots; called when the device no longer uses them.
  memory_region release_results() noexcept { return std::move(results_region_); }
  /// Whether the completion of a write may precede that of an earlier read, as on siw.
  void set_reads_overtaken(bool overtaken) noexcept { reads_overtaken_ = overtaken; }
  /// Whether a bind is repeated, and then fails, when earlier requests are repeated, as on rxe.
  void set_binds_repeated(bool repeated) noexcept {
    binds_repeated_ = repeated;
    if (repeated)
      ask_allowed_before();
  }
  /// Whether a fenced operation waits here, because the device's fence may wait for ever. A fenced
  /// operation of rxe that is repeated also waits for the READs behind it. For siw see `set_siw`;
  /// its fence ends with the first READ besides, and it refuses a fenced READ.
  void set_fences_here(bool here) noexcept {
    fences_here_ = here;
    if (here)
      ask_allowed_before();
  }
  /// The device is siw, and `reads` READs may be in flight. While an operation of siw waits for
  /// READs, siw answers no READs of the peer. If both sides wait so, they wait for ever. So here an
  /// operation is posted only when it does not have to wait for an answer of the peer.
  void set_siw(std::uint32_t reads) noexcept {
    assert(reads != 0);
    siw_reads_ = reads;
    ask_allowed_before();
  }
  bool is_siw() const noexcept { return siw_reads_ != 0; }
  /// Whether an operation is posted that is signaled.
  bool awaits_report() const noexcept;

  void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) override;
  void on_refused(const operation& refused, operation_list& ended) override;

private:
  int post(operation_list::iterator first, operation_list::iterator last, operation*& failed,
           operation_list& ended) override;
  int post_chain(operation_list::iterator first, operation_list::iterator last, operation*& failed,
                 operation_list& ended);
  int post_with_flushes(operation_list::iterator first, operation_list::iterator last,
                        operation*& failed, operation_list& ended);
  void on_retired(operation& op) noexcept override;
  std::uint32_t allowed_before(const operation& op) const noexcept override;
  bool waits_for(const operation& op, const operation& earlier) const noexcept override;
  bool may_become_last(operation& earlier, bool posted) noexcept override;
  void prepare(send_operation& op, bool must_signal) noexcept;
  bool may_complete_again(const operation& op, const ibv_wc& wc) const noexcept;
  static void note_bound(operation_list::iterator first, operation_list::iterator last) noexcept;

  queue_pair_impl& qp_;
  bool reads_overtaken_ = false;
  bool binds_repeated_ = false;
  bool fences_here_ = false;
  std::uint32_t siw_reads_ = 0; // READs that may be in flight on siw; 0: another device
  std::uint32_t unsignaled_run_ = 0;
  // The previous values of atomic operations: one slot for each posted operation.
  std::vector<std::uint64_t> results_;
  std::vector<std::uint32_t> free_results_;
  memory_region results_region_;
};

} // namespace asio_rdma::detail
