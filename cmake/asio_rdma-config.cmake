# SPDX-License-Identifier: BSL-1.0
# Components: headers (the target asio_rdma::headers, for a program that compiles the library's sources itself, asio_rdma/src.hpp) and
# soft. The library itself, asio_rdma::asio_rdma, is always there, unless headers is the only component that is asked for.
include("${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-headers.cmake")
if(NOT "${asio_rdma_FIND_COMPONENTS}" STREQUAL "headers")
  include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-build.cmake")
  asio_rdma_find_boost_version(asio_rdma_boost asio_rdma_boost_folder)
  if(asio_rdma_boost AND asio_rdma_BOOST_VERSION AND NOT asio_rdma_boost VERSION_EQUAL asio_rdma_BOOST_VERSION)
    set(asio_rdma_FOUND FALSE)
    string(CONCAT asio_rdma_NOT_FOUND_MESSAGE
      "asio_rdma in ${CMAKE_CURRENT_LIST_DIR} was built with Boost ${asio_rdma_BOOST_VERSION}, but this project uses Boost "
      "${asio_rdma_boost} of ${asio_rdma_boost_folder}. Both must use the same version, because they share classes of Boost.Asio. "
      "Build asio_rdma with Boost ${asio_rdma_boost}, or use Boost ${asio_rdma_BOOST_VERSION}, or compile asio_rdma's sources with "
      "the program: find_package(asio_rdma COMPONENTS headers), target asio_rdma::headers, header asio_rdma/src.hpp.")
    return()
  endif()
  include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-targets.cmake")
  include("${CMAKE_CURRENT_LIST_DIR}/asio_rdma-soft.cmake" OPTIONAL)
endif()

foreach(component IN LISTS asio_rdma_FIND_COMPONENTS)
  if(TARGET asio_rdma::${component})
    set(asio_rdma_${component}_FOUND TRUE)
  elseif(asio_rdma_FIND_REQUIRED_${component})
    set(asio_rdma_FOUND FALSE)
    set(asio_rdma_NOT_FOUND_MESSAGE "this installation has no component ${component} (soft: configure with ASIO_RDMA_SOFT=ON)")
  endif()
endforeach()
