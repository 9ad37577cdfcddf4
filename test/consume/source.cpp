// SPDX-License-Identifier: BSL-1.0
// The source file of a program that compiles the library.
#include <asio_rdma/src.hpp>
