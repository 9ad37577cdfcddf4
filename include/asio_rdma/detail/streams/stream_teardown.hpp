// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/handler_op.hpp>
#include <asio_rdma/error.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/socket_base.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace boost::beast {
enum class role_type; // as in boost/beast/core/role.hpp
} // namespace boost::beast

namespace asio_rdma {

template <class Executor>
class basic_stream;

namespace detail {

/// Shuts down sending, drops the bytes that still arrive, and closes.
template <class Stream>
struct teardown_op {
  template <class Self>
  void operator()(Self& self) {
    error_code ec;
    stream.shutdown(asio::socket_base::shutdown_send, ec);
    if (ec) {
      stream.close();
      complete_immediately(std::move(self), stream.get_executor(), ec);
      return;
    }
    read(self);
  }
  template <class Self>
  void operator()(Self& self, error_code ec) {
    self.complete(ec);
  }
  template <class Self>
  void operator()(Self& self, error_code ec, std::size_t) {
    if (!ec)
      return read(self);
    stream.close();
    self.complete(ec == asio::error::eof ? error_code() : ec);
  }
  template <class Self>
  void read(Self& self) {
    const asio::mutable_buffer to = asio::buffer(*dropped);
    stream.async_read_some(to, std::move(self));
  }

  Stream& stream;
  std::unique_ptr<std::array<char, 1024>> dropped = std::make_unique<std::array<char, 1024>>();
};

} // namespace detail

/// Customizes how a WebSocket of Boost.Beast ends the stream below it
/// (boost::beast::websocket::teardown).
template <class Executor>
void teardown(boost::beast::role_type, basic_stream<Executor>& s, error_code& ec) {
  s.shutdown(asio::socket_base::shutdown_send, ec);
  std::array<char, 1024> dropped;
  while (!ec)
    s.read_some(asio::buffer(dropped), ec);
  s.close();
  if (ec == asio::error::eof)
    ec = {};
}
template <class Executor, class Handler>
void async_teardown(boost::beast::role_type, basic_stream<Executor>& s, Handler&& handler) {
  asio::async_compose<Handler, void(error_code)>(detail::teardown_op<basic_stream<Executor>>{s},
                                                 handler, s);
}
/// Customizes how a timeout of Boost.Beast closes the stream (boost::beast::close_socket).
template <class Executor>
void beast_close_socket(basic_stream<Executor>& s) {
  s.close();
}

} // namespace asio_rdma
