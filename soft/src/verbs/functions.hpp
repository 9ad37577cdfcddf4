// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_VERBS_FUNCTIONS_HPP
#define SOFT_VERBS_FUNCTIONS_HPP

#include <infiniband/verbs.h>

namespace soft {

/// Set the functions that libibverbs' header calls through the context's tables.
void fill_memory_functions(verbs_context& v);
void fill_queue_functions(verbs_context& v);
void fill_queue_pair_functions(verbs_context& v);

} // namespace soft

#endif
