// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/device.hpp>

#include <string>
#include <utility>
#include <vector>

namespace trial {

using facts = std::vector<std::pair<std::string, std::string>>; ///< Names and values.

/// A description of the device, its port, and the software below the library. No name or address
/// of the machine, of a user, or of the network is among it, unless an administrator has given the
/// device or the kernel such a name.
facts facts_of(const asio_rdma::device& d);

} // namespace trial
