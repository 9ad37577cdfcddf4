// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_VERBS_NEXT_HPP
#define SOFT_VERBS_NEXT_HPP

namespace soft {

/// The function of this name in libibverbs, or nullptr. In the newest version: dlsym(3) finds the
/// oldest, which takes other structures.
void* next(const char* name) noexcept;

} // namespace soft

/// Calls the real library's function.
#define SOFT_NEXT(function)                                                                        \
  ([]() noexcept {                                                                                 \
    static auto* const found = reinterpret_cast<decltype(&::function)>(::soft::next(#function));   \
    return found;                                                                                  \
  }())
#define SOFT_EXPORT extern "C" __attribute__((visibility("default")))

#endif
