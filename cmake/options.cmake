# SPDX-License-Identifier: BSL-1.0
# How the project's own targets are compiled.

if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14))
  message(FATAL_ERROR "asio_rdma needs gcc 12, clang 14 or newer, and this is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
endif()

# The project has no modules, and scanning for them costs a process for each source.
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  find_program(ASIO_RDMA_CCACHE ccache)
  if(ASIO_RDMA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # ccache reuses objects made with a precompiled header only if time macros are declared irrelevant.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${ASIO_RDMA_CCACHE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options(-fpch-preprocess)
    endif()
  endif()
endif()

if(ASIO_RDMA_SANITIZE)
  # A sanitizer needs the whole program, so these options apply to every target below this folder and to the targets that link
  # them.
  set(sanitize -fsanitize=${ASIO_RDMA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # clang 14 cannot compile coroutines with this check ("Cannot represent a difference across sections").
    list(APPEND sanitize -fno-sanitize=function)
  endif()
  add_compile_options(${sanitize})
  add_link_options(${sanitize})
endif()

# Gives TARGET the project's warnings, if they are enabled.
function(asio_rdma_warnings target)
  if(NOT ASIO_RDMA_WARNINGS AND NOT ASIO_RDMA_WARNINGS_AS_ERRORS)
    return()
  endif()
  target_compile_options(
    ${target}
    PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual
            -Wcast-align -Woverloaded-virtual -Wextra-semi -Wundef -Wimplicit-fallthrough)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wduplicated-cond -Wlogical-op -Wredundant-decls)
    # verbs_get_ctx computes the address of the structure that contains the ibv_context; gcc 13 and later warn about that. gcc
    # also takes an empty std::optional, inlined into Boost.Asio, for an uninitialised value. For the frames of Boost.Asio's
    # coroutines gcc sees the inlined delete but not the new. It does not see that an intrusive list, a local variable, is
    # emptied before its end.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-mismatched-new-delete
                                             -Wno-dangling-pointer)
    if(ASIO_RDMA_SANITIZE STREQUAL "thread")
      # ThreadSanitizer does not know fences, which Boost.Asio uses.
      target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # The macros of verbs.h use these extensions.
    target_compile_options(${target} PRIVATE -Wno-gnu-statement-expression -Wno-deprecated-enum-enum-conversion)
  endif()
  if(CMAKE_UNITY_BUILD)
    # A name of one source and a local one of another, compiled as one.
    target_compile_options(${target} PRIVATE -Wno-shadow)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # which takes a source of several for a header
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
  if(ASIO_RDMA_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# asio_rdma_program(TARGET): how examples and benchmarks are compiled. A shared library's precompiled header is of no use to a
# program: it is position-independent.
function(asio_rdma_program target)
  asio_rdma_warnings(${target})
  if(ASIO_RDMA_PRECOMPILE AND NOT BUILD_SHARED_LIBS)
    target_precompile_headers(${target} REUSE_FROM asio_rdma)
  endif()
endfunction()
