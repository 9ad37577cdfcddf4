// SPDX-License-Identifier: BSL-1.0
// The operations of a stream.
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/link/frame_operation.hpp>
#include <asio_rdma/detail/link/offered.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <cstddef>
#include <cstdint>

namespace asio_rdma {
template <class Executor>
class basic_stream;
} // namespace asio_rdma

namespace asio_rdma::detail {

class stream_protocol;
class waker;

/// Bytes that are sent to the peer: a block of copied bytes, or a write.
class stream_source : public frame_operation {
public:
  bool is_block() const noexcept { return is_block_; }

  std::uint64_t bytes = 0;

  /// The offset, within the bytes, of the payload of the last frame that was begun.
  std::uint64_t frame_offset() const noexcept { return frame_offset_; }

protected:
  explicit stream_source(bool is_block) noexcept : is_block_(is_block) {}
  ~stream_source() = default;

private:
  friend stream_protocol; // only the protocol changes the progress

  bool is_block_;
  bool ended_ = false;          // no more frames follow
  std::uint32_t under_way_ = 0; // outstanding frames
  std::uint64_t begun_ = 0;     // bytes in frames or blocks
  std::uint64_t frame_offset_ = 0;
};

/// A write, or a wait for room. The driver derives its operation from it.
class stream_write : public stream_source {
public:
  enum class kind {
    copy, ///< Completes when some bytes have been copied, or all if `whole`.
    lend, ///< Sends the bytes from the caller's memory; completes when the SENDs have completed, or
          ///< the peer has read all bytes. If `stream_protocol::offers`, the memory is contiguous,
          ///< and the bytes are offered for the peer to read. Otherwise frames that would wait for
          ///< the peer's receives are copied, if the blocks have room for all of them.
    wait  ///< Waits until there is room to copy to; writes nothing.
  };

  stream_write() noexcept : stream_source(false) {}

  kind what = kind::copy; ///< `bytes` must not be 0.
  bool whole = false;     ///< `copy` completes only when all bytes have been copied.
  bool in_place = false;  ///< `lend` copies nothing.

  // The result.
  error_code ec;
  std::uint64_t done = 0; ///< Bytes written, also after an error.
  /// The number of bytes that the peer has read from the offer.
  std::uint64_t taken() const noexcept { return taken_; }

protected:
  ~stream_write() = default;

private:
  friend stream_protocol; // only the protocol queues and offers a write
  enum class way { undecided, frames, offer };

  way way_ = way::frames;
  bool queued_ = false;
  bool in_small_blocks_ = false; // no memory is available for a larger one
  bool unanswered_ = false;      // it is an offer without an answer
  bool withdrawn_ = false;       // it is a withdrawn offer
  std::uint32_t id_ = 0;         // of the offer
  std::uint64_t taken_ = 0;
  remote_buffer memory_;
};

/// A read, or a wait for bytes.
class stream_read : public frame_operation {
public:
  enum class kind {
    copy,  ///< Reads the available bytes, at most `capacity`.
    piece, ///< Takes the rest of one receive together with its memory.
    wait   ///< Waits until a read would not block; takes nothing.
  };

  kind what = kind::copy;
  std::uint64_t capacity = 0; ///< Bytes, not 0.
  bool direct = false;        ///< The device may write to the read's memory, which is contiguous.

  // The result.
  error_code ec;
  std::uint64_t done = 0;

protected:
  ~stream_read() = default;

private:
  friend stream_protocol; // only the protocol queues a read
  bool waiting_ = false;
};

/// Whether the handler is that of a later step of `asio::async_read` or `asio::async_write`. Asio's
/// class starts such a step itself, as the last thing in the handler of the step before.
template <class Handler>
bool is_later_step(const Handler&) noexcept {
  return false;
}
template <class Executor, class... Parts>
bool is_later_step(const asio::detail::read_op<basic_stream<Executor>, Parts...>& op) noexcept {
  return op.start_ == 0;
}
template <class Executor, class... Parts>
bool is_later_step(const asio::detail::write_op<basic_stream<Executor>, Parts...>& op) noexcept {
  return op.start_ == 0;
}

/// An operation of a stream, with the buffers that it reads to or writes from.
class stream_operation : public operation {
public:
  enum class kind { read, write, error };

  kind what;
  ibv_sge* parts = nullptr;
  std::size_t part_count = 0;
  std::uint64_t size = 0;   ///< The bytes of the parts.
  bool registered = false;  ///< All parts are, so their keys are valid.
  bool device_only = false; ///< The CPU must not access the memory of a part.
  registered_buffer memory; ///< The buffer, if the operation was given a `registered_buffer`.
  buffer_access access;

  /// See `operation::continues`.
  template <class Handler>
  static bool is_step(const Handler& handler) noexcept {
    return is_later_step(handler);
  }

protected:
  stream_operation(function f, kind k) noexcept : operation(f), what(k) {}
  ~stream_operation() = default;

private:
  friend class stream_impl; // the blocking functions wait for an operation by these members
  bool blocking_ = false;   // it has no handler
  waker* waiter_ = nullptr; // of the thread that waits for the operation
  bool finished_ = false;
};

class stream_reading : public stream_operation {
public:
  explicit stream_reading(function f) noexcept : stream_operation(f, kind::read) {}

  struct request_type final : stream_read {
    stream_reading* op = nullptr;
  };
  request_type request;
  registered_buffer result; ///< The result of a `piece`.
};

class stream_writing : public stream_operation, public offered {
public:
  explicit stream_writing(function f) noexcept : stream_operation(f, kind::write) {}

  struct request_type final : stream_write {
    stream_writing* op = nullptr;
  };
  request_type request;
};

/// A wait for the end of the connection.
class stream_error_wait : public stream_operation {
public:
  explicit stream_error_wait(function f) noexcept : stream_operation(f, kind::error) {}
};

} // namespace asio_rdma::detail
