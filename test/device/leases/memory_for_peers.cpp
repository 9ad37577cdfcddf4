// SPDX-License-Identifier: BSL-1.0
// Memory that peers make a connection register and clear, by messages and by requests.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <interposer/faults.hpp>

#include "memory/slow_allocation.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

namespace test::memory_for_peers_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using detail::slow_allocations;
using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr std::size_t mega = std::size_t(1) << 20;
constexpr access read_write = access::remote_read | access::remote_write;

remote_memory_options giving(std::size_t bytes) {
  remote_memory_options o;
  o.bytes = bytes;
  return o;
}

/// Connections of one context, each with a peer on another context, both of this thread.
class crowd {
public:
  crowd(std::size_t count, const connection_options& options, const memory_pool_options& memory)
      : fresh(pd, memory) {
    acceptor listener(io, own_endpoint());
    connector initiator(other);
    for (std::size_t i = 0; i < count; ++i) {
      asio_rdma::connection& mine = connections.emplace_back(io, fresh, options);
      asio_rdma::connection& peer = peers.emplace_back(other, pool);
      outcome<connection_info> accepted, connected;
      listener.async_accept(mine, accepted.handler());
      initiator.async_connect(peer, listener.local_endpoint(), connected.handler());
      until([&] { return accepted.done() && connected.done(); });
      REQUIRE((accepted.succeeded() && connected.succeeded()));
    }
  }

  void until(const std::function<bool()>& condition) {
    until(condition, [this] { step(io); });
  }
  /// Runs until then. No turn of the context, and no longer time, registers more than it may.
  void judge_until(const std::function<bool()>& condition) {
    const auto begin = clock::now();
    std::uint64_t all = 0;
    until(condition, [&] {
      const auto begin_of_turn = clock::now();
      const std::uint64_t before = faults::bytes_registered_here();
      step(io);
      const std::uint64_t registered = faults::bytes_registered_here() - before;
      all += registered;
      CHECK(registered <= allowed(clock::now() - begin_of_turn));
    });
    CHECK(all <= allowed(clock::now() - begin));
  }
  /// Lets the peers do what they have started, while the context does not run.
  void run_peers() {
    const auto idle = [this] {
      return std::all_of(peers.begin(), peers.end(),
                         [](const auto& p) { return p.statistics().requests_in_flight == 0; });
    };
    do
      until([&] { return idle(); }, [] {});
    while (other.poll() != 0);
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd}, fresh;
  asio::io_context io{1}, other{1};
  std::deque<asio_rdma::connection> connections, peers; // those of `fresh`, and of `pool`

private:
  static std::uint64_t allowed(clock::duration lasted) {
    // Besides, receives have their memory, and operations their small blocks.
    constexpr std::uint64_t others = 4 * mega;
    const double periods = std::chrono::duration<double>(lasted) /
                           std::chrono::duration<double>(slow_allocations::period);
    return slow_allocations::most_a_period +
           static_cast<std::uint64_t>(periods * double(slow_allocations::most_a_period)) + others;
  }
  static void step(asio::io_context& context) {
    context.restart();
    context.poll_one();
  }
  template <class Step>
  void until(const std::function<bool()>& condition, Step step_here) {
    const auto end = clock::now() + 60s;
    while (!condition()) {
      if (clock::now() > end)
        throw std::runtime_error("not within a minute");
      step_here();
      other.restart();
      other.poll();
    }
  }
};

} // namespace

TEST_CASE("long messages of many peers at once: a turn of the context registers little") {
  if (open_device().type() == transport::iwarp) // each READ registers the memory that it reads into
    return not_on_this_device("memory that is registered only when it is allocated");
  const std::size_t count = is_kernels(open_device()) ? 4 : 24;
  constexpr std::size_t bytes = slow_allocations::most_a_period;
  std::deque<sent> sends(count);
  std::deque<outcome<message>> receives(count);
  crowd c(count, {}, {});
  const registered_buffer payload = filled(c.pool, bytes, 3);
  for (std::size_t i = 0; i < count; ++i)
    c.connections[i].async_receive(receives[i].handler());
  for (std::size_t i = 0; i < count; ++i)
    c.peers[i].async_send(const_buffer(payload), sends[i].handler());
  c.run_peers();
  c.judge_until([&] {
    return std::all_of(receives.begin(), receives.end(), [](const auto& r) { return r.done(); });
  });
  for (const auto& r : receives) {
    CHECK(r.ec == error_code());
    CHECK(r.value.size() == bytes);
  }
  CHECK(is_pattern(receives.back().value.payload.data(), bytes, 3));
}

TEST_CASE("memory that many peers request at once: a turn of the context registers little") {
  const std::size_t count = is_kernels(open_device()) ? 4 : 24;
  const std::size_t bytes = GENERATE(7 * mega, 16 * mega);
  std::deque<outcome<remote_region>> requests(count);
  std::deque<outcome<std::uint32_t>> idle(count);
  crowd c(count, connection_options().set_remote_memory(giving(bytes)), {});
  const std::size_t before = c.fresh.statistics().bytes_in_use;
  for (int round = 0; round < 2; ++round) { // the first registers memory, the second finds it
    for (std::size_t i = 0; i < count; ++i) {
      idle[i] = {};
      c.connections[i].async_receive_immediate(idle[i].handler());
      requests[i] = {};
      c.peers[i].async_request_memory(bytes, read_write, requests[i].handler());
    }
    c.run_peers();
    c.judge_until([&] {
      return std::all_of(requests.begin(), requests.end(), [](const auto& r) { return r.done(); });
    });
    for (auto& r : requests) {
      CHECK(r.ec == error_code());
      CHECK(r.value.size() == bytes);
      r.value = {}; // released
    }
    c.until([&] { return c.fresh.statistics().bytes_in_use < before + bytes; });
    for (auto& each : c.connections)
      each.cancel();
    c.until(
        [&] { return std::all_of(idle.begin(), idle.end(), [](auto& r) { return r.done(); }); });
  }
}

TEST_CASE("memory that a background thread makes is zero") {
  constexpr std::size_t bytes = 24 * mega;
  const bool is_there = GENERATE(true, false);
  CAPTURE(is_there);
  outcome<std::uint32_t> idle;
  outcome<remote_region> r;
  sent read;
  crowd c(1, connection_options().set_remote_memory(giving(bytes)), {});
  {
    const registered_buffer before = c.fresh.allocate(bytes);
    std::memset(before.data(), '#', bytes);
  }
  if (!is_there)
    CHECK(c.fresh.trim() >= bytes);
  const registered_buffer target = c.pool.allocate(bytes);
  std::memset(target.data(), '#', bytes);
  c.connections[0].async_receive_immediate(idle.handler());
  const std::uint64_t registered = faults::bytes_registered_here();
  c.peers[0].async_request_memory(bytes, read_write, r.handler());
  c.until([&] { return r.done(); });
  REQUIRE(r.succeeded());
  CHECK(faults::bytes_registered_here() - registered < mega);
  c.peers[0].async_read(target, r.value.buffer(), read.handler());
  c.until([&] { return read.done(); });
  CHECK(read.succeeded());
  const auto* const first = static_cast<const char*>(target.data());
  CHECK(std::all_of(first, first + bytes, [](char x) { return x == 0; }));
}

// The pool calls `log` in the thread that registers the arena, if there are no reserved huge pages.
TEST_CASE("the end of a connection, or of a wish, while memory for the peer is made") {
  std::atomic<bool> entered = false, may_return = false;
  std::thread::id registers;
  memory_pool_options memory;
  memory.first_arena = mega; // not of huge pages
  memory.log = [&](std::string_view) {
    registers = std::this_thread::get_id();
    entered = true;
    for (const auto end = clock::now() + 20s; !may_return && clock::now() < end;)
      std::this_thread::sleep_for(100us);
  };
  constexpr std::size_t bytes = 20 * mega;
  const std::string end =
      GENERATE(as<std::string>(), "it is granted", "the request is cancelled", "the peer is closed",
               "the connection is closed", "the owner revokes everything", "both say goodbye",
               "the connection is destroyed", "the context is destroyed");
  INFO(end);
  memory_pool fresh;
  {
    outcome<std::uint32_t> idle;
    outcome<remote_region> r, waits;
    outcome<void> goodbye, answer;
    outcome<revocation> revoked; // waits until the memory is made, or the connection has ended
    sent s;
    outcome<message> m;
    asio::cancellation_signal cancel;
    crowd c(1, connection_options().set_remote_memory(giving(2 * bytes)), memory);
    fresh = c.fresh;
    asio_rdma::connection& mine = c.connections[0];
    asio_rdma::connection& peer = c.peers[0];
    const std::size_t before = fresh.statistics().bytes_in_use;
    mine.async_receive_immediate(idle.handler());
    peer.async_request_memory(bytes, read_write,
                              asio::bind_cancellation_slot(cancel.slot(), r.handler()));
    c.until([&] { return entered.load(); });
    // For another thread, which this pool does not stop.
    peer.async_request_memory(bytes, read_write, waits.handler());
    CHECK(registers != std::this_thread::get_id());
    if (end == "it is granted") { // messages pass meanwhile
      peer.async_send(asio::buffer("meanwhile"), s.handler());
      mine.async_receive(m.handler());
      c.until([&] { return m.done() && s.done(); });
      CHECK_FALSE(r.done());
    } else if (end == "the request is cancelled") {
      cancel.emit(asio::cancellation_type::total);
      c.until([&] { return r.done(); });
      CHECK(r.ec == asio::error::operation_aborted);
    } else if (end == "the peer is closed") {
      mine.async_revoke(1min, revoked.handler());
      peer.close();
      c.until([&] { return r.done() && waits.done() && idle.done() && revoked.done(); });
    } else if (end == "the connection is closed") {
      mine.async_revoke(1min, revoked.handler());
      mine.close();
      c.until([&] { return r.done() && waits.done() && idle.done() && revoked.done(); });
    } else if (end == "the owner revokes everything") {
      mine.async_revoke(1min, revoked.handler());
    } else if (end == "both say goodbye") {
      peer.async_close(goodbye.handler());
      mine.async_close(answer.handler());
    } else if (end == "the connection is destroyed") {
      c.connections.clear();
      c.until([&] { return r.done() && waits.done(); });
    }
    if (end != "the context is destroyed") {
      may_return = true;
      c.until([&] { return r.done() && waits.done(); });
      CHECK((r.ec == error_code()) == (end == "it is granted"));
      if (end == "the owner revokes everything") {
        CHECK(r.ec == error::lease_revoked);
        c.until([&] { return revoked.done(); });
        CHECK(revoked.value.grants >= 1);
      }
      if (end == "both say goodbye")
        c.until([&] { return goodbye.done() && answer.done(); });
      r.value = waits.value = {};
      if (end == "it is granted" || end == "the request is cancelled")
        c.until([&] { return fresh.statistics().bytes_in_use < before + bytes; });
    }
    may_return = true;
  }
  // The thread gives back a block for which no grant waits.
  for (const auto limit = clock::now() + 20s;
       fresh.statistics().blocks_in_use != 0 && clock::now() < limit;)
    std::this_thread::sleep_for(100us);
  CHECK(fresh.statistics().blocks_in_use == 0);
}

} // namespace test::memory_for_peers_tests
