// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <type_traits>

// Words of shared memory whose types determine which side may change them.
//
// The atomicity of a CPU and that of a device are two different things. An atomic operation of a
// device excludes the other atomic operations of that device. Unless `ibv_device_attr::atomic_cap`
// is above IBV_ATOMIC_HCA, it excludes nothing else, neither accesses of the CPU nor the device's
// own plain writes (InfiniBand Architecture Specification, volume 1, 9.4.5; Kalia, Kaminsky,
// Andersen, "Design Guidelines for High Performance RDMA Systems", USENIX ATC 2016, on what atomics
// cost and lock). If one side changes a word between the read and the write of the other side's
// read-modify-write, the change is lost. So the atomic operations of only one side may change a
// word. The word's type says which side; other operations do not compile.
//
// An aligned load or store of 8 bytes is not torn on either side: it is one access of the CPU
// (`std::atomic_ref` of 8 bytes is lock-free), and lies within one cache line, which a device reads
// or writes at once on coherent platforms. The specification does not guarantee this; every
// platform that verbs run on does.
//
// *Order.* A device that reads the new value of a release store also finds all earlier stores of
// the CPU in memory: device reads are coherent with the CPU's caches, and x86, or the barriers of a
// release store elsewhere, order the stores. A CPU that reads a value by an acquire load finds the
// data that the device placed by operations that *completed* before the operation that changed the
// word was started. There is no such guarantee within one chain, because a device may place its
// writes in any order until the completion (9.5 of the specification; use `flushed` writes). A
// device's load is a read of the whole word and orders no later read: a second read is ordered only
// if it was started after the first had completed.

namespace asio_rdma {

/// The type of a word's value: 8 bytes that can be compared as bits, such as an integer or a
/// `remote_ptr`.
template <class T>
concept word_value =
    sizeof(T) == 8 &&
    std::is_trivially_copyable_v<T>&& std::has_unique_object_representations_v<T> &&
    !std::is_const_v<T> && !std::is_volatile_v<T>;

namespace detail {

template <word_value T>
class word_base {
public:
  using value_type = T;

  word_base(const word_base&) = delete;
  word_base& operator=(const word_base&) = delete;

  /// Loads the word by this machine's CPU, with acquire order.
  T load() const noexcept { return reference().load(std::memory_order_acquire); }

protected:
  constexpr explicit word_base(T value) noexcept : value_(value) {}
  ~word_base() = default;

  std::atomic_ref<T> reference() const noexcept {
    static_assert(std::atomic_ref<T>::is_always_lock_free);
    return std::atomic_ref<T>(value_);
  }

private:
  alignas(8) mutable T value_;
};

} // namespace detail

/// A word that devices, including the owner's own, change by compare-and-swap and fetch-and-add.
/// The owner's CPU loads it, and does not change it once peers can access it. There are no plain
/// writes: a write between the two halves of an atomic operation would be lost.
template <word_value T>
class nic_atomic : public detail::word_base<T> {
public:
  constexpr explicit nic_atomic(T value = T()) noexcept : detail::word_base<T>(value) {}
};

/// A word that the owner's CPU changes, like a `std::atomic`. Devices read it.
template <word_value T>
class cpu_atomic : public detail::word_base<T> {
public:
  constexpr explicit cpu_atomic(T value = T()) noexcept : detail::word_base<T>(value) {}

  /// Stores with release order. The read-modify-write functions below both acquire and release.
  void store(T value) noexcept { this->reference().store(value, std::memory_order_release); }
  T exchange(T value) noexcept { return this->reference().exchange(value); }
  /// Replaces the word by `desired` if it equals `expected`, and returns true. Otherwise stores the
  /// word's value in `expected` and returns false.
  bool compare_exchange(T& expected, T desired) noexcept {
    return this->reference().compare_exchange_strong(expected, desired);
  }
  /// Adds modulo 2^64 and returns the previous value.
  T fetch_add(T addend) noexcept requires std::integral<T> {
    return this->reference().fetch_add(addend);
  }
};

/// The result of a compare-and-exchange by a device. `seen` is the previous value: `expected`, if
/// `exchanged`.
template <word_value T>
struct exchange_result {
  bool exchanged = false;
  T seen;
};

/// A word of plain loads and stores, by the CPU and by devices. The last store wins.
template <word_value T>
class shared_word : public detail::word_base<T> {
public:
  constexpr explicit shared_word(T value = T()) noexcept : detail::word_base<T>(value) {}

  /// Stores with release order.
  void store(T value) noexcept { this->reference().store(value, std::memory_order_release); }
};

namespace detail {

/// How remote operations treat a type: the type of its value, and the operations allowed.
template <class T>
struct remote_traits {
  using value = T;
  // A class that contains a word is trivially copyable, but not copy-constructible.
  static constexpr bool readable =
      std::is_trivially_copyable_v<T> && std::is_copy_constructible_v<T> && !std::is_pointer_v<T>;
  static constexpr bool writable = readable;
  static constexpr bool atomic = false;
};
template <class T>
struct remote_traits<const T> : remote_traits<T> {
  static constexpr bool writable = false, atomic = false;
};
template <class T, bool Writable, bool Atomic>
struct word_traits {
  using value = T;
  static constexpr bool readable = true, writable = Writable, atomic = Atomic;
};
template <class T>
struct remote_traits<nic_atomic<T>> : word_traits<T, false, true> {};
template <class T>
struct remote_traits<cpu_atomic<T>> : word_traits<T, false, false> {};
template <class T>
struct remote_traits<shared_word<T>> : word_traits<T, true, false> {};
template <>
struct remote_traits<void> : word_traits<void, false, false> {
  static constexpr bool readable = false;
};
template <>
struct remote_traits<const void> : remote_traits<void> {};

} // namespace detail

/// The type of the value of a remote object of type T: for a word, the type of the word's value.
template <class T>
using remote_value_t = typename detail::remote_traits<T>::value;

/// Types that may be read from, or written to, remote memory: trivially copyable types, and words
/// whose kind allows the access. A class that contains a word is excluded, because a copy of the
/// class would break the word's rules.
template <class T>
concept remote_readable = detail::remote_traits<T>::readable;
template <class T>
concept remote_writable = detail::remote_traits<T>::writable;
/// Types that may be in remote memory, where no constructor or destructor is called: no class with
/// a nontrivial destructor or with virtual functions, and no pointer, which would be meaningful in
/// one process only.
template <class T>
concept remote_object = std::is_trivially_destructible_v<T> && !std::is_polymorphic_v<T> &&
                        !std::is_pointer_v<T> && !std::is_reference_v<T>;
/// Types that a device may change by an atomic operation.
template <class T>
concept remote_atomic = detail::remote_traits<T>::atomic;

} // namespace asio_rdma
