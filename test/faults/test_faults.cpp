// SPDX-License-Identifier: BSL-1.0
#include "faults.hpp"
#include "loopback.hpp"

#include "catch.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

using faults::call;
using faults::injector;

namespace {

constexpr int local_write = IBV_ACCESS_LOCAL_WRITE;

std::vector<std::uint64_t> ids(const std::vector<ibv_wc>& wc) {
  std::vector<std::uint64_t> result;
  for (const auto& w : wc)
    result.push_back(w.wr_id);
  return result;
}
using id_list = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("without faults an injector counts, and leaves nothing behind") {
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

TEST_CASE("completions that are still held when the injector goes are delivered") {
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

TEST_CASE("destroying a queue pair drops what was held of it") {
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

TEST_CASE("what the device still has of a destroyed queue pair is not held") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  REQUIRE(pair.receive(10) == 0);
  REQUIRE(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  inj.hold_completions();
  REQUIRE(pair.send(1) == 0);
  until([&] { return loopback::readable(pair.a.channel->fd); }); // nobody has polled it yet
  rdma_destroy_qp(pair.a.id);
  until([&] { return inj.held() != 0; });
  REQUIRE(inj.held() == 1); // b's
  REQUIRE(inj.counts().dropped_completions == 0);
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

TEST_CASE("what follows a failed completion is flushed") {
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

TEST_CASE("an edge-triggered reactor sees every event") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  const int reactor = ::epoll_create1(EPOLL_CLOEXEC);
  REQUIRE(reactor >= 0);
  epoll_event interest{};
  interest.events = EPOLLIN | EPOLLET;
  REQUIRE(::epoll_ctl(reactor, EPOLL_CTL_ADD, pair.b.channel->fd, &interest) == 0);
  const auto events = [&] {
    int n = 0;
    while (!n) { // woken for a held completion's event, there is none
      epoll_event e;
      REQUIRE(::epoll_wait(reactor, &e, 1, 30000) == 1);
      while (loopback::event(pair.b))
        ++n;
    }
    return n;
  };
  const auto of_device = [&](std::uint64_t i) {
    REQUIRE(pair.send(i) == 0);
    REQUIRE(events() == 1);
  };
  const auto of_released = [&](std::uint64_t i) {
    inj.hold_completions();
    REQUIRE(pair.send(i) == 0);
    until([&] { return inj.held() == 2; });
    inj.release_completions();
    REQUIRE(events() >= 1);
  };
  const auto injected_and_of_device = [&](std::uint64_t i) {
    inj.raise_channel_event(pair.b.cq);
    REQUIRE(events() == 1);
    REQUIRE(pair.send(i) == 0);
    REQUIRE(events() == 1);
  };
  std::uint64_t i = 0;
  const std::array<std::function<void(std::uint64_t)>, 3> kinds{of_device, of_released,
                                                                injected_and_of_device};
  for (int round = 0; round < 10; ++round)
    for (const auto& make_event : kinds) {
      ++i;
      CAPTURE(i);
      REQUIRE(pair.receive(i) == 0);
      REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
      make_event(i);
      REQUIRE(loopback::await(pair.b, 1).front().wr_id == i);
      REQUIRE(loopback::await(pair.a, 1).front().wr_id == i);
    }
  ::close(reactor);
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

TEST_CASE("a channel event is lost") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  inj.lose_channel_events();
  REQUIRE(pair.receive_chain({10, 11}) == 0);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
  REQUIRE(pair.send(1) == 0);
  until([&] {
    REQUIRE(loopback::event(pair.b) == nullptr);
    return inj.counts().channel_events_lost == 1;
  });
  REQUIRE(ids(loopback::await(pair.b, 1)) == id_list{10});
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
  REQUIRE(pair.send(2) == 0);
  until([&] { return loopback::event(pair.b) == pair.b.cq; });
}

TEST_CASE("a channel event without a completion") {
  cm_device device;
  injector inj(device.context());
  loopback pair(device.context());
  inj.raise_channel_event(pair.b.cq);
  REQUIRE(loopback::readable(pair.b.channel->fd));
  REQUIRE(loopback::event(pair.b) == pair.b.cq);
  REQUIRE(loopback::event(pair.b) == nullptr);
  REQUIRE_FALSE(loopback::readable(pair.b.channel->fd));
  REQUIRE(loopback::poll(pair.b).empty());
}

TEST_CASE("a blocking channel wakes for injected and real events") {
  cm_device device;
  injector inj(device.context());
  ibv_comp_channel* channel = ibv_create_comp_channel(device.context());
  REQUIRE(channel);
  ibv_cq* cq = ibv_create_cq(device.context(), 4, nullptr, channel, 0);
  REQUIRE(cq);
  REQUIRE(cq->channel == channel);
  ibv_cq* got = nullptr;
  std::thread reader([&] {
    void* cq_context;
    if (ibv_get_cq_event(channel, &got, &cq_context) == 0)
      ibv_ack_cq_events(got, 1);
  });
  inj.raise_channel_event(cq);
  reader.join();
  REQUIRE(got == cq);
  REQUIRE(ibv_destroy_comp_channel(channel) == EBUSY);
  REQUIRE(ibv_destroy_cq(cq) == 0);
  REQUIRE(ibv_destroy_comp_channel(channel) == 0);
  REQUIRE(inj.counts().unacknowledged_at_destroy == 0);
}

TEST_CASE("events that nobody acknowledged are told, and destroying does not hang") {
  cm_device device;
  injector inj(device.context());
  inj.set_patience(std::chrono::milliseconds(10));
  {
    loopback pair(device.context());
    REQUIRE(pair.receive(10) == 0);
    REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
    REQUIRE(pair.send(1) == 0);
    until([&] { return loopback::event(pair.b) == pair.b.cq; });
    inj.raise_channel_event(pair.a.cq);
    REQUIRE(loopback::event(pair.a) == pair.a.cq);
    inj.raise_qp_event(pair.a.qp, IBV_EVENT_COMM_EST);
    ibv_async_event event;
    until([&] {
      REQUIRE(ibv_get_async_event(device.context(), &event) == 0);
      const bool ours = event.event_type == IBV_EVENT_COMM_EST && event.element.qp == pair.a.qp;
      if (!ours)
        ibv_ack_async_event(&event);
      return ours;
    });
    pair.a.unacked = pair.b.unacked = 0;
  }
  REQUIRE(inj.counts().unacknowledged_at_destroy == 3);
}

TEST_CASE("registrations and creations fail with the chosen error at the chosen call") {
  cm_device device;
  ibv_context* const context = device.context();
  injector inj(context);
  ibv_pd* pd = ibv_alloc_pd(context);
  REQUIRE(pd);
  char memory[64];

  SECTION("protection domain") {
    inj.fail(call::alloc_pd, EDQUOT);
    errno = 0;
    REQUIRE_FALSE(ibv_alloc_pd(context));
    REQUIRE(errno == EDQUOT);
  }
  SECTION("memory region, through each function") {
    inj.fail(call::reg_mr, ENOMEM, {.first = 2, .times = 3});
    ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, local_write);
    REQUIRE(mr);
    errno = 0;
    REQUIRE_FALSE(ibv_reg_mr(pd, memory, sizeof memory, local_write));
    REQUIRE(errno == ENOMEM);
    unsigned access = IBV_ACCESS_LOCAL_WRITE;
    asm volatile("" : "+r"(access)); // not a constant: libibverbs takes another way
    REQUIRE_FALSE(ibv_reg_mr(pd, memory, sizeof memory, access));
    REQUIRE_FALSE(ibv_reg_mr_iova(pd, memory, sizeof memory, 0, access));
    REQUIRE(ibv_dereg_mr(mr) == 0);
    REQUIRE(inj.counts()[call::reg_mr] == 4);
    REQUIRE(inj.counts().refused_of(call::reg_mr) == 3);
  }
  SECTION("channel and completion queue") {
    inj.fail(call::create_comp_channel, EMFILE);
    errno = 0;
    REQUIRE_FALSE(ibv_create_comp_channel(context));
    REQUIRE(errno == EMFILE);
    inj.fail(call::create_cq, EINVAL);
    errno = 0;
    REQUIRE_FALSE(ibv_create_cq(context, 4, nullptr, nullptr, 0));
    REQUIRE(errno == EINVAL);
    inj.fail(call::create_cq, ENOMEM);
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 4;
    errno = 0;
    REQUIRE_FALSE(ibv_create_cq_ex(context, &attr));
    REQUIRE(
        (errno == ENOMEM || errno == EOPNOTSUPP)); // siw of older rdma-core has no such function
  }
  SECTION("shared receive queue") {
    ibv_srq_init_attr attr{};
    attr.attr = {16, 1, 0};
    inj.fail(call::create_srq, ENOMEM);
    errno = 0;
    REQUIRE_FALSE(ibv_create_srq(pd, &attr));
    REQUIRE(errno == ENOMEM);
    ibv_srq* srq = ibv_create_srq(pd, &attr);
    REQUIRE(srq);
    inj.refuse_post(call::post_srq_recv);
    ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, local_write);
    REQUIRE(mr);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory), sizeof memory, mr->lkey};
    ibv_recv_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == ENOMEM);
    REQUIRE(bad == &wr);
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_dereg_mr(mr) == 0);
  }
  SECTION("a call of rdma_cm") {
    inj.fail(call::create_qp, ENOSPC);
    errno = 0;
    try {
      loopback pair(context);
      FAIL("connected");
    } catch (const std::system_error& e) {
      REQUIRE(e.code().value() == ENOSPC);
    }
    inj.fail_modify_qp(IBV_QPS_INIT, EPERM);
    try {
      loopback pair(context);
      FAIL("connected");
    } catch (const std::system_error& e) {
      REQUIRE(e.code().value() == EPERM);
    }
  }
  SECTION("memory window") {
    if (context->ops.alloc_mw) {
      inj.fail(call::alloc_mw, ENOMEM);
      errno = 0;
      REQUIRE_FALSE(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
      REQUIRE(errno == ENOMEM);
    }
  }
  REQUIRE(ibv_dealloc_pd(pd) == 0);
}

TEST_CASE("asynchronous events are raised") {
  cm_device device;
  ibv_context* const context = device.context();
  injector inj(context);
  const auto next = [&] {
    ibv_async_event event{};
    REQUIRE(loopback::readable(context->async_fd));
    REQUIRE(ibv_get_async_event(context, &event) == 0);
    return event;
  };
  {
    loopback pair(context);
    while (loopback::readable(context->async_fd)) { // "communication established" of the device
      auto event = next();
      ibv_ack_async_event(&event);
    }
    SECTION("queue pair fatal") {
      REQUIRE(pair.post_unused() == 0);
      inj.raise_qp_event(pair.a.qp);
      auto event = next();
      REQUIRE(event.event_type == IBV_EVENT_QP_FATAL);
      REQUIRE(event.element.qp == pair.a.qp);
      REQUIRE(pair.flushed());
      ibv_ack_async_event(&event);
    }
    SECTION("completion queue error") {
      inj.raise_cq_error(pair.a.cq);
      auto event = next();
      REQUIRE(event.event_type == IBV_EVENT_CQ_ERR);
      REQUIRE(event.element.cq == pair.a.cq);
      ibv_ack_async_event(&event);
    }
    SECTION("port") {
      inj.raise_port_event(IBV_EVENT_PORT_ERR, 1);
      inj.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
      auto down = next();
      auto up = next();
      REQUIRE(down.event_type == IBV_EVENT_PORT_ERR);
      REQUIRE(down.element.port_num == 1);
      REQUIRE(up.event_type == IBV_EVENT_PORT_ACTIVE);
      ibv_ack_async_event(&down);
      ibv_ack_async_event(&up);
    }
    SECTION("device fatal") {
      inj.raise_device_fatal();
      auto event = next();
      REQUIRE(event.event_type == IBV_EVENT_DEVICE_FATAL);
      ibv_ack_async_event(&event);
      REQUIRE(pair.send(1) == EIO);
      REQUIRE_FALSE(ibv_alloc_pd(context));
    }
    SECTION("unread when its queue pair goes") {
      inj.raise_qp_event(pair.a.qp, IBV_EVENT_QP_REQ_ERR);
    }
  }
  REQUIRE_FALSE(loopback::readable(context->async_fd));
  REQUIRE(inj.counts().async_events == inj.counts().async_events_acked);
  REQUIRE(inj.counts().unacknowledged_at_destroy == 0);
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

  // One message at a time; both ends sleep in their channel, as an event-driven program does.
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
