// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/device.hpp>

#include <string>
#include <utility>
#include <vector>

namespace trial {

using facts = std::vector<std::pair<std::string, std::string>>; ///< Names and values.

/// A description of the build, of the device, its port, and the software below the library. No name
/// or address of the machine, of a user, or of the network is among it, unless an administrator has
/// given the device or the kernel such a name.
facts facts_of(const asio_rdma::device& d);

/// Of the environment, the variables that change habits of providers and of this library. Paths and
/// addresses of their values are left out; "none" if there is no such variable.
std::string environment_of(const char* const* variables);

} // namespace trial
