// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/buffer_access.hpp>
#include <asio_rdma/detail/core/begin_async.hpp>
#include <asio_rdma/detail/memory/access_op.hpp>
#include <asio_rdma/memory_region.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/detail/handler_tracking.hpp>

#include <concepts>
#include <cstddef>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace asio_rdma {

class memory_pool;

/// A counted reference to registered memory: a block of a `memory_pool`, a memory region of the
/// user's own, or a slice of either. Copies and slices share the memory. When the last of them is
/// destroyed and the last operation that keeps the memory has ended, the memory returns to its
/// pool, or the region is deregistered and its memory freed. Slices keep the whole block.
///
/// The type is a buffer sequence of one buffer, Asio's and this library's. As with a shared
/// pointer, a const object gives access to writable memory.
///
/// The memory has an access state: see `buffer_access`. Operations of a `connection` and of a
/// `stream` that take the buffer itself keep it alive and obey its access state. A view of the
/// buffer (`mutable_buffer`, an Asio buffer) does neither, and a `queue_pair` treats the buffer as
/// a view.
///
/// Copying, slicing and access are safe from any thread; one object is unsafe while it is assigned.
class registered_buffer {
public:
  using value_type = mutable_buffer;
  /// Not a pointer, because Asio takes a class with contiguous iterators for a container of bytes.
  using const_iterator = std::reverse_iterator<const mutable_buffer*>;

  /// An empty buffer without memory.
  registered_buffer() noexcept = default;
  /// A buffer of a whole region, which must be open. `memory` keeps the region's memory until after
  /// the deregistration. Its deleter may be called by any thread that uses the context; it may
  /// close and destroy objects, but must neither block nor poll. If `memory` is null, the caller
  /// keeps the memory alive.
  explicit registered_buffer(memory_region region, std::shared_ptr<void> memory = nullptr);

  registered_buffer(const registered_buffer&) noexcept = default;
  registered_buffer(registered_buffer&& other) noexcept
      : block_(std::move(other.block_)), view_(std::exchange(other.view_, {})) {}
  registered_buffer& operator=(const registered_buffer&) noexcept = default;
  registered_buffer& operator=(registered_buffer&& other) noexcept {
    block_ = std::move(other.block_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  void* data() const noexcept { return view_.data(); }
  std::size_t size() const noexcept { return view_.size(); }
  bool empty() const noexcept { return size() == 0; }
  std::uint32_t lkey() const noexcept { return view_.lkey(); }
  /// Whether the CPU must not access the memory: see `const_buffer`.
  bool is_device_only() const noexcept { return view_.is_device_only(); }

  operator mutable_buffer() const noexcept { return view_; }
  /// A template, so that `asio::buffer` finds one conversion only.
  template <std::same_as<const_buffer> View>
  operator View() const noexcept {
    return view_;
  }
  const_iterator begin() const noexcept { return const_iterator(&view_ + 1); }
  const_iterator end() const noexcept { return const_iterator(&view_); }

  /// The region of the memory; null if there is none. A pool's region belongs to the pool: its keys
  /// give access to everything in it.
  const memory_region* region() const noexcept { return block_ ? block_->region : nullptr; }
  /// Whether both buffers share one block of memory. Their bytes need not overlap.
  bool shares_memory_with(const registered_buffer& other) const noexcept {
    return block_ != nullptr && block_ == other.block_;
  }

  /// The slice of `bytes` from `offset`, or of all bytes from `offset`. Errors:
  /// `result_out_of_range` (of the generic category) if the slice is not within this buffer; a
  /// slice at the end is empty.
  registered_buffer slice(std::size_t offset, std::size_t bytes, error_code& ec) const;
  registered_buffer slice(std::size_t offset, std::size_t bytes) const;
  registered_buffer slice(std::size_t offset, error_code& ec) const {
    return slice(offset, size() < offset ? 0 : size() - offset, ec);
  }
  registered_buffer slice(std::size_t offset) const {
    return slice(offset, size() < offset ? 0 : size() - offset);
  }
  /// The first `bytes`, or all if there are fewer.
  registered_buffer first(std::size_t bytes) const {
    return slice(0, bytes < size() ? bytes : size());
  }

  /// Writes zeros by the CPU. The device must not use the bytes at the time, and they must not be
  /// device-only.
  void zero() const noexcept;

  /// Begins a read access (shared) or a write access (exclusive). The result is false if the bytes
  /// are in use: see `buffer_access`. Never blocks.
  [[nodiscard]] buffer_access try_read_access() const noexcept {
    return {*this, detail::access_kind::shared};
  }
  [[nodiscard]] buffer_access try_write_access() const noexcept {
    return {*this, detail::access_kind::exclusive};
  }

  /// Begins an access like `try_read_access` and `try_write_access`, but waits, first come, first
  /// served, until no access conflicts. Signature
  /// `void(error_code, buffer_access)`; `ex` is the handler's executor if the handler has no
  /// associated one. Errors: `operation_aborted` after a cancellation. Cancellation: all types; a
  /// cancelled wait has no effect.
  template <class Executor, class Token = asio::default_completion_token_t<Executor>>
  auto async_read_access(const Executor& ex, Token&& token = {}) const {
    return async_access(ex, detail::access_kind::shared, token);
  }
  template <class Executor, class Token = asio::default_completion_token_t<Executor>>
  auto async_write_access(const Executor& ex, Token&& token = {}) const {
    return async_access(ex, detail::access_kind::exclusive, token);
  }

private:
  friend class memory_pool;            // it makes buffers from blocks
  friend class buffer_access;          // it keeps a reference to the block
  friend class detail::dropped_blocks; // it takes the reference over

  /// Takes over a reference that has already been counted.
  explicit registered_buffer(detail::memory_block* block) noexcept
      : block_(block, false), view_(block->data, block->size, block->lkey) {}

  detail::memory_block_ptr release() noexcept {
    view_ = {};
    return std::move(block_);
  }

  template <class Executor, class Token>
  auto async_access(const Executor& ex, detail::access_kind kind, Token& token) const;

  detail::memory_block_ptr block_;
  mutable_buffer view_;
};

inline void buffer_access::aim(const registered_buffer& buffer, detail::access_kind kind) noexcept {
  block_ = buffer.block_;
  node_.begin = reinterpret_cast<std::uintptr_t>(buffer.data());
  node_.end = node_.begin + buffer.size();
  node_.kind = kind;
}

inline error_code buffer_access::try_begin(const registered_buffer& buffer,
                                           detail::access_kind kind) noexcept {
  reset();
  aim(buffer, kind);
  if (block_ == nullptr) {
    node_.granted = true;
    return {};
  }
  if (block_->access.try_begin(node_)) [[likely]]
    return {};
  block_ = nullptr;
  return error::buffer_in_use;
}

inline void buffer_access::take(buffer_access& other) noexcept {
  block_ = std::move(other.block_);
  if (!other.node_.granted)
    return;
  if (block_ != nullptr)
    block_->access.move(other.node_, node_);
  else
    node_.granted = std::exchange(other.node_.granted, false);
}

inline detail::memory_block_ptr buffer_access::end() noexcept {
  if (block_ != nullptr && node_.granted) {
    auto waiters = block_->access.end(node_);
    if (!waiters.empty()) [[unlikely]]
      detail::access_service::granted(std::move(waiters));
  }
  node_.granted = false;
  return std::move(block_);
}

namespace detail {

/// An object that stands for the buffer in it, such as a `message`.
template <class T>
concept has_payload = requires(const T& t) {
  { t.payload } -> std::same_as<const registered_buffer&>;
};

struct access_initiation {
  template <class Executor>
  struct with {
    using executor_type = Executor;
    const executor_type& get_executor() const noexcept { return executor; }

    template <class Handler>
    void operator()(Handler&& handler, const registered_buffer& buffer, access_kind kind) const {
      std::decay_t<Handler> h(std::forward<Handler>(handler));
      start(h, executor, buffer, kind);
    }

    Executor executor;
  };

  template <class Handler, class Executor>
  static void start(Handler& handler, const Executor& ex, const registered_buffer& buffer,
                    access_kind kind) {
    buffer_access now(buffer, kind);
    if (now) {
      complete_immediately(std::move(handler), ex, error_code(), std::move(now));
      return;
    }
    auto slot = asio::get_associated_cancellation_slot(handler);
    access_service& service = access_service::of(asio::query(ex, asio::execution::context));
    auto* op = access_op<Handler, Executor>::make(handler, ex, service);
    BOOST_ASIO_HANDLER_CREATION((service.context(), *op, "registered_buffer",
                                 const_cast<registered_buffer*>(&buffer), 0, "async_access"));
    op->access.aim(buffer, kind);
    op->wanted = &op->access.node_;
    if (slot.is_connected()) {
      op->id = service.next_id();
      try {
        slot.template emplace<access_canceller>(access_canceller{service.link(), op->id});
      } catch (...) {
        op->destroy();
        throw;
      }
    }
    service.start(*op);
  }
};

} // namespace detail

template <class Executor, class Token>
auto registered_buffer::async_access(const Executor& ex, detail::access_kind kind,
                                     Token& token) const {
  return detail::begin_async<Token, void(error_code, buffer_access)>(
      detail::access_initiation::with<Executor>{ex}, token, *this, kind);
}

} // namespace asio_rdma
#pragma GCC visibility pop
