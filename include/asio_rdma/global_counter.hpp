// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/global_memory.hpp>

#include <cstdint>
#include <tuple>
#include <utility>

namespace asio_rdma {

/// What counters and barriers are made of: zeroed memory is one that begins.
using counter_word = nic_atomic<std::uint64_t>;

/// A number that every node may raise, by its devices' atomic operations. The memory must stay.
template <class Executor>
class counter {
public:
  counter(basic_global_memory<Executor>& memory, remote_ptr<counter_word> at)
      : memory_(&memory), at_(at) {}

  /// Adds `n` and gives what it was before. Signature `void(error_code, std::uint64_t)`. Errors and
  /// cancellation as `basic_global_memory::async_fetch_add`.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_add(std::uint64_t n, Token&& token = {}) {
    return memory_->async_fetch_add(at_, n, std::forward<Token>(token));
  }
  /// Gives what it is now. Signature `void(error_code, std::uint64_t)`.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_get(Token&& token = {}) {
    return memory_->async_read(at_, std::forward<Token>(token));
  }

private:
  basic_global_memory<Executor>* memory_;
  remote_ptr<counter_word> at_;
};

namespace detail {

/// An arrival, and reads until everybody has arrived.
template <class Memory>
class barrier_attempt {
public:
  barrier_attempt(Memory& memory, remote_ptr<counter_word> at, std::uint64_t parties)
      : memory_(&memory), at_(at), parties_(parties) {}

  Memory& memory() const noexcept { return *memory_; }
  template <class Step>
  void start(Step&& next, bool first) {
    if (first)
      memory_->async_fetch_add(at_, 1, std::forward<Step>(next));
    else
      memory_->async_read(at_, std::forward<Step>(next));
  }
  bool succeeded(std::uint64_t arrived) {
    if (goal_ == 0) {
      goal_ = (arrived / parties_ + 1) * parties_;
      ++arrived; // this one
    }
    return arrived >= goal_;
  }
  std::tuple<> arguments(const error_code&) const { return {}; }

private:
  Memory* memory_;
  remote_ptr<counter_word> at_;
  std::uint64_t parties_;
  std::uint64_t goal_ = 0; // arrivals, of all rounds, that end this one
};

} // namespace detail

/// A point that so many parties pass together, again and again: a word that counts the arrivals.
/// The memory must stay.
template <class Executor>
class barrier {
public:
  /// All give the same number. Errors (thrown): `invalid_argument` for no parties.
  barrier(basic_global_memory<Executor>& memory, remote_ptr<counter_word> at, std::uint64_t parties)
      : memory_(&memory), at_(at), parties_(parties) {
    if (parties == 0)
      detail::throw_error(asio::error::invalid_argument, "barrier");
  }

  /// Arrives and waits for the others, by reading again after random times of up to a millisecond.
  /// Signature `void(error_code)`. Who does not come is waited for: nobody knows who is missing.
  /// Errors as `basic_global_memory::async_fetch_add`. Supports all cancellation types; it has
  /// arrived all the same, unless that had not been posted.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_arrive_and_wait(Token&& token = {}) {
    using attempt = detail::barrier_attempt<basic_global_memory<Executor>>;
    return asio::async_initiate<Token, void(error_code)>(
        detail::initiate_retrying<basic_global_memory<Executor>>{memory_}, token,
        attempt(*memory_, at_, parties_));
  }

private:
  basic_global_memory<Executor>* memory_;
  remote_ptr<counter_word> at_;
  std::uint64_t parties_;
};

} // namespace asio_rdma
