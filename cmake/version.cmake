# SPDX-License-Identifier: BSL-1.0

# Sets OUT to the version that include/asio_rdma/version.hpp states, as MAJOR.MINOR.PATCH.
function(asio_rdma_read_version out)
  file(READ "${CMAKE_CURRENT_LIST_DIR}/include/asio_rdma/version.hpp" header)
  set(version)
  foreach(part MAJOR MINOR PATCH)
    if(NOT header MATCHES "#define ASIO_RDMA_VERSION_${part} ([0-9]+)")
      message(FATAL_ERROR "include/asio_rdma/version.hpp does not define ASIO_RDMA_VERSION_${part}")
    endif()
    list(APPEND version "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()
