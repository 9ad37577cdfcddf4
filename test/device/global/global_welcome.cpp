// SPDX-License-Identifier: BSL-1.0
// Operations that another thread starts while a node is being joined.
#include "catch.hpp"
#include "device/global/global_support.hpp"
#include "interposer/failing_allocation.hpp"

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>

namespace test::global_welcome_tests {
namespace {

/// Whether a thread of this process is blocked in the kernel.
bool is_blocked(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  std::FILE* const f = std::fopen(path.c_str(), "r");
  char state = 0;
  const bool read = f != nullptr && std::fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
  if (f != nullptr)
    std::fclose(f);
  return read && state == 'S';
}

} // namespace

TEST_CASE("a request of another thread does not overtake the welcome of a node that joins") {
  world w;
  global_memory joins(w.io, w.pool, 77);
  joins.host(segment_bytes);
  asio::io_context of_host;
  global_memory host(of_host, w.pool, 41);
  host.host(segment_bytes);
  host.listen({device_address(w.dev), 0});

  // The thread sends its request as soon as the host knows the node.
  std::atomic<pid_t> asker{0}; // set while the thread asks, and afterwards
  std::atomic<bool> has_asked{false};
  std::thread asks([&] {
    while (!host.knows(77))
      std::this_thread::yield();
    asker = ::gettid();
    host.async_allocate<std::uint64_t>(77, 0, [](error_code, remote_ptr<std::uint64_t>) {});
    has_asked = true;
  });
  // From then on the host's own thread does nothing until the request has been sent, or until the
  // request turns out to wait for the host.
  const std::function<void()> let_ask = [&] {
    if (has_asked || !host.knows(77))
      return;
    while (!has_asked && (asker == 0 || !is_blocked(asker)))
      std::this_thread::yield();
  };
  std::thread serves([&] {
    const watched_allocations watching(let_ask);
    of_host.run();
  });

  outcome<node_id> joined;
  joins.async_join(host.local_endpoint(), joined.handler());
  w.until([&] { return joined.done(); });
  CHECK(!joined.ec);
  CHECK(joined.value == 41);
  asks.join();
  joins.close();
  asio::post(of_host, [&] { host.close(); });
  serves.join();
}

} // namespace test::global_welcome_tests
