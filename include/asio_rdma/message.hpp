// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/registered_buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

namespace asio_rdma {

namespace detail {

/// The iterator of a sequence of one buffer. It is not a pointer, because Asio takes a class with
/// contiguous iterators for a container of bytes.
class only_buffer_iterator {
public:
  using iterator_category = std::bidirectional_iterator_tag;
  using value_type = const_buffer;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = const_buffer;

  only_buffer_iterator() noexcept = default;
  only_buffer_iterator(const registered_buffer& buffer, bool at_end) noexcept
      : buffer_(&buffer), at_end_(at_end) {}

  const_buffer operator*() const noexcept { return *buffer_; }
  only_buffer_iterator& operator++() noexcept {
    at_end_ = true;
    return *this;
  }
  only_buffer_iterator operator++(int) noexcept {
    const auto before = *this;
    at_end_ = true;
    return before;
  }
  only_buffer_iterator& operator--() noexcept {
    at_end_ = false;
    return *this;
  }
  only_buffer_iterator operator--(int) noexcept {
    const auto before = *this;
    at_end_ = false;
    return before;
  }
  friend bool operator==(const only_buffer_iterator&,
                         const only_buffer_iterator&) noexcept = default;

private:
  const registered_buffer* buffer_ = nullptr;
  bool at_end_ = false;
};

} // namespace detail

/// A received message. It owns its payload, which is in registered memory: the payload may be kept,
/// sliced, forwarded and written to without a copy.
///
/// The type is a constant buffer sequence of one buffer, Asio's and this library's. A connection or
/// a stream that sends the message itself keeps the payload alive, as with `payload`. The immediate
/// data is not sent along.
struct message {
  using value_type = const_buffer;
  using const_iterator = detail::only_buffer_iterator;

  registered_buffer payload;
  std::optional<std::uint32_t> immediate; ///< As given to `async_send`.

  std::size_t size() const noexcept { return payload.size(); }
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(payload.data()), payload.size()};
  }
  /// The bytes as characters. Valid as long as the payload is.
  std::string_view text() const noexcept {
    return {static_cast<const char*>(payload.data()), payload.size()};
  }

  operator const_buffer() const noexcept { return payload; }
  const_iterator begin() const noexcept { return {payload, false}; }
  const_iterator end() const noexcept { return {payload, true}; }
};

} // namespace asio_rdma
