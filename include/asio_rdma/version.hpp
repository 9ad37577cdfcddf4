// SPDX-License-Identifier: BSL-1.0
#pragma once

// The only definition of the version: CMake and Conan read it from this file.
#define ASIO_RDMA_VERSION_MAJOR 0
#define ASIO_RDMA_VERSION_MINOR 1
#define ASIO_RDMA_VERSION_PATCH 0
