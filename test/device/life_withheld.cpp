// SPDX-License-Identifier: BSL-1.0
//
// What a device does not let go of: nobody else gets the memory, whose it is is told, and it comes
// back when the device has let go after all.
#include "connection_support.hpp"
#include "faults/faults.hpp"
#include "life_resources.hpp"

#include <catch.hpp>

#include <sys/mman.h>
#include <variant>

namespace test {
namespace {

using faults::call;
using faults::forever;

constexpr std::size_t large = 64 * 1024;

bool is_mapped(void* page) { return ::msync(page, 1, MS_ASYNC) == 0; }

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  return o;
}

/// Two connections whose keys cannot be ended.
struct keeping_keys {
  keeping_keys() { faults.fail(call::dereg_mr, EBUSY, {1, forever}); }

  template <class Buffer>
  error_code send(const Buffer& from) {
    sent s;
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.a.async_send(from, s.handler());
    t.until([&] { return s.done() && r.done(); });
    CHECK(r.succeeded());
    CHECK(s.calls == 1);
    return s.ec;
  }
  /// What is in use when both connections are gone.
  std::size_t kept() {
    t.a.close();
    t.b.close();
    drain(t.io);
    return t.pool.statistics().blocks_in_use;
  }
  /// The same when the keys could be ended.
  std::size_t kept_later() {
    faults.clear();
    t.pool.trim();
    return t.pool.statistics().blocks_in_use;
  }

  const connections_check nothing_left;
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
  keeping_keys k;
  const memory mine(k.t.pd, large, access::local_write);
  CHECK(k.send(mine.buffer()) == error::device_keeps_memory);
  CHECK(k.kept() == 0);
  CHECK(k.kept_later() == 0);
}

TEST_CASE(
    "a key to a buffer of the sender's that cannot be ended keeps it, and is the send's error") {
  keeping_keys k;
  registered_buffer mine = k.t.pool.allocate(large);
  CHECK(k.send(mine) == error::device_keeps_memory);
  CHECK_FALSE(mine.try_write_access());
  mine = {};
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key to a copy that cannot be ended keeps the copy") {
  keeping_keys k;
  const std::vector<std::uint8_t> mine = pattern(large, 1);
  CHECK(k.send(asio::buffer(mine)) == error_code());
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key of granted memory that cannot be ended keeps the memory") {
  keeping_keys k;
  outcome<remote_region> r;
  k.t.b.async_request_memory(large, r.handler());
  k.t.until([&] { return r.done(); });
  REQUIRE(r.succeeded());
  outcome<void> gone;
  k.t.a.async_wait_disconnect(gone.handler());
  r.value.reset();
  k.t.until([&] { return gone.done(); });
  CHECK(gone.ec == errc::device_or_resource_busy);
  CHECK(k.kept() == 1);
  CHECK(k.kept_later() == 0);
}

TEST_CASE("a key of lent memory that cannot be ended keeps the memory, and the access to it") {
  keeping_keys k;
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
  CHECK(k.kept() == 1);
  CHECK_FALSE(mine.try_read_access());
  CHECK(k.kept_later() == 1); // by its owner
  CHECK(mine.try_write_access());
  mine = {};
  CHECK(k.t.pool.statistics().blocks_in_use == 0);
}

} // namespace test
