// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <cerrno>
#include <concepts>
#include <sys/random.h>

namespace asio_rdma::detail {

/// A random number of the kernel (getrandom(2)). `std::random_device` is avoided: linked
/// statically, that of gcc 12 needs arc4random of glibc 2.36, and programs shall start where glibc
/// is older. Throws `system_error` if the kernel has none.
template <std::unsigned_integral Integer>
Integer random_bits() {
  Integer result = 0;
  while (::getrandom(&result, sizeof result, 0) != sizeof result) // all, if so few are wanted
    if (errno != EINTR)
      throw system_error(system_error_code(errno), "getrandom");
  return result;
}

} // namespace asio_rdma::detail
