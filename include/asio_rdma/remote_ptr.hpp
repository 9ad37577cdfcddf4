// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <type_traits>

namespace asio_rdma {

/// Names a node of a `global_memory`, from 1 to `max_node`. Ids need not be contiguous.
using node_id = std::uint16_t;
/// Names a segment of a node, from 0 on.
using segment_id = std::uint8_t;

inline constexpr node_id max_node = 4095;
/// The maximum size of a segment in bytes (16 TiB).
inline constexpr std::uint64_t max_segment_bytes = std::uint64_t(1) << 44;

template <class T>
class remote_ptr;

namespace detail {

/// The bits of a `remote_ptr`: node (12), segment (8), offset in bytes (44).
class remote_word {
public:
  static constexpr unsigned offset_bits = 44, segment_bits = 8;
  static constexpr std::uint64_t offset_mask = max_segment_bytes - 1;

  constexpr remote_word() noexcept = default;
  constexpr explicit remote_word(std::uint64_t bits) noexcept : bits_(bits) {}
  constexpr remote_word(node_id node, segment_id segment, std::uint64_t offset)
      : bits_(std::uint64_t(node) << (offset_bits + segment_bits) |
              std::uint64_t(segment) << offset_bits | offset) {
    if (node == 0 || node > max_node || offset > offset_mask)
      throw std::out_of_range("remote_ptr");
  }

  constexpr std::uint64_t bits() const noexcept { return bits_; }
  constexpr node_id node() const noexcept {
    return static_cast<node_id>(bits_ >> (offset_bits + segment_bits));
  }
  constexpr segment_id segment() const noexcept {
    return static_cast<segment_id>(bits_ >> offset_bits);
  }
  constexpr std::uint64_t offset() const noexcept { return bits_ & offset_mask; }
  constexpr remote_word moved(std::uint64_t bytes) const noexcept {
    return remote_word((bits_ & ~offset_mask) | ((bits_ + bytes) & offset_mask));
  }

private:
  std::uint64_t bits_ = 0;
};

/// The offset of a member in an object of standard layout.
template <class T, class Member>
std::uint64_t member_offset(Member T::*m) noexcept {
  alignas(T) static const unsigned char space[sizeof(T)] = {};
  const auto* object = reinterpret_cast<const T*>(space);
  return static_cast<std::uint64_t>(
      reinterpret_cast<const unsigned char*>(std::addressof(object->*m)) - space);
}

template <auto Member>
struct member_of;
template <class T, class U, U T::*Member>
requires std::is_object_v<U>
struct member_of<Member> {
  using object = T;
  using type = U;
};

} // namespace detail

/// A pointer to an object in a segment of a node: node, segment and offset in 64 bits, not an
/// address, so it means the same on every node. Trivially copyable and without padding: it may be
/// stored in remote memory itself, and be compared and swapped there.
///
/// It is a value that grants no access and keeps nothing alive. The operation that uses it checks
/// where it points. Arithmetic, in elements, changes only the offset, modulo 2^44: it never leads
/// to another segment. `T` may be incomplete, or void, where its size is not needed.
template <class T>
class remote_ptr {
  static_assert(!std::is_reference_v<T> && !std::is_volatile_v<T>);

public:
  using element_type = T;

  /// Null, which zeroed memory also represents.
  constexpr remote_ptr() noexcept = default;
  constexpr remote_ptr(std::nullptr_t) noexcept {}
  /// Throws `std::out_of_range` for node 0, or if a value does not fit its field.
  constexpr remote_ptr(node_id node, segment_id segment, std::uint64_t offset)
      : word_(node, segment, offset) {}
  /// Converts as `T*` does: to const, and to void.
  template <class U>
  requires(!std::same_as<T, U> &&
           (std::same_as<T, const U> ||
            (std::is_void_v<T> && (std::is_const_v<T> || !std::is_const_v<U>)))) //
      constexpr remote_ptr(remote_ptr<U> other) noexcept
      : word_(other.bits()) {}

  /// The 64 bits, for transfer by other means.
  constexpr std::uint64_t bits() const noexcept { return word_.bits(); }
  static constexpr remote_ptr from_bits(std::uint64_t bits) noexcept {
    return remote_ptr(detail::remote_word(bits));
  }

  constexpr node_id node() const noexcept { return word_.node(); }
  constexpr segment_id segment() const noexcept { return word_.segment(); }
  /// Bytes from the segment's beginning.
  constexpr std::uint64_t offset() const noexcept { return word_.offset(); }

  constexpr explicit operator bool() const noexcept { return bits() != 0; }

  /// The same location with another type, like `reinterpret_cast`.
  template <class U>
  constexpr remote_ptr<U> cast() const noexcept {
    return remote_ptr<U>::from_bits(bits());
  }

  /// A member of the object, which has standard layout: `p.member<&T::field>()`.
  template <auto Member>
  requires std::derived_from < std::remove_cv_t<T>,
  typename detail::member_of<Member>::object > auto member() const noexcept {
    using object = std::remove_cv_t<T>;
    static_assert(std::is_standard_layout_v<object>);
    using type = typename detail::member_of<Member>::type;
    using result = std::conditional_t<std::is_const_v<T>, const type, type>;
    return remote_ptr<result>(word_.moved(detail::member_offset<object, type>(Member)));
  }

  template <std::integral N>
  requires(!std::is_void_v<T>) constexpr remote_ptr& operator+=(N n) noexcept {
    word_ = word_.moved(static_cast<std::uint64_t>(n) * sizeof(T));
    return *this;
  }
  template <std::integral N>
  requires(!std::is_void_v<T>) constexpr remote_ptr& operator-=(N n) noexcept {
    word_ = word_.moved(std::uint64_t(0) - static_cast<std::uint64_t>(n) * sizeof(T));
    return *this;
  }
  template <std::integral N>
  requires(!std::is_void_v<T>) friend constexpr remote_ptr operator+(remote_ptr p, N n) noexcept {
    return p += n;
  }
  template <std::integral N>
  requires(!std::is_void_v<T>) friend constexpr remote_ptr operator+(N n, remote_ptr p) noexcept {
    return p += n;
  }
  template <std::integral N>
  requires(!std::is_void_v<T>) friend constexpr remote_ptr operator-(remote_ptr p, N n) noexcept {
    return p -= n;
  }
  constexpr remote_ptr& operator++() noexcept requires(!std::is_void_v<T>) { return *this += 1; }
  constexpr remote_ptr& operator--() noexcept requires(!std::is_void_v<T>) { return *this -= 1; }
  constexpr remote_ptr operator++(int) noexcept requires(!std::is_void_v<T>) {
    const remote_ptr before = *this;
    ++*this;
    return before;
  }
  constexpr remote_ptr operator--(int) noexcept requires(!std::is_void_v<T>) {
    const remote_ptr before = *this;
    --*this;
    return before;
  }

  /// The number of elements between two pointers into one segment.
  friend constexpr std::ptrdiff_t operator-(remote_ptr a, remote_ptr b) noexcept
      requires(!std::is_void_v<T>) {
    return (static_cast<std::ptrdiff_t>(a.offset()) - static_cast<std::ptrdiff_t>(b.offset())) /
           static_cast<std::ptrdiff_t>(sizeof(T));
  }

  friend constexpr bool operator==(remote_ptr a, remote_ptr b) noexcept {
    return a.bits() == b.bits();
  }
  /// Orders by node, segment and offset; null is first.
  friend constexpr std::strong_ordering operator<=>(remote_ptr a, remote_ptr b) noexcept {
    return a.bits() <=> b.bits();
  }

private:
  // `member` makes a pointer of another type.
  template <class>
  friend class remote_ptr;

  constexpr explicit remote_ptr(detail::remote_word word) noexcept : word_(word) {}

  detail::remote_word word_;
};

} // namespace asio_rdma

template <class T>
struct std::hash<asio_rdma::remote_ptr<T>> {
  std::size_t operator()(asio_rdma::remote_ptr<T> p) const noexcept {
    return std::hash<std::uint64_t>()(p.bits());
  }
};
