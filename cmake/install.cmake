# SPDX-License-Identifier: BSL-1.0
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/asio_rdma")
install(TARGETS asio_rdma EXPORT asio_rdma FILE_SET HEADERS)
install(EXPORT asio_rdma NAMESPACE asio_rdma:: FILE asio_rdma-targets.cmake DESTINATION "${package_dir}")
# The component soft: the software device, its wrapper and its header.
if(TARGET asio_rdma_soft)
  install(TARGETS asio_rdma_soft EXPORT asio_rdma_soft)
  if(TARGET asio_rdma_soft_preload) # the wrapper finds it beside the device
    install(TARGETS asio_rdma_soft_preload LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
  target_include_directories(asio_rdma_soft INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(EXPORT asio_rdma_soft NAMESPACE asio_rdma:: FILE asio_rdma-soft.cmake DESTINATION "${package_dir}")
  install(FILES "${PROJECT_SOURCE_DIR}/soft/include/asio_rdma_soft.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/soft/run" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME asio_rdma_soft_run)
endif()

if(TARGET asio_rdma_trial)
  install(TARGETS asio_rdma_trial DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

write_basic_package_version_file("${PROJECT_BINARY_DIR}/asio_rdma-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/asio_rdma-config.cmake" "${PROJECT_SOURCE_DIR}/cmake/dependencies.cmake"
              "${PROJECT_BINARY_DIR}/asio_rdma-config-version.cmake" DESTINATION "${package_dir}")

# Relative to the file itself, so that a tree that is moved after installing still works.
file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/asio_rdma.pc.in" "${PROJECT_BINARY_DIR}/asio_rdma.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/asio_rdma.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
