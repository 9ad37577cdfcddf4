// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/global_memory.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

namespace asio_rdma {

/// The value of a `single_writer` and its version number.
template <class T>
struct versioned {
  T value;
  std::uint64_t version = 0;
};

/// A value of any size that the owner's CPU stores and every node reads by the device. A read
/// returns a complete value. There is no lock, and the writer never waits: a version and a check
/// value are stored with the bytes, and a reader that finds a torn value reads again. Small values
/// can be torn too: neither device nor CPU guarantees more than 8 bytes at once, nor any order
/// between them. So the check covers all bytes (Mitchell, Geng, Li, "Using One-Sided RDMA Reads to
/// Build a Fast, CPU-Efficient Key-Value Store", USENIX ATC 2013). The check accepts a torn value
/// with a probability of 2^-64. It does not protect against deliberate forgery.
///
/// Zeroed memory is a valid `single_writer`, of version 0 and zero bytes.
template <class T>
requires std::is_trivially_copyable_v<T>
class single_writer {
public:
  /// The stored bytes, possibly torn.
  struct image {
    std::uint64_t version = 0;
    std::uint64_t check = 0;
    std::array<std::uint64_t, (sizeof(T) + 7) / 8> words{};

    bool is_whole() const noexcept {
      std::uint64_t h = mix(version);
      for (const std::uint64_t w : words)
        h = mix(h ^ w);
      return h == check;
    }
    versioned<T> contents() const noexcept {
      std::array<std::byte, sizeof(T)> bytes;
      std::memcpy(bytes.data(), words.data(), sizeof(T));
      return {std::bit_cast<T>(bytes), version};
    }

  private:
    friend single_writer; // the writer computes the same check value
    // A permutation, so that every word affects the result; it maps zero to zero.
    static std::uint64_t mix(std::uint64_t h) noexcept {
      return std::rotl((h ^ h >> 32) * 0x9e3779b97f4a7c15, 29);
    }
  };

  single_writer() noexcept = default;
  single_writer(const single_writer&) = delete;
  single_writer& operator=(const single_writer&) = delete;

  /// Stores a value by the owner's CPU. Only one thread at a time may store.
  void store(const T& value) noexcept {
    image next;
    std::memcpy(next.words.data(), &value, sizeof(T));
    next.version = put_.version + 1;
    next.check = image::mix(next.version);
    for (const std::uint64_t w : next.words)
      next.check = image::mix(next.check ^ w);
    put(put_.version, next.version);
    for (std::size_t i = 0; i < next.words.size(); ++i)
      put(put_.words[i], next.words[i]);
    put(put_.check, next.check);
  }
  /// Loads the value by the owner's CPU, from any thread. Returns `std::nullopt` while a value is
  /// being stored.
  std::optional<versioned<T>> try_load() const noexcept {
    image seen;
    seen.version = get(put_.version);
    seen.check = get(put_.check);
    for (std::size_t i = 0; i < seen.words.size(); ++i)
      seen.words[i] = get(put_.words[i]);
    return seen.is_whole() ? std::optional(seen.contents()) : std::nullopt;
  }

private:
  // Atomic accesses to whole words, so there is no data race. The check makes an order of the
  // accesses unnecessary.
  static void put(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
  static std::uint64_t get(const std::uint64_t& word) noexcept {
    return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_relaxed);
  }

  image put_;
};

namespace detail {

/// A read that finds a value whole.
template <class Memory, class T>
class whole_read {
  using image = typename single_writer<T>::image;

public:
  whole_read(Memory& memory, remote_ptr<const image> at) : memory_(&memory), at_(at) {}

  Memory& memory() const noexcept { return *memory_; }
  template <class Step>
  void start(Step&& next, bool) {
    memory_->async_read(at_, std::forward<Step>(next));
  }
  bool succeeded(const image& seen) {
    seen_ = seen;
    return seen.is_whole();
  }
  std::tuple<versioned<T>> arguments(const error_code& ec) const {
    return {(ec ? image() : seen_).contents()};
  }

private:
  Memory* memory_;
  remote_ptr<const image> at_;
  image seen_;
};

} // namespace detail

/// Reads a complete value. A torn value is read again, after a random pause that doubles up to a
/// millisecond. Signature `void(error_code, versioned<T>)`. Errors as `basic_global_memory`;
/// `memory` must outlive the operation. Cancellation: all types.
template <class Executor, class T, class Token = asio::default_completion_token_t<Executor>>
auto async_load(basic_global_memory<Executor>& memory, remote_ptr<single_writer<T>> p,
                Token&& token = {}) {
  using attempt = detail::whole_read<basic_global_memory<Executor>, T>;
  return detail::begin_async<Token, void(error_code, versioned<T>)>(
      detail::initiate_retrying<basic_global_memory<Executor>>{&memory}, token,
      attempt(memory, p.template cast<const typename single_writer<T>::image>()));
}

} // namespace asio_rdma
