// SPDX-License-Identifier: BSL-1.0
// libFuzzer's entry, for the function SOFT_FUZZED, which SOFT_FUZZED_HEADER declares.
#include SOFT_FUZZED_HEADER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return SOFT_FUZZED(data, size);
}
