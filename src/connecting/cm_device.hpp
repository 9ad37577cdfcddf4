// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

#include "core/described_error.hpp"

#include <cstddef>
#include <cstring>
#include <string>

namespace asio_rdma::detail {

inline bool is_iwarp(const ibv_context* device) {
  return device->device->transport_type == IBV_TRANSPORT_IWARP;
}

/// librdmacm opens devices itself, so one device may be open twice.
inline bool same_device(const ibv_context* a, const ibv_context* b) {
  return std::strcmp(ibv_get_device_name(a->device), ibv_get_device_name(b->device)) == 0;
}

/// `error::wrong_device` for an address that leads to `way`, of a queue pair of `own`.
inline error_code describe_wrong_device(const ibv_context& way, const ibv_context& own) noexcept {
  return describe(error::wrong_device, [&] {
    return std::string("the address belongs to the RDMA device ") +
           ibv_get_device_name(way.device) + ", and the queue pair is of " +
           ibv_get_device_name(own.device) + " (device::open_for opens that of an address)";
  });
}

/// The size of a message's private data, if InfiniBand has room for `infiniband` bytes. siw counts
/// the bytes in eight bits, including four of its own (RFC 6581, section 9).
inline std::size_t most_data(const ibv_context* device, std::size_t infiniband) {
  return is_iwarp(device) ? 251 : infiniband;
}

} // namespace asio_rdma::detail
