// SPDX-License-Identifier: BSL-1.0
// The completion channels of a device that is removed.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

using namespace soft::test;

TEST_CASE("An epoll set learns of the removal by each completion channel, for ever or by an edge") {
  with_settings set("mlx5");
  const auto context = open_soft();
  const bool blocks = GENERATE(true, false);
  const std::uint32_t edge = GENERATE(0u, std::uint32_t{EPOLLET});
  owned_channel channel(ibv_create_comp_channel(context.get()));
  REQUIRE(channel);
  if (!blocks)
    REQUIRE(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
  const int set_of_all = epoll_create1(EPOLL_CLOEXEC);
  epoll_event e{};
  e.events = EPOLLIN | edge;
  REQUIRE(epoll_ctl(set_of_all, EPOLL_CTL_ADD, channel->fd, &e) == 0);
  CHECK(epoll_wait(set_of_all, &e, 1, 0) == 0);
  set.replace("mlx5,event=now:device_fatal");
  CHECK(next_event(*context) == IBV_EVENT_DEVICE_FATAL);
  CHECK(epoll_wait(set_of_all, &e, 1, 0) == 1);
  for (int i = 0; i < 2; ++i) {
    ibv_cq* cq = nullptr;
    void* user = nullptr;
    CHECK(ibv_get_cq_event(channel.get(), &cq, &user) == -1);
    CHECK(errno == EIO);
    CHECK(epoll_wait(set_of_all, &e, 1, 0) == (edge == 0 ? 1 : 0));
  }
  CHECK(epoll_ctl(set_of_all, EPOLL_CTL_DEL, channel->fd, nullptr) == 0);
  close(set_of_all);
  setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
  channel.reset();
  unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
}
