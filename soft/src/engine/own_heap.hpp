// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_OWN_HEAP_HPP
#define SOFT_ENGINE_OWN_HEAP_HPP

namespace soft {

/// While the process forks, so that no other thread is in the middle of an allocation.
void lock_heap() noexcept;
void unlock_heap() noexcept;

} // namespace soft

#endif
