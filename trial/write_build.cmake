# SPDX-License-Identifier: BSL-1.0
# cmake -D SOURCE=… -D OUTPUT=… -D GIT=… -D TYPE=… -D COMPILER=… -D RDMA_CORE=… -P write_build.cmake: writes the header that describes
# this build. Runs in each build, because a commit changes no file of the tree. The header is left as it is if nothing has changed.
set(commit "unknown")
if(GIT)
  # A copy of the sources may lie in another project's tree.
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" rev-parse --show-toplevel
                  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE}" source)
  if(top STREQUAL source)
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" describe --always --dirty --exclude * --abbrev=12
                    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found)
      set(commit "${found}")
    endif()
  endif()
endif()
# librdmacm's version ends with that of rdma-core.
string(REGEX REPLACE "^1\\.[0-9]+\\." "" RDMA_CORE "${RDMA_CORE}")
foreach(value IN ITEMS TYPE COMPILER RDMA_CORE)
  if("${${value}}" STREQUAL "")
    set(${value} "unknown")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Written by trial/write_build.cmake.
#pragma once

namespace trial::build {

inline constexpr const char *commit = "@commit@", *type = "@TYPE@", *compiler = "@COMPILER@", *rdma_core = "@RDMA_CORE@";

} // namespace trial::build
]])
