# SPDX-License-Identifier: BSL-1.0
# Functions that declare tests; ctest knows every test.

find_package(Catch2 REQUIRED)

# asio_rdma_test_options(TARGET LEVEL): how test programs, and the libraries that they share, are compiled. In the optimised
# build a test is mostly instantiated templates, and -g1 takes a quarter of the time of its compilation. Programs for devices
# wait for a kernel, so they are not optimised (LEVEL -O0); the others search many cases (-O1). The library keeps its own options.
function(asio_rdma_test_options target level)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${level};-g0>")
  asio_rdma_warnings(${target})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 22)
    # Catch2's macros use __COUNTER__.
    target_compile_options(${target} PRIVATE -Wno-c2y-extensions)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # At -O1 gcc 12 takes an append to a std::string for an overflow of its inner buffer.
    target_compile_options(${target} PRIVATE -Wno-stringop-overflow)
  endif()
endfunction()

# The main function of every test program, compiled once. Catch2 2 has no library that contains one.
add_library(asio_rdma_test_base STATIC "${PROJECT_SOURCE_DIR}/test/catch_main.cpp")
# Some tests include private headers of the library.
target_include_directories(asio_rdma_test_base PUBLIC "${PROJECT_SOURCE_DIR}/test" "${PROJECT_SOURCE_DIR}/src"
                                                      "${PROJECT_SOURCE_DIR}/soft/include")
target_link_libraries(asio_rdma_test_base PUBLIC asio_rdma::asio_rdma Catch2::Catch2)
asio_rdma_test_options(asio_rdma_test_base -O0)
# Boost.Asio and Catch2 are parsed once for all test programs; parsing them takes two thirds of each compilation. No header of
# this project is among them: ccache shares the precompiled header between clones, and gcc takes a header of another clone for
# another header, in spite of its #pragma once. The source file is there because CMake makes no precompiled header for a
# target without one. The library above cannot provide the header: it includes Catch2 in another way.
if(Catch2_VERSION VERSION_LESS 3)
  set(catch_header <catch2/catch.hpp>)
else()
  set(catch_header <catch2/catch_all.hpp>)
endif()
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test/precompiled.cpp" CONTENT "// Compiled for the precompiled header.\n")
function(asio_rdma_precompiled_for_tests name level)
  add_library(${name} OBJECT "${PROJECT_BINARY_DIR}/test/precompiled.cpp")
  target_link_libraries(${name} PRIVATE asio_rdma_test_base)
  asio_rdma_test_options(${name} ${level})
  target_precompile_headers(${name} PRIVATE ${catch_header} <boost/asio.hpp>)
endfunction()
asio_rdma_precompiled_for_tests(asio_rdma_test_headers -O1)
asio_rdma_precompiled_for_tests(asio_rdma_device_test_headers -O0)

# asio_rdma_test_program(NAME [DEVICE] SOURCE…): a test program that ctest does not run by itself; DEVICE: it needs a device.
function(asio_rdma_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "DEVICE" "" "")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE asio_rdma_test_base)
  if(arg_DEVICE)
    target_precompile_headers(${name} REUSE_FROM asio_rdma_device_test_headers)
    asio_rdma_test_options(${name} -O0)
  else()
    target_precompile_headers(${name} REUSE_FROM asio_rdma_test_headers)
    asio_rdma_test_options(${name} -O1)
  endif()
endfunction()

# asio_rdma_test_library(NAME USED SOURCE…): code that several test programs for devices share. USED is the library that it needs itself.
function(asio_rdma_test_library name used)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC ${used})
  target_precompile_headers(${name} REUSE_FROM asio_rdma_device_test_headers)
  asio_rdma_test_options(${name} -O0)
endfunction()

# asio_rdma_lab_options(RESULT OPTION…): options of tools/with-device for a program of this build.
function(asio_rdma_lab_options result)
  set(options ${ARGN})
  if(ASIO_RDMA_SANITIZE MATCHES "address|thread")
    # Shadow memory of these sanitizers needs 47 bits of address space, and User-Mode Linux 6.1 gives programs 39.
    list(APPEND options --kernel new)
  endif()
  set(${result} ${options} PARENT_SCOPE)
endfunction()

# The kinds of device that tests run on: the kernel's two, in the lab or not, and a real device if this machine has one.
set(devices rxe siw)
execute_process(COMMAND "${PROJECT_SOURCE_DIR}/tools/with-device" --device real --which
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
if(status EQUAL 0)
  list(APPEND devices real)
endif()
# The software device runs in the test's own process.
if(TARGET asio_rdma::soft)
  list(APPEND devices soft)
endif()
set(ASIO_RDMA_TEST_DEVICES ${devices} CACHE INTERNAL "")

# asio_rdma_prepare(TEST NAME LABELS OPTION…): before TEST, in time of its own, the test prepare.NAME builds the lab's kernel if
# tools/with-device with these options needs it and it is not there yet. LABELS are those of TEST, by which ./dev test leaves
# both out.
function(asio_rdma_prepare test name labels)
  get_property(known GLOBAL PROPERTY ASIO_RDMA_PREPARED)
  if(NOT name IN_LIST known)
    set_property(GLOBAL APPEND PROPERTY ASIO_RDMA_PREPARED ${name})
    add_test(NAME prepare.${name} COMMAND "${PROJECT_SOURCE_DIR}/tools/with-device" ${ARGN} --prepare)
    set_tests_properties(prepare.${name} PROPERTIES LABELS "${labels}" TIMEOUT 7200 SKIP_RETURN_CODE 125
                                                    FIXTURES_SETUP asio_rdma_${name})
  endif()
  set_tests_properties(${test} PROPERTIES FIXTURES_REQUIRED asio_rdma_${name})
endfunction()

# asio_rdma_run_on_soft(NAME LABELS TIMEOUT COMMAND…): one test in the same process as the software device.
function(asio_rdma_run_on_soft name labels limit)
  add_test(NAME ${name} COMMAND "${PROJECT_SOURCE_DIR}/soft/run" --library $<TARGET_FILE:asio_rdma_soft> ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${limit} PROCESSORS 2) # it has threads
endfunction()

# asio_rdma_run_on_devices(NAME [DEVICES rxe siw real soft] [HOSTS 2] [TIMEOUT seconds] COMMAND …): one test NAME.KIND for each kind
# of device, run by tools/with-device. Exit status 125 is the lab's: this machine cannot run the lab.
function(asio_rdma_run_on_devices name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HOSTS;TIMEOUT" "DEVICES;COMMAND")
  if(NOT arg_DEVICES)
    set(arg_DEVICES ${ASIO_RDMA_TEST_DEVICES})
  endif()
  # The lab's own limit is shorter, because its report says more than ctest's.
  asio_rdma_lab_options(options --time-limit ${arg_TIMEOUT})
  math(EXPR limit "${arg_TIMEOUT} + 30")
  set(hosts "")
  set(labels device)
  if(arg_HOSTS)
    list(APPEND options --hosts ${arg_HOSTS})
    list(REMOVE_ITEM arg_DEVICES real soft)
    set(hosts ".hosts")
    list(APPEND labels lab)
  endif()
  foreach(device IN LISTS arg_DEVICES)
    if(device STREQUAL "soft" AND NOT TARGET asio_rdma::soft)
      continue() # ASIO_RDMA_SOFT=OFF
    endif()
    if(device STREQUAL "soft" AND ASIO_RDMA_SANITIZE AND NOT arg_COMMAND MATCHES "^\\$<TARGET_FILE:")
      continue() # a script cannot preload a device that is compiled with a sanitizer
    endif()
    if(device STREQUAL "soft")
      asio_rdma_run_on_soft(${name}.soft "device;soft" ${limit} ${arg_COMMAND})
      continue()
    endif()
    add_test(NAME ${name}.${device}
             COMMAND "${PROJECT_SOURCE_DIR}/tools/with-device" --device ${device} ${options} -- ${arg_COMMAND})
    set_tests_properties(${name}.${device} PROPERTIES LABELS "${labels};${device}" TIMEOUT ${limit} SKIP_RETURN_CODE 125)
    if(NOT device STREQUAL "real")
      asio_rdma_prepare(${name}.${device} ${device}${hosts} "${labels};${device}" --device ${device} ${options})
    endif()
  endforeach()
endfunction()

# asio_rdma_unit_test(NAME SOURCE…): needs no device; the test is called unit.NAME.
function(asio_rdma_unit_test name)
  asio_rdma_test_program(test_unit_${name} ${ARGN})
  add_test(NAME unit.${name} COMMAND test_unit_${name})
  set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT 600) # a search takes 120 s under a sanitizer
endfunction()

# asio_rdma_device_test(NAME [DEVICES rxe siw real soft] [HOSTS 2] [CONCURRENT] [UNSANITIZED] [ALONE] [PERSONALITIES kind …] [ERDMA_LIMITS] [TIMEOUT seconds] [USES library …]
# SOURCES … [WITH helper …] [ARGS …]): a test on devices, which runs the test cases of SOURCES. Its name begins with that of its folder.
# The tests of a folder share a program, test_FOLDER, and several sources are compiled as one, which halves the time: each
# source has a namespace of its own. An interposer among the libraries (test/interposer) makes it another program, as it
# concerns all of it. ALONE: a program of its own, test_NAME, with all of its test cases and the arguments ARGS.
# Under ThreadSanitizer only the CONCURRENT tests run. UNSANITIZED tests are ALONE and run under no sanitizer of memory or threads.
# PERSONALITIES: it also runs on soft with the limits and habits of these kinds of adapter, as the test personality.KIND.NAME.
# The kind `late_placement` is no adapter, but iWARP's order of WRITEs: their bytes are in memory after their completion.
# ERDMA_LIMITS: it also runs on rxe and siw with the limits of erdma, as the test erdma_limits.NAME.KIND: soft never has erdma's transport.
# STARTS_PROGRAMS: it starts programs of the system, which cannot preload the device if that is compiled with a sanitizer.
function(asio_rdma_device_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ALONE;CONCURRENT;ERDMA_LIMITS;UNSANITIZED;STARTS_PROGRAMS" "HOSTS;TIMEOUT" "DEVICES;PERSONALITIES;USES;SOURCES;WITH;ARGS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(program test_${name})
  set(cases)
  if(NOT (arg_ALONE OR arg_UNSANITIZED))
    list(GET arg_SOURCES 0 folder)
    cmake_path(GET folder PARENT_PATH folder)
    set(interposers ${arg_USES})
    list(FILTER interposers INCLUDE REGEX "^asio_rdma_(faults|failing_allocation)$")
    list(TRANSFORM interposers REPLACE "asio_rdma" "")
    list(SORT interposers)
    list(JOIN interposers "" suffix)
    set(program test_${folder}${suffix})
    # Catch2's tags for the names of files (option -#), but no hidden test case.
    list(TRANSFORM arg_SOURCES REPLACE ".*/(.*)\\.cpp$" "[#\\1]~[.]" OUTPUT_VARIABLE cases)
    list(JOIN cases "," cases)
    list(PREPEND cases "-#")
    # A source without a test case is an error.
    if(Catch2_VERSION VERSION_LESS 3)
      list(PREPEND cases -w NoTests)
    else()
      list(PREPEND cases -w UnmatchedTestSpec)
    endif()
  endif()
  if(NOT TARGET ${program})
    asio_rdma_test_program(${program} DEVICE)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    if(cases)
      set_target_properties(${program} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # which takes a source of several for a header
        target_compile_options(${program} PRIVATE -Wno-subobject-linkage)
      endif()
    endif()
  endif()
  target_sources(${program} PRIVATE ${arg_SOURCES} ${arg_WITH})
  target_link_libraries(${program} PRIVATE ${arg_USES})
  if((ASIO_RDMA_SANITIZE STREQUAL "thread" AND NOT arg_CONCURRENT)
     OR (ASIO_RDMA_SANITIZE MATCHES "address|thread" AND arg_UNSANITIZED))
    return()
  endif()
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL FALSE)
  if(arg_STARTS_PROGRAMS AND ASIO_RDMA_SANITIZE)
    set(arg_DEVICES ${ASIO_RDMA_TEST_DEVICES})
    list(REMOVE_ITEM arg_DEVICES soft)
  endif()
  asio_rdma_run_on_devices(${name} DEVICES ${arg_DEVICES} HOSTS ${arg_HOSTS} TIMEOUT ${arg_TIMEOUT}
                           COMMAND $<TARGET_FILE:${program}> ${cases} ${arg_ARGS})
  if(arg_ERDMA_LIMITS AND NOT ASIO_RDMA_SANITIZE) # a program that has a sanitizer preloads nothing
    asio_rdma_run_on_devices(erdma_limits.${name} DEVICES rxe siw TIMEOUT ${arg_TIMEOUT}
                             COMMAND env LD_PRELOAD=$<TARGET_FILE:asio_rdma_erdma_limits> $<TARGET_FILE:${program}> ${cases} ${arg_ARGS})
    set_tests_properties(erdma_limits.${name}.rxe erdma_limits.${name}.siw PROPERTIES FAIL_REGULAR_EXPRESSION "cannot be preloaded")
  endif()
  if("soft" IN_LIST ASIO_RDMA_TEST_DEVICES)
    foreach(kind IN LISTS arg_PERSONALITIES)
      set(test personality.${kind}.${name})
      asio_rdma_run_on_soft(${test} "device;soft;personality" ${arg_TIMEOUT} $<TARGET_FILE:${program}> ${cases} ${arg_ARGS})
      if(kind STREQUAL "late_placement")
        set(kind "late_placement=20ms")
      endif()
      set_tests_properties(${test} PROPERTIES ENVIRONMENT ASIO_RDMA_SOFT=${kind})
    endforeach()
  endif()
endfunction()

# asio_rdma_lab_test(NAME KERNEL TIMEOUT COMMAND ARGUMENT…): a test that always runs in the lab.
function(asio_rdma_lab_test name kernel limit)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS "device;lab" TIMEOUT ${limit} SKIP_RETURN_CODE 125)
  asio_rdma_prepare(${name} lab.${kernel} "device;lab" --lab --kernel ${kernel})
endfunction()
