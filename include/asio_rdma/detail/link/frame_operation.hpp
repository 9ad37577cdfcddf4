// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/intrusive/list.hpp>

#include <chrono>

namespace asio_rdma::detail {

using protocol_clock = std::chrono::steady_clock;

/// The base of a driver's operation. It is a node for the lists of the link's parts, so any number
/// of operations can wait without an allocation.
class frame_operation : public boost::intrusive::list_base_hook<
                            boost::intrusive::link_mode<boost::intrusive::normal_link>> {
protected:
  frame_operation() = default;
  ~frame_operation() = default;
  frame_operation(const frame_operation&) = delete;
};

using frame_operation_list =
    boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;

} // namespace asio_rdma::detail
