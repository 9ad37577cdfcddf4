// SPDX-License-Identifier: BSL-1.0
//
// Each fault of a device while operations of each kind wait on a connection or a stream: every
// operation ends once, with the corresponding error, and its memory returns to the pool.
#include "device/link/connection_fault_scene.hpp"
#include "device/link/stream_fault_scene.hpp"

#include <catch.hpp>

namespace test::link_faults_tests {
namespace {

using faults::call;

template <class Scene>
auto each(const std::function<void(const typename Scene::kind_type&)>& f) {
  const connections_check nothing_left;
  Scene::each(f);
}

// On iWARP the device may close the connection before it reports the reason.
template <class Scene>
auto reason(const Scene& s, const error_code& why) {
  return [iwarp = s.is_iwarp(), why](const error_code& ec) {
    return ec == why || (iwarp && ec == asio::error::connection_reset);
  };
}

bool no_memory(const error_code& ec) { return ec == errc::not_enough_memory; }

} // namespace

TEMPLATE_TEST_CASE("an operation ends with its completion, however late that comes", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.release_completions();
    if (kind.ends != TestType::end::only) {
      s.expect_succeeded();
      if (!kind.is_last)
        CHECK(s.works());
    }
    s.finish();
  });
}

TEMPLATE_TEST_CASE("an operation is aborted by closing before its completion has come", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.finish();
    for (unsigned i = 0; i < s.at_once(); ++i)
      CHECK(s.ends[i].ec == asio::error::operation_aborted);
    CHECK(s.disconnect.ec == asio::error::operation_aborted);
  });
}

TEMPLATE_TEST_CASE("an operation ends with a connection that the peer closes", "", connection_scene,
                   stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.b().close();
    s.expect_failed([](const error_code& ec) {
      return ec == asio::error::connection_reset || ec == errc::timed_out;
    });
    s.finish();
  });
}

TEST_CASE("an operation completes, or ends as documented, before a peer that says goodbye") {
  each<connection_scene>([](const auto& kind) {
    connection_scene s(kind);
    for (unsigned i = 0; i < s.at_once(); ++i)
      s.start(i);
    outcome<void> goodbye, answer;
    s.b().async_close(goodbye.handler());
    s.wait(0, s.at_once());
    const bool receives = kind.feed != nullptr && !kind.registers;
    for (unsigned i = 0; i < s.at_once(); ++i) {
      INFO(describe(s.ends[i].ec));
      CHECK((receives ? s.ends[i].ec == asio::error::eof
                      : !s.ends[i].ec || s.ends[i].ec == asio::error::broken_pipe));
    }
    if (!kind.is_last) {
      s.a().async_close(answer.handler());
      s.until([&] { return answer.done(); });
      CHECK(answer.succeeded());
    }
    s.until([&] { return goodbye.done() && s.disconnect.done(); });
    CHECK(goodbye.succeeded());
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a refused post ends the connection and its pending operations", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    if (kind.post == call::poll_cq)
      return;
    TestType s(kind);
    s.faults.refuse_post(kind.post, ENOMEM, {}, 0, s.number);
    s.start_all();
    s.expect_some_failed(no_memory);
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a refused post of another operation ends the pending operations", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    if (kind.is_last)
      return;
    TestType s(kind);
    s.start_held();
    s.faults.refuse_post(call::post_send, ENOMEM, {}, 0, s.number);
    sent other;
    s.a().async_send(s.in_place(2), other.handler());
    s.expect_failed(no_memory);
    CHECK(other.calls == 1);
    CHECK(no_memory(other.ec));
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a failed completion ends the pending operations", "[h12]", connection_scene,
                   stream_scene) {
  for (const ibv_wc_status status :
       {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR,
        IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR}) {
    INFO("status: " << ibv_wc_status_str(status));
    each<TestType>([&](const auto& kind) {
      if (kind.ends == TestType::end::only)
        return; // it has no completion
      TestType s(kind);
      s.faults.fail_completion({.status = status, .qp_num = s.number});
      s.start_all();
      const auto right = [&](const error_code& ec) {
        return ec == asio::error::connection_reset ||
               (status != IBV_WC_WR_FLUSH_ERR && ec == status);
      };
      // If the device completes a request later than its post returns, the peer may have answered,
      // and the library gets the failed completion and the answer together.
      if (kind.is_last || !s.completes_at_once())
        s.expect_some_failed(right);
      else
        s.expect_failed(right);
      s.finish();
    });
  }
}

TEMPLATE_TEST_CASE("an event that is lost before it is read costs no operation", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    if (kind.ends == TestType::end::only)
      return;
    TestType s(kind);
    s.start_held();
    s.faults.lose_channel_events(1);
    s.faults.release_completions();
    s.expect_succeeded();
    CHECK(s.faults.counts().channel_events_lost == 1);
    if (!kind.is_last)
      CHECK(s.works());
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a fatal error of the queue pair ends the pending operations", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.raise_qp_event(s.native());
    s.expect_failed(reason(s, error::queue_pair_fatal));
    s.finish();
  });
}

TEMPLATE_TEST_CASE("an error of the completion queue ends the pending operations", "",
                   connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.raise_cq_error(s.native()->send_cq);
    s.expect_failed(reason(s, error::queue_pair_fatal));
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a fatal error of the device ends the pending operations", "", connection_scene,
                   stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.raise_device_fatal();
    s.expect_failed(reason(s, error::device_fatal));
    s.finish();
  });
}

TEMPLATE_TEST_CASE("an error of a port alone ends no operation of a link", "", connection_scene,
                   stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
    s.faults.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
    s.until([&] { return s.faults.counts().async_events >= 2; });
    for (const ending& e : s.ends)
      CHECK(e.calls == 0);
    s.faults.release_completions();
    if (kind.ends != TestType::end::only)
      s.expect_succeeded();
    s.finish();
  });
}

TEMPLATE_TEST_CASE("faults at random: every operation ends once and leaves nothing", "",
                   connection_scene, stream_scene) {
  const std::uint64_t seed = faults::seed_from_environment();
  for (unsigned n = 0; n < 6; ++n) {
    each<TestType>([&](const auto& kind) {
      TestType s(kind);
      faults::plan plan;
      plan.seed = seed + n;
      plan.refuse_send = plan.refuse_receive = plan.fail_completion = 0.03;
      plan.fail_registration = plan.fail_creation = 0.1;
      plan.hold_completion = plan.spurious_event = 0.2;
      INFO(plan);
      s.faults.run(plan);
      s.start_all();
      s.run_for(30 * n);
      s.finish();
    });
  }
}

TEST_CASE("memory that cannot be registered is its operation's error, and the connection lives") {
  each<connection_scene>([](const auto& kind) {
    if (!kind.registers)
      return;
    connection_scene s(kind);
    if (kind.feed != nullptr) // a long message, whose key would be that of a window
      s.faults.fail(call::alloc_mw, ENOMEM, {1, faults::forever});
    s.faults.fail(call::reg_mr, ENOMEM);
    s.start(0);
    s.wait(0, 1);
    CHECK(s.ends[0].ec == error::memory_limit);
    CHECK(s.works());
    s.start(1);
    s.feed(1);
    s.wait(1, 1);
    CHECK(s.ends[1].succeeded());
    s.finish();
  });
}

TEST_CASE("a key of a sent message that cannot be ended ends the connection, and keeps the memory",
          "[h3]") {
  connection_scene::each([](const auto& kind) {
    if (!kind.registers || kind.feed == nullptr)
      return;
    connection_scene s(kind);
    const std::size_t before = s.pool().statistics().bytes_in_use;
    s.faults.fail(call::alloc_mw, ENOMEM, {1, faults::forever}); // the key is no window's
    // On iWARP the READ at the other side also has a key, which ends first.
    s.faults.fail(call::dereg_mr, EBUSY, {s.is_iwarp() ? 2u : 1u, faults::forever});
    s.start(0);
    s.feed(0);
    s.wait(0, 1);
    if (kind.exposes)
      CHECK(s.ends[0].ec == error::device_keeps_memory);
    else
      CHECK(s.ends[0].succeeded());
    s.until([&] { return s.disconnect.done(); });
    if (kind.exposes)
      s.big[0] = {};
    const std::size_t kept = s.pool().statistics().bytes_in_use;
    CHECK((kind.exposes ? kept >= before : kept > before));
    s.start(1);
    s.wait(1, 1);
    CHECK(s.ends[1].ec == errc::device_or_resource_busy);
    s.faults.clear();
    s.pool().trim(); // the key ends
    s.finish();
  });
}

TEST_CASE(
    "a window of a sent message that cannot be invalidated ends the connection, and keeps the "
    "memory if it cannot be freed either",
    "[h3]") {
  connection_scene::each([](const auto& kind) {
    if (!kind.registers || kind.feed == nullptr)
      return;
    connection_scene s(kind);
    if (!s.a().pool().get_protection_domain().get_device().confines_windows())
      return;
    const bool is_freed = GENERATE(true, false);
    INFO("the window is freed: " << is_freed);
    const std::size_t before = s.pool().statistics().bytes_in_use;
    if (!is_freed)
      s.faults.fail(call::dealloc_mw, EBUSY, {1, faults::forever});
    s.faults.fail(call::post_send, ENOMEM, {2, 1}, s.number); // after that of bind and offer
    s.start(0);
    s.feed(0);
    s.wait(0, 1);
    if (kind.exposes && !is_freed)
      CHECK(s.ends[0].ec == error::device_keeps_memory);
    else
      CHECK(s.ends[0].succeeded());
    CHECK(s.faults.counts().refused_of(call::post_send) == 1);
    s.until([&] { return s.disconnect.done(); });
    if (kind.exposes)
      s.big[0] = {};
    const std::size_t kept = s.pool().statistics().bytes_in_use;
    CHECK((is_freed || (kind.exposes ? kept >= before : kept > before)));
    s.faults.clear();
    s.pool().trim(); // the key ends
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a queue pair that the device does not destroy ends the pending operations, and "
                   "frees its memory when it is destroyed",
                   "", connection_scene, stream_scene) {
  each<TestType>([](const auto& kind) {
    TestType s(kind);
    s.start_held();
    s.faults.fail(call::destroy_qp, EBUSY, {1, faults::forever}, s.number);
    s.a().close();
    s.until([&] { return s.faults.counts().refused_of(call::destroy_qp) != 0; });
    s.wait(0, s.at_once());
    CHECK(s.pool().statistics().blocks_in_use != 0);
    s.faults.clear();
    s.pool().trim();
    s.finish();
  });
}

TEMPLATE_TEST_CASE("a link that cannot be opened leaves nothing, and can be opened then", "",
                   connection_scene, stream_scene) {
  const connections_check nothing_left;
  using object = std::remove_reference_t<decltype(std::declval<TestType&>().a())>;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  faults::injector faults(dev.native_handle());
  asio::io_context io(1);
  object o(io);
  for (const call which : {call::reg_mr, call::create_comp_channel, call::create_cq,
                           call::create_qp, call::modify_qp, call::post_recv}) {
    INFO(faults::name(which));
    error_code ec;
    // The library retries a queue pair without inline data, and an arena with fewer bytes.
    faults.fail(which, EACCES, {1, faults::forever});
    o.open(pool, {}, ec);
    CHECK(ec == errc::permission_denied);
    CHECK_FALSE(o.is_open());
    drain(io);
    CHECK(pool.statistics().blocks_in_use == 0);
    faults.clear();
  }
  o.open(pool);
  o.close();
  drain(io);
  CHECK(pool.statistics().blocks_in_use == 0);
}

TEST_CASE("a READ that is never answered ends its connection in time") {
  connection_options options;
  options.read_timeout = std::chrono::milliseconds(50);
  options.keep_alive = {}; // it would complete requests, too
  options.remote_memory.bytes = 4096;
  const connections_check nothing_left;
  talk t(options, options);
  outcome<remote_region> there;
  t.a.async_request_memory(4096, access::remote_read, there.handler());
  t.until([&] { return there.done(); });
  REQUIRE(there.succeeded());
  faults::injector faults(t.dev.native_handle());
  faults.hold_completions({nullptr, t.a.impl()->target_queue_pair()->native_handle()->qp_num});
  std::array<char, 64> bytes;
  sent read;
  outcome<void> end;
  t.a.async_read(asio::buffer(bytes), there.value, read.handler());
  t.a.async_wait_disconnect(end.handler());
  t.until([&] { return read.done() && end.done(); });
  CHECK(read.ec == asio::error::timed_out);
  CHECK(end.ec == asio::error::timed_out);
}

} // namespace test::link_faults_tests
