// SPDX-License-Identifier: BSL-1.0
// Polling of an empty completion queue, and waiting for events of a descriptor that is closed.
#include "support/fixture.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace soft::test;

namespace {
thread_local int yields = 0;
}

// In place of the C library's, for the device, too.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

TEST_CASE("A thread that polls an empty queue leaves the processor to others now and then") {
  const auto context = open_soft();
  const owned_cq cq(ibv_create_cq(context.get(), 4, nullptr, nullptr, 0));
  REQUIRE(cq);
  ibv_cq_init_attr_ex a{};
  a.cqe = 4;
  const owned_cq extended(ibv_cq_ex_to_cq(ibv_create_cq_ex(context.get(), &a)));
  REQUIRE(extended);
  yields = 0;
  ibv_wc wc{};
  for (int i = 0; i < 4096; ++i)
    if (ibv_poll_cq(cq.get(), 1, &wc) != 0)
      FAIL("the queue is not empty");
  CHECK(yields == 4);
  ibv_poll_cq_attr none{};
  for (int i = 0; i < 4096; ++i)
    if (ibv_start_poll(reinterpret_cast<ibv_cq_ex*>(extended.get()), &none) != ENOENT)
      FAIL("the queue is not empty");
  CHECK(yields == 8);
}

TEST_CASE("A wait for an event of a closed descriptor fails with EBADF") {
  const auto context = open_soft();
  const owned_channel channel(ibv_create_comp_channel(context.get()));
  REQUIRE(channel);
  const int kept = dup(channel->fd);
  REQUIRE(close(channel->fd) == 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  CHECK(ibv_get_cq_event(channel.get(), &cq, &user) == -1);
  CHECK(errno == EBADF);
  REQUIRE(dup2(kept, channel->fd) == channel->fd);
  close(kept);
}
