// SPDX-License-Identifier: BSL-1.0
// ASIO_RDMA_PROBE(name, argument…): a probe of the provider `asio_rdma`, for tools such as
// bpftrace. In place it is a nop; a note in the library names its arguments, which must be integers
// or pointers. Without <sys/sdt.h> there are no probes. docs/observing.md has the list.
#pragma once

#if !defined(ASIO_RDMA_NO_PROBES) && defined(__has_include)
#if __has_include(<sys/sdt.h>)
#define ASIO_RDMA_HAS_PROBES 1
#endif
#endif

#if defined(ASIO_RDMA_HAS_PROBES)
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>
#define ASIO_RDMA_PROBE(...) STAP_PROBEV(asio_rdma, __VA_ARGS__)
#else
#define ASIO_RDMA_PROBE(...) static_cast<void>(0)
#endif
