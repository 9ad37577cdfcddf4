// SPDX-License-Identifier: BSL-1.0
// A number in the memory of one node that several nodes increment. The nodes are in one process
// here.
#include <asio_rdma/global_counter.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::deferred, asio::ip::tcp;

namespace {

// [counter]
asio::awaitable<void> raise(tcp::endpoint where, asio_rdma::memory_pool pool,
                            asio_rdma::node_id id) {
  asio_rdma::global_memory memory(co_await asio::this_coro::executor, pool, id);
  const auto host = co_await memory.async_join(where, deferred);
  const auto root = co_await memory.async_read(asio_rdma::root_of(host), deferred);
  asio_rdma::counter number(memory, root.cast<asio_rdma::counter_word>());
  for (int i = 0; i < 100; ++i)
    co_await number.async_add(1, deferred);
}
// [counter]

asio::awaitable<void> host(asio_rdma::memory_pool pool) {
  using asio_rdma::root_of, asio_rdma::counter_word;
  asio_rdma::global_memory memory(co_await asio::this_coro::executor, pool, 1);
  memory.host(1 << 20);
  const auto number = co_await memory.async_allocate<counter_word>(1, 0, deferred);
  memory.local(root_of(1))->store(number);
  memory.listen(tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), memory.local_endpoint().port());
  co_await (raise(where, pool, 20) && raise(where, pool, 30) && raise(where, pool, 40));
  std::cout << "three nodes have counted to " << memory.local(number)->load() << std::endl;
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  if (!device.has_atomics()) {
    std::cout << "the device has no atomic operations" << std::endl;
    return 0;
  }
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  auto done = co_spawn(io, host(pool), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "shared_counter: " << e.what() << std::endl;
  return 2;
}
