// SPDX-License-Identifier: BSL-1.0
#include "stream_support.hpp"
#include "pairs.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/multiple_exceptions.hpp>

#include <exception>
#include <stdexcept>

namespace test {

stream_pair::stream_pair(const stream_options& of_a, const stream_options& of_b) : pool(pd) {
  a.open(pool, of_a);
  b.open(pool, of_b);
  connect_by_manager(*this);
}

void stream_pair::play(asio::awaitable<void> coroutine, std::chrono::seconds longest) {
  bool over = false;
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(coroutine), [&](std::exception_ptr e) {
    over = true;
    failure = e;
    io.stop();
  });
  io.restart();
  io.run_for(longest);
  if (!over)
    throw std::runtime_error("the coroutine did not come to its end");
  try {
    if (failure)
      std::rethrow_exception(failure);
  } catch (const asio::multiple_exceptions& e) { // one of two failed, and the other was cancelled
    std::rethrow_exception(e.first_exception());
  }
}

} // namespace test
