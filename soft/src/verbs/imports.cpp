// SPDX-License-Identifier: BSL-1.0
// ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3): objects of another
// process. The kernel finds them by the descriptor of their device. soft0 has neither.
#include "device/objects.hpp"
#include "verbs/functions.hpp"
#include "verbs/next.hpp"

#include <cerrno>
#include <cstddef>

using namespace soft;

namespace soft {
namespace {

std::nullptr_t not_supported() noexcept {
  errno = EOPNOTSUPP;
  return nullptr;
}

} // namespace
} // namespace soft

SOFT_EXPORT ibv_context* ibv_import_device(int descriptor) {
  const only_real_devices listed;
  return SOFT_NEXT(ibv_import_device)(descriptor);
}

SOFT_EXPORT ibv_pd* ibv_import_pd(ibv_context* c, std::uint32_t handle) {
  return is_soft(c) ? not_supported() : SOFT_NEXT(ibv_import_pd)(c, handle);
}
SOFT_EXPORT ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t handle) {
  return is_soft(pd->context) ? not_supported() : SOFT_NEXT(ibv_import_mr)(pd, handle);
}
SOFT_EXPORT ibv_dm* ibv_import_dm(ibv_context* c, std::uint32_t handle) {
  return is_soft(c) ? not_supported() : SOFT_NEXT(ibv_import_dm)(c, handle);
}

// No object of soft0 was imported.
SOFT_EXPORT void ibv_unimport_pd(ibv_pd* pd) {
  if (!is_soft(pd->context))
    SOFT_NEXT(ibv_unimport_pd)(pd);
}
SOFT_EXPORT void ibv_unimport_mr(ibv_mr* region) {
  if (!is_soft(region->context))
    SOFT_NEXT(ibv_unimport_mr)(region);
}
SOFT_EXPORT void ibv_unimport_dm(ibv_dm* memory) {
  if (!is_soft(memory->context))
    SOFT_NEXT(ibv_unimport_dm)(memory);
}
