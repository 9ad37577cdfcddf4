// SPDX-License-Identifier: BSL-1.0
// Faults of posts and completions.
#include "faults.hpp"
#include "loopback.hpp"

#include "catch.hpp"

#include <cerrno>
#include <cstring>

using faults::call;
using faults::injector;

TEST_CASE("a post is refused at the chosen call") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  inj.refuse_post(call::post_send, ENOMEM, {.first = 2, .times = 2});
  REQUIRE(pair.receive_chain({10, 11, 12, 13}) == 0);
  REQUIRE(pair.send(1) == 0);
  REQUIRE(pair.send(2) == ENOMEM);
  REQUIRE(pair.send(3) == ENOMEM);
  REQUIRE(pair.send(4) == 0);
  REQUIRE(ids(loopback::await(pair.a, 2)) == id_list{1, 4});
  REQUIRE(ids(loopback::await(pair.b, 2)) == id_list{10, 11});
  REQUIRE(inj.counts().refused_of(call::post_send) == 2);
}

TEST_CASE("a chain is refused in the middle") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  std::uint64_t bad = 0;
  inj.refuse_post(call::post_recv, ENOMEM, {}, 1);
  REQUIRE(pair.receive(10) == 0); // shorter than the index
  REQUIRE(pair.receive_chain({11, 12, 13}, &bad) == ENOMEM);
  REQUIRE(bad == 12);
  inj.refuse_post(call::post_send, EAGAIN, {}, 2, pair.a.qp->qp_num);
  REQUIRE(pair.send_chain({1, 2, 3, 4}, &bad) == EAGAIN);
  REQUIRE(bad == 3);
  REQUIRE(ids(loopback::await(pair.a, 2)) == id_list{1, 2});
  REQUIRE(ids(loopback::await(pair.b, 2)) == id_list{10, 11});
  REQUIRE(inj.counts().send_requests == 4);
}

TEST_CASE("a post fails without naming a request: sends are posted, receives are not") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive_chain({10, 11}) == 0);
  inj.fail_post_unnamed(call::post_recv, EINVAL);
  inj.fail_post_unnamed(call::post_send, EIO);
  std::uint64_t bad = 0;
  REQUIRE(pair.receive_chain({20, 21}, &bad) == EINVAL);
  REQUIRE(bad == 0);
  REQUIRE(pair.receive(12) == 0);
  REQUIRE(pair.send_chain({1, 2}, &bad) == EIO);
  REQUIRE(bad == 0);
  REQUIRE(pair.send(3) == 0);
  REQUIRE(ids(loopback::await(pair.a, 3)) == id_list{1, 2, 3});
  REQUIRE(ids(loopback::await(pair.b, 3)) == id_list{10, 11, 12});
}

TEST_CASE("held completions are out of sight until they are released") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive_chain({10, 11, 12}) == 0);

  SECTION("armed before, event consumed while held") {
    REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
    inj.hold_completions();
    REQUIRE(pair.send_chain({1, 2, 3}) == 0);
    until([&] { return inj.held() == 6; });
    REQUIRE(loopback::event(pair.b) == nullptr);
    REQUIRE_FALSE(loopback::readable(pair.b.channel->fd));
    REQUIRE(loopback::poll(pair.b).empty());
    inj.release_completions();
    REQUIRE(loopback::readable(pair.b.channel->fd));
    REQUIRE(loopback::event(pair.b) == pair.b.cq);
    REQUIRE(ids(loopback::poll(pair.b)) == id_list{10, 11, 12});
    REQUIRE(ids(loopback::poll(pair.a)) == id_list{1, 2, 3});
  }
  SECTION("armed while held, one after the other") {
    inj.hold_completions({.cq = pair.b.cq});
    REQUIRE(pair.send_chain({1, 2, 3}) == 0);
    REQUIRE(ids(loopback::await(pair.a, 3)) == id_list{1, 2, 3});
    until([&] { return inj.held() == 3; });
    for (std::uint64_t i = 10; i < 13; ++i) {
      REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
      REQUIRE(loopback::poll(pair.b).empty());
      REQUIRE(loopback::event(pair.b) == nullptr);
      REQUIRE(inj.release_completions(1) == 1);
      REQUIRE(loopback::event(pair.b) == pair.b.cq);
      REQUIRE(ids(loopback::poll(pair.b)) == id_list{i});
      REQUIRE(loopback::poll(pair.b).empty());
    }
  }
  SECTION("not armed: no event") {
    inj.hold_completions({.qp_num = pair.b.qp->qp_num});
    REQUIRE(pair.send_chain({1, 2, 3}) == 0);
    until([&] { return inj.held() == 3; });
    inj.release_completions();
    REQUIRE_FALSE(loopback::readable(pair.b.channel->fd));
    REQUIRE(ids(loopback::poll(pair.b)) == id_list{10, 11, 12});
  }
}

TEST_CASE("a queue with held completions still reports others") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  inj.hold_completions({.qp_num = pair.a.qp->qp_num});
  REQUIRE(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
  REQUIRE(pair.receive(10) == 0);
  REQUIRE(pair.send(1) == 0);
  until([&] { return loopback::event(pair.b) == pair.b.cq; });
  REQUIRE(ids(loopback::poll(pair.b)) == id_list{10});
  until([&] { return inj.held() == 1; });
  REQUIRE(loopback::event(pair.a) == nullptr);
  inj.release_completions();
  REQUIRE(loopback::event(pair.a) == pair.a.cq);
}

TEST_CASE("completions that are still held when the injector is destroyed are delivered") {
  cm_device device;
  const auto table = device.context()->ops;
  auto inj = std::make_unique<injector>(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive(10) == 0);
  inj->hold_completions();
  REQUIRE(pair.send(1) == 0);
  until([&] { return inj->held() == 2; });
  inj.reset();
  REQUIRE(ids(loopback::poll(pair.a)) == id_list{1});
  REQUIRE(ids(loopback::poll(pair.b)) == id_list{10});
  REQUIRE(std::memcmp(&device.context()->ops, &table, sizeof table) == 0);
}

TEST_CASE("destroying a queue pair drops its held completions") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive(10) == 0);
  inj.hold_completions();
  REQUIRE(pair.send(1) == 0);
  until([&] { return inj.held() == 2; });
  rdma_destroy_qp(pair.a.id);
  REQUIRE(inj.counts().dropped_completions == 1);
  inj.release_completions();
  REQUIRE(loopback::poll(pair.a).empty());
  REQUIRE(loopback::poll(pair.b).front().wr_id == 10);
}

TEST_CASE("completions that the device still has of a destroyed queue pair are held if wanted") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive(10) == 0);
  REQUIRE(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  inj.hold_completions();
  const bool wanted = GENERATE(false, true);
  if (wanted)
    inj.hold_completions({.qp_num = pair.a.qp->qp_num, .at_destruction = true});
  REQUIRE(pair.send(1) == 0);
  until([&] { return loopback::readable(pair.a.channel->fd); }); // not polled yet
  rdma_destroy_qp(pair.a.id);
  until([&] { return inj.held() != 0; });
  REQUIRE(inj.held() == 1); // b's
  REQUIRE(inj.counts().dropped_completions == (wanted ? 1U : 0U));
}

TEST_CASE("a completion fails with the chosen status") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.post_unused() == 0);
  REQUIRE(pair.receive_chain({10, 11}) == 0);
  SECTION("and the queue pair with it") {
    inj.fail_completion({.status = IBV_WC_REM_ACCESS_ERR,
                         .vendor_err = 42,
                         .qp_num = pair.a.qp->qp_num,
                         .when = {.first = 2}});
    REQUIRE(pair.send(1) == 0);
    REQUIRE(loopback::await(pair.a, 1).front().status == IBV_WC_SUCCESS);
    REQUIRE(pair.send(2) == 0);
    const auto wc = loopback::await(pair.a, 1).front();
    REQUIRE(wc.wr_id == 2);
    REQUIRE(wc.status == IBV_WC_REM_ACCESS_ERR);
    REQUIRE(wc.vendor_err == 42);
    REQUIRE(wc.qp_num == pair.a.qp->qp_num);
    REQUIRE(pair.flushed());
  }
  SECTION("alone") {
    inj.fail_completion({.status = IBV_WC_GENERAL_ERR, .wr_id = 11, .qp_to_error = false});
    REQUIRE(pair.send_chain({1, 2}) == 0);
    const auto wc = loopback::await(pair.b, 2);
    REQUIRE(ids(wc) == id_list{10, 11});
    REQUIRE(wc[0].status == IBV_WC_SUCCESS);
    REQUIRE(wc[1].status == IBV_WC_GENERAL_ERR);
    REQUIRE(ids(loopback::await(pair.a, 2)) == id_list{1, 2});
    REQUIRE(pair.receive(12) == 0);
    REQUIRE(pair.send(3) == 0);
    REQUIRE(loopback::await(pair.a, 1).front().status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("work requests behind a failed completion are flushed") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive_chain({10, 11, 12}) == 0);
  inj.fail_completion({.wr_id = 2});
  REQUIRE(pair.send_chain({1, 2, 3}) == 0);
  REQUIRE(ids(loopback::await(pair.b, 3)) == id_list{10, 11, 12}); // all have succeeded
  const auto wc = loopback::await(pair.a, 3);
  REQUIRE(ids(wc) == id_list{1, 2, 3});
  REQUIRE(wc[0].status == IBV_WC_SUCCESS);
  REQUIRE(wc[1].status == IBV_WC_RETRY_EXC_ERR);
  REQUIRE(wc[2].status == IBV_WC_WR_FLUSH_ERR);
}
