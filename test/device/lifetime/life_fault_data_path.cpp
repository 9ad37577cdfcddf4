// SPDX-License-Identifier: BSL-1.0
//
// Each fault of posting, completing and waking, at each kind of operation: the handler runs once
// with the corresponding error, and other operations are not affected.
#include "device/lifetime/life_fault_scene.hpp"
#include "device/lifetime/life_resources.hpp"

#include <catch.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

namespace test::life_fault_data_path_tests {

using faults::call;

TEST_CASE("a refused post fails its operation, and the next one succeeds") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.faults.refuse_post(kind.post, ENOMEM, {}, 0, kind.is_shared() ? 0 : s.number);
    s.start(0);
    s.start(1);
    s.feed(1);
    s.wait(0, 2);
    CHECK(s.ends[0].ec == errc::not_enough_memory);
    CHECK(s.ends[1].succeeded());
    CHECK(s.actor->state() == queue_pair_state::connected);
    s.finish();
  });
}

TEST_CASE("a chain that is refused in its middle fails that operation only") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    if (kind.is_shared())
      return;
    scene s(kind);
    s.faults.refuse_post(kind.post, ENOMEM, {}, 1, s.number);
    s.start_chain(3);
    s.feed(2);
    s.wait(0, 3);
    CHECK(s.ends[0].succeeded());
    CHECK(s.ends[1].ec == errc::not_enough_memory);
    CHECK(s.ends[2].succeeded());
    CHECK(s.actor->state() == queue_pair_state::connected);
    s.finish();
  });
}

using flags = queue_pair::flags;

struct unsignaled_writes {
  // Starts operations one by one, or as one chain.
  void start(std::initializer_list<flags> how, bool chain) {
    std::optional<queue_pair::batch> batch;
    if (chain)
      batch.emplace(p.a);
    for (const flags f : how)
      p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), f, (next++)->handler());
  }
  void wait() {
    p.until([&] { return std::all_of(ends.begin(), next, [](auto& e) { return e.done(); }); });
  }

  pair p;
  faults::injector faults{p.dev.native_handle()};
  std::array<sent, 4> ends;
  std::array<sent, 4>::iterator next = ends.begin();
};

TEST_CASE("the queue pair fails if the post that would report unsignaled operations is refused") {
  const bool chain = GENERATE(false, true);
  const flags last = GENERATE(flags::none, flags::fenced, flags::unsignaled);
  const resource_check nothing_left;
  unsignaled_writes w;
  w.faults.refuse_post(call::post_send, ENOMEM, {chain ? 1u : 3u, 1}, chain ? 2 : 0,
                       w.p.a.native_handle()->qp_num);
  w.start({flags::unsignaled, flags::unsignaled, last}, chain);
  w.wait();
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(w.ends[i].calls == 1);
    CHECK(w.ends[i].ec == errc::not_enough_memory);
  }
  CHECK(w.p.a.state() == queue_pair_state::failed);
}

TEST_CASE("an operation behind a refused one reports the unsignaled ones before it") {
  const resource_check nothing_left;
  unsignaled_writes w;
  w.faults.refuse_post(call::post_send, ENOMEM, {}, 2, w.p.a.native_handle()->qp_num);
  w.start({flags::unsignaled, flags::unsignaled, flags::none, flags::unsignaled}, true);
  w.wait();
  for (const std::size_t i : {0u, 1u, 3u})
    CHECK(w.ends[i].succeeded());
  CHECK(w.ends[2].calls == 1);
  CHECK(w.ends[2].ec == errc::not_enough_memory);
  CHECK(w.p.a.state() == queue_pair_state::connected);
}

TEST_CASE("a window that was bound in front of a refused request can be bound again") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    if (kind.windows != operation_kind::keys::unbound_here)
      return;
    scene s(kind);
    s.faults.refuse_post(kind.post, ENOMEM, {}, 1, s.number);
    s.start_chain(2);
    s.wait(0, 2);
    REQUIRE(s.ends[0].succeeded());
    outcome<void> freed, again;
    s.actor->async_invalidate(s.key(0), freed.handler());
    until(s.io, [&] { return freed.done(); });
    CHECK(freed.succeeded());
    s.actor->async_bind(s.windows[0], s.here.region, 0, 8, access::remote_read, again.handler());
    until(s.io, [&] { return again.done(); });
    CHECK(again.succeeded());
    s.finish();
  });
}

TEST_CASE("no handler runs before its completion, however late that comes") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.hold();
    for (unsigned i = 0; i < 3; ++i)
      s.start(i);
    s.feed(3);
    s.wait_held(3);
    for (const ending& e : s.ends)
      CHECK(e.calls == 0);
    for (unsigned i = 0; i < 3; ++i) {
      s.faults.release_completions(1);
      s.wait(i, 1);
      CHECK(s.ends[i].succeeded());
      for (unsigned behind = i + 1; behind < 3; ++behind)
        CHECK(s.ends[behind].calls == 0);
    }
    s.finish();
  });
}

TEST_CASE("an operation is aborted if its queue pair closes before the completion arrives") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.start_held();
    s.finish();
    CHECK(s.ends[0].ec == asio::error::operation_aborted);
    CHECK(s.disconnect.ec == asio::error::operation_aborted);
  });
}

TEST_CASE("a completion's status reaches its handler, and ends the operations behind it") {
  const resource_check nothing_left;
  for (const ibv_wc_status status :
       {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_REM_ABORT_ERR, IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR}) {
    INFO("status: " << ibv_wc_status_str(status));
    each_operation([&](const operation_kind& kind) {
      scene s(kind);
      s.faults.fail_completion({.status = status, .vendor_err = 0x51, .qp_num = s.number});
      CHECK(s.actor->vendor_error() == 0);
      s.start(0);
      s.start(1);
      s.feed(2);
      s.wait(0, 1);
      if (status == IBV_WC_WR_FLUSH_ERR)
        CHECK(s.ends[0].ec == asio::error::connection_reset);
      else
        CHECK(s.ends[0].ec == status);
      if (!kind.is_shared()) { // a shared queue belongs to no queue pair
        until(s.io, [&] { return s.disconnect.done() && s.ends[1].done(); });
        CHECK(s.ends[1].ec == asio::error::connection_reset);
        CHECK(s.disconnect.ec == asio::error::connection_reset);
        CHECK(s.actor->state() == queue_pair_state::failed);
        CHECK(s.actor->vendor_error() == (status == IBV_WC_WR_FLUSH_ERR ? 0 : 0x51));
        s.start(2);
        s.wait(2, 1);
        CHECK(s.ends[2].ec == asio::error::connection_reset);
      }
      s.finish();
    });
  }
}

// An event that the device announces but does not deliver: the completion is found in the
// completion queue.
TEST_CASE("an event that is lost before it is read costs no completion") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.start_held();
    s.faults.lose_channel_events(1);
    s.faults.release_completions();
    s.wait(0, 1);
    CHECK(s.ends[0].succeeded());
    CHECK(s.faults.counts().channel_events_lost == 1);
    s.start(1);
    s.feed(1);
    s.wait(1, 1);
    CHECK(s.ends[1].succeeded());
    s.finish();
  });
}

TEST_CASE("a queue that cannot be armed still delivers completions") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.faults.fail(call::req_notify_cq, EIO, {1, 10});
    s.start(0);
    s.feed(1);
    s.wait(0, 1);
    CHECK(s.ends[0].succeeded());
    s.finish();
  });
}

TEST_CASE("a queue pair that cannot be moved to the error state can be closed") {
  const resource_check nothing_left;
  each_operation([](const operation_kind& kind) {
    scene s(kind);
    s.faults.fail_modify_qp(IBV_QPS_ERR, EIO, {1, faults::forever});
    s.start_held();
    s.finish();
    CHECK(s.ends[0].ec == asio::error::operation_aborted);
  });
}

} // namespace test::life_fault_data_path_tests
