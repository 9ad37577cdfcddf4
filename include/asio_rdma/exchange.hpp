// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/connectable.hpp>
#include <asio_rdma/detail/core/handler_op.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace asio_rdma::detail {
/// The state of one exchange. Until it is destroyed, no other attempt can connect the queue pair.
class exchange_state;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma {
namespace detail {

/// The filter of `asio::enable_partial_cancellation`, with a memory. Asio's `cancellation_state`
/// forgets a cancellation when a later one does not pass the filter.
class partial_cancellation {
public:
  asio::cancellation_type_t operator()(asio::cancellation_type_t type) noexcept {
    seen_ |= type & (asio::cancellation_type::partial | asio::cancellation_type::terminal);
    return seen_;
  }

private:
  asio::cancellation_type_t seen_ = asio::cancellation_type::none;
};

enum class exchange_step {
  write, ///< Write all of `exchange_output`; then call `next_step`.
  read,  ///< Read some of `exchange_input`; then call `next_step`.
  finish ///< Call `finish`.
};

std::shared_ptr<exchange_state> begin_exchange(connection_end end);
exchange_step first_step(exchange_state& state);
/// Reports the result of the last step and returns the next one.
exchange_step next_step(exchange_state& state, const error_code& ec, std::size_t bytes);
asio::const_buffer exchange_output(const exchange_state& state) noexcept;
asio::mutable_buffer exchange_input(exchange_state& state) noexcept;
/// Fails the queue pair with `operation_aborted` if it has been connected.
void abort(exchange_state& state);
/// Returns the result. If there is an error, a queue pair that was connected fails.
error_code finish(exchange_state& state);
/// Whether the object is not a bare queue pair.
bool has_target(const exchange_state& state) noexcept;
/// Reports the endpoints to such an object.
void report_endpoints(exchange_state& state, const connection_info& info);

/// The endpoints of the stream, if it is a TCP stream.
template <class Stream>
connection_info exchange_endpoints(Stream& s) {
  using endpoint = asio::ip::tcp::endpoint;
  connection_info result;
  if constexpr (requires(error_code & ec) {
                  { s.lowest_layer().local_endpoint(ec) } -> std::convertible_to<endpoint>;
                  { s.lowest_layer().remote_endpoint(ec) } -> std::convertible_to<endpoint>;
                }) {
    error_code ec;
    result.local = s.lowest_layer().local_endpoint(ec);
    result.remote = s.lowest_layer().remote_endpoint(ec);
  }
  return result;
}

template <class Stream>
class exchange_op {
public:
  exchange_op(Stream& s, connection_end end) : stream_(&s), end_(std::move(end)) {}

  template <class Self>
  void operator()(Self& self, error_code ec = {}, std::size_t bytes = 0) {
    exchange_step next;
    if (state_ == nullptr) {
      if (ec) // not open: the second call reports it
        return self.complete(ec);
      if (!start(self))
        return;
      next = first_step(*state_);
    } else {
      next = next_step(*state_, ec, bytes);
    }

    if (next == exchange_step::finish)
      end(self);
    else if (self.cancelled() != asio::cancellation_type::none)
      give_up(self);
    else if (next == exchange_step::write)
      asio::async_write(*stream_, exchange_output(*state_), std::move(self));
    else
      stream_->async_read_some(exchange_input(*state_), std::move(self));
  }

private:
  template <class Self>
  bool start(Self& self) {
    if (end_.queue_pair == nullptr) {
      complete_immediately(std::move(self), stream_->get_executor(),
                           error_code(asio::error::bad_descriptor));
      return false;
    }
    self.reset_cancellation_state(partial_cancellation());
    state_ = begin_exchange(std::exchange(end_, {}));
    return true;
  }

  // The state is released before the handler is called, as Asio's own operations do.
  template <class Self>
  void give_up(Self& self) {
    abort(*state_);
    state_.reset();
    self.complete(asio::error::operation_aborted);
  }

  template <class Self>
  void end(Self& self) {
    const error_code ec = finish(*state_);
    if (!ec && has_target(*state_))
      report_endpoints(*state_, exchange_endpoints(*stream_));
    state_.reset();
    self.complete(ec);
  }

  Stream* stream_;
  connection_end end_; // until the exchange begins
  std::shared_ptr<exchange_state> state_;
};

} // namespace detail

/// Connects a queue pair, a connection or a stream to the object for which the program at the other
/// end of `s` also calls `async_exchange`. Each side sends the kind of its object and the address
/// of its queue pair, and both sides confirm. It is an alternative to rdma_cm, over any Asio stream
/// (TCP, a Unix socket, TLS). Both sides call the same function. After success the peer's queue
/// pair accepts messages. Start the receives for the first messages before; connections and streams
/// do that by themselves.
///
/// The stream `s`, whose buffers must hold 64 bytes in each direction, must outlive the operation,
/// and no other operation may use it meanwhile. The execution contexts of `s` and of `object`,
/// which may be two, must outlive the operation, too. The operation is work of both. If `object` is
/// closed or destroyed meanwhile, the next step of the operation ends it with `operation_aborted`.
/// The operation reads nothing beyond the exchange from `s`, so after success `s` may be used for
/// any purpose. After an error `s` is not closed, but the position of its input is unspecified.
/// Signature: `void(error_code)`.
///
/// The endpoints of an `asio_rdma::stream` are those of `s` if `s` is a TCP stream, otherwise
/// unspecified. No connection manager reports the end of the peer: after a peer's `close` without a
/// goodbye, or its death, sends end with `errc::timed_out`, and an idle side detects it by
/// `keep_alive`.
///
/// *Blocking.* On RoCE the kernel resolves the peer's neighbour or gateway inside the system call
/// that connects the queue pair (ibv_modify_qp(3)), by the GID that the peer sent. If no host
/// answers, the calling thread of the execution context blocks for up to a second, and so does
/// every thread that uses the queue pair meanwhile. If the peers are not trusted, use a separate
/// context for exchanges.
///
/// *Errors.* `error::incompatible_peer` at both ends if the received data is not of this protocol
/// and version, if the two objects are of different kinds (queue pair, connection, stream), or if
/// the queue pairs are of different types; `operation_not_supported` at both ends if a queue pair
/// is of an iWARP device, which only its connection manager can connect; `error::rejected` if the
/// peer could not connect its queue pair (the peer reports the reason); `already_connected`,
/// `error::no_gid`, `bad_descriptor` (not open), and the stream's errors, such as `eof`. If the
/// queue pair was not connected when the error occurred, not even in part, it remains open.
/// Otherwise it fails (`queue_pair_state::failed`), and so does the connection or the stream.
///
/// *Cancellation.* `terminal` and `partial`, as far as the stream supports them. `total` has no
/// effect, because a part may have been sent. The state of the queue pair is that after other
/// errors.
template <class AsyncStream, connectable Object,
          class Token = asio::default_completion_token_t<typename AsyncStream::executor_type>>
auto async_exchange(AsyncStream& s, Object& object, Token&& token = {}) {
  return asio::async_compose<Token, void(error_code)>(
      detail::exchange_op<AsyncStream>(s, detail::connection_end(object)), token, s, object);
}

} // namespace asio_rdma
#pragma GCC visibility pop
