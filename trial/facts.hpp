// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "session.hpp"

namespace trial {

/// Adds to the report what describes the device, its port, and the software below the library. No
/// name or address of the machine, of a user, or of the network is among it.
void add_facts(session& s);

} // namespace trial
