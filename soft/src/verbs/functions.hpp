// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_VERBS_FUNCTIONS_HPP
#define SOFT_VERBS_FUNCTIONS_HPP

#include <cstdint>
#include <infiniband/verbs.h>

namespace soft {

struct queue_pair;

/// Set the functions that libibverbs' header calls through the context's tables.
void fill_memory_functions(verbs_context& v);
void fill_queue_functions(verbs_context& v);
void fill_queue_pair_functions(verbs_context& v);

/// Whether queue pairs of this type have these operations (IBV_QP_EX_WITH_*) for ibv_wr_post(3).
bool has_operations(ibv_qp_type type, std::uint64_t wanted) noexcept;
/// Gives a queue pair the functions of ibv_wr_post(3), with the builders of these operations.
void extend(queue_pair& qp, std::uint64_t operations) noexcept;

/// Drops the events about a queue pair that is destroyed, and waits until the program has
/// acknowledged those that it got.
void end_events(queue_pair& qp);

/// While it lives, the lists of ibv_get_device_list(3) that this thread gets have no soft0: for
/// functions of libibverbs that take each device for one of libibverbs' own.
class only_real_devices {
public:
  only_real_devices() noexcept;
  ~only_real_devices();
  only_real_devices(const only_real_devices&) = delete;
  only_real_devices& operator=(const only_real_devices&) = delete;
};

} // namespace soft

#endif
