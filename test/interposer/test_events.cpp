// SPDX-License-Identifier: BSL-1.0
// Faults of the events of channels and devices.
#include "faults.hpp"
#include "loopback.hpp"

#include "catch.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

using faults::call;
using faults::injector;

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
    while (!n) { // an event of a held completion may wake it
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

TEST_CASE("events that were not acknowledged are counted, and destroying does not hang") {
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
    SECTION("unread when its queue pair is destroyed") {
      inj.raise_qp_event(pair.a.qp, IBV_EVENT_QP_REQ_ERR);
    }
  }
  REQUIRE_FALSE(loopback::readable(context->async_fd));
  REQUIRE(inj.counts().async_events == inj.counts().async_events_acked);
  REQUIRE(inj.counts().unacknowledged_at_destroy == 0);
}
