// SPDX-License-Identifier: BSL-1.0
// Nodes in separate processes.
#include "catch.hpp"
#include "device/global/global_support.hpp"
#include "device/support/child_process.hpp"

#include <asio_rdma/global_counter.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace test::global_processes_tests {
namespace {

using word = std::uint64_t;

constexpr int processes = 8;
constexpr int adds = 2000, exchanges = 250; // of each process
constexpr remote_ptr<counter_word> begin(host_id, 0, 64), added(host_id, 0, 128),
    exchanged(host_id, 0, 192);

using process = child_process;

int variable(const char* name) { return process::variable(name); }

asio::awaitable<void> add(global_memory& m, int times, int& left) {
  for (int i = 0; i < times; ++i)
    co_await m.async_fetch_add(added, 1, asio::use_awaitable);
  --left;
}

asio::awaitable<void> exchange(global_memory& m, int times, int& left) {
  word seen = 0;
  for (int i = 0; i < times; ++i) {
    for (;;) {
      const auto r =
          co_await m.async_compare_exchange(exchanged, seen, seen + 1, asio::use_awaitable);
      seen = r.exchanged ? seen + 1 : r.seen;
      if (r.exchanged)
        break;
    }
  }
  --left;
}

} // namespace

TEST_CASE("a process that counts", "[.peer]") {
  const int port = variable("GLOBAL_PORT");
  if (port < 0)
    return;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  global_memory m(io, pool, static_cast<node_id>(variable("GLOBAL_NODE")));
  outcome<node_id> joined;
  m.async_join(endpoint(device_address(dev), static_cast<std::uint16_t>(port)), joined.handler());
  until(io, [&] { return joined.done(); });
  REQUIRE(joined.value == host_id);
  barrier all(m, begin, processes);
  outcome<void> passed;
  all.async_arrive_and_wait(passed.handler());
  until(io, [&] { return passed.done(); });
  REQUIRE(passed.succeeded());
  constexpr int window = 8;
  int left = window + 1;
  for (int i = 0; i < window; ++i)
    asio::co_spawn(io, add(m, adds / window, left), asio::detached);
  asio::co_spawn(io, exchange(m, exchanges, left), asio::detached);
  io.restart();
  io.run();
  CHECK(left == 0);
}

TEST_CASE("counters raised by 8 processes lose nothing") {
  world w;
  if (!w.dev.has_atomics())
    return not_on_this_device("atomic operations");
  std::vector<process> all;
  for (int i = 0; i < processes; ++i)
    all.emplace_back(
        "a process that counts",
        std::vector<std::string>{"GLOBAL_PORT=" + std::to_string(w.host.local_endpoint().port()),
                                 "GLOBAL_NODE=" + std::to_string(200 + 3 * i)});
  std::thread joins([&] { w.io.run(); }); // until the host closes
  for (process& p : all)
    CHECK(p.wait() == 0);
  asio::post(w.io, [&] {
    w.guest.close();
    w.host.close();
  });
  joins.join();
  CHECK(w.host.local(added)->load() == processes * adds);
  CHECK(w.host.local(exchanged)->load() == processes * exchanges);
  CHECK(w.host.local(begin)->load() == processes);
}

TEST_CASE("a node that will be killed", "[.peer]") {
  const int report = variable("GLOBAL_REPORT");
  if (report < 0)
    return;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  global_memory m(io, pool, 3);
  m.host(segment_bytes);
  m.listen({device_address(dev), 0});
  const std::uint16_t port = m.local_endpoint().port();
  REQUIRE(::write(report, &port, sizeof port) == sizeof port);
  io.run();
}

TEST_CASE("a node killed in the middle of batches ends them, and nothing else") {
  world w;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  process victim("a node that will be killed", {"GLOBAL_REPORT=" + std::to_string(pipe_ends[1])});
  std::uint16_t port = 0;
  REQUIRE(::read(pipe_ends[0], &port, sizeof port) == sizeof port);
  outcome<node_id> joined;
  w.guest.async_join(endpoint(device_address(w.dev), port), joined.handler());
  w.until([&] { return joined.done(); });
  REQUIRE(joined.value == 3);

  const remote_ptr<word> there(3, 0, 64), staying(host_id, 0, 64);
  constexpr int chains = 4;
  int posted = 0, succeeded = 0, failed = 0, elsewhere = 0;
  bool wrong = false;
  std::vector<global_memory::batch> batches;
  for (int i = 0; i < chains; ++i) {
    batches.emplace_back(w.guest, 3);
    for (int n = 0; n < 40; ++n)
      batches.back().write(there + n + 100 * i, word(n));
    batches.back().read(there + 100 * i);
  }
  std::function<void(int)> post = [&](int i) {
    ++posted;
    batches[std::size_t(i)].async_post([&, i](error_code ec) {
      ++(ec ? failed : succeeded);
      if (!ec)
        post(i);
    });
  };
  std::function<void()> use_other = [&] {
    w.guest.async_write(staying, word(1), [&](error_code ec) {
      wrong |= bool(ec);
      ++elsewhere;
      if (failed < chains)
        use_other();
    });
  };
  for (int i = 0; i < chains; ++i)
    post(i);
  use_other();
  w.until([&] { return succeeded >= 20; });
  victim.kill();
  w.until([&] { return failed == chains; });
  CHECK(victim.wait() == -SIGKILL);
  CHECK(posted == succeeded + failed);
  const int before = elsewhere;
  use_other();
  w.until([&] { return elsewhere > before; });
  CHECK(!wrong);
  CHECK(w.read(there).ec);
  CHECK(w.read(staying).succeeded());
  CHECK(w.ask<remote_ptr<word>>([&](auto h) { w.guest.async_allocate<word>(3, 0, h); }).ec);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

} // namespace test::global_processes_tests
