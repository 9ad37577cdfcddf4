// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "link/frame_link.hpp"

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// Memory for a part of an offer that is read ahead. The driver owns the memory, which `index`
/// identifies, from `stream_inbox::pulling` until `next_free` returns the chunk.
class stream_chunk {
public:
  explicit stream_chunk(std::uint32_t number) noexcept : index(number) {}

  const std::uint32_t index;
  std::uint32_t bytes = 0;

private:
  friend class stream_inbox; // only the inbox changes the state of a chunk
  std::uint32_t offer_ = 0;
  bool here_ = false;
  bool dropped_ = false;
};

struct stream_read_limits {
  std::uint64_t read_ahead = 1 << 20; ///< Bytes of offers that are read ahead.
  std::uint32_t chunk = 1 << 19;      ///< Bytes that one READ reads ahead, at most.
};

/// The bytes of a stream that have arrived, and the peer's offers, in order.
///
/// Offers are read ahead into chunks up to a limit; or the first offer is read directly into a
/// reader's memory. An offer is answered when all of it has been read. If the peer withdraws it, or
/// this side drops it, it is answered when none of its bytes is being read.
class stream_inbox {
public:
  /// Arrived bytes in one receive or one chunk.
  struct part {
    stream_chunk* chunk = nullptr; ///< If null, the bytes are in receive `slot`.
    std::uint32_t slot = 0;
    std::uint32_t at = 0; ///< The offset in the payload or in the chunk.
    std::uint32_t bytes = 0;
    bool emptied = false; ///< The receive must be released; a chunk is returned by `next_free`.
  };

  /// Offers are accepted only if they can be read: `reads`.
  stream_inbox(frame_link& link, const stream_read_limits& o, bool reads);

  /// Take what the peer has sent. Return false for a protocol violation.
  ///@{
  bool on_data(std::uint32_t slot, std::uint32_t bytes);
  bool on_offer(std::uint32_t id, const remote_buffer& memory);
  bool on_withdraw(std::uint32_t id);
  ///@}
  bool next_answer(outgoing_frame& f);

  /// Whether all bytes that arrived or are offered have been taken.
  bool empty() const noexcept { return pieces_.empty(); }
  /// The number of bytes taken so far, modulo 2^32.
  std::uint32_t taken() const noexcept { return taken_; }
  /// Whether the next bytes have arrived.
  bool has_bytes() const noexcept { return !pieces_.empty() && is_here(pieces_.front()); }
  std::uint64_t available() const noexcept;
  /// Takes contiguous bytes, at most `most`. Requires `has_bytes`.
  part take(std::uint64_t most);
  /// A chunk whose memory is no longer needed, or null.
  stream_chunk* next_free();

  /// The next chunk to be read, or null: read `bytes` of the chunk from `from`. The driver either
  /// calls `pulling`, perhaps with fewer `bytes`, and `pulled` when they have been read; or
  /// `hold_back`, if there are chunks with memory, and then there is no next one until one of these
  /// is free; or does nothing.
  stream_chunk* next_pull(remote_buffer& from);
  bool reads_ahead() const noexcept { return ahead_ != 0; }
  void hold_back() noexcept { held_back_ = reads_ahead(); }
  void pulling(stream_chunk& c);
  void pulled(stream_chunk& c);

  /// The first unread bytes, at most `most`, if they are offered and not being read; otherwise
  /// empty.
  remote_buffer offered(std::uint64_t most) const noexcept;
  /// Begins to read the bytes of `offered` directly into a reader's memory; meanwhile nothing is
  /// read ahead. `took` reports the end, the number of bytes read and whether the reader still
  /// wanted them.
  void taking();
  void took(std::uint64_t bytes, bool wanted);
  bool is_taking() const noexcept { return taking_ != nullptr; }
  /// Asks to stop the direct read.
  void stop_taking() noexcept;
  /// Whether the driver must stop the direct read; true once.
  bool next_stop() noexcept { return std::exchange(stop_due_, false); }

  /// Whether no memory is to be freed, nothing is to be read ahead and no READ is to be stopped.
  bool is_at_rest() const noexcept { return freed_chunks_.empty() && unread_ == 0 && !stop_due_; }
  bool reading() const noexcept { return reading_ != 0; }
  bool unread() const noexcept { return unread_ != 0; }
  bool unanswered() const noexcept { return unanswered_ != 0; }

  /// Drops all bytes, and those that arrive later.
  void drop() { drop_from(pieces_.begin()); }
  /// Drops all bytes that have not arrived.
  void drop_rest() { drop_from(first_not_here()); }
  /// Called when no READ is outstanding any more: drops the bytes and offers that have not arrived.
  /// Returns true if there were any.
  bool stop();

private:
  struct piece {
    enum class kind { slot, chunk, offer };
    kind what;
    std::uint32_t index; // of the receive, the chunk or the offer
    std::uint32_t at = 0;
    std::uint32_t left = 0; // unused for an offer, which has `rest`
  };
  struct offer {
    std::uint32_t id = 0;
    remote_buffer rest; // not requested yet
    std::uint32_t read = 0;
    std::uint32_t under_way = 0;
    bool live = false;
    bool withdrawn = false;
  };
  struct answer {
    frame_type what;
    std::uint32_t id;
    std::uint32_t value;
  };
  using pieces = boost::circular_buffer<piece>;

  bool is_here(const piece& p) const noexcept;
  pieces::iterator piece_of(const offer& o);
  pieces::iterator first_not_here();
  void drop_from(pieces::iterator first);
  void free(stream_chunk& c);
  void answer_if_over(offer& o);

  frame_link& link_;
  stream_read_limits limits_;
  bool reads_;
  pieces pieces_;
  std::deque<stream_chunk> chunks_;
  std::vector<std::uint32_t> free_chunks_, freed_chunks_;
  std::uint64_t ahead_ = 0; // bytes in chunks
  bool held_back_ = false;  // until a chunk is free
  std::vector<offer> offers_;
  boost::circular_buffer<answer> answers_;
  std::uint32_t next_id_ = 0;
  std::uint32_t unanswered_ = 0;
  std::uint32_t unread_ = 0;  // offers that are not requested to their end
  std::uint32_t reading_ = 0; // chunks, and the direct read
  offer* taking_ = nullptr;   // the offer that is read directly
  bool stopping_ = false;     // the direct read is to stop
  bool stop_due_ = false;
  std::uint32_t taken_ = 0;
  bool dropping_ = false;
};

} // namespace asio_rdma::detail
