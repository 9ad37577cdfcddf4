// SPDX-License-Identifier: BSL-1.0
// One side: its context, its device, the address by which the peer reaches it.
#pragma once

#include "report/results.hpp"

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/memory_region.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>

#include <string>

namespace perf {

namespace asio = boost::asio;

class side {
public:
  /// Opens the device of that name; without a name the one that has the address `reached`, by which
  /// the peer reaches this machine, or the best one. Throws `system_error`, or `std::runtime_error`
  /// if the device has no IP address, which rdma_cm needs.
  side(asio::io_context& context, const std::string& name, const asio::ip::address& reached);

  asio_rdma::completion_queue queue(mode how) const;
  /// Properties for the report.
  facts describe() const;

  asio::io_context& io;
  asio_rdma::device dev;
  asio_rdma::protection_domain pd;
  asio::ip::address address;
};

/// Facts of the peer, in one line for a control connection, and back: names and values are
/// separated by tabs. At most 16 facts are taken.
std::string to_line(const facts& all);
facts parse_facts(const std::string& line);

} // namespace perf
