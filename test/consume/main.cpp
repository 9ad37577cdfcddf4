// SPDX-License-Identifier: BSL-1.0
// Checks that headers, library and dependencies are found, linked and loaded. Templates of each
// kind of object are instantiated, so that no symbol is missing.
#include <asio_rdma/asio_rdma.hpp>
#include <asio_rdma/version.hpp>

#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <iostream>

namespace asio = boost::asio;

int main() {
  asio::io_context context;
  asio_rdma::queue_pair qp(context);
  asio_rdma::acceptor acceptor(context);
  asio_rdma::connector connector(context);
  const asio::ip::tcp::endpoint nowhere;
  asio_rdma::error_code ec;
  acceptor.open(nowhere, 1, ec);
  // All of them fail, as nothing is open.
  qp.async_send(asio_rdma::const_buffer(), asio::detached);
  qp.async_receive(asio_rdma::mutable_buffer(), asio::detached);
  if (acceptor.is_open())
    acceptor.async_accept(qp, asio::detached);
  connector.async_connect(qp, nowhere, asio::detached);
  acceptor.close();
  asio_rdma::memory_window window;
  qp.async_bind(window, asio_rdma::memory_region(), 0, 0, asio_rdma::access::remote_read,
                asio::detached);
  const asio_rdma::registered_buffer buffer;
  buffer.slice(0, ec).zero();
  buffer.async_read_access(context.get_executor(), asio::detached);
  asio_rdma::connection connection(context);
  connection.async_send(buffer, asio::detached);
  connection.async_request_memory(1, asio::detached);
  asio_rdma::stream stream(context);
  stream.async_read_some(buffer, asio::detached);
  asio_rdma::shared_receive_queue receives(context);
  receives.async_receive(buffer, asio::detached);
  context.run();

  int devices = 0;
  if (ibv_device** list = ibv_get_device_list(&devices))
    ibv_free_device_list(list);
  if (rdma_event_channel* channel = rdma_create_event_channel())
    rdma_destroy_event_channel(channel);
  std::cout << "asio_rdma " << ASIO_RDMA_VERSION_MAJOR << '.' << ASIO_RDMA_VERSION_MINOR << ", "
            << make_error_code(asio_rdma::error::no_device).category().name() << " errors, "
            << devices << " devices\n";
}
