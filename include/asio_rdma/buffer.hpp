// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/buffer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>

namespace asio_rdma {

namespace detail {

/// The key of memory, and whether it is device-only. One word, because each operation copies views.
class view_key {
public:
  view_key() noexcept = default;
  view_key(std::uint32_t lkey, bool device_only) noexcept
      : word_(std::uint64_t(device_only) << 32 | lkey) {}

  std::uint32_t lkey() const noexcept { return static_cast<std::uint32_t>(word_); }
  bool is_device_only() const noexcept { return word_ >> 32 != 0; }

private:
  std::uint64_t word_ = 0;
};

} // namespace detail

/// A view of registered memory that the device may read: an Asio buffer with its lkey. The memory
/// and its registration must remain valid until the operation that uses the view has completed.
///
/// Memory of a dma-buf (`memory_region::from_dmabuf`), such as a GPU's, is *device-only*: no
/// operation of the library accesses it by the CPU. Pass the view itself to each operation: an
/// `asio::const_buffer` made from it has neither the key nor this property.
class const_buffer : public asio::const_buffer {
public:
  const_buffer() noexcept = default;
  const_buffer(const void* data, std::size_t bytes, std::uint32_t lkey,
               bool device_only = false) noexcept
      : asio::const_buffer(data, bytes), key_(lkey, device_only) {}

  std::uint32_t lkey() const noexcept { return key_.lkey(); }
  /// Whether the CPU must not access the memory.
  bool is_device_only() const noexcept { return key_.is_device_only(); }

  /// Skips `bytes`, at most to the end.
  const_buffer& operator+=(std::size_t bytes) noexcept {
    asio::const_buffer::operator+=(bytes);
    return *this;
  }
  friend const_buffer operator+(const_buffer b, std::size_t bytes) noexcept { return b += bytes; }

  /// The first `bytes`, or all if there are fewer.
  const_buffer first(std::size_t bytes) const noexcept {
    return {data(), bytes < size() ? bytes : size(), lkey(), is_device_only()};
  }

private:
  detail::view_key key_;
};

/// A view of registered memory that the device may write. Converts to `const_buffer`.
class mutable_buffer : public asio::mutable_buffer {
public:
  mutable_buffer() noexcept = default;
  mutable_buffer(void* data, std::size_t bytes, std::uint32_t lkey,
                 bool device_only = false) noexcept
      : asio::mutable_buffer(data, bytes), key_(lkey, device_only) {}

  std::uint32_t lkey() const noexcept { return key_.lkey(); }
  /// Whether the CPU must not access the memory: see `const_buffer`.
  bool is_device_only() const noexcept { return key_.is_device_only(); }
  operator const_buffer() const noexcept { return {data(), size(), lkey(), is_device_only()}; }

  /// Skips `bytes`, at most to the end.
  mutable_buffer& operator+=(std::size_t bytes) noexcept {
    asio::mutable_buffer::operator+=(bytes);
    return *this;
  }
  friend mutable_buffer operator+(mutable_buffer b, std::size_t bytes) noexcept {
    return b += bytes;
  }

  /// The first `bytes`, or all if there are fewer.
  mutable_buffer first(std::size_t bytes) const noexcept {
    return {data(), bytes < size() ? bytes : size(), lkey(), is_device_only()};
  }

private:
  detail::view_key key_;
};

/// Memory of another machine, as its owner described it: the target of an RDMA READ, WRITE or
/// atomic operation. A value; it grants no access and keeps nothing alive.
struct remote_buffer {
  std::uint64_t address = 0; ///< In the owner's address space.
  std::uint64_t size = 0;    ///< Bytes.
  std::uint32_t rkey = 0;

  /// Skips `bytes`, at most to the end.
  remote_buffer& operator+=(std::uint64_t bytes) noexcept {
    const std::uint64_t skip = bytes < size ? bytes : size;
    address += skip;
    size -= skip;
    return *this;
  }
  friend remote_buffer operator+(remote_buffer b, std::uint64_t bytes) noexcept {
    return b += bytes;
  }

  /// The first `bytes`, or all if there are fewer.
  remote_buffer first(std::uint64_t bytes) const noexcept {
    return {address, bytes < size ? bytes : size, rkey};
  }

  friend bool operator==(const remote_buffer&, const remote_buffer&) = default;
};

namespace detail {

template <class T, class Buffer>
concept buffer_range = std::ranges::forward_range<const T> &&
    std::convertible_to<std::ranges::range_reference_t<const T>, Buffer>;

} // namespace detail

/// One registered buffer or a range of them that the device reads. Each is an Asio
/// `ConstBufferSequence` too.
template <class T>
concept const_buffer_sequence =
    std::convertible_to<T, const_buffer> || detail::buffer_range<T, const_buffer>;

/// One registered buffer or a range of them that the device writes. Each is an Asio
/// `MutableBufferSequence` too.
template <class T>
concept mutable_buffer_sequence =
    std::convertible_to<T, mutable_buffer> || detail::buffer_range<T, mutable_buffer>;

} // namespace asio_rdma
