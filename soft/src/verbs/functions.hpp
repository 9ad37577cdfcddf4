// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_VERBS_FUNCTIONS_HPP
#define SOFT_VERBS_FUNCTIONS_HPP

#include <infiniband/verbs.h>

namespace soft {

struct queue_pair;

/// Set the functions that libibverbs' header calls through the context's tables.
void fill_memory_functions(verbs_context& v);
void fill_queue_functions(verbs_context& v);
void fill_queue_pair_functions(verbs_context& v);

/// Drops the events about a queue pair that is destroyed, and waits until the program has
/// acknowledged those that it got.
void end_events(queue_pair& qp);

} // namespace soft

#endif
