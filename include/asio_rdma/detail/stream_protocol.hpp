// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/frame_link.hpp>
#include <asio_rdma/detail/stream_inbox.hpp>

#include <cstdint>
#include <deque>
#include <vector>

namespace asio_rdma::detail {

class stream_protocol;

/// Bytes that are sent in frames of data, or offered to be read where they lie.
class stream_source : public frame_operation {
public:
  bool is_block() const noexcept { return is_block_; }

  std::uint64_t bytes = 0;

  /// Where the payload of the frame that was just begun lies within the bytes.
  std::uint64_t frame_offset() const noexcept { return frame_offset_; }
  /// How many of the bytes the peer has read.
  std::uint64_t taken() const noexcept { return taken_; }

protected:
  explicit stream_source(bool is_block) noexcept : is_block_(is_block) {}
  ~stream_source() = default;

private:
  friend stream_protocol;
  enum class way { undecided, frames, offer };

  void start(way w) noexcept;

  bool is_block_;
  way way_ = way::frames;
  bool ended_ = false;          // nothing more of it is begun
  bool unanswered_ = false;     // as an offer
  bool withdrawn_ = false;      // likewise
  std::uint32_t under_way_ = 0; // frames
  std::uint64_t begun_ = 0;     // bytes in frames
  std::uint64_t frame_offset_ = 0;
  std::uint64_t taken_ = 0;
  std::uint32_t id_ = 0; // of the offer
  remote_buffer memory_;
};

/// Copied bytes: of one frame, or of many, to be offered. The driver has the memory, known by the
/// index, from the first `fill` until it is `freed`.
class stream_block final : public stream_source {
public:
  stream_block(std::uint32_t number, std::uint32_t size, bool offers) noexcept
      : stream_source(true), index(number), capacity(size), is_large(offers) {}

  const std::uint32_t index;
  const std::uint32_t capacity;
  const bool is_large;
};

/// Bytes to be written. The driver derives its operation from it.
class stream_write : public stream_source {
public:
  enum class kind {
    copy, ///< Complete once some have been copied, as many as there is room for, or `whole`.
    lend, ///< Sent from where they lie; complete once the peer has all. Of `offer_from` bytes and
          ///< more they are one piece.
    wait  ///< For room to copy to, and for no bytes.
  };

  stream_write() noexcept : stream_source(false) {}

  kind what = kind::copy; ///< `bytes` is not 0.
  bool whole = false;     ///< All have to be copied.

  // The result.
  error_code ec;
  std::uint64_t done = 0; ///< Bytes that were written, after an error too.

protected:
  ~stream_write() = default;

private:
  friend stream_protocol;
  bool queued_ = false;
  bool in_frames_ = false; // there is no memory for a large block
};

/// A wait for bytes.
class stream_read : public frame_operation {
public:
  enum class kind {
    copy,  ///< As many as there are, at most `capacity`.
    piece, ///< What is left in one receive, with its memory.
    wait   ///< Until a read would not wait, and for no bytes.
  };

  kind what = kind::copy;
  std::uint64_t capacity = 0; ///< Not 0.
  bool direct = false;        ///< The device may write to its memory, which is one piece.

  // The result.
  error_code ec;
  std::uint64_t done = 0;

protected:
  ~stream_read() = default;

private:
  friend stream_protocol;
  bool waiting_ = false;
};

struct stream_limits {
  std::uint32_t blocks = 16;          ///< Copied and not yet sent, at most.
  std::uint32_t block_size = 1 << 18; ///< Bytes; less if the peer's receives are smaller.

  /// So many bytes, or more, are offered; more than a frame's in any case.
  std::uint32_t offer_from = 1 << 15;
  std::uint32_t large_block_size = 1 << 19; ///< Bytes; at least `offer_from`.
  /// Large blocks, and lent writes that are offered, at most of each.
  std::uint32_t offers = 4;
  /// Each side can READ the other's memory. Else nothing is offered, and the peer must not either.
  bool reads = true;

  /// A read of so many bytes, or more, is direct if it can be.
  std::uint32_t direct_from = 1 << 15;
  stream_read_limits inbox = {};
};

/// What the driver is to do.
struct stream_action {
  enum class kind {
    none,
    fill,   ///< Copy `bytes` at `offset` of `write` to `at` in `block`, or `no_memory`.
    freed,  ///< The memory of `block`, or of `chunk`, is needed no more; nor a key to it.
    expose, ///< Make a key for reading exactly the bytes of `source`, then `exposed`, or
            ///< `not_exposed`.
    wrote,  ///< `write` is complete.
    take,   ///< Copy `bytes` at `at` of the payload in receive `slot`, or of `chunk` if there is
            ///< one, to `offset` of `read`, or, of `piece`, keep the memory. Then release the slot
            ///< if it is `emptied`.
    read,   ///< `read` is complete.
    pull,   ///< Read all of `memory`, or less that is then the `bytes` of `chunk`, to memory for
            ///< it: call `pulling` now and `pulled` when it is done, or `no_memory`.
    pull_direct, ///< Read all of `memory` to the memory of `read`, then `pulled`.
    stop         ///< Read no more to the memory of `read` than is being read, then `pulled`.
  };
  kind what = kind::none;
  stream_write* write = nullptr;
  stream_block* block = nullptr;
  stream_source* source = nullptr;
  stream_read* read = nullptr;
  stream_chunk* chunk = nullptr;
  remote_buffer memory;
  std::uint32_t slot = 0;
  std::uint32_t at = 0;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  bool emptied = false;
};

/// Bytes in order, both ways, each of which can be shut down.
///
/// What is written is copied to blocks, of which there are only so many, or sent from where it
/// lies. Few bytes go in frames; many are offered, in order with the frames, and the peer reads
/// them. A block that is not full waits while a frame that was not full is on its way and nothing
/// follows, so that small writes meet in one frame; one alone goes at once (Minshall's modification
/// of Nagle's algorithm, RFC 896). A large one waits in the same way for the answer to an offer.
///
/// Received bytes stay in their receives until they are read, and only so many of those that are
/// offered are read ahead; that is the back-pressure. What came before the peer's shutdown or
/// goodbye, or before a failure, can still be read.
class stream_protocol final : private link_part {
public:
  /// The link must be of use as long as this is.
  stream_protocol(frame_link& link, const stream_limits& o);

  stream_action next();

  void write(stream_write& op);
  /// There is no memory for the block of the `fill` that was just said.
  void no_memory(stream_write& op, stream_block& block, const error_code& ec);
  /// The key for the source is made, or there is none: then it goes in frames.
  void exposed(stream_source& s, const remote_buffer& memory);
  void not_exposed(stream_source& s);
  /// Takes `op` out if nothing of it was written: true, and it is the driver's again. Else as
  /// little more as can be is written, and it ends with `operation_aborted`.
  bool cancel(stream_write& op);
  /// Whether something of it may have been written, so that it could not be taken out.
  bool has_begun(const stream_write& op) const noexcept {
    return !op.queued_ || op.done != 0 || op.begun_ != 0;
  }

  void read(stream_read& op);
  /// Takes `op` out: true, and it has taken nothing. False if its memory is being written: then it
  /// ends with `operation_aborted`, having taken nothing, when that is over.
  bool cancel(stream_read& op);

  void pulling(stream_chunk& c) { inbox_.pulling(c); }
  void pulled(stream_chunk& c) { inbox_.pulled(c); }
  /// So many bytes have been read; fewer than were asked for if it was stopped or could not be read
  /// any further. If none, and it goes on, it is not direct any more.
  void pulled(stream_read& op, std::uint64_t bytes);
  /// There is none for the chunk: a read that waits for it ends with that.
  void no_memory(const error_code& ec) { starved_ = ec; }

  /// After both, in either order, nothing is read but the bytes that are here. Bytes that arrive
  /// later are dropped.
  ///@{
  /// Nothing more is written; the peer hears of it behind what was.
  void shut_down_writes();
  /// Reads no longer wait.
  void shut_down_reads();
  ///@}

  /// Small writes go at once, whatever is on its way.
  void set_no_delay(bool on) noexcept { no_delay_ = on; }

  std::uint64_t available() const noexcept { return inbox_.available(); } ///< To be read.
  /// Whether something was written that is not under way, or not read by a peer that is to.
  bool owes() const noexcept { return !pending_.empty() || !unanswered_.empty() || shutdown_due_; }
  /// Whether the peer has still to say how much it has read of what was withdrawn.
  bool withdrawing() const noexcept;
  /// How many offers the peer has answered.
  std::uint64_t answered() const noexcept { return answered_; }
  /// How often the peer has taken something, or had room for it.
  std::uint64_t taken() const noexcept { return taken_; }
  /// Asks the peer whether its application has taken something. If an earlier question has no
  /// answer yet, that answer counts. A peer that has said goodbye is not asked.
  void ask() noexcept;
  bool readable() const noexcept { return inbox_.has_bytes() || at_end(); }
  /// Of how many bytes something is offered.
  std::uint64_t offer_from() const noexcept { return offer_from_; }
  std::uint64_t direct_from() const noexcept { return direct_from_; }

private:
  using list = boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;

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

  static bool has_room(const stream_block& b) noexcept;
  bool has_room() const noexcept;
  stream_block& block_for(const stream_write& op);
  bool next_write(stream_action& a);
  bool next_expose(stream_action& a);
  bool next_pull(stream_action& a);
  bool next_read(stream_action& a);
  const stream_source* next_source() const noexcept;
  bool in_frames(const stream_source& s) const noexcept;
  bool held_back(const stream_source& s) const noexcept;
  void begin(outgoing_frame& f, stream_source& from);
  void offer(outgoing_frame& f, stream_source& from);
  void frame_ended(const frame_header& header, frame_operation& op, const error_code& ec);
  void nothing_more_of(stream_source& s);
  void end_if_over(stream_source& s);
  void end_offers(const error_code& ec);
  void leave_queue(stream_write& op);
  void finish(stream_write& op, const error_code& ec);
  void finish(stream_read& op, const error_code& ec);
  void end_writes(const error_code& ec);
  void end_reads(const error_code& ec);
  void drop_blocks();
  void drop_if_shut_both_ways();
  bool at_end() const noexcept { return no_reads_ && (no_waits_ || inbox_.empty()); }

  frame_link& link_;
  std::uint32_t frame_size_;
  std::uint32_t block_size_;
  std::uint64_t offer_from_;
  std::uint64_t direct_from_;
  std::uint32_t offers_;

  std::deque<stream_block> blocks_;
  std::vector<std::uint32_t> free_blocks_, free_large_blocks_, freed_blocks_;
  bool has_large_blocks_;
  list pending_;                           // blocks to be sent; the last may have room
  std::vector<stream_source*> unanswered_; // offers
  std::uint32_t lent_offers_ = 0;          // of them
  std::uint32_t next_offer_ = 0;
  boost::circular_buffer<std::uint32_t> withdraws_;
  list writers_; // in order; the first may be begun
  list done_writes_;
  std::uint32_t small_under_way_ = 0; // frames that are not full
  std::uint64_t taken_ = 0, answered_ = 0;
  enum class question { none, due, asked } question_ = question::none;
  std::uint32_t answer_ = 0; // the last one: of bytes that the peer has taken
  bool no_delay_ = false;
  bool shutdown_due_ = false;
  bool shut_writes_ = false; // here

  stream_inbox inbox_;
  error_code starved_; // why nothing is read ahead
  list readers_;       // the first may be direct
  list done_reads_;
  bool peer_shut_down_ = false;
  bool no_waits_ = false; // reads were shut down here
  bool dropping_ = false; // what arrives is for nobody
  bool asked_ = false;    // by the peer, and not answered

  error_code no_writes_; // why there are no more
  error_code no_reads_;  // what they get when there are no bytes left
};

} // namespace asio_rdma::detail
