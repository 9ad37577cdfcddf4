// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/remote_region.hpp>

#include "connection/connection_impl.hpp"

namespace asio_rdma {

detail::lease_handle::~lease_handle() {
  if (const auto c = connection.lock())
    c->release_lease(id);
}

std::chrono::steady_clock::time_point remote_region::deadline() const {
  const auto c = lease_ ? lease_->connection.lock() : nullptr;
  return c ? c->lease_deadline(lease_->id) : std::chrono::steady_clock::time_point::min();
}

remote_region remote_region::slice(std::uint64_t offset, std::uint64_t bytes,
                                   error_code& ec) const {
  ec.clear();
  remote_region result;
  if (offset > size() || bytes > size() - offset) {
    ec = make_error_code(boost::system::errc::result_out_of_range);
    return result;
  }
  result.lease_ = lease_;
  result.memory_ = (memory_ + offset).first(bytes);
  result.rights_ = rights_;
  return result;
}

remote_region remote_region::slice(std::uint64_t offset, std::uint64_t bytes) const {
  error_code ec;
  remote_region result = slice(offset, bytes, ec);
  detail::throw_if(ec, "remote_region::slice");
  return result;
}

} // namespace asio_rdma
