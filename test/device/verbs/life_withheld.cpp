// SPDX-License-Identifier: BSL-1.0
//
// Objects that a device refuses to release. Their memory is not reused, its owner gets an error,
// and it is released when the device has released the object after all.
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "interposer/failing_allocation.hpp"
#include "interposer/faults.hpp"

#include <catch.hpp>

#include <new>
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

/// Two connected queue pairs. Completions of a's work requests are held back, and the device
/// refuses to destroy a.
struct keeping_queue_pair {
  keeping_queue_pair() {
    const std::uint32_t number = p.a.native_handle()->qp_num;
    faults.hold_completions({nullptr, number});
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, number);
    p.a.async_receive(p.ma.buffer(0, 64), received.handler());
    p.a.async_write(p.ma.buffer(64, 64), p.mb.remote(0, 64), written.handler());
    p.a.async_read(p.ma.buffer(128, 64), p.mb.remote(0, 64), read.handler());
    if (p.dev.has_atomics())
      p.a.async_fetch_add(p.mb.remote(64, 8), 1, added.handler());
    else
      added.calls = 1, added.ec = error::device_keeps_memory;
  }
  void expect_kept() {
    p.until([&] { return received.done() && written.done() && read.done() && added.done(); });
    drain(p.io);
    for (const auto& [calls, ec] :
         {std::pair(received.calls, received.ec), std::pair(written.calls, written.ec),
          std::pair(read.calls, read.ec), std::pair(added.calls, added.ec)}) {
      CHECK(calls == 1);
      CHECK(ec == error::device_keeps_memory);
    }
  }

  pair p;
  faults::injector faults{p.dev.native_handle()};
  got received;
  sent written, read;
  outcome<std::uint64_t> added;
};

/// Calls `end` while the n-th allocation fails, and expects that nothing comes of it. False if
/// there are not so many.
template <class Function>
bool ends_without(std::size_t n, Function end) {
  bool failed = false, thrown = false;
  {
    const failing_allocation failing(n);
    try {
      end();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    failed = failing.failed();
  }
  CHECK_FALSE(thrown);
  return failed;
}

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
    return not_on_this_device("keys to what a read fills");
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

// --- Queue pairs -----------------------------------------------------------------------------

TEST_CASE("a queue pair that the device destroys only later ends as any other") {
  const connections_check nothing_left;
  pair p;
  faults::injector faults(p.dev.native_handle());
  got r;
  sent w;
  p.a.async_receive(p.ma.buffer(0, 64), r.handler());
  faults.hold_completions({nullptr, p.a.native_handle()->qp_num}); // some requests stay posted
  p.a.async_write(p.ma.buffer(64, 64), p.mb.remote(), w.handler());
  faults.fail(call::destroy_qp, EBUSY, {1, 3});
  p.a.close();
  p.drain();
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
  CHECK(w.calls == 1);
  CHECK(w.ec == asio::error::operation_aborted);
  CHECK(faults.counts().refused_of(call::destroy_qp) == 3);
}

TEST_CASE(
    "a queue pair that the device does not destroy ends its operations with device_keeps_memory") {
  const connections_check nothing_left;
  keeping_queue_pair k;
  SECTION("closed") { k.p.a.close(); }
  SECTION("cancelled") { k.p.a.cancel(); }
  SECTION("failed") { k.faults.raise_qp_event(k.p.a.native_handle()); }
  k.expect_kept();
  k.p.a.close();
  // Completions that the device reports now find no operation.
  k.faults.release_completions();
  queue_pair c(k.p.io, k.p.pd), d(k.p.io, k.p.pd);
  connect(k.p.io, c, d);
  got r;
  sent s;
  d.async_receive(k.p.mb.buffer(0, 64), r.handler());
  c.async_send(k.p.ma.buffer(256, 64), s.handler());
  k.p.until([&] { return r.done() && s.done(); });
  CHECK(r.succeeded());
  CHECK(s.succeeded());
  k.faults.clear();
  d.close(); // the end of any queue pair tries again
}

TEST_CASE("a queue pair is not destroyed before the device has freed its memory windows") {
  const connections_check nothing_left;
  memory_window window;
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  window = memory_window(p.pd);
  outcome<void> bound;
  p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
  p.until([&] { return bound.done(); });
  REQUIRE(bound.succeeded());
  faults::injector faults(p.dev.native_handle());
  got r;
  p.b.async_receive(p.mb.buffer(0, 64), r.handler());
  faults.fail(call::dealloc_mw, EBUSY, {1, 2});
  p.b.close();
  p.drain();
  CHECK(r.calls == 1);
  CHECK(window.is_open());
  CHECK(faults.counts()[call::destroy_qp] == 0);
  p.a.close(); // tries again, and is refused again
  CHECK(window.is_open());
  CHECK(faults.counts()[call::destroy_qp] == 1);
  const memory_pool pool(p.pd);
  pool.trim();
  CHECK_FALSE(window.is_open());
  CHECK(faults.counts()[call::destroy_qp] == 2);
}

TEST_CASE("blocks that a device keeps do not return to their pool") {
  const connections_check nothing_left;
  pair p;
  const memory_pool pool(p.pd);
  faults::injector faults(p.dev.native_handle());
  const std::uint32_t number = p.a.native_handle()->qp_num;
  faults.hold_completions({nullptr, number});
  faults.fail(call::destroy_qp, EBUSY, {1, forever}, number);
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

TEST_CASE("work requests that a device keeps outlive the context") {
  const connections_check nothing_left;
  const device dev = open_device();
  faults::injector faults(dev.native_handle());
  const protection_domain pd(dev);
  memory m(pd, 4096, most_rights(dev));
  sent s;
  got r;
  {
    asio::io_context io(1);
    queue_pair a(io, pd), b(io, pd);
    connect(io, a, b);
    faults.hold_completions({nullptr, a.native_handle()->qp_num});
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, a.native_handle()->qp_num);
    a.async_write(m.buffer(0, 64), m.remote(64), s.handler());
    a.async_receive(m.buffer(128, 64), r.handler());
  }
  CHECK(s.calls == 0);
  CHECK(r.calls == 0);
  faults.clear();
  memory_pool(pd).trim();
}

TEST_CASE("a completion queue that outlives its context and cannot be polled reports nothing") {
  const connections_check nothing_left;
  const device dev = open_device();
  faults::injector faults(dev.native_handle());
  const protection_domain pd(dev);
  memory m(pd, 4096, most_rights(dev));
  got r;
  {
    asio::io_context io(1);
    queue_pair a(io, pd), b(io, pd);
    connect(io, a, b);
    faults.hold_completions({nullptr, a.native_handle()->qp_num});
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, a.native_handle()->qp_num);
    a.async_receive(m.buffer(), r.handler());
  }
  faults.clear();
  faults.fail(call::poll_cq, EIO, {1, forever});
  memory_pool(pd).trim();
  CHECK(faults.counts().refused_of(call::poll_cq) == 1);
  CHECK(r.calls == 0);
}

TEST_CASE("shared receives of a queue that the device does not destroy") {
  const connections_check nothing_left;
  asio::io_context io(1);
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  const memory_pool pool(pd);
  shared_receive_queue srq(io, pd);
  queue_pair a(io, pd), b(io);
  b.open(pd, srq);
  connect(io, a, b);
  got r;
  registered_buffer memory = pool.allocate(64);
  srq.async_receive(memory, r.handler());
  SECTION("for itself") { faults.fail(call::destroy_srq, EBUSY); }
  SECTION("for its queue pair") {
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, b.native_handle()->qp_num);
  }
  SECTION("for its queue pair, after a failure") {
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, b.native_handle()->qp_num);
    outcome<void> limit;
    srq.async_wait_limit(1, limit.handler());
    faults.raise_srq_event(srq.native_handle());
    until(io, [&] { return limit.done(); });
    b.close();
    until(io, [&] { return r.done(); });
  }
  b.close();
  srq.close();
  drain(io);
  CHECK(r.calls == 1);
  CHECK(r.ec == error::device_keeps_memory);
  memory = {};
  CHECK(pool.statistics().blocks_in_use == 1);
  faults.clear();
  pool.trim();
  CHECK(pool.statistics().blocks_in_use == 0);
}

// --- Without memory --------------------------------------------------------------------------

TEST_CASE("a queue pair that the device does not destroy ends though memory fails") {
  const connections_check nothing_left;
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    keeping_queue_pair k;
    failed = ends_without(n, [&] { k.p.a.close(); });
    k.expect_kept();
    k.faults.clear();
    memory_pool(k.p.pd).trim();
  }
}

TEST_CASE("a shared queue that the device does not destroy ends though memory fails") {
  const connections_check nothing_left;
  const bool for_queue_pair = GENERATE(false, true);
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(for_queue_pair, n);
    asio::io_context io(1);
    const device dev = open_device();
    const protection_domain pd(dev);
    faults::injector faults(dev.native_handle());
    memory m(pd, 64, access::local_write);
    shared_receive_queue srq(io, pd);
    queue_pair a(io, pd), b(io);
    b.open(pd, srq);
    connect(io, a, b);
    got r;
    srq.async_receive(m.buffer(), r.handler());
    if (for_queue_pair)
      faults.fail(call::destroy_qp, EBUSY, {1, forever}, b.native_handle()->qp_num);
    faults.fail(call::destroy_srq, EBUSY, {1, forever});
    failed = ends_without(n, [&] {
      b.close();
      srq.close();
    });
    drain(io);
    CHECK(r.calls == 1);
    CHECK(r.ec == error::device_keeps_memory);
    faults.clear();
    memory_pool(pd).trim();
  }
}

TEST_CASE("a queue pair whose connection lingers ends though memory fails") {
  const connections_check nothing_left;
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    meeting m;
    outcome<connection_request> unanswered;
    m.listener->async_wait_request(unanswered.handler());
    m.connect();
    m.until([&] { return unanswered.done(); });
    REQUIRE(unanswered.succeeded());
    failed = ends_without(n, [&] { m.a.close(); });
    m.until([&] { return m.connected.done(); });
    CHECK(m.connected.ec == asio::error::operation_aborted);
    unanswered.value = {};
    drain(m.io);
  }
}

TEST_CASE("a block that a device keeps does not return to its pool though memory fails") {
  // Without memory for the list of what is kept, the block is kept to the end of the process.
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    pair p;
    const memory_pool pool(p.pd);
    faults::injector faults(p.dev.native_handle());
    const std::uint32_t number = p.a.native_handle()->qp_num;
    faults.hold_completions({nullptr, number});
    faults.fail(call::destroy_qp, EBUSY, {1, forever}, number);
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
    CHECK(pool.statistics().blocks_in_use == (failed ? 1 : 0));
  }
}

TEST_CASE("a connection whose queue pair the device does not destroy keeps the memory of all "
          "posted operations") {
  const connections_check nothing_left;
  talk t({}, generous());
  faults::injector faults(t.dev.native_handle());
  const memory mine(t.pd, 4096, access::local_write);
  registered_buffer lent = t.pool.allocate(2048), sink = t.pool.allocate(2048);
  outcome<remote_region> region;
  t.a.async_request_memory(4096, region.handler());
  t.until([&] { return region.done(); });
  REQUIRE(region.succeeded());

  const std::uint32_t number = t.a.impl()->target_queue_pair()->native_handle()->qp_num;
  faults.hold_completions({nullptr, number});
  faults.fail(call::destroy_qp, EBUSY, {1, forever}, number);
  sent of_view, of_buffer, written, read;
  t.a.async_send(mine.buffer(0, 1024), of_view.handler());
  t.a.async_send(lent, of_buffer.handler());
  t.a.async_write(mine.buffer(1024, 1024), region.value, written.handler());
  t.a.async_read(sink, region.value, read.handler());
  t.a.close();
  drain(t.io);
  for (const sent* s : {&of_view, &of_buffer, &written, &read}) {
    CHECK(s->calls == 1);
    CHECK(s->ec == error::device_keeps_memory);
  }
  t.b.close();
  drain(t.io);
  region.value.reset();
  const std::size_t by_user = t.pool.statistics().blocks_in_use;
  lent = sink = {};
  CHECK(t.pool.statistics().blocks_in_use == by_user); // no block was returned
  CHECK(by_user > connection_options().receives);
  faults.clear();
  t.pool.trim();
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

} // namespace test
