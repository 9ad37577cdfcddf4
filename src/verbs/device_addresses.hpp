// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/ip/address.hpp>

#include <asio_rdma/error.hpp>

namespace asio_rdma::detail {

/// Whether `one` is the address `wanted`, which may lack its scope id.
bool matches(const asio::ip::address& one, const asio::ip::address& wanted);

} // namespace asio_rdma::detail
