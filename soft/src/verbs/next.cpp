// SPDX-License-Identifier: BSL-1.0
#include "verbs/next.hpp"

#include <dlfcn.h>
#include <string>

namespace soft {

void* next(const char* name) noexcept {
  for (int minor = 20; minor >= 0; --minor)
    if (void* const found = dlvsym(RTLD_NEXT, name, ("IBVERBS_1." + std::to_string(minor)).c_str()))
      return found;
  return dlvsym(RTLD_NEXT, name, "IBVERBS_PRIVATE_34");
}

} // namespace soft
