// SPDX-License-Identifier: BSL-1.0
//
// A queue pair is closed while its teardown is in progress, or waits to be run.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/executor_work_guard.hpp>

#include <array>
#include <cerrno>
#include <thread>

namespace test::life_teardown_tests {
using faults::call;

TEST_CASE("close returns when the device has destroyed the queue pair, though another thread "
          "destroys it") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  joined q(io, g);
  faults::injector faults(g.dev.native_handle());
  const std::uint32_t number = q.a.native_handle()->qp_num;
  faults.hold_completions({nullptr, number}); // so some work requests stay posted
  got r;
  sent s;
  q.a.async_receive(g.part(0), r.handler());
  q.a.async_write(g.part(1), g.remote_part(2), s.handler());
  faults.fail(call::destroy_qp, EBUSY, {1, 5}, number);
  q.a.cancel();
  std::thread other([&io] { io.run(); });
  while (faults.counts().refused_of(call::destroy_qp) == 0)
    std::this_thread::yield();
  q.a.close();
  CHECK(faults.counts().refused_of(call::destroy_qp) == 5);
  other.join();
  CHECK(r.calls == 1);
  CHECK(s.calls == 1);
}

TEST_CASE("the handler of an operation that a teardown has ended may close the queue pair") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  queue_pair q(io, g.pd);
  int calls = 0;
  q.async_receive(g.part(0), [&](error_code, received) {
    ++calls;
    q.close();
  });
  q.cancel();
  drain(io);
  CHECK(calls == 1);
}

TEST_CASE("mode manual: a queue pair that has failed is closed before it is polled") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  completion_queue cq(io, g.dev, in_mode(completion_mode::manual));
  queue_pair q(io);
  q.open(g.pd, cq);
  got r;
  q.async_receive(g.part(0), r.handler());
  q.cancel();
  q.close();
  cq = {};
  drain(io);
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

TEST_CASE("mode manual: a queue pair fails on one thread while it is closed on another") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io;
  auto work = asio::make_work_guard(io);
  completion_queue cq(io, g.dev, in_mode(completion_mode::manual));
  faults::injector faults(g.dev.native_handle());
  std::thread other([&io] { io.run(); });
  std::array<got, 100> receives;
  for (got& r : receives) {
    queue_pair q(io);
    q.open(g.pd, cq);
    q.async_receive(g.part(0), r.handler());
    faults.raise_qp_event(q.native_handle());
    q.close();
  }
  while (cq.poll() != 0)
    continue;
  work.reset();
  other.join();
  for (const got& r : receives)
    CHECK(r.calls == 1);
}

} // namespace test::life_teardown_tests
