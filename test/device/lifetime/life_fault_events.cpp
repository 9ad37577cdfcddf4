// SPDX-License-Identifier: BSL-1.0
//
// Each asynchronous event of a device while operations of each kind are pending.
#include "device/lifetime/life_fault_scene.hpp"
#include "device/lifetime/life_resources.hpp"

#include <catch.hpp>

namespace test::life_fault_events_tests {
namespace {

// Starts two operations whose completions are held back.
void start_two(scene& s) {
  s.hold();
  s.start(0);
  s.start(1);
  if (!s.kind.receives())
    s.wait_held(2);
  else
    s.io.poll();
}

// Checks that the queue pair has failed and its operations have ended, although no completion came.
void expect_ended(scene& s, const error_code& why) {
  until(s.io, [&] { return s.disconnect.done(); });
  const auto is_reason = [&](const error_code& ec) {
    // siw closes the connection when the queue pair reaches the error state, and may report that
    // first.
    return ec == why ||
           (s.is_iwarp() && why == error::queue_pair_fatal && ec == asio::error::connection_reset);
  };
  INFO(describe(s.disconnect.ec));
  CHECK(is_reason(s.disconnect.ec));
  CHECK(s.actor->state() == queue_pair_state::failed);
  s.wait(0, 2);
  for (unsigned i = 0; i < 2; ++i) {
    INFO(describe(s.ends[i].ec));
    CHECK(is_reason(s.ends[i].ec));
  }
  s.start(2);
  s.wait(2, 1);
  CHECK(is_reason(s.ends[2].ec));
}

// Receives of a shared queue outlive a queue pair: other queue pairs use them.
void expect_kept(scene& s) {
  until(s.io, [&] { return s.disconnect.done(); });
  CHECK(s.actor->state() == queue_pair_state::failed);
  CHECK(s.ends[0].calls + s.ends[1].calls == 0);
  s.finish();
  CHECK(s.ends[0].ec == asio::error::operation_aborted);
  CHECK(s.ends[1].ec == asio::error::operation_aborted);
}

// Checks that a queue pair made afterwards on the same device works.
void expect_next_works(const operation_kind& kind) {
  scene s(kind);
  s.start(0);
  s.feed(1);
  s.wait(0, 1);
  CHECK(s.ends[0].succeeded());
  s.finish();
}

} // namespace

TEST_CASE("a fatal error of the queue pair ends outstanding operations") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    start_two(s);
    s.faults.raise_qp_event(s.actor->native_handle());
    if (kind.is_shared()) {
      expect_kept(s);
    } else {
      expect_ended(s, error::queue_pair_fatal);
      s.finish();
    }
    expect_next_works(kind);
  });
}

TEST_CASE("an error of the completion queue ends outstanding operations") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    start_two(s);
    s.faults.raise_cq_error(s.cq.native_handle());
    expect_ended(s, error::queue_pair_fatal);
    s.finish();
    expect_next_works(kind);
  });
}

TEST_CASE("a fatal error of the device ends outstanding operations") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    start_two(s);
    s.faults.raise_device_fatal();
    expect_ended(s, error::device_fatal);
    CHECK(s.peer->state() == queue_pair_state::failed);
    s.finish();
    expect_next_works(kind);
  });
}

TEST_CASE("an error of a shared receive queue ends its receives with its queue pairs") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    if (!kind.is_shared())
      return;
    scene s(kind);
    start_two(s);
    s.faults.raise_srq_event(s.srq->native_handle());
    until(s.io, [&] { return s.faults.counts().async_events == 1; });
    s.start(2);
    s.wait(2, 1);
    CHECK(s.ends[2].ec == error::queue_pair_fatal);
    queue_pair late(s.io);
    error_code ec;
    late.open(s.pd, *s.srq, queue_pair_options(), ec);
    CHECK(ec == error::queue_pair_fatal);
    CHECK(s.ends[0].calls + s.ends[1].calls == 0); // a queue pair may be filling them
    s.actor->close();
    s.wait(0, 2);
    CHECK(s.ends[0].ec == error::queue_pair_fatal);
    CHECK(s.ends[1].ec == error::queue_pair_fatal);
    s.finish();
  });
}

TEST_CASE("an error ends the receives of a shared queue that no queue pair uses") {
  const resource_check nothing_left;
  ground g;
  if (g.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  faults::injector faults(g.dev.native_handle());
  asio::io_context io(1);
  shared_receive_queue srq(io, g.pd);
  got r, late;
  srq.async_receive(g.part(0), r.handler());
  faults.raise_device_fatal();
  until(io, [&] { return r.done(); });
  CHECK(r.ec == error::device_fatal);
  srq.async_receive(g.part(0), late.handler());
  until(io, [&] { return late.done(); });
  CHECK(late.ec == error::device_fatal);
  srq.close();
  drain(io);
  CHECK(r.calls + late.calls == 2);
}

TEST_CASE("an error of a port alone ends no operation of a queue pair") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    start_two(s);
    s.faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
    s.faults.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
    until(s.io, [&] { return s.faults.counts().async_events >= 2; });
    CHECK(s.ends[0].calls + s.ends[1].calls + s.disconnect.calls == 0);
    s.faults.release_completions();
    s.feed(2);
    s.wait(0, 2);
    CHECK(s.ends[0].succeeded());
    CHECK(s.ends[1].succeeded());
    CHECK(s.actor->state() == queue_pair_state::connected);
    s.finish();
  });
}

} // namespace test::life_fault_events_tests
