// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/global_memory.hpp>

#include <cstdint>
#include <tuple>
#include <utility>

namespace asio_rdma {

/// The memory of a counter or a barrier. Zeroed memory is its initial state.
using counter_word = nic_atomic<std::uint64_t>;

/// A number that every node may increase, by the atomic operations of its device. `memory` must
/// outlive this object.
template <class Executor>
class counter {
public:
  counter(basic_global_memory<Executor>& memory, remote_ptr<counter_word> at)
      : memory_(&memory), at_(at) {}

  /// Adds `n` and reports the previous value. Signature `void(error_code, std::uint64_t)`. Errors
  /// and cancellation as `basic_global_memory::async_fetch_add`.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_add(std::uint64_t n, Token&& token = {}) {
    return memory_->async_fetch_add(at_, n, std::forward<Token>(token));
  }
  /// Reports the current value. Signature `void(error_code, std::uint64_t)`. Errors and
  /// cancellation as `basic_global_memory::async_read`.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_get(Token&& token = {}) {
    return memory_->async_read(at_, std::forward<Token>(token));
  }

private:
  basic_global_memory<Executor>* memory_;
  remote_ptr<counter_word> at_;
};

namespace detail {

/// An arrival, and reads until all parties have arrived.
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
  std::uint64_t goal_ = 0; // the number of arrivals, over all rounds, that ends this round
};

} // namespace detail

/// A barrier that a fixed number of parties pass together, any number of times: a word that counts
/// the arrivals. `memory` must outlive this object.
template <class Executor>
class barrier {
public:
  /// `parties` must be the same at all parties. Errors (thrown): `invalid_argument` for 0.
  barrier(basic_global_memory<Executor>& memory, remote_ptr<counter_word> at, std::uint64_t parties)
      : memory_(&memory), at_(at), parties_(parties) {
    if (parties == 0)
      detail::throw_error(asio::error::invalid_argument, "barrier");
  }

  /// Arrives and waits for the other parties, by reading the word after random pauses of up to a
  /// millisecond. There is no timeout for a party that does not arrive: the barrier does not know
  /// which party is missing. Signature `void(error_code)`. Errors as
  /// `basic_global_memory::async_fetch_add`. Cancellation: all types; the party has arrived
  /// nevertheless, unless its arrival had not been posted.
  template <class Token = asio::default_completion_token_t<Executor>>
  auto async_arrive_and_wait(Token&& token = {}) {
    using attempt = detail::barrier_attempt<basic_global_memory<Executor>>;
    return detail::begin_async<Token, void(error_code)>(
        detail::initiate_retrying<basic_global_memory<Executor>>{memory_}, token,
        attempt(*memory_, at_, parties_));
  }

private:
  basic_global_memory<Executor>* memory_;
  remote_ptr<counter_word> at_;
  std::uint64_t parties_;
};

} // namespace asio_rdma
