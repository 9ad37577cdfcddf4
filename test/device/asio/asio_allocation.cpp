// SPDX-License-Identifier: BSL-1.0
// Failing allocations of queue pairs, completion queues and waits for access, and descriptors that
// cannot be watched.
#include "catch.hpp"

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/support/allocation_scene.hpp"

#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/deferred.hpp>

#include <new>
#include <utility>

namespace test::asio_allocation_tests {
namespace {

/// Calls `f(n)` with the n-th allocation failing, for each n until no allocation has failed.
template <class F>
void fail_each(F f) {
  for (std::size_t n = 1;; ++n) {
    CAPTURE(n);
    bool failed = false;
    const bool succeeded = f(n, failed);
    REQUIRE(succeeded != failed);
    if (succeeded)
      return;
  }
}

/// True unless the function throws `bad_alloc`.
template <class F>
bool succeeds(std::size_t n, bool& failed, F&& f) {
  const failing_allocation failing(n);
  bool result = true;
  try {
    f();
  } catch (const std::bad_alloc&) {
    result = false;
  }
  failed = failing.failed();
  return result;
}

queue_pair_options shallow() {
  queue_pair_options options;
  options.send_depth = options.receive_depth = 16;
  return options;
}

} // namespace

TEST_CASE("a queue pair that cannot be opened for want of memory gives its entries back") {
  const bool shared = GENERATE(false, true);
  const resource_check nothing_left;
  ground g;
  if (shared && g.dev.attributes().max_srq == 0)
    return;
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io(1);
    completion_queue_options options;
    options.entries = 32;
    const completion_queue cq(io, g.dev, options);
    shared_receive_queue srq(io);
    if (shared) {
      shared_receive_queue_options few;
      few.depth = 16;
      srq.open(g.pd, cq, few);
    }
    bool result = false;
    {
      queue_pair qp(io);
      result = succeeds(n, failed, [&] {
        if (shared)
          qp.open(g.pd, srq, shallow());
        else
          qp.open(g.pd, cq, shallow());
      });
    }
    // There is room for exactly this queue pair.
    queue_pair second(io);
    error_code ec;
    if (shared)
      second.open(g.pd, srq, shallow(), ec);
    else
      second.open(g.pd, cq, shallow(), ec);
    CHECK_FALSE(ec);
    second.close();
    srq.close();
    drain(io);
    return result;
  });
}

TEST_CASE("a queue pair that cannot be adopted for want of memory stays the caller's") {
  const resource_check nothing_left;
  ground g;
  const auto make = [&](ibv_cq* cq, std::uint32_t& entries) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, 16, 1, 1, 0};
    ibv_qp* const result = ibv_create_qp(g.pd.native_handle(), &init);
    REQUIRE(result != nullptr);
    ibv_qp_attr attr{};
    REQUIRE(ibv_query_qp(result, &attr, IBV_QP_CAP, &init) == 0); // the device rounds up
    entries = init.cap.max_send_wr + init.cap.max_recv_wr;
    return result;
  };
  completion_queue_options options;
  {
    asio::io_context io(1);
    const completion_queue cq(io, g.dev);
    ibv_destroy_qp(make(cq.native_handle(), options.entries));
  }
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io(1);
    const completion_queue cq(io, g.dev, options);
    std::uint32_t entries = 0;
    ibv_qp* const raw = make(cq.native_handle(), entries);
    bool result = false;
    {
      queue_pair qp(io);
      result = succeeds(n, failed, [&] { qp.assign(g.pd, cq, raw); });
    }
    if (result)
      return true;
    queue_pair second(io); // there is room for exactly this queue pair
    error_code ec;
    second.assign(g.pd, cq, raw, ec);
    CHECK_FALSE(ec);
    return false;
  });
}

TEST_CASE(
    "a shared receive queue that cannot be opened for want of memory gives its entries back") {
  const resource_check nothing_left;
  ground g;
  if (g.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  shared_receive_queue_options few;
  few.depth = 16;
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io(1);
    completion_queue_options options;
    options.entries = 16;
    const completion_queue cq(io, g.dev, options);
    bool result = false;
    {
      shared_receive_queue srq(io);
      result = succeeds(n, failed, [&] { srq.open(g.pd, cq, few); });
    }
    shared_receive_queue second(io);
    error_code ec;
    second.open(g.pd, cq, few, ec);
    CHECK_FALSE(ec);
    return result;
  });
}

TEST_CASE("a device and a protection domain that cannot be made for want of memory leave nothing") {
  const resource_check nothing_left;
  const std::string name = open_device().name();
  fail_each([&](std::size_t n, bool& failed) {
    return succeeds(n, failed, [&] {
      error_code ec;
      const device d = device::open(name, ec);
      REQUIRE_FALSE(ec);
      const protection_domain pd(d);
    });
  });
}

TEST_CASE("a completion queue that cannot be made for want of memory leaves nothing") {
  const resource_check nothing_left;
  ground g;
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io;
    return succeeds(n, failed, [&] { const completion_queue cq(io, g.dev); });
  });
}

TEST_CASE(
    "the first object of a device that cannot be made for want of memory does not keep the next") {
  const resource_check nothing_left;
  ground g;
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io(1);
    const bool result = succeeds(n, failed, [&] { device_events events(io, g.dev); });
    device_events next(io, g.dev);
    outcome<device_event> waited;
    next.async_wait_event(waited.handler());
    next.close();
    drain(io);
    CHECK(waited.calls == 1);
    return result;
  });
}

TEST_CASE("a wait for access that cannot be started for want of memory is no work") {
  const bool writes = GENERATE(false, true);
  ground g;
  const memory_pool pool(g.pd);
  const registered_buffer buffer = pool.allocate(64);
  fail_each([&](std::size_t n, bool& failed) {
    asio::io_context io(1);
    int calls = 0;
    buffer_access writer = buffer.try_write_access();
    asio::cancellation_signal cancel; // its slot has no memory yet
    const bool result = succeeds(n, failed, [&] {
      auto handler =
          asio::bind_cancellation_slot(cancel.slot(), [&](error_code, buffer_access) { ++calls; });
      if (writes)
        buffer.async_write_access(io.get_executor(), std::move(handler));
      else
        buffer.async_read_access(io.get_executor(), std::move(handler));
    });
    writer.reset();
    drain(io);
    CHECK(calls == (result ? 1 : 0));
    return result;
  });
}

TEST_CASE("the handles of a device share one watch, and nothing is left of it") {
  const resource_check nothing_left;
  const device dev = open_device();
  asio::io_context io(1);
  const device_events first(io, dev);
  error_code ec;
  {
    const device again(dev.native_handle(), ownership::borrow);
    device_events second(io);
    second.open(again, ec); // a reactor accepts a descriptor once
    CHECK(!ec);
  }
  completion_queue_options options;
  const completion_queue cq(io, dev, options);
  const protection_domain pd(dev);
  memory m(pd, 4096, most_rights(dev));
  queue_pair a(io), b(io);
  a.open(pd, cq);
  b.open(pd, cq);
  connect(io, a, b);
  sent s;
  a.async_write(m.buffer(0, 8), m.remote(64, 8), s.handler());
  until(io, [&] { return s.done(); });
  CHECK(s.succeeded());
}

TEST_CASE(
    "an operation that was made before the queue pair was open is refused if there is none such") {
  ground g;
  if (g.dev.type() == transport::iwarp)
    return; // the device has no other type than RC
  queue_pair_options options;
  options.type = IBV_QPT_UC; // has no READ
  asio::io_context io(1);
  queue_pair a(io), b(io);
  auto read = a.async_read(g.part(0), g.remote_part(1), asio::deferred);
  a.open(g.pd, options);
  b.open(g.pd, options);
  connect(io, a, b);
  sent s;
  std::move(read)(s.handler());
  until(io, [&] { return s.done(); });
  CHECK(s.ec == asio::error::operation_not_supported);
  CHECK(a.state() == queue_pair_state::connected);
}

} // namespace test::asio_allocation_tests
