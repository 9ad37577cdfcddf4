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

# asio_rdma_find_boost_version(RESULT FOLDER): the version of Boost that targets compile with, as MAJOR.MINOR.PATCH, and the folder of its
# headers. Both are empty if that is not found, for example because Boost is a subproject.
function(asio_rdma_find_boost_version result folder)
  set(version)
  set(place)
  get_target_property(folders Boost::headers INTERFACE_INCLUDE_DIRECTORIES)
  if(NOT folders)
    set(folders)
  endif()
  foreach(candidate IN LISTS folders Boost_INCLUDE_DIRS)
    if(NOT version AND EXISTS "${candidate}/boost/version.hpp")
      file(STRINGS "${candidate}/boost/version.hpp" line REGEX "^#define BOOST_VERSION [0-9]+")
      if(line MATCHES "([0-9]+)$")
        math(EXPR major "${CMAKE_MATCH_1} / 100000")
        math(EXPR minor "${CMAKE_MATCH_1} / 100 % 1000")
        math(EXPR patch "${CMAKE_MATCH_1} % 100")
        set(version ${major}.${minor}.${patch})
        set(place "${candidate}")
      endif()
    endif()
  endforeach()
  set(${result} "${version}" PARENT_SCOPE)
  set(${folder} "${place}" PARENT_SCOPE)
endfunction()
