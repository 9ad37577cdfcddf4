// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>

#include "link/link_transfer.hpp"

#include <array>
#include <cstddef>

namespace asio_rdma::detail {

/// A copy of memory of the peer to local memory, by several READs at a time. Functions are called
/// with the link locked. The derived class refers to its owner.
class link_pull {
public:
  using done_function = void (*)(link_pull&);
  /// `done` is called when no READ is outstanding any more, perhaps by `start`. If the link fails
  /// first, `done` is not called.
  link_pull(link_impl& link, done_function done) noexcept;
  link_pull(const link_pull&) = delete;

  /// Starts reading. Both buffers have the same size, not 0. No READ of this pull is outstanding.
  void start(const mutable_buffer& to, const remote_buffer& from);
  /// Posts no more READs. `done` is called nevertheless.
  void stop() noexcept {
    left_ += from_.size;
    from_.size = 0;
  }
  /// The number of bytes at the end that were not requested, and are not read.
  std::uint64_t left() const noexcept { return left_; }
  /// Why not all bytes were read: the target of a READ could not be registered (iWARP).
  const error_code& failure() const noexcept { return failure_; }

private:
  struct read final : link_transfer {
    read(link_impl& link, link_pull& p) noexcept : link_transfer(link, &read::on_done), owner(p) {}
    static void on_done(link_transfer& t, operation_list&);
    link_pull& owner;
  };

  bool post(read& r);

  link_impl& link_;
  done_function done_;
  mutable_buffer to_;      // for the bytes that are not requested yet
  remote_buffer from_;     // the same
  std::uint64_t left_ = 0; // set by `stop`
  std::size_t under_way_ = 0;
  error_code failure_;
  std::array<read, 4> reads_;
};

} // namespace asio_rdma::detail
