// SPDX-License-Identifier: BSL-1.0
// A global memory while an allocation fails: each handler is called once, and the context ends.
#include "device/global/global_support.hpp"
#include "device/support/allocation_scene.hpp"

#include <asio_rdma/global_counter.hpp>
#include <asio_rdma/single_writer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace test::global_allocation_tests {
namespace {

struct scene : world {
  void close() {
    guest.close();
    host.close();
  }
};

/// Nodes that join: a third one, the guest again through another object, and a node itself.
struct joins : scene {
  global_memory third{io, pool, 77}, same{io, guest};

  joins() { third.host(segment_bytes); }
  void play(handler_accounts& accounts) {
    for (global_memory* const who : {&third, &same, &host})
      accounts.start("join", [&](auto handler) {
        who->async_join(host.local_endpoint(), std::move(handler));
      });
    accounts.run(io);
  }
  void close() {
    third.close();
    same.close();
    scene::close();
  }
};

struct allocates : scene {
  void play(handler_accounts& accounts) {
    for (global_memory* const who : {&guest, &host, &guest})
      accounts.start(
          "allocate",
          [&](auto handler) {
            who->async_allocate<std::uint64_t>(host_id, 0, 100, std::move(handler));
          },
          [&, who](error_code ec, remote_ptr<std::uint64_t> p) {
            if (!ec)
              accounts.start("free", [&](auto handler) { who->async_free(p, std::move(handler)); });
          });
    accounts.run(io);
  }
};

/// More requests than a node has at a time.
struct allocates_much : scene {
  void play(handler_accounts& accounts) {
    for (int i = 0; i < 20; ++i)
      accounts.start("allocate", [&](auto handler) {
        guest.async_allocate<std::uint64_t>(host_id, 0, 1, std::move(handler));
      });
    accounts.run(io);
  }
};

/// Operations on memory, some of which wait for a place.
struct accesses : scene {
  accesses() : at(make<std::uint64_t>(2048)) {}

  void play(handler_accounts& accounts) {
    accounts.start("read", [&](auto handler) { guest.async_read(at, std::move(handler)); });
    accounts.start("write", [&](auto handler) {
      guest.async_write(at + 1, 5, visibility::flushed, std::move(handler));
    });
    accounts.start("read of buffers", [&](auto handler) {
      guest.async_read(at, asio::buffer(bytes), std::move(handler));
    });
    accounts.start("write of buffers", [&](auto handler) {
      guest.async_write(at, asio::buffer(bytes), std::move(handler));
    });
    if (dev.has_atomics()) {
      const auto word = (at + 8).cast<nic_atomic<std::uint64_t>>();
      accounts.start("compare and exchange", [&](auto handler) {
        guest.async_compare_exchange(word, 0, 1, std::move(handler));
      });
      accounts.start("fetch and add",
                     [&](auto handler) { guest.async_fetch_add(word, 1, std::move(handler)); });
    }
    for (std::size_t i = 0; i < 2; ++i) {
      batches[i].write(at + 16, i);
      static_cast<void>(batches[i].read(at + 16));
      accounts.start("batch", [&](auto handler) { batches[i].async_post(std::move(handler)); });
    }
    accounts.run(io);
  }

  remote_ptr<std::uint64_t> at;
  std::array<char, 10000> bytes{};
  std::array<global_memory::batch, 2> batches{global_memory::batch(guest, host_id),
                                              global_memory::batch(guest, host_id)};
};

/// Composed operations, whose first attempts fail.
struct retries : scene {
  using value = single_writer<std::array<std::uint64_t, 4>>;

  retries()
      : gathering(make<counter_word>()),
        exchanged(make<nic_atomic<std::uint64_t>>()),
        stored(make<value>()) {
    // Of another value than the first attempt expects, and torn.
    if (write(exchanged.cast<std::uint64_t>(), 5) ||
        write(stored.cast<value::image>().member<&value::image::check>(), 1))
      throw std::runtime_error("write");
  }
  void play(handler_accounts& accounts) {
    barrier<asio::any_io_executor> gathers(guest, gathering, 2);
    const auto arrive = [&](const char* name) {
      accounts.start(name,
                     [&](auto handler) { gathers.async_arrive_and_wait(std::move(handler)); });
    };
    if (dev.has_atomics()) {
      arrive("barrier");
      accounts.start("exchange",
                     [&](auto handler) { guest.async_exchange(exchanged, 7, std::move(handler)); });
    }
    accounts.start("load", [&](auto handler) { async_load(guest, stored, std::move(handler)); });
    // The operations complete after some attempts in vain.
    for (int i = 0; i < 100; ++i) {
      try {
        io.poll_one();
      } catch (const std::bad_alloc&) { // the context may be run on
      }
    }
    host.local(stored)->store({1, 2, 3, 4});
    if (dev.has_atomics())
      arrive("other side of the barrier");
    accounts.run(io);
  }
  bool broken() const { return false; } // the sides wait for each other

private:
  remote_ptr<counter_word> gathering;
  remote_ptr<nic_atomic<std::uint64_t>> exchanged;
  remote_ptr<value> stored;
};

} // namespace

TEST_CASE("nodes join while an allocation fails") { fail_each_allocation<joins>(); }
TEST_CASE("memory is requested while an allocation fails") { fail_each_allocation<allocates>(); }
TEST_CASE("requests wait for others while an allocation fails") {
  fail_each_allocation<allocates_much>();
}

TEST_CASE("an operation that there is no memory for is not in its batch") {
  world w;
  constexpr std::uint64_t words = 40;
  const auto at = w.make<std::uint64_t>(words);
  global_memory::batch b(w.guest, host_id);
  std::size_t refused = 0;
  const auto add = [&](std::uint64_t i, std::size_t nth) {
    const failing_allocation failing(nth);
    try {
      b.write(at + i, i + 1);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  for (std::uint64_t i = 0; i < words; ++i) {
    for (std::size_t nth = 1; !add(i, nth); ++nth, ++refused)
      REQUIRE(b.size() == i);
    REQUIRE(b.size() == i + 1);
  }
  CHECK(refused > 10);
  CHECK(w.ask<void>([&](auto h) { b.async_post(h); }).succeeded());
  for (std::uint64_t i = 0; i < words; ++i)
    CHECK(w.read(at + i).value == i + 1);
}

TEST_CASE("a join ends if there is no memory in the pool for an introduction") {
  const bool of_guest = GENERATE(true, false); // of the guest, or of the host
  CAPTURE(of_guest);
  world w;
  memory_pool_options small;
  small.limit = small.first_arena = std::size_t(4) << 20;
  memory_pool pool(w.pool.get_protection_domain(), small);
  global_memory_options forever;
  forever.lanes.keep_alive = {};
  asio::io_context io;
  global_memory scarce(io, pool, 77, forever), other(w.io, w.pool, 78, forever);
  for (int i = 0; i < 100; ++i) // makes the introduction long
    scarce.host(4096);
  global_memory& host = of_guest ? other : scarce;
  global_memory& guest = of_guest ? scarce : other;
  host.listen({device_address(w.dev), 0});
  const std::size_t before = pool.statistics().blocks_in_use;
  outcome<node_id> joined;
  guest.async_join(host.local_endpoint(), joined.handler());
  // Waits until the connection is open and the pool is exhausted.
  w.until([&] {
    if (pool.statistics().blocks_in_use == before)
      io.poll_one();
    return pool.statistics().blocks_in_use != before;
  });
  std::vector<registered_buffer> taken;
  error_code ec;
  for (std::size_t size = std::size_t(1) << 20; size >= 64; size /= 2)
    for (ec = {}; !ec;)
      taken.push_back(pool.allocate(size, ec));
  w.until([&] {
    io.restart();
    io.poll();
    return joined.done();
  });
  CHECK(joined.ec);
  CHECK(w.read(root_of(host_id)).succeeded());
}

TEST_CASE("memory is read and written while an allocation fails") {
  fail_each_allocation<accesses>();
}

TEST_CASE("operations try again while an allocation fails") { fail_each_allocation<retries>(); }

} // namespace test::global_allocation_tests
