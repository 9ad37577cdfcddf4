// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_TRANSITIONS_HPP
#define SOFT_DEVICE_TRANSITIONS_HPP

#include <infiniband/verbs.h>

namespace soft {

/// Whether ibv_modify_qp(3) may change the state of a queue pair in this way, with these
/// attributes.
bool is_allowed(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

} // namespace soft

#endif
