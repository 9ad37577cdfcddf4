// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <type_traits>

// Words of shared memory that know who may change them.
//
// The atomicity of a CPU and that of a device are two different things. An atomic operation of a
// device excludes the other atomic operations of that device and, unless it says more
// (`ibv_device_attr::atomic_cap` above IBV_ATOMIC_HCA), nothing else: neither the CPU's, nor its
// own plain writes (InfiniBand Architecture Specification, volume 1, 9.4.5; Kalia, Kaminsky,
// Andersen, "Design Guidelines for High Performance RDMA Systems", USENIX ATC 2016, on what atomics
// cost and lock). A read-modify-write of the one between the read and the write of the other is
// lost. So a word is changed by one side only, and which it is is its type; what does not fit that
// does not compile. No word here may be changed by atomic operations of both.
//
// An aligned load or store of 8 bytes is whole on both sides: it is one access of the CPU (and
// `std::atomic_ref` of 8 bytes is lock-free), and lies within one cache line, which a device reads
// or writes at once on coherent platforms. The specification does not promise it; every platform
// that verbs run on does.
//
// *Order.* What the CPU stored before a release store is in the memory that the device reads when
// the word's new value is: device reads are coherent with the CPU's caches, and x86 and the
// barriers of a release store elsewhere order the stores before. A CPU that finds a value by an
// acquire load finds what the device had placed before by operations that *completed* before the
// one that changed the word was started; of operations of one chain nothing is said, as a device
// may place what it writes in any order until the completion (9.5 there; `flushed` writes say it).
// A device's load is a read of the whole word and orders nothing behind it: another read is ordered
// only if it was started after the first had completed.

namespace asio_rdma {

/// What fits a word: 8 bytes that can be compared as bits, such as an integer or a `remote_ptr`.
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

  /// What the word is now, by this machine's CPU. Acquires.
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

/// A word that devices change, by compare-and-swap and fetch-and-add, the owner's own included. The
/// owner's CPU loads it and changes nothing once peers may reach it. No plain write: one between
/// the two halves of an atomic operation would be lost.
template <word_value T>
class nic_atomic : public detail::word_base<T> {
public:
  constexpr explicit nic_atomic(T value = T()) noexcept : detail::word_base<T>(value) {}
};

/// A word that the owner's CPU changes, as a `std::atomic`. Devices read it.
template <word_value T>
class cpu_atomic : public detail::word_base<T> {
public:
  constexpr explicit cpu_atomic(T value = T()) noexcept : detail::word_base<T>(value) {}

  /// Releases. The others below both acquire and release.
  void store(T value) noexcept { this->reference().store(value, std::memory_order_release); }
  T exchange(T value) noexcept { return this->reference().exchange(value); }
  /// Whether the word was `expected` and is `desired` now; else gives what it is in `expected`.
  bool compare_exchange(T& expected, T desired) noexcept {
    return this->reference().compare_exchange_strong(expected, desired);
  }
  /// Gives what the word was. Modulo 2^64.
  T fetch_add(T addend) noexcept requires std::integral<T> {
    return this->reference().fetch_add(addend);
  }
};

/// What a compare-and-exchange of a device did, and what it saw: `expected`, if it exchanged.
template <word_value T>
struct exchange_result {
  bool exchanged = false;
  T seen;
};

/// A word of plain loads and stores, by the CPU and by devices: the last store counts.
template <word_value T>
class shared_word : public detail::word_base<T> {
public:
  constexpr explicit shared_word(T value = T()) noexcept : detail::word_base<T>(value) {}

  /// Releases.
  void store(T value) noexcept { this->reference().store(value, std::memory_order_release); }
};

namespace detail {

/// What a remote operation makes of a type: what it reads or writes as a value, and what it may do.
template <class T>
struct remote_traits {
  using value = T;
  // The second, as what contains a word is trivially copyable, but cannot be copied.
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

/// What an object of type T in remote memory is as a value: of a word what it holds.
template <class T>
using remote_value_t = typename detail::remote_traits<T>::value;

/// What may be read from, or written to, remote memory: trivially copyable types, and words whose
/// kind allows it. Whatever contains a word is neither, as copying it would go by the word's rules.
template <class T>
concept remote_readable = detail::remote_traits<T>::readable;
template <class T>
concept remote_writable = detail::remote_traits<T>::writable;
/// What may be in remote memory at all, where there is an object without a constructor or an end:
/// no class with a destructor of its own or with virtual functions, and no pointer, which would
/// mean something in one process only.
template <class T>
concept remote_object = std::is_trivially_destructible_v<T> && !std::is_polymorphic_v<T> &&
                        !std::is_pointer_v<T> && !std::is_reference_v<T>;
/// What a device may change by an atomic operation.
template <class T>
concept remote_atomic = detail::remote_traits<T>::atomic;

} // namespace asio_rdma
