# SPDX-License-Identifier: BSL-1.0
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/asio_rdma")
# All but the programs, which the component `tools` has.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME library)

install(TARGETS asio_rdma EXPORT asio_rdma FILE_SET HEADERS)
install(EXPORT asio_rdma NAMESPACE asio_rdma:: FILE asio_rdma-targets.cmake DESTINATION "${package_dir}")
install(TARGETS asio_rdma_headers EXPORT asio_rdma_headers)
install(EXPORT asio_rdma_headers NAMESPACE asio_rdma:: FILE asio_rdma-headers.cmake DESTINATION "${package_dir}")
# asio_rdma/src.hpp and the sources that it includes.
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" -D \"TO=\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\"
  -P \"${PROJECT_SOURCE_DIR}/cmake/source_header.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
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

# For people who look at a running program (docs/observing.md).
install(PROGRAMS "${PROJECT_SOURCE_DIR}/tools/latency.bt" DESTINATION "${CMAKE_INSTALL_DATADIR}/asio_rdma")

foreach(program asio_rdma_trial asio_rdma_info asio_rdma_perf)
  if(TARGET ${program})
    install(TARGETS ${program} DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
  endif()
endforeach()
if(TARGET asio_rdma_info_try)
  install(TARGETS asio_rdma_info_try DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/asio_rdma" COMPONENT tools)
endif()

# The version of Boost, which asio_rdma-config.cmake compares with the user's.
asio_rdma_find_boost_version(boost boost_folder)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/asio_rdma-build.cmake" CONTENT "set(asio_rdma_BOOST_VERSION @boost@)\n" @ONLY)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/asio_rdma-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/asio_rdma-config.cmake" "${PROJECT_SOURCE_DIR}/cmake/dependencies.cmake"
              "${PROJECT_BINARY_DIR}/asio_rdma-config-version.cmake" "${PROJECT_BINARY_DIR}/asio_rdma-build.cmake" DESTINATION "${package_dir}")

# Relative to the file itself, so that a tree that is moved after installing still works.
file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
# asio_rdma-headers is for a program that compiles the library's sources itself.
foreach(name IN ITEMS asio_rdma asio_rdma-headers)
  set(pc_library "-L\${libdir} -lasio_rdma ")
  if(name STREQUAL "asio_rdma-headers")
    set(pc_library)
  endif()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/asio_rdma.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()

# The licence, the pages and the examples that they quote. Links between them work as in the repository (tools/check-readme --installed).
# Links to sources, tests and scripts lead to files that only the repository has. A package's sources may be without pages.
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
if(EXISTS "${PROJECT_SOURCE_DIR}/docs")
  foreach(page IN ITEMS README CHANGELOG CONTRIBUTING SECURITY benchmarks/README info/README lab/README packaging/README perf/README
                        soft/README tools/README)
    cmake_path(GET page PARENT_PATH folder)
    install(FILES "${PROJECT_SOURCE_DIR}/${page}.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}/${folder}")
  endforeach()
  install(FILES "${PROJECT_SOURCE_DIR}/benchmarks/instructions.svg" "${PROJECT_SOURCE_DIR}/benchmarks/results.svg"
          "${PROJECT_SOURCE_DIR}/benchmarks/streams.svg"
          DESTINATION "${CMAKE_INSTALL_DOCDIR}/benchmarks")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/perf/results" DESTINATION "${CMAKE_INSTALL_DOCDIR}/perf")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/src" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
          FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "trials/*.txt" PATTERN "docs/site" EXCLUDE)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/example" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
          FILES_MATCHING PATTERN "*.cpp" PATTERN "*.hpp")
endif()
