// SPDX-License-Identifier: BSL-1.0
// Injectors and their plans.
#include "faults.hpp"
#include "loopback.hpp"

#include "catch.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

using faults::call;
using faults::injector;

TEST_CASE("an injector without faults counts calls, and leaves nothing behind") {
  cm_device device;
  const auto table = device.context()->ops;
  {
    injector inj(device.context());
    REQUIRE(device.context()->ops.post_send != table.post_send);
    {
      loopback pair(device.context());
      REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
      REQUIRE(pair.receive(7) == 0);
      REQUIRE(pair.receive(8) == 0);
      REQUIRE(pair.send_chain({1, 2}) == 0);
      REQUIRE(ids(loopback::await(pair.a, 2)) == id_list{1, 2});
      REQUIRE(ids(loopback::await(pair.b, 2)) == id_list{7, 8});
      until([&] { return loopback::event(pair.b) == pair.b.cq; });

      const auto counts = inj.counts();
      REQUIRE(counts[call::post_send] == 1);
      REQUIRE(counts.send_requests == 2);
      REQUIRE(counts[call::post_recv] == 2);
      REQUIRE(counts.receive_requests == 2);
      REQUIRE(counts[call::req_notify_cq] == 1);
      REQUIRE(counts[call::reg_mr] == 1);
      REQUIRE(counts[call::create_cq] == 2);
      REQUIRE(counts[call::create_qp] == 2);
      REQUIRE(counts.completions == 4);
      REQUIRE(counts.channel_events == 1);
      REQUIRE(counts.channel_events_acked == 0);
    }
    const auto counts = inj.counts();
    REQUIRE(counts.channel_events_acked == 1);
    REQUIRE(counts.unacknowledged_at_destroy == 0);
    REQUIRE(counts[call::destroy_qp] == 2);
  }
  REQUIRE(std::memcmp(&device.context()->ops, &table, sizeof table) == 0);
}

TEST_CASE("an injector is used from several threads") {
  cm_device device;
  injector inj(device.context());
  loopback first(device.context()), second(device.context());
  constexpr std::uint64_t messages = 300;
  std::atomic<unsigned> running = 2, wrong = 0;
  const auto exchange = [&](loopback& pair) {
    for (std::uint64_t i = 1; i <= messages; ++i)
      if (pair.receive(i) || pair.send(i) || loopback::await(pair.a, 1).front().wr_id != i ||
          loopback::await(pair.b, 1).front().wr_id != i)
        ++wrong;
    --running;
  };
  std::thread one([&] { exchange(first); }), two([&] { exchange(second); });
  while (running) {
    inj.hold_completions({.qp_num = first.a.qp->qp_num});
    inj.held();
    inj.release_completions();
  }
  one.join();
  two.join();
  REQUIRE(wrong == 0);
  REQUIRE(inj.counts().completions == 4 * messages);
}

TEST_CASE("a plan makes the same decisions from the same seed") {
  cm_device device;
  injector inj(device.context());
  ibv_pd* pd = ibv_alloc_pd(device.context());
  REQUIRE(pd);
  char memory[64];
  const auto decisions = [&](std::uint64_t seed) {
    inj.run({.seed = seed, .fail_registration = 0.5});
    std::string result;
    for (int i = 0; i < 64; ++i) {
      ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, local_write);
      result += mr ? '.' : 'x';
      if (mr)
        REQUIRE(ibv_dereg_mr(mr) == 0);
    }
    return result;
  };
  const auto first = decisions(1);
  REQUIRE(first.find('x') != std::string::npos);
  REQUIRE(first.find('.') != std::string::npos);
  REQUIRE(decisions(1) == first);
  REQUIRE(decisions(2) != first);
  REQUIRE(ibv_dealloc_pd(pd) == 0);
}

TEST_CASE("an event loop survives held completions, spurious events and refusals of a plan") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  const faults::plan plan{.seed = faults::seed_from_environment(),
                          .refuse_send = 0.2,
                          .refuse_receive = 0.2,
                          .hold_completion = 0.2,
                          .spurious_event = 0.1};
  std::ostringstream text;
  text << plan;
  INFO(text.str());
  inj.run(plan);

  // One message at a time. Both ends sleep on their channel, as an event-driven program does.
  const auto wait = [&](loopback::end& e) {
    for (;;) {
      auto wc = loopback::poll(e);
      if (wc.empty()) {
        REQUIRE(ibv_req_notify_cq(e.cq, 0) == 0);
        wc = loopback::poll(e);
      }
      if (!wc.empty()) {
        REQUIRE(wc.size() == 1);
        REQUIRE(wc.front().status == IBV_WC_SUCCESS);
        return wc.front().wr_id;
      }
      until([&] { return loopback::readable(e.channel->fd); });
      while (loopback::event(e))
        ;
    }
  };
  for (std::uint64_t i = 1; i <= 500; ++i) {
    while (int e = pair.receive(i))
      REQUIRE(e == ENOMEM);
    while (int e = pair.send(i))
      REQUIRE(e == ENOMEM);
    REQUIRE(wait(pair.a) == i);
    REQUIRE(wait(pair.b) == i);
  }
  const auto counts = inj.counts();
  REQUIRE(counts.refused_of(call::post_send) > 0);
  REQUIRE(counts.refused_of(call::post_recv) > 0);
  REQUIRE(counts.held_completions > 0);
  REQUIRE(counts.channel_events_injected > 0);
}

TEST_CASE("two injectors cannot share a context") {
  cm_device device;
  injector inj(device.context());
  REQUIRE_THROWS_AS(injector(device.context()), std::logic_error);
}

TEST_CASE("a device that was opened and closed under an injector") {
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  REQUIRE(n > 0);
  ibv_context* context = ibv_open_device(list[0]);
  REQUIRE(context);
  ibv_free_device_list(list);
  injector inj(context);
  inj.raise_port_event();
  REQUIRE(loopback::readable(context->async_fd));
  REQUIRE(ibv_close_device(context) == 0);
}
