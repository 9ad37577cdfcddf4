// SPDX-License-Identifier: BSL-1.0
// Calls no function of the library. It links only with a library that was built with the same Boost
// and the same macros of Boost.Asio.
#include <asio_rdma/error.hpp>

int main() {}
