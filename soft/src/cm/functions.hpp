// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_CM_FUNCTIONS_HPP
#define SOFT_CM_FUNCTIONS_HPP

#include "cm/cm_id.hpp"

#include <cerrno>

namespace soft {

// Parts of the functions that librdmacm exports.

/// Sets errno and returns -1.
inline int fail(int error) noexcept {
  errno = error;
  return -1;
}
/// If the id is synchronous, waits for the event of the operation that it has begun. The engine
/// must not be locked.
int finish(cm_id& id);
/// The queue pair of an id becomes ready, as in rdma_accept(3) and in the library's own part of
/// rdma_connect(3). An error number.
int make_ready(cm_id& id);
/// The queue pair of an id, if it has one, fails.
void end_queue_pair(cm_id& id);

} // namespace soft

#endif
