// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string>

namespace test {

/// The resources that the kernel holds for this process ("rdma resource"), by kind.
std::string device_resources();

/// The number of open descriptors of this process that are no pipes.
std::size_t open_descriptors();

/// Fails the test if the kernel holds other resources, or other descriptors are open, at its
/// destruction than at its construction.
class resource_check {
public:
  resource_check();
  ~resource_check();
  resource_check(const resource_check&) = delete;
  resource_check& operator=(const resource_check&) = delete;

private:
  std::string before_;
  std::size_t descriptors_;
};

} // namespace test
