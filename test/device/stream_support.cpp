// SPDX-License-Identifier: BSL-1.0
#include "stream_support.hpp"
#include "pairs.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>

#include <exception>

namespace test {

stream_pair::stream_pair(const stream_options& of_a, const stream_options& of_b) : pool(pd) {
  a.open(pool, of_a);
  b.open(pool, of_b);
  connect_by_manager(*this);
}

void stream_pair::play(asio::awaitable<void> coroutine) {
  bool over = false;
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(coroutine), [&](std::exception_ptr e) {
    over = true;
    failure = e;
  });
  until([&] { return over; });
  if (failure)
    std::rethrow_exception(failure);
}

} // namespace test
