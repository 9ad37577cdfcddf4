# SPDX-License-Identifier: BSL-1.0
# Programs that are installed with the library.

# asio_rdma_installed_program(TARGET): links the library, and compiles and links TARGET so that users can copy it.
function(asio_rdma_installed_program target)
  target_link_libraries(${target} PRIVATE asio_rdma::asio_rdma)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src") # for headers that need nothing of the library
  asio_rdma_program(${target})
  # An installed program finds a shared library that is installed with it, also after the installation was moved. In a folder of
  # the system the dynamic linker finds the library by itself, and packages of distributions must name no folder.
  get_target_property(library_type asio_rdma TYPE)
  if(library_type STREQUAL "SHARED_LIBRARY"
     AND NOT CMAKE_INSTALL_FULL_LIBDIR IN_LIST CMAKE_PLATFORM_IMPLICIT_LINK_DIRECTORIES
     AND NOT CMAKE_INSTALL_FULL_LIBDIR IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    file(RELATIVE_PATH to_library "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_library}")
  endif()
  # Users copy the program to machines with an older C++ library and an older glibc. Removing unused sections removes
  # std::random_device, which in gcc 12 needs glibc 2.36. libgcc stays shared: each system has it, and a static one needs glibc
  # 2.35. A shared asio_rdma needs the C++ library in any case.
  if(library_type STREQUAL "STATIC_LIBRARY" AND NOT ASIO_RDMA_SANITIZE)
    include(CheckLinkerFlag)
    set(portable -static-libstdc++ LINKER:--gc-sections)
    check_linker_flag(CXX "${portable}" ASIO_RDMA_HAS_STATIC_LIBSTDCXX)
    if(ASIO_RDMA_HAS_STATIC_LIBSTDCXX)
      target_link_options(${target} PRIVATE ${portable})
    endif()
  endif()
endfunction()
