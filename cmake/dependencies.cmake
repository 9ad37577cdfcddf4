# SPDX-License-Identifier: BSL-1.0
# The library's dependencies. The installed package includes this file too (asio_rdma-config.cmake).

# GLOBAL, so that a project that uses asio_rdma by add_subdirectory sees the targets.
if(NOT TARGET Boost::headers)
  find_package(Boost 1.81 REQUIRED GLOBAL)
endif()
if(NOT TARGET Threads::Threads)
  find_package(Threads REQUIRED GLOBAL)
endif()
if(NOT TARGET PkgConfig::asio_rdma_verbs)
  find_package(PkgConfig REQUIRED)
  # librdmacm's version ends with that of rdma-core: 1.3.33 is rdma-core 33.
  pkg_check_modules(asio_rdma_verbs REQUIRED IMPORTED_TARGET GLOBAL libibverbs librdmacm>=1.3.33)
endif()
