// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/streams/stream_operations.hpp>

#include "core/tally.hpp"
#include "link/frame_link.hpp"
#include "streams/stream_inbox.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

/// Bytes that were copied. The driver owns the memory, which `index` identifies, from the first
/// `fill` until `freed`.
class stream_block final : public stream_source {
public:
  explicit stream_block(std::uint32_t number) noexcept : stream_source(true), index(number) {}

  const std::uint32_t index;
  std::uint32_t capacity = 0; ///< Chosen before the first `fill`.
};

struct stream_limits {
  std::uint32_t blocks = 16;                ///< Blocks that are copied and not sent, at most.
  std::uint32_t block_size = 1 << 18;       ///< Bytes in a block, at most.
  std::uint32_t small_block_size = 1 << 14; ///< The size of a block that small writes share.
  std::uint32_t at_once = 0; ///< The most bytes of a write that needs no block (`write_at_once`).

  /// The fewest bytes of a write that are lent in frames: to copy fewer takes less time than a
  /// SEND.
  std::uint32_t lend_from = 1 << 12;
  /// The fewest bytes of a lent write that are offered, or in frames lent though they may wait.
  std::uint32_t offer_from = 1 << 17;
  std::uint32_t offers = 4; ///< The most lent writes that are offered at a time.
  /// Each side READs the other's memory. Otherwise neither side may offer, and lent writes go in
  /// frames.
  bool reads = true;

  /// A read of at least this many bytes is direct, if possible.
  std::uint32_t direct_from = 1 << 15;
  stream_read_limits inbox = {};
};

/// The next step of the driver.
struct stream_action {
  enum class kind {
    none,
    fill,   ///< Copy `bytes` bytes at `offset` of `write` to `at` in `block`; or call `no_memory`.
    freed,  ///< The memory of `block` or `chunk` is no longer needed.
    expose, ///< Make a key for reading exactly the bytes of `write`; then `exposed` or
            ///< `not_exposed`.
    await_idle, ///< Call `on_idle` once the handlers that are ready have run.
    wrote,      ///< `write` has completed.
    take, ///< Copy `bytes` bytes at `at` of `chunk`, or of the payload in receive `slot` if that
          ///< is null, to `offset` of `read`. For a `piece`, keep the memory instead. Then
          ///< release the slot if `emptied`. If `last`, `read` has completed.
    read, ///< `read` has completed.
    pull, ///< Allocate memory for `chunk` and read all of `memory` into it, or less after
          ///< reducing `bytes` of `chunk`. Call `pulling` now and `pulled` at the end; or
          ///< `no_memory`; or `hold_back`.
    pull_direct, ///< Read all of `memory` into the memory of `read`; then call `pulled`.
    stop         ///< Post no more READs into the memory of `read`; call `pulled` when the
                 ///< outstanding ones end.
  };
  kind what = kind::none;
  stream_write* write = nullptr;
  stream_block* block = nullptr;
  stream_read* read = nullptr;
  stream_chunk* chunk = nullptr;
  remote_buffer memory;
  std::uint32_t slot = 0;
  std::uint32_t at = 0;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  bool emptied = false;
  bool last = false;
};

/// A stream of bytes in each direction; each direction can be shut down.
///
/// Written bytes are copied to a limited number of blocks, or are sent from the caller's memory, in
/// frames. Lent bytes whose frames wait for the peer's application are copied if the blocks take
/// all of them, so two sides that write before they read wait for each other only if they would
/// with copies, or if they make many long writes at once, which share neither frames nor blocks.
/// Large amounts of the caller's memory are offered, in order with the frames, and the peer reads
/// them. The first write of a round of handlers is sent at once. The next ones share a block, which
/// waits until the handlers that were ready have run (`await_idle`). If the block is small, it also
/// waits while an earlier small frame is outstanding (Minshall's modification of Nagle's algorithm,
/// RFC 896). A frame tells how many bytes of the same source follow, so that the receives of the
/// peer grow.
///
/// Received bytes stay in their receives until they are read, and only a limited number of offered
/// bytes is read ahead: this is the backpressure. Bytes that arrived before the peer's shutdown or
/// goodbye, or before a failure, can still be read.
class stream_protocol final : private link_part {
public:
  /// `rounds`: the number of rounds of handlers that have ended; null if it is not known. The link
  /// and `rounds` must outlive this object.
  stream_protocol(frame_link& link, const stream_limits& o, const tally* rounds);

  /// Whether `next` may have an action. Otherwise it has none until the next event.
  bool has_news() const noexcept { return may_act(); }
  stream_action next();

  void write(stream_write& op);
  /// The straight way of a small write: if nothing waits before it, later writes need not be
  /// awaited, and the peer has room, its bytes are sent in a frame of their own. Then `op` has
  /// completed, and the result is the action `send` that the driver carries out. Otherwise the
  /// result is `none`, and nothing has happened: call `write`.
  link_action write_at_once(stream_write& op);
  /// Reports that there is no memory for the block of the last `fill`.
  void no_memory(stream_write& op, stream_block& block, const error_code& ec);
  /// Reports that the handlers that were ready have run (`await_idle`). If `quiet`, nothing else
  /// was ready, so no handler is about to write more.
  void on_idle(bool quiet);
  /// Whether writes wait for `on_idle`.
  bool awaits_idle() const noexcept { return idle_ != idle_wait::none; }
  /// Report that the key for the write has been made, or could not be made. Without a key, the
  /// bytes are sent in frames.
  void exposed(stream_write& op, const remote_buffer& memory);
  void not_exposed(stream_write& op);
  /// Cancels a write. Returns true if nothing of `op` was written; `op` is the driver's again.
  /// Otherwise as little more as possible is written, and `op` ends with `operation_aborted`.
  bool cancel(stream_write& op);
  /// Whether some of `op` may have been written, so that it can no longer be removed.
  bool has_begun(const stream_write& op) const noexcept {
    return !op.queued_ || op.done != 0 || op.begun_ != 0;
  }

  void read(stream_read& op);
  /// The straight way of a read: if bytes have arrived and no read waits for them, returns true
  /// with an action `take`. Call it until it returns false; `op.done` is 0 before the first call.
  /// If `op.done` is still 0 in the end, nothing has happened: call `read`. Otherwise `op` has
  /// completed.
  bool read_at_once(stream_read& op, stream_action& a);
  /// Cancels a read. Returns true if `op` was removed; it has taken no bytes. Returns false while
  /// the device writes to its memory. Then `op` takes no bytes and ends with `operation_aborted`
  /// when the device has finished.
  bool cancel(stream_read& op);

  void pulling(stream_chunk& c);
  void pulled(stream_chunk& c);
  /// Reports that `bytes` bytes have been read. Fewer than requested means that the read was
  /// stopped or could not continue. If 0 and `op` continues, it is no longer direct.
  void pulled(stream_read& op, std::uint64_t bytes);
  /// Reports that there is no memory for the chunk. A read that waits for it ends with the error.
  void no_memory(const error_code& ec);
  /// Whether bytes of offers are in chunks, or on their way there.
  bool reads_ahead() const noexcept { return inbox_.reads_ahead(); }
  /// If so, no more are read ahead until a chunk is free.
  void hold_back() noexcept {
    ask_again();
    inbox_.hold_back();
  }

  /// After both shutdowns, in either order, only the bytes that have arrived can be read. Later
  /// ones are dropped.
  ///@{
  /// Ends writing. A `shutdown` frame follows the written bytes.
  void shut_down_writes();
  /// From now on reads do not wait.
  void shut_down_reads();
  ///@}

  /// The link or its queue pair has failed, so nothing more is copied: a write that waits for room
  /// ends when the link has stopped.
  void copy_no_more() noexcept { copies_ = false; }

  /// If on, small writes are sent at once, even while a frame is outstanding.
  void set_no_delay(bool on) noexcept;

  std::uint64_t available() const noexcept { return inbox_.available(); } ///< Readable.
  /// Whether written bytes, or the shutdown, wait to be sent, or offers wait for the peer to read
  /// them.
  bool owes() const noexcept { return !pending_.empty() || !unanswered_.empty() || shutdown_due_; }
  /// Whether so many bytes of registered memory are lent rather than copied.
  ///
  /// Few bytes are always copied, and `offer_from` bytes are lent; offers take contiguous memory.
  /// Of the sizes between, a write is lent if no write waits and the peer's receives take all of it
  /// now. A write that is lent in frames ends with its SENDs. If the program has waited for that
  /// end to write more, as `asio::async_write` does every 64 KiB, fewer than `offer_from` bytes are
  /// copied, until the peer has sent bytes while nothing of this side was under way.
  bool lends(std::uint64_t bytes, bool contiguous) const noexcept;
  /// Whether a lent write of so many bytes is offered.
  bool offers(std::uint64_t bytes) const noexcept { return offers_ != 0 && bytes >= offer_from_; }
  /// Whether the peer has yet to report how much of a withdrawn offer it has read.
  bool withdrawing() const noexcept;
  /// How many offers the peer has answered.
  std::uint64_t answered() const noexcept { return answered_; }
  /// How often the peer has taken something or had room for it.
  std::uint64_t taken() const noexcept { return taken_; }
  /// The number of bytes that have gone to the peer in frames.
  std::uint64_t framed() const noexcept { return framed_; }
  /// Asks the peer whether its application has taken bytes. If an earlier question is unanswered,
  /// its answer counts. A peer that has said goodbye is not asked.
  void ask() noexcept;
  bool readable() const noexcept { return inbox_.has_bytes() || at_end(); }
  std::uint64_t direct_from() const noexcept { return direct_from_; }

private:
  bool next_control(outgoing_frame& f) override;
  bool next_data(outgoing_frame& f) override;
  bool has_data() const override;
  void on_sent(const frame_header& header, frame_operation* op) override;
  void on_dropped(const frame_header& header, frame_operation* op, const error_code& ec) override;
  disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot, protocol_clock::time_point now) override;
  void on_closing() override;
  bool drained() const override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  disposition on_bytes(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot);
  bool on_answer(const frame_header& header);
  bool on_progress(std::uint32_t bytes) noexcept;

  stream_action next_action();
  static bool has_room(const stream_block& b) noexcept;
  bool has_room() const noexcept;
  static void restart(stream_source& s) noexcept;
  stream_block& block_for(const stream_write& op);
  bool next_write(stream_action& a);
  bool next_expose(stream_action& a);
  bool next_pull(stream_action& a);
  bool next_read(stream_action& a);
  void take(stream_read& op, stream_action& a);
  bool is_over(const stream_read& op) const noexcept;
  const stream_write* next_lent() const noexcept;
  bool copies_rest(const stream_write& op) const noexcept;
  const stream_source* next_source() const noexcept;
  /// Whether later writes are expected, which can share a block.
  bool gathers() const noexcept { return idle_ != idle_wait::none && !no_delay_; }
  bool held_back(const stream_source& s) const noexcept;
  void begin(outgoing_frame& f, stream_source& from);
  void offer(outgoing_frame& f, stream_write& from);
  bool is_small(const frame_header& data) const noexcept;
  void frame_ended(const frame_header& header, frame_operation& op, const error_code& ec);
  void nothing_more_of(stream_write& op);
  void end_if_over(stream_source& s);
  void end_offers(const error_code& ec);
  void leave_queue(stream_write& op);
  void leave_queue(stream_read& op);
  void finish(stream_write& op, const error_code& ec);
  void finish(stream_read& op, const error_code& ec);
  void end_writes(const error_code& ec);
  void end_reads(const error_code& ec);
  void drop_writes(const error_code& ec);
  void drop_if_shut_both_ways();
  void notify_of_drop() noexcept;
  /// Whether bytes that were written before have not been sent.
  bool queues() const noexcept { return !pending_.empty() || !writers_.empty(); }
  bool has_copies_under_way() const noexcept {
    return at_once_under_way_ != 0 || free_blocks_.size() + freed_blocks_.size() != blocks_.size();
  }
  /// Whether bytes have been sent in this round of handlers, so that further writes may follow.
  bool follows() const noexcept { return sent_in_ && sent_in_ == rounds_->value(); }
  void sent_alone();
  void small_frame_ended(const frame_header& header, bool at_once) noexcept;
  bool is_at_rest() const noexcept;
  bool at_end() const noexcept { return no_reads_ && (no_waits_ || inbox_.empty()); }

  frame_link& link_;
  const tally* rounds_;
  std::uint32_t block_size_, small_block_size_, at_once_;
  std::uint32_t lend_from_;
  std::uint64_t offer_from_;
  std::uint64_t direct_from_;
  std::uint32_t offers_; // at a time; 0: none may be made

  std::deque<stream_block> blocks_;
  std::vector<std::uint32_t> free_blocks_, freed_blocks_;
  frame_operation_list pending_;          // blocks to be sent; the last may have room
  std::vector<stream_write*> unanswered_; // offers
  std::uint32_t next_offer_ = 0;
  boost::circular_buffer<std::uint32_t> withdraws_;
  frame_operation_list writers_; // in order; the first may have begun
  frame_operation_list done_writes_;
  std::uint32_t under_way_ = 0;         // outstanding frames of blocks and lent writes
  std::uint32_t small_under_way_ = 0;   // outstanding small frames
  std::uint32_t at_once_under_way_ = 0; // those of them that need no block
  std::uint64_t taken_ = 0, answered_ = 0;
  enum class question { none, due, asked } question_ = question::none;
  // Bytes of this side in frames, in offers, and taken according to the peer's answers.
  std::uint64_t framed_ = 0, offered_ = 0, reported_ = 0;
  enum class idle_wait { none, due, asked } idle_ = idle_wait::none;
  static constexpr unsigned most_idle_visits = 32;
  std::optional<std::uint64_t> sent_in_; // the round in which bytes were sent that end a source
  unsigned idle_visits_ = 0;             // in a row
  std::uint64_t held_ = 0;               // bytes that were held back at the last of them
  bool no_delay_ = false;
  bool waited_for_ = false; // the end of a write that was lent in frames
  bool copies_ = true;
  bool shutdown_due_ = false;
  bool shut_writes_ = false; // by this side
  bool peer_takes_no_data_ = false;

  stream_inbox inbox_;
  error_code starved_;           // why nothing can be read ahead
  frame_operation_list readers_; // the first may be direct
  frame_operation_list done_reads_;
  bool peer_shut_down_ = false;
  bool no_waits_ = false; // this side has shut down reads
  bool dropping_ = false; // arriving bytes are dropped
  enum class notice { none, due, sent };
  notice no_data_ = notice::none; // that bytes are dropped
  bool asked_ = false;            // the peer has asked, and was not answered

  error_code no_writes_; // why writes are not possible
  error_code no_reads_;  // the error of reads when no bytes are left
};

} // namespace asio_rdma::detail
