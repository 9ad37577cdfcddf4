// SPDX-License-Identifier: BSL-1.0
// Memory that a device does not release, without memory to note that: the memory is not used again,
// and each handler is called once.
#include "device/connection/connection_support.hpp"
#include "device/verbs/withholding.hpp"

#include <catch.hpp>
#include <interposer/failing_allocation.hpp>
#include <interposer/faults.hpp>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace test::withheld_without_memory_tests {
namespace {

using faults::call;
using faults::forever;

constexpr std::size_t large = 64 * 1024;

/// Calls `f` with each allocation of it failing once: `f(n)` makes the n-th one fail, and tells
/// whether it was reached.
template <class Function>
void with_each_allocation(Function&& f) {
  std::size_t n = 1;
  while (f(n))
    ++n;
  CHECK(n > 1);
}

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.rights = access::remote_read | access::remote_write;
  return o;
}

/// Two connections. The device deregisters nothing from `keep` on.
struct keeping : talk {
  keeping() : talk(generous(), generous()) {
    if (!lives())
      throw std::runtime_error("not connected");
  }
  void keep() { faults.fail(call::dereg_mr, EBUSY, {1, forever}); }
  /// Closes a, and runs the context, with the n-th allocation failing. Whether that was reached.
  bool close_without(std::size_t n) {
    const failing_allocation failing(n);
    a.close();
    for (bool more = true; more;) {
      io.restart();
      try {
        more = io.poll() != 0;
      } catch (const std::bad_alloc&) { // the context may be run on, as any of Asio's
      }
    }
    return failing.failed();
  }

  faults::injector faults{dev.native_handle()};
};

} // namespace

TEST_CASE("a region that is destroyed without memory to note it is left to the device") {
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  std::array<char, 4096> bytes;
  std::optional<memory_region> region(std::in_place, pd, bytes.data(), bytes.size());
  faults.fail(call::dereg_mr, EBUSY, {1, forever});
  {
    const failing_allocation none(1);
    region.reset();
  }
  CHECK(faults.counts().refused_of(call::dereg_mr) == 1);
}

TEST_CASE("memory of the user's own is not freed though there is no memory to note it") {
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  static int freed = 0; // its deleter may be called at any later time
  {
    const std::shared_ptr<char> own(new char[4096], [](char* m) {
      ++freed;
      delete[] m;
    });
    std::optional<registered_buffer> b(std::in_place, memory_region(pd, own.get(), 4096), own);
    faults.fail(call::dereg_mr, EBUSY, {1, forever});
    const failing_allocation none(1);
    b.reset();
  }
  CHECK(freed == 0);
}

TEST_CASE("an arena is not unmapped though there is no memory to note it") {
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  std::optional<memory_pool> pool(std::in_place, pd);
  const auto* const data =
      static_cast<const volatile char*>(pool->allocate(large).region()->data());
  faults.fail(call::dereg_mr, EBUSY, {1, forever});
  {
    const failing_allocation none(1);
    pool.reset();
  }
  CHECK(*data == *data); // it is mapped
}

TEST_CASE("a key of lent memory without memory to note it keeps the access to that memory") {
  with_each_allocation([](std::size_t n) {
    CAPTURE(n);
    keeping k;
    registered_buffer mine = k.pool.allocate(large);
    const registered_buffer before = mine.first(large / 2);
    outcome<void> lent, gone;
    outcome<std::variant<registered_buffer, remote_region>> r;
    outcome<message> waits;
    k.a.async_wait_disconnect(gone.handler());
    k.b.async_receive_region(r.handler());
    k.a.async_send_region(mine, access::remote_write, lent.handler());
    k.until([&] { return lent.done() && r.done(); });
    REQUIRE(r.succeeded());
    k.a.async_receive(waits.handler());
    k.keep();
    std::size_t grants = 0;
    bool reached = false;
    {
      const failing_allocation failing(n);
      grants = k.a.revoke();
      reached = failing.failed();
    }
    CHECK(grants == 1);
    k.until([&] { return gone.done() && waits.done(); });
    CHECK(gone.calls == 1);
    CHECK(waits.calls == 1);
    CHECK_FALSE(mine.try_read_access());
    CHECK_FALSE(before.try_read_access());
    k.a.close();
    k.b.close();
    r.value = {};
    drain(k.io);
    CHECK_FALSE(mine.try_read_access());
    mine = {};
    return reached;
  });
}

TEST_CASE("a key of a message without memory to note it loses no handler, and keeps the message") {
  const bool owned = GENERATE(true, false);
  CAPTURE(owned);
  with_each_allocation([&](std::size_t n) {
    CAPTURE(n);
    keeping k;
    registered_buffer mine = k.pool.allocate(large);
    const std::size_t blocks = k.pool.statistics().blocks_in_use;
    sent s, behind;
    outcome<message> r;
    k.faults.fail(call::alloc_mw, ENOMEM, {1, forever}); // the key is no window's
    if (owned)
      k.a.async_send(mine, s.handler());
    else
      k.a.async_send(const_buffer(mine), s.handler());
    k.a.async_send(mine, behind.handler());
    k.keep();
    const bool reached = k.close_without(n);
    k.b.close();
    k.until([&] { return s.done() && behind.done(); });
    drain(k.io);
    CHECK(s.calls == 1);
    CHECK(s.ec == error::device_keeps_memory);
    CHECK(behind.calls == 1);
    if (owned)
      CHECK_FALSE(mine.try_write_access());
    CHECK(blocks > 1);
    mine = {};
    CHECK(k.pool.statistics().blocks_in_use == 1);
    return reached;
  });
}

TEST_CASE(
    "the memory of a read is kept though there is no memory to note its key, and the read ends") {
  if (open_device().type() != transport::iwarp)
    return not_on_this_device("keys of the memory that a read fills");
  with_each_allocation([&](std::size_t n) {
    CAPTURE(n);
    keeping k;
    const memory target(k.pd, large, most_rights(k.dev));
    sent read, second;
    k.a.async_read(k.pool.allocate(large), target.remote(), read.handler());
    k.a.async_read(k.pool.allocate(large), target.remote(), second.handler());
    k.keep();
    const bool reached = k.close_without(n);
    k.b.close();
    k.until([&] { return read.done() && second.done(); });
    drain(k.io);
    CHECK(read.ec == error::device_keeps_memory);
    CHECK(second.ec == error::device_keeps_memory);
    CHECK(k.pool.statistics().blocks_in_use == 2);
    return reached;
  });
}

TEST_CASE("a queue pair that is not destroyed ends its operations without memory to note it") {
  with_each_allocation([&](std::size_t n) {
    CAPTURE(n);
    pair p;
    const memory_pool pool(p.pd);
    faults::injector faults(p.dev.native_handle());
    keep_queue_pair(faults, p.a);
    got received;
    sent written;
    registered_buffer to = pool.allocate(1000), from = pool.allocate(1000);
    p.a.async_receive(to, received.handler());
    p.a.async_write(from, p.mb.remote(0, 1000), written.handler());
    bool reached = false;
    {
      const failing_allocation failing(n);
      p.a.close();
      reached = failing.failed();
    }
    p.drain();
    CHECK(received.calls == 1);
    CHECK(received.ec == error::device_keeps_memory);
    CHECK(written.calls == 1);
    CHECK(written.ec == error::device_keeps_memory);
    to = from = {};
    CHECK(pool.statistics().blocks_in_use == 2);
    faults.release_completions(); // which find nothing to touch
    p.drain();
    return reached;
  });
}

TEST_CASE("shared receives that are not destroyed end without memory to note it") {
  with_each_allocation([&](std::size_t n) {
    CAPTURE(n);
    asio::io_context io(1);
    const device dev = open_device();
    const protection_domain pd(dev);
    faults::injector faults(dev.native_handle());
    const memory_pool pool(pd);
    shared_receive_queue srq(io, pd);
    got r;
    registered_buffer to = pool.allocate(64);
    srq.async_receive(to, r.handler());
    faults.fail(call::destroy_srq, EBUSY, {1, forever});
    bool reached = false;
    {
      const failing_allocation failing(n);
      srq.close();
      reached = failing.failed();
    }
    drain(io);
    CHECK(r.calls == 1);
    CHECK(r.ec == error::device_keeps_memory);
    to = {};
    CHECK(pool.statistics().blocks_in_use == 1);
    return reached;
  });
}

} // namespace test::withheld_without_memory_tests
