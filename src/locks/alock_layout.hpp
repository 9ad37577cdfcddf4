// SPDX-License-Identifier: BSL-1.0
// The words of a lock and of its queue in shared memory.
#pragma once

#include <asio_rdma/alock.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>

#include "global/global_guest.hpp"
#include "locks/alock_protocol.hpp"

#include <cstddef>
#include <cstdint>

namespace asio_rdma::detail {

struct alock_layout {
  static cpu_atomic<std::uint64_t>& local_tail(alock_words& w) noexcept { return w.local_tail_; }
  static const nic_atomic<std::uint64_t>& remote_tail(alock_words& w) noexcept {
    return w.remote_tail_;
  }
  static shared_word<std::uint64_t>& victim(alock_words& w) noexcept { return w.victim_; }

  /// The offset of a word from the beginning of the lock or of the descriptor, for remote access.
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

} // namespace asio_rdma::detail
