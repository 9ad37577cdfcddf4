// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/link/frame_operation.hpp>

#include "link/link_transfer.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace asio_rdma::detail {

/// Asks a silent peer for a sign of life, by an RDMA WRITE of zero bytes. Functions are called with
/// the link locked.
class keep_alive_probe final : public link_transfer {
public:
  explicit keep_alive_probe(link_impl& link) noexcept;
  /// Probes a peer that has been silent for the interval, or for half of it. 0: never.
  void start(std::chrono::milliseconds interval);
  /// A work request has completed.
  void saw_sign() noexcept { ++signs_; }

private:
  void wait();
  void check();

  std::chrono::microseconds pause_{};
  bool unheard_ = false; // at the last check, the peer had not spoken and could not be asked
  bool asking_ = false;
  std::uint64_t signs_ = 0, signs_before_ = 0; // work requests that have completed, now and at the
                                               // last check
};

/// How late a peer is with its answers to READs. Each answer earns some time, so that an answer now
/// and then does not begin the time anew.
class read_pace {
public:
  /// Earned by an answer, besides a microsecond for each byte. The READs of a long message have
  /// 1 MiB each, so 512 MiB take about half an hour at most.
  static constexpr std::chrono::seconds for_each{3};

  using time_point = protocol_clock::time_point;

  void begin() noexcept { late_ = waited_ = earned_ = {}; }
  /// Whether the next look, with the same `most`, depends on when READs are outstanding. Otherwise
  /// `first_posted` and `last_answered` need not be called.
  bool needs_time(time_point::duration most) const noexcept { return earned_ < most; }
  /// From now on a READ is outstanding.
  void first_posted(time_point now) noexcept { since_ = now; }
  void answered(std::uint64_t bytes) noexcept {
    earned_ += for_each + std::chrono::microseconds(bytes);
  }
  /// From now on none is.
  void last_answered(time_point now) noexcept { waited_ += now - since_; }
  /// A READ is outstanding: how late the peer is. Only time in which one was outstanding counts,
  /// since the last look `most`, as this side may have taken no answers.
  time_point::duration look(time_point now, time_point::duration most) noexcept {
    waited_ = needs_time(most) ? std::min(waited_ + (now - since_), most) : most;
    since_ = now;
    late_ = std::max(late_ + waited_ - earned_, late_.zero());
    waited_ = earned_ = {};
    return late_;
  }

private:
  time_point since_{};
  time_point::duration late_{}, waited_{}, earned_{}; // waited and earned since the last look
};

/// Ends the link with `timed_out` if the peer answers no READ for a time, or too few. On InfiniBand
/// and RoCE the queue pair itself gives up before, unless the peer answers very slowly. On iWARP
/// this deadline is the only end, because TCP acknowledges the request, and no layer asks for the
/// answer. Functions are called with the link locked.
class read_deadline {
public:
  explicit read_deadline(link_impl& link) noexcept : link_(link) {}
  /// The time by which the peer may be late (`read_pace`), besides a microsecond for each byte of
  /// the outstanding READs. It may be exceeded by half. 0: any. Call it before the first READ.
  void set(std::chrono::milliseconds time) noexcept;
  void posted(std::uint64_t bytes) noexcept;
  void returned(std::uint64_t bytes) noexcept;

private:
  void wait();
  void check();

  link_impl& link_;
  std::chrono::microseconds pause_{};   // between looks
  std::uint64_t reads_ = 0, bytes_ = 0; // outstanding
  read_pace pace_;
  bool waiting_ = false;
};

} // namespace asio_rdma::detail
