// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/link_impl.hpp>

#include <array>
#include <cstddef>

namespace asio_rdma::detail {

/// Memory of the peer that is read to memory of this side, by several READs at a time. Its
/// functions are called with the link locked.
class link_pull {
public:
  using done_function = void (*)(link_impl&, link_pull&);
  /// `done` is called when nothing is read any more, perhaps by `start`; not if the link fails
  /// first.
  link_pull(link_impl& link, done_function done) noexcept;
  link_pull(const link_pull&) = delete;

  /// Both of the same size, which is not 0. Nothing of it is under way.
  void start(const mutable_buffer& to, const remote_buffer& from);
  /// What has not been asked for yet is not read. `done` is called all the same.
  void stop() noexcept {
    left_ += from_.size;
    from_.size = 0;
  }
  /// How many of the last bytes have not been asked for, and are not read.
  std::uint64_t left() const noexcept { return left_; }
  /// Why not all has been read: what a READ goes to could not be registered (iWARP).
  const error_code& failure() const noexcept { return failure_; }

private:
  struct read final : link_transfer {
    read(link_impl& link, link_pull& p) noexcept : link_transfer(link, &read::on_done), owner(p) {}
    static void on_done(link_impl& link, link_transfer& t, operation_list&);
    link_pull& owner;
  };

  bool post(read& r);

  link_impl& link_;
  done_function done_;
  mutable_buffer to_;      // for what has not been asked for yet
  remote_buffer from_;     // likewise
  std::uint64_t left_ = 0; // once it was stopped
  std::size_t under_way_ = 0;
  error_code failure_;
  std::array<read, 4> reads_;
};

} // namespace asio_rdma::detail
