// SPDX-License-Identifier: BSL-1.0
//
// Queue pairs, completion queues and shared receives that a device refuses to release.
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/verbs/withholding.hpp"
#include "interposer/faults.hpp"

#include <catch.hpp>

namespace test::withheld_queue_pairs_tests {
namespace {

using faults::call;
using faults::forever;

/// Two connected queue pairs. Completions of a's work requests are held back, and the device
/// refuses to destroy a.
struct keeping_queue_pair {
  keeping_queue_pair() {
    keep_queue_pair(faults, p.a);
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

} // namespace

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
    keep_queue_pair(faults, a);
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
    keep_queue_pair(faults, a);
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

} // namespace test::withheld_queue_pairs_tests
