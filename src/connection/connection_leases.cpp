// SPDX-License-Identifier: BSL-1.0
// A connection's operations on leases: regions of the peer, and memory that is lent to the peer.
#include "connection/connection_impl.hpp"

#include <memory>

namespace asio_rdma::detail {

error_code connection_impl::check_region(const remote_region& r) const {
  if (!r.lease_ || r.lease_->connection.lock().get() != this)
    return asio::error::invalid_argument;
  return regions_->check_lease(r.lease_->id);
}

remote_region connection_impl::make_region(const remote_lease& l) {
  remote_region r;
  const auto self = std::static_pointer_cast<connection_impl>(shared_from_this());
  r.lease_ = std::make_shared<const lease_handle>(self, l.id);
  r.memory_ = l.memory;
  r.rights_ = to_access(l.rights);
  return r;
}

bool connection_impl::start(region_operation& op) {
  using purpose = region_operation::purpose;
  link_impl::visit v(link_);
  op.ec = regions_ && op.why == purpose::receive ? error_code() : link_.check();
  if (!op.ec && (op.why == purpose::renew || op.why == purpose::give)) {
    const auto& lease = op.region.lease_;
    if (!lease || lease->connection.lock().get() != this)
      op.ec = asio::error::invalid_argument;
    else
      op.lease.id = lease->id;
  }
  if (op.ec)
    return false;
  if (op.why == purpose::give) // first, because it may throw
    regions_->give(op);
  else
    regions_->start(op);
  begin(op);
  v.advance();
  return true;
}

bool connection_impl::start(region_operation& op, const registered_buffer& memory) {
  link_impl::visit v(link_);
  op.ec = link_.check();
  if (op.ec)
    return false;
  op.why = region_operation::purpose::lend;
  regions_->lend(op, memory);
  if (op.ec)
    return false;
  begin(op);
  v.run();
  return true;
}

void connection_impl::release_lease(std::uint32_t id) {
  link_impl::visit v(link_);
  regions_->release(id);
  v.run();
}

protocol_clock::time_point connection_impl::lease_deadline(std::uint32_t id) const {
  const auto guard = link_.lock();
  return regions_->deadline(id);
}

} // namespace asio_rdma::detail
