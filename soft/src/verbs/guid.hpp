// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_VERBS_GUID_HPP
#define SOFT_VERBS_GUID_HPP

#include <infiniband/verbs.h>

namespace soft {

/// The GUID of soft0 as node and as system image. It is the same in all processes of a host until
/// the kernel boots again, and differs between hosts. A network namespace is a host: its addresses
/// are soft0's GIDs. The process keeps the GUID that it has read first.
__be64 guid() noexcept;

} // namespace soft

#endif
