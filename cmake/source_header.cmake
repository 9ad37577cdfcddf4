# SPDX-License-Identifier: BSL-1.0
# cmake -D TO=FOLDER -P source_header.cmake: writes asio_rdma/src.hpp into FOLDER, and beside it, in asio_rdma/src, the sources that
# it includes. They include their private headers by relative paths, so a program needs no further include folder. A file that is
# current keeps its time.
cmake_minimum_required(VERSION 3.25...3.31)
cmake_path(SET from NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../src")
set(to "${TO}/asio_rdma")
file(GLOB sources RELATIVE "${from}" "${from}/*/*.cpp")
file(GLOB headers RELATIVE "${from}" "${from}/*/*.hpp")
list(SORT sources)

set(includes "")
foreach(name IN LISTS sources headers)
  file(READ "${from}/${name}" text)
  string(REGEX REPLACE "#include \"([a-z_]+/)" "#include \"../\\1" text "${text}")
  file(CONFIGURE OUTPUT "${to}/src/${name}" CONTENT "${text}" @ONLY)
endforeach()
foreach(name IN LISTS sources)
  string(APPEND includes "#include \"src/${name}\"\n")
endforeach()
file(CONFIGURE OUTPUT "${to}/src.hpp" CONTENT "// SPDX-License-Identifier: BSL-1.0
// The sources of the library, for a program that compiles them itself, with its own Boost. Exactly one source file of the program
// includes this file. The program links libibverbs and librdmacm, and not the library.
#pragma once
#pragma GCC system_header // the warnings of the program are not for the library

#include <asio_rdma/detail/core/build.hpp>

${includes}")
