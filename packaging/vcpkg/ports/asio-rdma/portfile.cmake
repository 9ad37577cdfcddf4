# SPDX-License-Identifier: BSL-1.0
# An overlay port: its sources are the tree that it is in.
cmake_path(SET SOURCE_PATH NORMALIZE "${CURRENT_PORT_DIR}/../../../..")

vcpkg_check_features(
  OUT_FEATURE_OPTIONS feature_options
  FEATURES soft ASIO_RDMA_SOFT
           tools ASIO_RDMA_INFO
           tools ASIO_RDMA_PERF
           tools ASIO_RDMA_TRIAL)
vcpkg_find_acquire_program(PKGCONFIG)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DASIO_RDMA_LIBRARY_ONLY=ON
    -DASIO_RDMA_PRECOMPILE=OFF
    -DCMAKE_UNITY_BUILD=ON
    # asio_rdma-info starts a program there, which follows it below.
    -DCMAKE_INSTALL_LIBEXECDIR=bin/libexec
    "-DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}"
    ${feature_options}
  OPTIONS_DEBUG
    -DASIO_RDMA_INFO=OFF
    -DASIO_RDMA_PERF=OFF
    -DASIO_RDMA_TRIAL=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME asio_rdma CONFIG_PATH lib/cmake/asio_rdma)
vcpkg_fixup_pkgconfig()

if("tools" IN_LIST FEATURES)
  file(COPY "${CURRENT_PACKAGES_DIR}/bin/libexec" DESTINATION "${CURRENT_PACKAGES_DIR}/tools/${PORT}")
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin/libexec")
  vcpkg_copy_tools(TOOL_NAMES asio_rdma-info asio_rdma-perf asio_rdma-trial)
endif()
if("soft" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES asio_rdma_soft_run)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin" "${CURRENT_PACKAGES_DIR}/debug/bin" "${CURRENT_PACKAGES_DIR}/debug/include"
     "${CURRENT_PACKAGES_DIR}/debug/share" "${CURRENT_PACKAGES_DIR}/share/doc")

file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
