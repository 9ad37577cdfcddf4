// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace test {

/// The number of calls in this process of functions that wait for a time or for a descriptor: the
/// sleeps, poll and select. A program that links this has functions of their names, which precede
/// the C library's. The reactor's epoll_wait is not among them.
int count_sleeps() noexcept;

} // namespace test
