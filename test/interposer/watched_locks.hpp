// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <interposer/thread_watch.hpp>

namespace test {

/// Calls a function before each lock of a mutex: `std::mutex` or one of Asio's.
using watched_locks = thread_watch<struct lock_of_a_mutex>;

} // namespace test
