// SPDX-License-Identifier: BSL-1.0
//
// Objects that cannot be registered, created or set up: an error, nothing left behind, and the next
// attempt succeeds.
#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "interposer/faults.hpp"

#include <catch.hpp>

namespace test::life_fault_creation_tests {

using faults::call;

TEST_CASE("a protection domain that cannot be allocated") {
  const resource_check nothing_left;
  const device dev = open_device();
  faults::injector faults(dev.native_handle());
  error_code ec;
  faults.fail(call::alloc_pd, ENOMEM, {1, 2});
  const protection_domain none(dev, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK(none.native_handle() == nullptr);
  CHECK_THROWS_AS(protection_domain(dev), system_error);
  const protection_domain pd(dev, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("memory that cannot be registered") {
  const resource_check nothing_left;
  const device dev = open_device();
  faults::injector faults(dev.native_handle());
  const protection_domain pd(dev);
  char bytes[64];
  error_code ec;
  faults.fail(call::reg_mr, ENOMEM, {1, 2});
  const memory_region none(pd, bytes, sizeof bytes, access::local_write, ec);
  CHECK(ec == error::memory_limit);
  CHECK_FALSE(none.is_open());
  CHECK_THROWS_AS(memory_region(pd, bytes, sizeof bytes), system_error);
  faults.fail(call::reg_mr, EFAULT);
  const memory_region not_mapped(pd, bytes, sizeof bytes, access::local_write, ec);
  CHECK(ec == errc::bad_address);
  const memory_region region(pd, bytes, sizeof bytes, access::local_write, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("a memory window that cannot be allocated") {
  const resource_check nothing_left;
  const device dev = open_device();
  if (!dev.has_memory_windows())
    return not_on_this_device("memory windows");
  faults::injector faults(dev.native_handle());
  const protection_domain pd(dev);
  error_code ec;
  faults.fail(call::alloc_mw, ENOMEM, {1, 2});
  const memory_window none(pd, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK_FALSE(none.is_open());
  CHECK_THROWS_AS(memory_window(pd), system_error);
  const memory_window window(pd, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("a completion queue or its channel that cannot be created") {
  const resource_check nothing_left;
  ground g;
  faults::injector faults(g.dev.native_handle());
  const auto which = GENERATE(call::create_comp_channel, call::create_cq);
  INFO(name(which));
  asio::io_context io(1);
  {
    faults.fail(which, EMFILE, {1, 3});
    CHECK_THROWS_AS(completion_queue(io, g.dev), system_error);
    queue_pair qp(io);
    error_code ec;
    qp.open(g.pd, queue_pair_options(), ec);
    CHECK(ec == errc::too_many_files_open);
    CHECK_FALSE(qp.is_open());
    shared_receive_queue srq(io);
    srq.open(g.pd, completion_queue(), {}, ec);
    CHECK(ec == errc::too_many_files_open);
    CHECK_FALSE(srq.is_open());
    qp.open(g.pd, queue_pair_options(), ec);
    CHECK_FALSE(ec);
  }
  io.run();
}

TEST_CASE("a shared receive queue that cannot be created") {
  const resource_check nothing_left;
  ground g;
  faults::injector faults(g.dev.native_handle());
  asio::io_context io(1);
  faults.fail(call::create_srq, ENOMEM);
  shared_receive_queue srq(io);
  error_code ec;
  srq.open(g.pd, completion_queue(), {}, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK_FALSE(srq.is_open());
  srq.open(g.pd, completion_queue(), {}, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("a queue pair that cannot be created, or not with inline data", "[h9]") {
  const resource_check nothing_left;
  ground g;
  faults::injector faults(g.dev.native_handle());
  asio::io_context io(1);
  queue_pair_options options;
  options.max_inline = 64;
  queue_pair qp(io);
  error_code ec;
  faults.fail(call::create_qp, ENOMEM); // with less inline data it would fail, too
  qp.open(g.pd, options, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK_FALSE(qp.is_open());
  faults.fail(call::create_qp, EINVAL, {1, 2});
  qp.open(g.pd, options, ec);
  CHECK_FALSE(ec);
  CHECK(qp.options().max_inline == 32); // 64 and 48 were refused
  qp.close();
  const auto made = faults.counts()[call::create_qp];
  qp.open(g.pd, options, ec);
  CHECK_FALSE(ec);
  CHECK(qp.options().max_inline == 32);
  CHECK(faults.counts()[call::create_qp] == made + 1);
}

TEST_CASE("a queue pair whose results cannot be registered, or that cannot be initialized") {
  const resource_check nothing_left;
  ground g;
  faults::injector faults(g.dev.native_handle());
  asio::io_context io(1);
  const completion_queue cq(io, g.dev);
  queue_pair qp(io);
  error_code ec;
  if (g.dev.has_atomics()) {
    faults.fail(call::reg_mr, ENOMEM);
    qp.open(g.pd, cq, {}, ec);
    CHECK(ec == errc::not_enough_memory);
    CHECK_FALSE(qp.is_open());
  }
  faults.fail_modify_qp(IBV_QPS_INIT, EINVAL);
  qp.open(g.pd, cq, {}, ec);
  CHECK(ec == errc::invalid_argument);
  CHECK_FALSE(qp.is_open());
  qp.open(g.pd, cq, {}, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("a queue pair that cannot be connected by its peer's address") {
  const resource_check nothing_left;
  ground g;
  if (g.dev.type() == transport::iwarp)
    return not_on_this_device("connecting by address");
  const auto state = GENERATE(IBV_QPS_RTR, IBV_QPS_RTS);
  CAPTURE(state);
  faults::injector faults(g.dev.native_handle());
  asio::io_context io(1);
  queue_pair a(io, g.pd), b(io, g.pd);
  error_code ec;
  faults.fail_modify_qp(state, ENETUNREACH);
  got r;
  a.async_receive(g.part(0), r.handler());
  a.connect(b.local_address(), ec);
  CHECK(ec == errc::network_unreachable);
  const bool half = state == IBV_QPS_RTS; // then the queue pair cannot be used any more
  CHECK(a.state() == (half ? queue_pair_state::failed : queue_pair_state::open));
  if (half)
    until(io, [&] { return r.done(); });
  a.close();
  b.close();
  drain(io);
  CHECK(r.calls == 1);
  CHECK(r.ec == (half ? error_code(ec) : error_code(asio::error::operation_aborted)));
  joined q(io, g);
}

TEST_CASE("nothing is left after any failure on the way, however often") {
  const resource_check nothing_left;
  ground g;
  faults::injector faults(g.dev.native_handle());
  faults::plan plan;
  plan.seed = faults::seed_from_environment();
  plan.fail_registration = plan.fail_creation = plan.fail_modify_qp = 0.1;
  INFO(plan);
  faults.run(plan);
  unsigned failed = 0, made = 0;
  for (int i = 0; i < 100; ++i) {
    try {
      asio::io_context io(1);
      const protection_domain pd(g.dev);
      memory m(pd, 4096, most_rights(g.dev));
      const completion_queue cq(io, g.dev);
      shared_receive_queue srq(io, pd, {});
      queue_pair on_shared(io), alone(io, pd);
      on_shared.open(pd, srq);
      srq.async_receive(m.buffer(0, 8), [](error_code, received) {});
      alone.async_receive(m.buffer(0, 8), [](error_code, received) {});
      if (g.dev.type() != transport::iwarp)
        connect(io, on_shared, alone);
      on_shared.close();
      alone.close();
      srq.close();
      drain(io);
      ++made;
    } catch (const system_error&) {
      ++failed;
    }
  }
  CHECK(failed != 0);
  CHECK(made != 0);
  faults.clear();
  asio::io_context io(1);
  joined q(io, g);
}

} // namespace test::life_fault_creation_tests
