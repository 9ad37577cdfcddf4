// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/handler_op.hpp>

#include <concepts>
#include <limits>
#include <memory>
#include <ranges>
#include <tuple>
#include <utility>

namespace asio_rdma::detail {

// --- Buffers into scatter/gather elements ------------------------------------------------------

/// How many elements an operation on such buffers needs at the most.
template <class Buffers>
constexpr std::size_t max_elements() {
  if constexpr (std::convertible_to<Buffers, const_buffer>)
    return 1;
  else if constexpr (requires { std::tuple_size<Buffers>::value; })
    return std::tuple_size<Buffers>::value == 0 ? 1 : std::tuple_size<Buffers>::value;
  else
    return 16;
}

/// Fills `request.sges`; empty buffers are left out. The device takes messages of up to 2^31
/// bytes (ibv_port_attr, `max_msg_sz`).
template <class Request, class Buffers>
std::uint32_t fill_elements(Request& request, const Buffers& buffers) {
  std::uint64_t total = 0;
  const auto add = [&](const const_buffer& b) {
    if (b.size() == 0)
      return;
    total += b.size();
    if (total > (std::uint64_t(1) << 31)) {
      request.ec = asio::error::message_size;
    } else if (static_cast<std::size_t>(request.buffers) == request.sges.size()) {
      request.ec = error::too_many_buffers;
    } else {
      request.sges[static_cast<std::size_t>(request.buffers++)] = {
          reinterpret_cast<std::uintptr_t>(b.data()), static_cast<std::uint32_t>(b.size()),
          b.lkey()};
    }
  };
  if constexpr (std::convertible_to<Buffers, const_buffer>) {
    add(buffers);
  } else {
    for (auto&& b : buffers)
      add(b);
  }
  return static_cast<std::uint32_t>(total);
}

// --- From an operation to a handler and back -----------------------------------------------------

/// Put into a handler's cancellation slot. Knows the operation by a number, not by its address, as
/// it may be asked for one that has completed.
template <class Impl>
struct canceller {
  std::shared_ptr<Impl> impl;
  std::uint64_t id;

  void operator()(asio::cancellation_type_t type) const { impl->cancel(id, type); }
};

/// Starts an operation of kind `Base` on an implementation object that may be null (closed).
/// `prepare(op)` fills the operation and gives an error that stops it; `start(impl, op)` starts it.
template <class Base, class Result, std::size_t Buffers, class Impl, class Handler, class Executor,
          class Prepare, class Start>
void start_operation(const std::shared_ptr<Impl>& impl, const Executor& ex, Handler& handler,
                     Prepare&& prepare, Start&& start) {
  using op_type = handler_op<Base, Result, Handler, Executor, Buffers>;
  auto slot = asio::get_associated_cancellation_slot(handler);
  typename op_type::owner op(handler, ex, asio::query(ex, asio::execution::context));
  error_code ec = prepare(*op);
  if (!ec) {
    if (impl == nullptr) {
      ec = asio::error::bad_descriptor;
    } else {
      if (slot.is_connected()) {
        op->id = impl->next_id();
        slot.template emplace<canceller<Impl>>(canceller<Impl>{impl, op->id});
      }
      ec = start(*impl, *op);
      if (!ec) {
        op.release();
        return;
      }
    }
  }
  // What a handler is told besides the error is what an untouched operation says.
  auto arguments = Result::arguments(*op);
  std::apply(
      [&](auto... args) { complete_immediately(op.take_handler(), ex, ec, std::move(args)...); },
      std::move(arguments));
}

} // namespace asio_rdma::detail
