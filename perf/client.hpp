// SPDX-License-Identifier: BSL-1.0
// The side that measures.
#pragma once

#include "options.hpp"
#include "report/results.hpp"

namespace perf {

/// Measures with the server at `where`, which is a process of this machine or on another one. A
/// measurement that fails is a problem of its row. Throws `std::runtime_error` if there is no
/// server, or no device, for the first one.
results run_client(const options& o, const place& where, int machines);

} // namespace perf
