// SPDX-License-Identifier: BSL-1.0
// Asio's type requirements, as in the tables of its reference, for a stream as for a socket.
#include <asio_rdma/stream.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <future>
#include <tuple>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio_rdma::error_code;

template <class T, class... Of>
concept is_one_of = (std::same_as<T, Of> || ...);

template <class S, class Buffers>
concept reads_some = requires(S& s, const Buffers& b, error_code& ec) {
  { s.read_some(b) } -> std::same_as<std::size_t>;
  { s.read_some(b, ec) } -> std::same_as<std::size_t>;
};
template <class S, class Buffers>
concept writes_some = requires(S& s, const Buffers& b, error_code& ec) {
  { s.write_some(b) } -> std::same_as<std::size_t>;
  { s.write_some(b, ec) } -> std::same_as<std::size_t>;
};

// The signature is void(error_code, size_t), checked by the result of each token.
template <class S, class Buffers>
concept reads_some_later = requires(S& s, const Buffers& b) {
  { s.async_read_some(b, asio::use_future) } -> std::same_as<std::future<std::size_t>>;
  { s.async_read_some(b, asio::use_awaitable) } -> std::same_as<asio::awaitable<std::size_t>>;
  {
    s.async_read_some(b, asio::as_tuple(asio::use_awaitable))
    } -> std::same_as<asio::awaitable<std::tuple<error_code, std::size_t>>>;
  {
    s.async_read_some(b, [](error_code, std::size_t) {})
    } -> std::same_as<void>;
};
template <class S, class Buffers>
concept writes_some_later = requires(S& s, const Buffers& b) {
  { s.async_write_some(b, asio::use_future) } -> std::same_as<std::future<std::size_t>>;
  { s.async_write_some(b, asio::use_awaitable) } -> std::same_as<asio::awaitable<std::size_t>>;
  {
    s.async_write_some(b, asio::as_tuple(asio::use_awaitable))
    } -> std::same_as<asio::awaitable<std::tuple<error_code, std::size_t>>>;
  {
    s.async_write_some(b, [](error_code, std::size_t) {})
    } -> std::same_as<void>;
};

template <class S>
concept has_executor = asio::execution::executor<typename S::executor_type> && requires(S& s) {
  { s.get_executor() }
  noexcept->is_one_of<typename S::executor_type, const typename S::executor_type&>;
};

/// Further functions that code for sockets uses: they have the same names as a socket's.
template <class S>
concept is_like_a_socket = requires(S& s, const S& c, error_code& ec) {
  typename S::lowest_layer_type;
  typename S::endpoint_type;
  typename S::template rebind_executor<asio::io_context::executor_type>::other;
  { s.lowest_layer() } -> std::same_as<typename S::lowest_layer_type&>;
  { c.is_open() } -> std::same_as<bool>;
  { c.remote_endpoint(ec) } -> std::same_as<typename S::endpoint_type>;
  { c.local_endpoint(ec) } -> std::same_as<typename S::endpoint_type>;
  { c.available(ec) } -> std::same_as<std::size_t>;
  { c.non_blocking() } -> std::same_as<bool>;
  s.non_blocking(true, ec);
  s.shutdown(S::shutdown_both, ec);
  s.close(ec);
  s.cancel(ec);
  s.wait(S::wait_read, ec);
  { s.send(asio::const_buffer()) } -> std::same_as<std::size_t>;
  { s.send(asio::const_buffer(), 0) } -> std::same_as<std::size_t>;
  { s.receive(asio::mutable_buffer(), 0, ec) } -> std::same_as<std::size_t>;
  {
    s.async_send(asio::const_buffer(), 0, asio::use_awaitable)
    } -> std::same_as<asio::awaitable<std::size_t>>;
  {
    s.async_receive(asio::mutable_buffer(), 0, asio::use_awaitable)
    } -> std::same_as<asio::awaitable<std::size_t>>;
  {
    s.async_receive(asio::mutable_buffer(), asio::use_awaitable)
    } -> std::same_as<asio::awaitable<std::size_t>>;
  { s.async_wait(S::wait_read, asio::use_awaitable) } -> std::same_as<asio::awaitable<void>>;
  s.set_option(asio::ip::tcp::no_delay(true), ec);
  s.set_option(asio::socket_base::linger(true, 1), ec);
};

/// Reads into memory that may not be written. A stream has overloads for such calls, which explain
/// the error and have other results.
template <class S>
concept reads_to_constant_memory = requires(S& s, asio::const_buffer b) {
  { s.read_some(b) } -> std::same_as<std::size_t>;
}
|| requires(S& s, asio::const_buffer b, error_code& ec) {
  { s.read_some(b, ec) } -> std::same_as<std::size_t>;
}
|| requires(S& s, asio::const_buffer b) {
  { s.receive(b) } -> std::same_as<std::size_t>;
}
|| requires(S& s, asio::const_buffer b, error_code& ec) {
  { s.receive(b, 0, ec) } -> std::same_as<std::size_t>;
}
|| requires(S& s, asio::const_buffer b) {
  { s.async_read_some(b, asio::use_awaitable) } -> std::same_as<asio::awaitable<std::size_t>>;
}
|| requires(S& s, asio::const_buffer b) {
  { s.async_receive(b, asio::use_awaitable) } -> std::same_as<asio::awaitable<std::size_t>>;
}
|| requires(S& s, asio::const_buffer b) {
  { s.async_receive(b, 0, asio::use_awaitable) } -> std::same_as<asio::awaitable<std::size_t>>;
};

template <class S>
constexpr bool is_stream() {
  using asio::const_buffer, asio::mutable_buffer;
  return reads_some<S, mutable_buffer> && reads_some<S, std::array<mutable_buffer, 2>> &&
         reads_some<S, std::vector<mutable_buffer>> && reads_some_later<S, mutable_buffer> &&
         reads_some_later<S, std::vector<mutable_buffer>> && writes_some<S, const_buffer> &&
         writes_some<S, mutable_buffer> && writes_some<S, std::array<const_buffer, 2>> &&
         writes_some<S, std::vector<const_buffer>> && writes_some_later<S, const_buffer> &&
         writes_some_later<S, mutable_buffer> && writes_some_later<S, std::vector<const_buffer>> &&
         has_executor<S> && is_like_a_socket<S> && std::is_nothrow_move_constructible_v<S> &&
         !std::is_copy_constructible_v<S>;
}

static_assert(is_stream<asio_rdma::stream>());
static_assert(is_stream<asio_rdma::basic_stream<asio::io_context::executor_type>>());
static_assert(!reads_to_constant_memory<asio_rdma::stream>);
// A socket satisfies the requirements; an acceptor does not.
static_assert(is_stream<asio::ip::tcp::socket>());
static_assert(!is_stream<asio::ip::tcp::acceptor>());

} // namespace
