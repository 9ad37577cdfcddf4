// SPDX-License-Identifier: BSL-1.0
#include "device/streams/stream_support.hpp"
#include "device/support/pairs.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/multiple_exceptions.hpp>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <thread>

namespace test {

bool streams_offer(const device& d) { return d.type() != transport::iwarp; }

std::size_t taken_ahead(const asio_rdma::stream& s) {
  const stream_options& o = s.options();
  if (streams_offer(s.pool().get_protection_domain().get_device()))
    return std::max(std::size_t(1) << 20, std::size_t(o.receives) * o.receive_size);
  // The first frame has no bytes, and one receive alone is not returned.
  return receive_room(o) - (o.receive_size - 16);
}

stream_pair::stream_pair(const stream_options& of_a, const stream_options& of_b) : pool(pd) {
  a.open(pool, of_a);
  b.open(pool, of_b);
  connect_by_manager(*this);
}

two_contexts::two_contexts(const stream_options& of_a, const stream_options& of_b, int threads_of_a)
    : io_a(std::in_place, threads_of_a) {
  a->open(pool, of_a);
  b.open(pool, of_b);
  acceptor listener(io_b);
  connector initiator(*io_a);
  listener.open({device_address(dev), 0});
  test::connection accepted, connected;
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(*a, listener.local_endpoint(), connected.handler());
  std::thread other([&] { test::until(*io_a, [&] { return connected.done(); }); });
  test::until(io_b, [&] { return accepted.done(); });
  other.join();
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
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
    throw std::runtime_error("timed out waiting for the coroutine");
  try {
    if (failure)
      std::rethrow_exception(failure);
  } catch (const asio::multiple_exceptions& e) { // one failed, which cancelled the other
    std::rethrow_exception(e.first_exception());
  }
}

} // namespace test
