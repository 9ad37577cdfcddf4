// SPDX-License-Identifier: BSL-1.0
// Calls that do not compile. `check` compiles one at a time (WRONG is its number) and compares the
// compiler's first error with the words behind "says:". Number 0 has the calls as they should be.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <string>
#include <utility>
#include <vector>

namespace asio = boost::asio;
using asio::detached;
using asio_rdma::error_code;

void calls(asio_rdma::queue_pair& qp, asio_rdma::connection& connection, asio_rdma::stream& stream,
           asio_rdma::connector& connector, asio_rdma::acceptor& acceptor,
           asio_rdma::connection_request& request, const asio_rdma::memory_pool& pool,
           const asio_rdma::registered_buffer& registered, asio_rdma::remote_buffer remote,
           asio::ip::tcp::endpoint endpoint, asio::ip::tcp::socket& socket,
           std::vector<char>& memory, const std::string& text) {
#if WRONG == 0
  qp.async_send(registered, detached);
  qp.async_receive(registered, detached);
  qp.async_write(registered, remote, detached);
  connection.async_send(asio::buffer(text), detached);
  connection.async_write(asio::buffer(text), remote, detached);
  connection.async_receive(asio::buffer(memory), detached);
  stream.async_read_some(asio::buffer(memory), [](error_code, std::size_t) {});
  stream.async_write_some(asio::buffer(text), detached);
  connector.async_connect(stream, endpoint, detached);
  acceptor.async_accept(stream, detached);
  acceptor.async_accept(stream, asio_rdma::accept_options(), detached);
  acceptor.async_accept<asio_rdma::stream>(pool, detached);
  acceptor.async_accept(std::move(request), stream, detached);
  stream.open(pool, asio_rdma::stream_options().set_receives(8));
  connection.async_send_region(registered, detached);
  connection.async_send_region(registered, 1, detached);
#elif WRONG == 1  // says: this is no buffer sequence: pass asio::buffer(object)
  stream.async_read_some(memory, detached);
#elif WRONG == 2  // says: this memory is const: pass asio::buffer(object) of an object that is not
  stream.async_read_some(asio::buffer(text), detached);
#elif WRONG == 3  // says: this memory is const: pass a mutable_buffer or registered_buffer
  qp.async_receive(asio_rdma::const_buffer(registered), detached);
#elif WRONG == 4  // says: a queue pair sends registered memory only
  qp.async_send(asio::buffer(text), detached);
#elif WRONG == 5  // says: a queue pair sends registered memory only
  qp.async_send(memory.data(), memory.size(), detached);
#elif WRONG == 6  // says: the last argument is no completion token for this operation
  stream.async_write_some(asio::buffer(text), 1);
#elif WRONG == 7  // says: the last argument is no completion token for this operation
  connection.async_receive(asio::buffer(memory), [](error_code) {});
#elif WRONG == 8  // says: open takes a memory_pool or shared_receives
  stream.open();
#elif WRONG == 9  // says: open takes a memory_pool or shared_receives
  connection.open(pool, asio_rdma::stream_options());
#elif WRONG == 10 // says: async_connect takes the object, an endpoint or a range of endpoints
  connector.async_connect(stream, endpoint, asio_rdma::accept_options(), detached);
#elif WRONG == 11 // says: a queue pair sends registered memory only
  qp.async_write(remote, registered, detached);
#elif WRONG == 12 // says: the second argument must be memory of the peer
  connection.async_write(asio::buffer(text), registered, detached);
#elif WRONG == 13 // says: this is no buffer sequence: pass asio::buffer(object)
  connection.async_send(text, detached);
#elif WRONG == 14 // says: only an asio_rdma::queue_pair, connection or stream can be connected
  connector.async_connect(socket, endpoint, detached);
#elif WRONG == 15 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept(pool, [](error_code, asio_rdma::stream) {});
#elif WRONG == 16 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept([](error_code, asio_rdma::stream) {});
#elif WRONG == 17 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept(socket, detached);
#elif WRONG == 18 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept<asio_rdma::stream>([](error_code, asio_rdma::stream) {});
#elif WRONG == 19 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept<asio_rdma::stream>(acceptor.get_executor(), detached);
#elif WRONG == 20 // says: async_accept takes a queue_pair, connection or stream first, or makes one
  acceptor.async_accept<asio::ip::tcp::socket>(pool, detached);
#elif WRONG == 21 // says: after the executor or context come a memory_pool or shared_receives
  asio_rdma::stream(acceptor.get_executor(), registered);
#elif WRONG == 22 // says: after the executor or context come a memory_pool or shared_receives
  asio_rdma::connection(acceptor.get_executor(), pool, asio_rdma::stream_options());
#elif WRONG == 23 // says: a connection lends a registered_buffer (memory_pool::allocate), or
  connection.async_send_region(asio::buffer(memory), detached);
#elif WRONG == 24 // says: a connection lends a registered_buffer (memory_pool::allocate), or
  connection.async_send_region(remote, asio_rdma::access::remote_read, detached);
#endif
}

asio::awaitable<void> calls_awaited(asio_rdma::queue_pair& qp, asio_rdma::stream& stream,
                                    asio_rdma::connector& connector, asio::ip::tcp::endpoint there,
                                    asio::ip::tcp::socket& socket,
                                    const asio_rdma::registered_buffer& registered,
                                    const std::string& text) {
#if WRONG == 0
  co_await qp.async_send(registered, asio::deferred);
  const std::size_t n = co_await stream.async_write_some(asio::buffer(text), asio::use_awaitable);
  static_cast<void>(n);
  co_await connector.async_connect(stream, there, asio::deferred);
#elif WRONG == 25 // says: a queue pair sends registered memory only
  co_await qp.async_send(asio::buffer(text), asio::deferred);
#elif WRONG == 26 // says: this is no buffer sequence: pass asio::buffer(object)
  const auto n = co_await stream.async_write_some(text, asio::use_awaitable);
  static_cast<void>(n);
#elif WRONG == 27 // says: only an asio_rdma::queue_pair, connection or stream can be connected
  co_await connector.async_connect(socket, there, asio::deferred);
#endif
  co_return;
}
