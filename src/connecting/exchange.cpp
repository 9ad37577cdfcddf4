// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/exchange.hpp>

#include <memory>

namespace asio_rdma::detail {

handshake exchange_hello(const connection_end& end, error_code& ec) {
  const queue_pair_impl& qp = *end.queue_pair;
  const device& d = qp.get_protection_domain().get_device();
  handshake result;
  if (end.target) {
    ec = decode(end.target->hello(), result);
  } else {
    result.max_reads = qp.options().max_reads;
    result.atomics = d.attributes().atomic_cap;
  }
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

namespace {

class exchange_link final : public connection_link {
public:
  void disconnect(const error_code&) noexcept override {}
  bool lingers() const noexcept override { return false; }
  void keep(std::shared_ptr<void>) noexcept override {}
};

} // namespace

std::shared_ptr<connection_link> exchange_place() { return std::make_shared<exchange_link>(); }

error_code exchange_connect(const connection_end& end, const handshake& peer,
                            const std::shared_ptr<connection_link>& place) {
  queue_pair_impl& qp = *end.queue_pair;
  if (qp.state() == queue_pair_state::closed)
    return asio::error::operation_aborted;
  if (!end.target)
    return qp.connect(peer.address->address);
  if (const error_code ec = qp.attach(place))
    return ec == asio::error::bad_descriptor ? error_code(asio::error::operation_aborted) : ec;
  // The target must know the peer before the peer's first frame arrives.
  if (const error_code ec = end.target->on_hello(encode(peer), false)) {
    qp.detach();
    return ec;
  }
  const error_code ec = qp.connect(peer.address->address, place.get());
  if (ec)
    qp.fail(ec);
  return ec;
}

} // namespace asio_rdma::detail
