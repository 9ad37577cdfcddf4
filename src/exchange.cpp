// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/exchange.hpp>

namespace asio_rdma::detail {

handshake raw_handshake(const queue_pair_impl& qp, error_code& ec) {
  const device& d = qp.get_protection_domain().get_device();
  handshake result;
  result.max_reads = qp.options().max_reads;
  result.atomics = d.attributes().atomic_cap;
  if (qp.state() == queue_pair_state::closed) {
    ec = asio::error::bad_descriptor;
  } else if (d.type() == transport::iwarp) {
    ec = asio::error::operation_not_supported;
  } else {
    queue_pair_address address;
    ec = qp.local_address(address);
    if (!ec)
      result.address.emplace(handshake_address{address, qp.options().type});
  }
  return result;
}

error_code exchange_connect(queue_pair_impl& qp, const queue_pair_address& peer) {
  if (qp.state() == queue_pair_state::closed)
    return asio::error::operation_aborted;
  return qp.connect(peer);
}

} // namespace asio_rdma::detail
