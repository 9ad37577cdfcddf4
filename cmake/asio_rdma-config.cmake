# SPDX-License-Identifier: BSL-1.0
include("${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-targets.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-soft.cmake" OPTIONAL)

foreach(component IN LISTS asio_rdma_FIND_COMPONENTS)
  if(TARGET asio_rdma::${component})
    set(asio_rdma_${component}_FOUND TRUE)
  elseif(asio_rdma_FIND_REQUIRED_${component})
    set(asio_rdma_FOUND FALSE)
    set(asio_rdma_NOT_FOUND_MESSAGE "this installation has no component ${component} (soft: configure with ASIO_RDMA_SOFT=ON)")
  endif()
endforeach()
