// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/handler_op.hpp>
#include <asio_rdma/detail/queues/request.hpp>
#include <boost/asio/detail/handler_tracking.hpp>

#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

/// The name of an operation for Boost.Asio's handler tracking: that of the initiating function, by
/// the result's type or by `operation_name`.
template <class Result, class Impl, class Operation>
const char* tracked_name(const Impl* impl, const Operation& op) noexcept {
  if constexpr (requires { Result::name; })
    return Result::name;
  else
    return operation_name(impl, op);
}

// An implementation object has functions that argument-dependent lookup finds, also while its class
// is incomplete. `next_id_of(impl)` returns a number that identifies an operation, and
// `cancel(impl, id, type)` cancels the operation with that number, if it is still pending.
// `start(impl, op)` starts an operation and returns true, or false with the error in the operation.
// `object_name(&impl)` and `operation_name(&impl, op)` return the names that handler tracking
// shows.

/// The cancellation handler of an operation. A slot may keep it long after the operation, so it
/// identifies the operation by a number and does not keep the object alive.
template <class Impl>
struct canceller {
  std::weak_ptr<Impl> impl;
  std::uint64_t id;

  // The end of the operation on another thread may clear the slot, which destroys this object.
  void operator()(asio::cancellation_type_t type) const {
    if (type == asio::cancellation_type::none)
      return;
    const std::uint64_t which = id;
    if (const auto keep = impl.lock())
      cancel(*keep, which, type);
  }
};

/// Completes an operation that could not be started. The handler's arguments after the error are
/// those of an untouched operation.
template <class Result, class Owner, class Executor>
[[gnu::noinline]] void complete_unstarted(Owner& op, const io_executor<Executor>& io) {
  BOOST_ASIO_HANDLER_COMPLETION((*op));
  op->fail(op->ec);
  const error_code ec = op->ec;
  auto arguments = Result::arguments(*op);
  std::apply(
      [&](auto&... args) {
        complete_immediately(op.take_handler(), io.get(), ec, std::move(args)...);
      },
      arguments);
}

/// Fills an operation and starts it. Returns true, or false with the error in the operation.
template <class Result, class Impl, class Executor, class Operation, class Slot, class Prepare,
          class Start>
[[gnu::always_inline]] inline bool
fill_and_start(const std::shared_ptr<Impl>& impl, [[maybe_unused]] const io_executor<Executor>& io,
               Operation& op, Slot& slot, Prepare& prepare, Start& start) {
  if (impl == nullptr) [[unlikely]] {
    op.ec = asio::error::bad_descriptor;
    return false;
  }
  if (!prepare(op)) [[unlikely]]
    return false;
  if (slot.is_connected()) {
    op.id = next_id_of(*impl);
    slot.template emplace<canceller<Impl>>(canceller<Impl>{impl, op.id});
  }
  BOOST_ASIO_HANDLER_CREATION((io.context(), op, object_name(impl.get()), impl.get(), 0,
                               tracked_name<Result>(impl.get(), op)));
  return start(*impl, op);
}

/// The initiation of every asynchronous function of the library. It makes an operation of kind
/// `Base` with the handler and starts it on an implementation object, which is null if the I/O
/// object is closed. `prepare(op)` fills the operation and returns true, or false with the error in
/// the operation. `start(impl, op)` starts it and returns true, or false with the error in the
/// operation. Once started, another thread may run the handler, which may destroy `impl`, the owner
/// of `start`'s arguments and the initiation itself. From then on only local variables are used.
template <class Base, class Result, std::size_t Buffers, class Impl, class Handler, class Executor,
          class Prepare, class Start>
void start_operation(const std::shared_ptr<Impl>& impl, const io_executor<Executor>& io,
                     Handler& handler, Prepare&& prepare, Start&& start) {
  using op_type = handler_op<Base, Result, Handler, Executor, Buffers>;
  auto slot = asio::get_associated_cancellation_slot(handler);
  typename op_type::owner op(handler, io);
  if (fill_and_start<Result>(impl, io, *op, slot, prepare, start)) [[likely]] {
    op.release();
    return;
  }
  complete_unstarted<Result>(op, io);
}

/// Starts the next operation of a composed operation. Does not throw `std::bad_alloc`, because the
/// exception would destroy the handler. If the operation cannot be started,
/// `failed(handler, ec)` is called instead, with `no_memory` after a failed allocation.
template <class Base, class Result, std::size_t Buffers, class Impl, class Handler, class Executor,
          class Prepare, class Start, class Failed>
void start_next_operation(const std::shared_ptr<Impl>& impl, const io_executor<Executor>& io,
                          Handler& handler, Prepare&& prepare, Start&& start, Failed&& failed) {
  using op_type = handler_op<Base, Result, Handler, Executor, Buffers>;
  auto slot = asio::get_associated_cancellation_slot(handler);
  std::optional<typename op_type::owner> op;
  try {
    op.emplace(handler, io);
    if (fill_and_start<Result>(impl, io, **op, slot, prepare, start)) {
      op->release();
      return;
    }
  } catch (const std::bad_alloc&) {
    if (!op)
      return failed(handler, error_code(asio::error::no_memory));
    (*op)->ec = asio::error::no_memory;
  }
  BOOST_ASIO_HANDLER_COMPLETION((**op));
  const error_code ec = (*op)->ec;
  Handler unstarted(op->take_handler());
  failed(unstarted, ec);
}

/// The base of the initiations of an I/O object. Asio takes the associated executor of an
/// initiation from it.
template <class Object>
struct initiation {
  using executor_type = typename Object::executor_type;
  const executor_type& get_executor() const noexcept { return self->get_executor(); }
  Object* self;
};

/// Fills an operation from a request with a problem. Returns false if the problem is an error,
/// which is then in the operation. Otherwise the queue pair checks the operation at its start.
template <class Request, class Operation>
[[gnu::noinline]] bool fill_unusual(const Request& request, Operation& op) {
  op.ec = make_error_code(request.problem);
  if (op.ec)
    return false;
  request.fill(op, op.sges());
  const bool device_only = request.problem == request_error::device_only;
  if constexpr (std::is_base_of_v<send_operation, Operation>) {
    op.usual = false;
    if (device_only)
      op.inline_bytes = send_operation::never_inline;
  } else if constexpr (std::is_base_of_v<receive_operation, Operation>) {
    op.device_only = device_only;
  }
  return true;
}

/// An initiation that fills its operation from a request.
template <class Base, class Result, class Object>
struct initiate_request : initiation<Object> {
  template <class Handler, class Request>
  void operator()(Handler&& handler, const Request& request) const {
    if constexpr (std::is_same_v<Handler, std::decay_t<Handler>>) {
      begin(handler, request); // a temporary: one move is enough
    } else {
      std::decay_t<Handler> copy(std::forward<Handler>(handler));
      begin(copy, request);
    }
  }

  template <class Handler, class Request>
  void begin(Handler& handler, const Request& request) const {
    start_operation<Base, Result, Request::max_elements>(
        this->self->impl_, this->self->io_, handler,
        [&](auto& op) {
          if (request.problem != request_error::none) [[unlikely]]
            return fill_unusual(request, op);
          request.fill(op, op.sges());
          return true;
        },
        [](auto& impl, auto& op) { return start(impl, static_cast<Base&>(op)); });
  }
};

} // namespace asio_rdma::detail
