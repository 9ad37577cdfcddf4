// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/frame_link.hpp>

#include <cstdint>
#include <deque>
#include <vector>

namespace asio_rdma::detail {

class stream_protocol;

/// Where the payload of a data frame comes from.
class stream_source : public frame_operation {
public:
  bool is_block() const noexcept { return is_block_; }

protected:
  explicit stream_source(bool is_block) noexcept : is_block_(is_block) {}
  ~stream_source() = default;

private:
  bool is_block_;
};

/// Copied bytes of one data frame. The driver has the memory, known by the index, from the first
/// `fill` until the frame has been sent.
class stream_block final : public stream_source {
public:
  explicit stream_block(std::uint32_t number) noexcept : stream_source(true), index(number) {}

  const std::uint32_t index;
  std::uint32_t bytes = 0;
};

/// Bytes to be written. The driver derives its operation from it.
class stream_write : public stream_source {
public:
  enum class kind {
    copy, ///< Complete once some have been copied, as many as there is room for.
    lend, ///< Sent from where they lie; complete once all have been sent.
    wait  ///< For room to copy to, and for no bytes.
  };

  stream_write() noexcept : stream_source(false) {}

  kind what = kind::copy;
  std::uint64_t bytes = 0; ///< Not 0.

  // The result.
  error_code ec;
  std::uint64_t done = 0; ///< Bytes that were written, after an error too.

  /// Of `lend`: where the payload of the frame that was just begun lies within the bytes.
  std::uint64_t frame_offset() const noexcept { return frame_offset_; }

protected:
  ~stream_write() = default;

private:
  friend stream_protocol;
  bool queued_ = false;
  bool ended_ = false;          // nothing more of it is begun
  std::uint32_t under_way_ = 0; // frames
  std::uint64_t begun_ = 0;     // bytes in frames
  std::uint64_t frame_offset_ = 0;
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
};

/// What the driver is to do.
struct stream_action {
  enum class kind {
    none,
    fill,  ///< Copy `bytes` at `offset` of `write` to `at` in `block`, or `no_memory`.
    freed, ///< The memory of `block` is needed no more.
    wrote, ///< `write` is complete.
    take,  ///< Copy `bytes` at `at` of the payload in receive `slot` to `offset` of `read`, or, of
           ///< `piece`, keep the memory. Then release the slot if it is `emptied`.
    read   ///< `read` is complete.
  };
  kind what = kind::none;
  stream_write* write = nullptr;
  stream_block* block = nullptr;
  stream_read* read = nullptr;
  std::uint32_t slot = 0;
  std::uint32_t at = 0;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  bool emptied = false;
};

/// Bytes in order, both ways, each of which can be shut down.
///
/// What is written is copied to blocks of a frame's size, of which there are only so many, or sent
/// from where it lies. A block that is not full waits while a frame that was not full is on its way
/// and nothing follows, so that small writes meet in one frame; one alone goes at once (Minshall's
/// modification of Nagle's algorithm, RFC 896).
///
/// Received bytes stay in their receives until they are read; that is the back-pressure. What came
/// before the peer's shutdown or goodbye, or before a failure, can still be read.
class stream_protocol final : private link_part {
public:
  /// The link must be of use as long as this is.
  stream_protocol(frame_link& link, const stream_limits& o);

  stream_action next();

  void write(stream_write& op);
  /// There is no memory for the block of the `fill` that was just said.
  void no_memory(stream_write& op, stream_block& block, const error_code& ec);
  /// Takes `op` out if nothing of it was written: true, and it is the driver's again. Else as
  /// little more as can be is written, and it ends with `operation_aborted`.
  bool cancel(stream_write& op);

  void read(stream_read& op);
  /// Takes `op` out. It has taken nothing.
  void cancel(stream_read& op);

  /// Nothing more is written; the peer hears of it behind what was.
  void shut_down_writes();
  /// Reads no longer wait.
  void shut_down_reads();

  /// Small writes go at once, whatever is on its way.
  void set_no_delay(bool on) noexcept { no_delay_ = on; }

  std::uint64_t available() const noexcept { return available_; } ///< Bytes that can be read.
  bool readable() const noexcept { return !inbox_.empty() || no_reads_; }
  std::uint32_t block_size() const noexcept { return block_size_; }

private:
  struct piece {
    std::uint32_t slot;
    std::uint32_t at;
    std::uint32_t left;
  };
  using list = boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;

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

  bool has_room() const noexcept;
  bool next_write(stream_action& a);
  bool next_read(stream_action& a);
  bool held_back(const stream_block& b) const noexcept;
  void begin(outgoing_frame& f, stream_source& from, std::uint32_t bytes);
  void frame_ended(const frame_header& header, frame_operation& op, const error_code& ec);
  void leave_queue(stream_write& op);
  void finish(stream_write& op, const error_code& ec);
  void finish(stream_read& op, const error_code& ec);
  void end_writes(const error_code& ec);
  void end_reads(const error_code& ec);
  void drop_blocks();
  void drop_inbox();

  frame_link& link_;
  std::uint32_t frame_size_;
  std::uint32_t block_size_;

  std::deque<stream_block> blocks_;
  std::vector<std::uint32_t> free_blocks_, freed_blocks_;
  list pending_; // blocks to be sent; the last may have room
  list writers_; // in order; the first may be begun
  list done_writes_;
  std::uint32_t small_under_way_ = 0; // frames that are not full
  bool no_delay_ = false;
  bool shutdown_due_ = false;

  boost::circular_buffer<piece> inbox_;
  std::uint64_t available_ = 0;
  list readers_;
  list done_reads_;
  bool peer_shut_down_ = false;
  bool dropping_ = false; // what arrives is for nobody

  error_code no_writes_; // why there are no more
  error_code no_reads_;  // what they get when there are no bytes left
};

} // namespace asio_rdma::detail
