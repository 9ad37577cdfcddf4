// SPDX-License-Identifier: BSL-1.0
// Another thread acts while a node joins.
#include "catch.hpp"
#include "device/global/global_rude.hpp"
#include "interposer/failing_allocation.hpp"

#include <asio_rdma/statistics.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

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

// A host disconnects a peer that is silent for too long. Here another thread does so while the host
// takes the peer's introduction: at each allocation of that, one after another.
TEST_CASE("a peer that is disconnected while its introduction is taken leaves no connection") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context of_host, of_peer(1);
  global_memory_options o;
  o.lanes.keep_alive = std::chrono::milliseconds(100);
  global_memory host(of_host, pool, host_id, o);
  host.listen({device_address(dev), 0});
  const auto accepted = [&] {
    return statistics(of_host).acceptors.at(0).counters.accepted;
  };

  std::size_t allocations = 1;
  for (std::size_t nth = 1; nth <= allocations; ++nth) {
    CAPTURE(nth);
    {
      asio_rdma::connection link(of_peer, pool);
      asio_rdma::connector connector(of_peer);
      test::connection connected;
      connector.async_connect(link, host.local_endpoint(), connected.handler());
      const auto before = accepted();
      until({&of_host, &of_peer}, [&] { return connected.done() && accepted() == before + 1; });
      while (of_host.poll() != 0) // the host waits for the introduction
        continue;
      const auto late = std::chrono::steady_clock::now() + 2 * o.lanes.keep_alive;
      sent introduction;
      const std::vector<std::byte> hello = encode(rude::hello());
      link.async_send(asio::buffer(hello), introduction.handler());
      until(of_peer, [&] { return introduction.done(); });

      std::size_t count = 0;
      std::thread ends;
      std::atomic<pid_t> ender{0};
      std::atomic<bool> has_ended{false};
      const std::function<void()> let_end = [&] {
        if (++count != nth)
          return;
        std::this_thread::sleep_until(late);
        ends = std::thread([&] {
          ender = ::gettid();
          of_host.poll();
          has_ended = true;
        });
        while (!has_ended && (ender == 0 || !is_blocked(ender)))
          std::this_thread::yield();
      };
      outcome<message> heard; // an answer, or the end
      link.async_receive(heard.handler());
      until(of_peer, [&] {
        const watched_allocations watching(let_end);
        of_host.poll();
        return heard.done();
      });
      if (ends.joinable())
        ends.join();
      allocations = std::max(allocations, count);
    }
    until({&of_host, &of_peer}, [&] { return statistics(of_host).completion_queues.empty(); });
  }
  CHECK(allocations > 1);
}

} // namespace test::global_welcome_tests
