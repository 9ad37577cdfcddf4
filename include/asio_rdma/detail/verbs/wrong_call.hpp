// SPDX-License-Identifier: BSL-1.0
// The words of the compiler for calls with wrong arguments. Beside a constrained function stands an
// overload for the arguments that do not satisfy the constraint. It calls one of these functions,
// so the compiler reports one error in words, and not a list of candidates; also behind `co_await`.
#pragma once

#include <asio_rdma/buffer.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>

#include <concepts>
#include <type_traits>

namespace asio_rdma::detail {

/// False, but only when a template is instantiated.
template <class...>
inline constexpr bool never = false;

/// The result of such an overload. A concept that asks for the result of a call can tell it.
struct wrong_call {
  struct result {};

  /// As an operation of Asio's: `co_await` adds no error.
  template <class Token>
  requires(!std::is_pointer_v<std::decay_t<Token>>) auto operator()(Token&& token) const {
    return asio::async_initiate<Token, void(result)>([](auto&&) {}, token);
  }
};

/// Memory that a stream or a connection sends: an Asio buffer sequence, registered or not.
template <class T>
concept memory_to_send = asio::is_const_buffer_sequence<T>::value || const_buffer_sequence<T>;

/// Memory that a stream or a connection fills.
template <class T>
concept memory_to_fill = asio::is_mutable_buffer_sequence<T>::value || mutable_buffer_sequence<T>;

/// The negations of these concepts.
///@{
template <class T>
concept no_memory_to_send = !memory_to_send<T>;
template <class T>
concept no_memory_to_fill = !memory_to_fill<T>;
template <class T>
concept no_registered_source = !const_buffer_sequence<T>;
template <class T>
concept no_registered_target = !mutable_buffer_sequence<T>;
template <class T>
concept no_remote_buffer = !std::convertible_to<const T&, remote_buffer>;
///@}

template <class Memory>
wrong_call wrong_registered_source() {
  static_assert(never<Memory>, "a queue pair sends registered memory only: pass a const_buffer, "
                               "mutable_buffer or registered_buffer of asio_rdma, or a range");
  return {};
}

template <class Memory>
wrong_call wrong_registered_target() {
  if constexpr (const_buffer_sequence<Memory>)
    static_assert(never<Memory>, "this memory is const: pass a mutable_buffer or registered_buffer "
                                 "of asio_rdma, or a range");
  else
    static_assert(never<Memory>, "a queue pair fills registered memory only: pass a mutable_buffer "
                                 "or registered_buffer of asio_rdma, or a range");
  return {};
}

template <class Memory>
wrong_call wrong_source() {
  static_assert(never<Memory>, "this is no buffer sequence: pass asio::buffer(object), or a "
                               "registered_buffer or const_buffer of asio_rdma");
  return {};
}

template <class Memory>
wrong_call wrong_target() {
  if constexpr (memory_to_send<Memory>)
    static_assert(never<Memory>, "this memory is const: pass asio::buffer(object) of an object "
                                 "that is not, or a registered_buffer of asio_rdma");
  else
    static_assert(never<Memory>, "this is no buffer sequence: pass asio::buffer(object), or a "
                                 "registered_buffer or mutable_buffer of asio_rdma");
  return {};
}

template <class Remote>
wrong_call wrong_remote() {
  static_assert(never<Remote>, "the second argument must be memory of the peer: a remote_buffer, "
                               "or for a connection also a remote_region");
  return {};
}

template <class Memory>
wrong_call wrong_region() {
  static_assert(never<Memory>, "a connection lends a registered_buffer (memory_pool::allocate), or "
                               "hands back a remote_region");
  return {};
}

template <class Object>
wrong_call wrong_object_to_connect() {
  static_assert(never<Object>, "only an asio_rdma::queue_pair, connection or stream can be "
                               "connected");
  return {};
}

template <class Object>
wrong_call wrong_object_to_accept() {
  static_assert(never<Object>, "async_accept takes a queue_pair, connection or stream first, or "
                               "makes one: async_accept<asio_rdma::stream>(pool, token)");
  return {};
}

template <class... Arguments>
wrong_call wrong_arguments_of_connect() {
  static_assert(never<Arguments...>, "async_connect takes the object, an endpoint or a range of "
                                     "endpoints, connect_options (or none), and the token");
  return {};
}

template <class... Arguments>
wrong_call wrong_arguments_of_open() {
  static_assert(never<Arguments...>, "open takes a memory_pool or shared_receives, and then the "
                                     "options of this class (or none)");
  return {};
}

template <class... Arguments>
void wrong_arguments_of_constructor() {
  static_assert(never<Arguments...>,
                "after the executor or context come a memory_pool or "
                "shared_receives, and then the options of this class (or none)");
}

} // namespace asio_rdma::detail
