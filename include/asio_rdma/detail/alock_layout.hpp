// SPDX-License-Identifier: BSL-1.0
// What of a lock, and of its queue, lies in shared memory.
#pragma once

#include <asio_rdma/detail/alock_protocol.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>

#include <cstddef>
#include <cstdint>

namespace asio_rdma {

namespace detail {
struct alock_layout;
} // namespace detail

/// What an `alock` is made of: zeroed memory is one that is free, as `async_allocate` gives it.
/// Nothing but an `alock` may touch it.
class alignas(64) alock_words {
  friend detail::alock_layout;

  using word = std::uint64_t;
  cpu_atomic<word> local_tail_;
  nic_atomic<word> remote_tail_;
  shared_word<word> victim_;
};

namespace detail {

/// Of a remote party, in the segment of the locks that it takes.
struct alignas(32) alock_descriptor {
  shared_word<std::uint64_t> next, turn;
  /// Not 0 from when the owner's device has let go of the queue pair of the party: whatever that
  /// had under way has happened, or never will.
  cpu_atomic<std::uint64_t> dead;
};

struct alock_layout {
  static cpu_atomic<std::uint64_t>& local_tail(alock_words& w) noexcept { return w.local_tail_; }
  static const nic_atomic<std::uint64_t>& remote_tail(alock_words& w) noexcept {
    return w.remote_tail_;
  }
  static shared_word<std::uint64_t>& victim(alock_words& w) noexcept { return w.victim_; }

  /// Where a word lies as a remote party sees it, from the beginning of the lock or descriptor.
  static constexpr std::uint64_t offset(alock_word w) noexcept {
    switch (w) {
    case alock_word::own_tail:
      return offsetof(alock_words, remote_tail_);
    case alock_word::other_tail:
      return offsetof(alock_words, local_tail_);
    case alock_word::victim:
      return offsetof(alock_words, victim_);
    case alock_word::next:
      return offsetof(alock_descriptor, next);
    case alock_word::turn:
      break;
    }
    return offsetof(alock_descriptor, turn);
  }
};

} // namespace detail
} // namespace asio_rdma
