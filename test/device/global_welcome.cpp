// SPDX-License-Identifier: BSL-1.0
// What another thread starts while a node is being joined.
#include "catch.hpp"
#include "global_support.hpp"

#include <asio_rdma/detail/global_message.hpp>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <thread>

namespace {

using namespace test;

/// The size of the next allocation that is an event, or 0; and what happens then.
std::atomic<std::size_t> awaited{0};
std::atomic<bool> come{false}, go_on{false};

void* allocate(std::size_t bytes) {
  std::size_t which = bytes;
  if (bytes != 0 && awaited.compare_exchange_strong(which, 0)) {
    come = true;
    come.notify_one();
    go_on.wait(false);
  }
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes))
    return p;
  throw std::bad_alloc();
}

} // namespace

void* operator new(std::size_t n) { return allocate(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEST_CASE("a request of another thread does not overtake the welcome of a node that joins") {
  world w;
  global_memory joins(w.io, w.pool, 77);
  joins.host(segment_bytes);
  // The host has a thread of its own. It stops where it writes the welcome.
  asio::io_context of_host;
  global_memory host(of_host, w.pool, 41);
  constexpr std::size_t segments = 7; // which no other message has
  for (std::size_t i = 0; i < segments; ++i)
    host.host(4096);
  host.listen({device_address(w.dev), 0});
  std::thread serves([&] { of_host.run(); });

  outcome<node_id> joined;
  joins.async_join(host.local_endpoint(), joined.handler());
  awaited = detail::global_message::base_size + segments * detail::global_message::segment_size;
  std::thread asks([&] {
    come.wait(false);
    host.async_allocate<std::uint64_t>(77, 0, [](error_code, remote_ptr<std::uint64_t>) {});
    go_on = true;
    go_on.notify_one();
  });
  w.until([&] { return joined.done(); });
  CHECK(!joined.ec);
  CHECK(joined.value == 41);
  asks.join();
  joins.close();
  asio::post(of_host, [&] { host.close(); });
  serves.join();
}
