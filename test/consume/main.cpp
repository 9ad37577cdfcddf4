// SPDX-License-Identifier: BSL-1.0
// The least that shows that headers, library and its dependencies are found, linked and loaded.
#include <asio_rdma/error.hpp>
#include <asio_rdma/version.hpp>

#include <boost/asio/io_context.hpp>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <iostream>

int main() {
  boost::asio::io_context context;
  int devices = 0;
  if (ibv_device** list = ibv_get_device_list(&devices)) {
    ibv_free_device_list(list);
  }
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel != nullptr) {
    rdma_destroy_event_channel(channel);
  }
  std::cout << "asio_rdma " << ASIO_RDMA_VERSION_MAJOR << '.' << ASIO_RDMA_VERSION_MINOR << ", "
            << make_error_code(asio_rdma::error::no_device).category().name() << " errors, "
            << devices << " devices\n";
}
