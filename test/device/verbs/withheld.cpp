// SPDX-License-Identifier: BSL-1.0
//
// Registrations and keys that a device refuses to release. Their memory is not reused, its owner
// gets an error, and it is released when the device has released the object after all.
#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/verbs/withholding.hpp"
#include "interposer/faults.hpp"

#include <catch.hpp>

#include <sys/mman.h>
#include <variant>

namespace test::withheld_tests {
namespace {

using faults::call;
using faults::forever;

constexpr std::size_t large = 64 * 1024;

bool is_mapped(void* page) { return ::msync(page, 1, MS_ASYNC) == 0; }

/// Two connections whose keys cannot be ended, as `fails` fails.
struct keeping_keys {
  // On iWARP the READ of a long message also has a key, which ends first.
  enum class keys { all, but_of_first_read };
  explicit keeping_keys(call which = call::dereg_mr, keys of = keys::all) : fails(which) {
    const bool lets_one_go = of == keys::but_of_first_read && t.dev.type() == transport::iwarp;
    faults.fail(which, EBUSY, {lets_one_go ? 2u : 1u, forever});
  }

  template <class Buffer>
  error_code send(const Buffer& from) {
    faults.fail(call::alloc_mw, ENOMEM, {1, forever}); // the key is no window's
    sent s;
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.a.async_send(from, s.handler());
    t.until([&] { return s.done() && r.done(); });
    CHECK(r.succeeded());
    CHECK(s.calls == 1);
    return s.ec;
  }
  /// The number of blocks in use when both connections are closed.
  std::size_t kept() {
    t.a.close();
    t.b.close();
    drain(t.io);
    return t.pool.statistics().blocks_in_use;
  }
  /// The number of blocks in use after the keys could be ended.
  std::size_t kept_later() {
    faults.clear();
    t.pool.trim();
    return t.pool.statistics().blocks_in_use;
  }

  /// On a device without memory windows no call for them can fail.
  bool not_here() const { return fails == call::dealloc_mw && !t.dev.has_memory_windows(); }
  /// Whether the queue pair that has the window is kept too, with its posted work requests.
  bool keeps_queue_pair() const { return fails == call::dealloc_mw; }

  const connections_check nothing_left;
  const call fails;
  talk t{generous()};
  faults::injector faults{t.dev.native_handle()};
};

} // namespace

// --- Registrations ---------------------------------------------------------------------------

TEST_CASE("a region that cannot be closed stays open, and can be closed later") {
  const device dev = open_device();
  const resource_check nothing_left;
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  std::array<char, 4096> bytes;
  memory_region region(pd, bytes.data(), bytes.size());
  ibv_mr* const handle = region.native_handle();
  faults.fail(call::dereg_mr, EBUSY);
  error_code ec;
  region.close(ec);
  CHECK(ec == errc::device_or_resource_busy);
  CHECK(region.is_open());
  CHECK(region.native_handle() == handle);
  faults.fail(call::dereg_mr, EIO);
  CHECK_THROWS_AS(region.close(), system_error);
  CHECK(region.is_open());
  region.close(ec);
  CHECK_FALSE(ec);
  CHECK_FALSE(region.is_open());
  region.close(ec);
  CHECK_FALSE(ec);
}

TEST_CASE("memory of the user's own is not freed while its registration lasts") {
  const device dev = open_device();
  const resource_check nothing_left;
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  int freed = 0;
  {
    const std::shared_ptr<char> own(new char[4096], [&](char* m) {
      ++freed;
      delete[] m;
    });
    const registered_buffer b(memory_region(pd, own.get(), 4096), own);
    faults.fail(call::dereg_mr, EBUSY, {1, 2});
  }
  CHECK(freed == 0);
  const memory_pool pool(pd);
  pool.trim();
  CHECK(freed == 0);
  pool.trim();
  CHECK(freed == 1);
}

TEST_CASE("an arena stays mapped while its registration lasts") {
  const device dev = open_device();
  const resource_check nothing_left;
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  void* data = nullptr;
  {
    const memory_pool pool(pd);
    data = pool.allocate(large).region()->data();
    faults.fail(call::dereg_mr, EBUSY);
  }
  CHECK(is_mapped(data));
  memory_pool(pd).trim();
  CHECK_FALSE(is_mapped(data));
}

// --- Keys of connections ---------------------------------------------------------------------

TEST_CASE("a key to a view of the sender's that cannot be ended is the send's error") {
  keeping_keys k(call::dereg_mr, keeping_keys::keys::but_of_first_read);
  const memory mine(k.t.pd, large, access::local_write);
  CHECK(k.send(mine.buffer()) == error::device_keeps_memory);
  CHECK(k.kept() == 0);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key to a view of a pool's block that cannot be ended keeps the block") {
  keeping_keys k(call::dereg_mr, keeping_keys::keys::but_of_first_read);
  registered_buffer mine = k.t.pool.allocate(large);
  CHECK(k.send(const_buffer(mine)) == error::device_keeps_memory);
  mine = {};
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE(
    "a key to a buffer of the sender's that cannot be ended keeps it, and is the send's error") {
  keeping_keys k(call::dereg_mr, keeping_keys::keys::but_of_first_read);
  registered_buffer mine = k.t.pool.allocate(large);
  CHECK(k.send(mine) == error::device_keeps_memory);
  CHECK_FALSE(mine.try_write_access());
  mine = {};
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key to a copy that cannot be ended keeps the copy") {
  keeping_keys k(call::dereg_mr, keeping_keys::keys::but_of_first_read);
  const std::vector<std::uint8_t> mine = pattern(large, 1);
  CHECK(k.send(asio::buffer(mine)) == error_code());
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key to the sink of a read that cannot be ended keeps the memory, and is its error") {
  keeping_keys k;
  if (k.t.dev.type() != transport::iwarp)
    return not_on_this_device("keys of the memory that a read fills");
  const memory target(k.t.pd, large, most_rights(k.t.dev));
  sent read;
  k.t.a.async_read(k.t.pool.allocate(large), target.remote(), read.handler());
  k.t.until([&] { return read.done(); });
  CHECK(read.ec == error::device_keeps_memory);
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key of granted memory that cannot be ended keeps the memory") {
  keeping_keys k(GENERATE(call::dereg_mr, call::dealloc_mw));
  if (k.not_here())
    return not_on_this_device("memory windows");
  outcome<remote_region> r;
  k.t.b.async_request_memory(large, r.handler());
  k.t.until([&] { return r.done(); });
  REQUIRE(r.succeeded());
  outcome<void> gone;
  k.t.a.async_wait_disconnect(gone.handler());
  r.value.reset();
  k.t.until([&] { return gone.done(); });
  CHECK(gone.ec == errc::device_or_resource_busy);
  const std::size_t kept = k.kept();
  CHECK((kept == 1 || (kept > 1 && k.keeps_queue_pair())));
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key of lent memory that cannot be ended keeps the memory, and the access to it") {
  keeping_keys k(GENERATE(call::dereg_mr, call::dealloc_mw));
  if (k.not_here())
    return not_on_this_device("memory windows");
  registered_buffer mine = k.t.pool.allocate(large);
  outcome<void> lent, gone;
  outcome<std::variant<registered_buffer, remote_region>> r;
  k.t.a.async_wait_disconnect(gone.handler());
  k.t.b.async_receive_region(r.handler());
  k.t.a.async_send_region(mine, access::remote_write, lent.handler());
  k.t.until([&] { return lent.done() && r.done(); });
  REQUIRE(r.succeeded());
  CHECK(lent.succeeded());
  r.value = {};
  k.t.until([&] { return gone.done(); });
  CHECK(gone.ec == errc::device_or_resource_busy);
  const std::size_t kept = k.kept();
  CHECK((kept == 1 || (kept > 1 && k.keeps_queue_pair())));
  CHECK_FALSE(mine.try_read_access());
  CHECK(k.kept_later() == 1); // its owner has it
  CHECK(mine.try_write_access());
  mine = {};
  CHECK(k.t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("blocks that a device keeps do not return to their pool") {
  const connections_check nothing_left;
  pair p;
  const memory_pool pool(p.pd);
  faults::injector faults(p.dev.native_handle());
  keep_queue_pair(faults, p.a);
  got r;
  sent w;
  {
    const registered_buffer small = pool.allocate(1000), long_one = pool.allocate(100 * 1024),
                            other = pool.allocate(1000), other_long = pool.allocate(100 * 1024);
    p.a.async_receive(small.slice(500, 100), r.handler());
    p.a.async_write(long_one.slice(50 * 1024, 1024), p.mb.remote(0, 1024), w.handler());
    p.a.close();
    p.drain();
    CHECK(r.ec == error::device_keeps_memory);
    CHECK(w.ec == error::device_keeps_memory);
    CHECK(pool.statistics().blocks_in_use == 4);
  }
  CHECK(pool.statistics().blocks_in_use == 2);
  faults.clear();
  pool.trim();
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE("a block that a device keeps does not return to its pool though memory fails") {
  // Without memory for the list of what is kept, the block is kept to the end of the process. The
  // other allocations of a close do not concern the block.
  bool failed = true;
  std::size_t kept = 0;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    pair p;
    const memory_pool pool(p.pd);
    faults::injector faults(p.dev.native_handle());
    keep_queue_pair(faults, p.a);
    got r;
    registered_buffer block = pool.allocate(1000);
    p.a.async_receive(block, r.handler());
    failed = ends_without(n, [&] { p.a.close(); });
    p.drain();
    CHECK(r.calls == 1);
    CHECK(r.ec == error::device_keeps_memory);
    block = {};
    CHECK(pool.statistics().blocks_in_use == 1);
    faults.clear();
    pool.trim();
    CHECK(pool.statistics().blocks_in_use <= (failed ? 1u : 0u));
    kept += pool.statistics().blocks_in_use;
  }
  CHECK(kept != 0);
}

} // namespace test::withheld_tests
