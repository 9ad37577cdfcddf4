# SPDX-License-Identifier: BSL-1.0
include("${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-targets.cmake")
