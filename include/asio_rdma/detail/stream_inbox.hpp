// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/frame_link.hpp>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// Memory that a part of an offer is read to before anybody takes it. The driver has the memory,
/// known by the index, from `stream_inbox::pulling` until it is told that the chunk is free.
class stream_chunk {
public:
  explicit stream_chunk(std::uint32_t number) noexcept : index(number) {}

  const std::uint32_t index;
  std::uint32_t bytes = 0;

private:
  friend class stream_inbox;
  std::uint32_t offer_ = 0;
  bool here_ = false;
  bool dropped_ = false;
};

struct stream_read_limits {
  std::uint64_t read_ahead = 1 << 20; ///< Bytes of offers that are read before they are taken.
  std::uint32_t chunk = 1 << 19;      ///< Of these, at most so many by one READ.
};

/// The bytes of a stream that have come, and those that the peer offers, in their order.
///
/// Offers are read ahead to chunks, so far as the limit goes; or the first of them directly to
/// where its bytes are wanted. An offer is answered as soon as all of it has been read, or, if the
/// peer withdraws it or this side drops it, as soon as nothing of it is being read.
class stream_inbox {
public:
  /// Some bytes that have come: in a receive, or in a chunk.
  struct part {
    stream_chunk* chunk = nullptr; ///< Else in the receive `slot`.
    std::uint32_t slot = 0;
    std::uint32_t at = 0; ///< Of the payload, or of the chunk.
    std::uint32_t bytes = 0;
    bool emptied = false; ///< The receive is to be released; a chunk will be free.
  };

  /// Offers may come if they can be read: `reads`.
  stream_inbox(frame_link& link, const stream_read_limits& o, bool reads);

  /// What comes from the peer. False for a violation.
  ///@{
  bool on_data(std::uint32_t slot, std::uint32_t bytes);
  bool on_offer(std::uint32_t id, const remote_buffer& memory);
  bool on_withdraw(std::uint32_t id);
  ///@}
  bool next_answer(outgoing_frame& f);

  /// Whether all has been taken that came or is offered.
  bool empty() const noexcept { return pieces_.empty(); }
  /// How many bytes have been taken since the beginning, modulo 2^32.
  std::uint32_t taken() const noexcept { return taken_; }
  /// Whether the next bytes are here.
  bool has_bytes() const noexcept { return !pieces_.empty() && is_here(pieces_.front()); }
  std::uint64_t available() const noexcept;
  /// There are bytes. Takes what lies together, at most so many of them.
  part take(std::uint64_t most);
  /// A chunk that is not needed any more, or null.
  stream_chunk* next_free();

  /// What is to be read now, if anything: a chunk with so many `bytes`, to be read from `from`.
  /// Then `pulling`, with no more bytes, and `pulled` when they have been read; or nothing of it.
  stream_chunk* next_pull(remote_buffer& from);
  void pulling(stream_chunk& c);
  void pulled(stream_chunk& c);

  /// The first bytes of all, if they are offered and nobody reads them: at most so many of them.
  /// Of size 0 else.
  remote_buffer offered(std::uint64_t most) const noexcept;
  /// They are read to where they are wanted; nothing else is then. `took` tells the end of that,
  /// how many have been read, and whether they were still wanted.
  void taking();
  void took(std::uint64_t bytes, bool wanted);
  bool is_taking() const noexcept { return taking_ != nullptr; }
  /// No more of them is to be read than is being read.
  void stop_taking() noexcept;
  /// Whether that is to be told to who reads: once.
  bool next_stop() noexcept { return std::exchange(stop_due_, false); }

  bool reading() const noexcept { return reading_ != 0; }
  bool unread() const noexcept { return unread_ != 0; }
  bool unanswered() const noexcept { return unanswered_ != 0; }

  /// Nothing of it is wanted any more, nor is what comes.
  void drop() { drop_from(pieces_.begin()); }
  /// The same, but for the bytes that are here.
  void drop_rest() { drop_from(first_not_here()); }
  /// The device has let go: what has not come never will. True if that is something.
  bool stop();

private:
  struct piece {
    enum class kind { slot, chunk, offer };
    kind what;
    std::uint32_t index; // of the receive, the chunk or the offer
    std::uint32_t at = 0;
    std::uint32_t left = 0; // of an offer it is in `rest`
  };
  struct offer {
    std::uint32_t id = 0;
    remote_buffer rest; // nobody has asked for it
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
  std::vector<offer> offers_;
  boost::circular_buffer<answer> answers_;
  std::uint32_t next_id_ = 0;
  std::uint32_t unanswered_ = 0;
  std::uint32_t unread_ = 0;  // offers of which some is not asked for
  std::uint32_t reading_ = 0; // chunks, and what is taken directly
  offer* taking_ = nullptr;   // is taken directly
  bool stopping_ = false;     // that, before its end
  bool stop_due_ = false;
  std::uint32_t taken_ = 0;
  bool dropping_ = false;
};

} // namespace asio_rdma::detail
