// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <type_traits>

/// Runs a blocking function (a disk, a hash) on a thread of the pool, while the caller's thread
/// continues.
template <class Function>
boost::asio::awaitable<std::invoke_result_t<Function&>>
in_background(boost::asio::thread_pool& pool, Function f) {
  auto work = [&f]() -> boost::asio::awaitable<std::invoke_result_t<Function&>> {
    co_return f();
  };
  co_return co_await boost::asio::co_spawn(pool, work, boost::asio::use_awaitable);
}
