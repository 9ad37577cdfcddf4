// SPDX-License-Identifier: BSL-1.0
// Threads that wait for an event, and handlers of signals meanwhile: signal(7).
#include "engine/sanitizers.hpp"
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"
#include "support/interrupting_timer.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <functional>
#include <pthread.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

using namespace soft::test;

namespace {

// A thread that calls `f` and has no signals.
std::thread without_signals(std::function<void()> f) {
  sigset_t alarm, before;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, &before);
  std::thread made(std::move(f));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

// `wait` returns 0, or -1 with errno, and `raise` causes the event that it waits for.
template <class Wait, class Raise>
void check_interruptions(Wait wait, Raise raise) {
  {
    const interrupting_timer interrupts;
    errno = 0;
    CHECK(wait() == -1);
    CHECK(errno == EINTR);
  }
  const interrupting_timer restarts(SA_RESTART);
  std::thread other = without_signals([&] {
    while (interrupting_timer::signals() < 5)
      std::this_thread::yield();
    raise();
  });
  CHECK(wait() == 0);
  CHECK(interrupting_timer::signals() >= 5);
  other.join();
}

} // namespace

TEST_CASE("A wait for a completion's event goes on after a handler that restarts calls",
          "[signals]") {
  connected_pair p;
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(ibv_req_notify_cq(p.b.cq.get(), 0) == 0);
  check_interruptions(
      [&] {
        ibv_cq* q = nullptr;
        void* context = nullptr;
        const int result = ibv_get_cq_event(p.b.channel.get(), &q, &context);
        if (result == 0)
          ibv_ack_cq_events(q, 1);
        return result;
      },
      [&] { REQUIRE(p.a.send(2) == 0); });
}

#if !SOFT_ADDRESS_SANITIZER // UndefinedBehaviorSanitizer, which comes with it, needs descriptors

TEST_CASE("A wait needs no descriptor", "[signals]") {
  connected_pair p;
  rlimit all{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &all) == 0);
  const int free = dup(0);
  REQUIRE(free >= 0);
  close(free);
  rlimit few = all;
  few.rlim_cur = static_cast<rlim_t>(free);
  ibv_cq* q = nullptr;
  void* context = nullptr;
  const interrupting_timer interrupts;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const int result = ibv_get_cq_event(p.b.channel.get(), &q, &context), error = errno;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &all) == 0);
  CHECK(result == -1);
  CHECK(error == EINTR);
}

#endif

TEST_CASE("A wait for an asynchronous event goes on after a handler that restarts calls",
          "[signals]") {
  connected_pair p;
  check_interruptions(
      [&] {
        ibv_async_event e;
        const int result = ibv_get_async_event(p.context.get(), &e);
        if (result == 0)
          ibv_ack_async_event(&e);
        return result;
      },
      [&] {
        ibv_sge e = p.a.element(0, 8); // to memory that is not there
        ibv_send_wr wr = side::request(1, IBV_WR_RDMA_WRITE, e), *bad = nullptr;
        REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
      });
}

TEST_CASE("A wait for an event of rdma_cm goes on after a handler that restarts calls",
          "[signals]") {
  cm_end end;
  REQUIRE(rdma_create_id(end.channel, &end.id, nullptr, RDMA_PS_TCP) == 0);
  check_interruptions(
      [&] {
        rdma_cm_event* e = nullptr;
        const int result = rdma_get_cm_event(end.channel, &e);
        if (result == 0)
          rdma_ack_cm_event(e);
        return result;
      },
      [&] {
        sockaddr_in to = local_address(7);
        REQUIRE(rdma_resolve_addr(end.id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
      });
}
