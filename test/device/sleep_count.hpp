// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace test {

/// How often this process has called a function that waits for a time or for a descriptor: the
/// sleeps, poll and select. A program with this has functions of their names, which come before
/// the C library's; the reactor's epoll_wait is not among them.
int count_sleeps() noexcept;

} // namespace test
