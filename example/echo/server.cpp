// SPDX-License-Identifier: BSL-1.0
#include "echo.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

asio::awaitable<void> serve(queue_pair& qp, const protection_domain& pd) {
  std::vector<std::byte> memory(client::message_size);
  const memory_region region(pd, memory.data(), memory.size(), access::local_write);
  error_code ec;
  for (;;) {
    const asio_rdma::received r =
        co_await qp.async_receive(region.buffer(), asio::redirect_error(asio::use_awaitable, ec));
    if (ec)
      break;
    co_await qp.async_send(region.buffer(0, r.bytes),
                           asio::redirect_error(asio::use_awaitable, ec));
    if (ec)
      break;
  }
  // These errors are the client's disconnect.
  if (ec != asio::error::connection_reset && ec != asio::error::operation_aborted)
    throw boost::system::system_error(ec, "echo server");
}
