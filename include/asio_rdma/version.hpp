// SPDX-License-Identifier: BSL-1.0
#pragma once

// The only place where the version is written: CMake and Conan read it from here.
#define ASIO_RDMA_VERSION_MAJOR 0
#define ASIO_RDMA_VERSION_MINOR 1
#define ASIO_RDMA_VERSION_PATCH 0
