// SPDX-License-Identifier: BSL-1.0
// Threads that cannot be started.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <optional>
#include <pthread.h>
#include <thread>

namespace test::cm_no_thread_tests {
namespace {

std::atomic<bool> no_threads{false};

struct without_threads {
  without_threads() { no_threads = true; }
  without_threads(const without_threads&) = delete;
  ~without_threads() { no_threads = false; }
};

} // namespace

// A sanitizer has a pthread_create of its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  if (no_threads)
    return EAGAIN;
  return reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"))(
      thread, attributes, function, argument);
}
#endif

TEST_CASE("if no thread can be started for rdma_connect, the attempt fails") {
  const connections_check nothing_left;
  meeting m;
  {
    const without_threads meanwhile;
    m.connect();
    m.until([&] { return m.connected.done(); });
  }
  INFO(describe(m.connected.ec));
  CHECK(m.connected.ec == errc::resource_unavailable_try_again);
  m.check_next_attempt();
}

TEST_CASE("if no further thread can be started, calls of rdma_connect wait for one another") {
  const connections_check nothing_left;
  std::atomic<bool> may_return = false;
  std::atomic<int> calls = 0, prepared = 0;
  const hooks functions{};
  meeting m;
  acceptor other(m.io, {device_address(m.dev), 0});
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    prepared += call == cm_call::init_queue_pair ? 1 : 0;
    if (call == cm_call::connect)
      for (++calls; !may_return && std::chrono::steady_clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    return 0;
  };
  m.connect();
  until({&m.io}, [&] { return calls == 1; });
  const without_threads meanwhile;
  connection connected, accepted;
  m.initiator->async_connect(c, other.local_endpoint(), connected.handler());
  until({&m.io}, [&] { return prepared == 2; });
  CHECK(calls == 1);
  may_return = true;
  m.accept();
  other.async_accept(d, accepted.handler());
  m.until([&] {
    return m.connected.done() && m.accepted.done() && connected.done() && accepted.done();
  });
  CHECK(m.connected.succeeded());
  CHECK(connected.succeeded());
  CHECK(calls == 2);
}

TEST_CASE("an attempt whose queue pair fails while its call of rdma_connect waits for a thread") {
  const connections_check nothing_left;
  std::atomic<bool> may_return = false;
  std::atomic<int> calls = 0, calls_of_cancelled = 0, prepared = 0;
  std::atomic<const rdma_cm_id*> cancelled = nullptr;
  const hooks functions{};
  std::optional<meeting> m(std::in_place);
  std::optional<acceptor> other(std::in_place, m->io, endpoint(device_address(m->dev), 0));
  std::optional<queue_pair> c(std::in_place, m->io, m->pd);
  connection connected;
  got given_back;
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    if (call == cm_call::init_queue_pair) {
      if (++prepared == 2)
        cancelled = id;
      else if (id == cancelled) // a later attempt's, at the same address
        cancelled = nullptr;
    }
    if (call == cm_call::connect) {
      calls_of_cancelled += id == cancelled ? 1 : 0;
      for (++calls; !may_return && std::chrono::steady_clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return 0;
  };
  m->initiator->async_connect(m->a, other->local_endpoint(), m->connected.handler());
  until({&m->io}, [&] { return calls == 1; });
  const bool context_ends = GENERATE(false, true);
  {
    const without_threads meanwhile;
    c->async_receive(m->ma.buffer(0, 64), given_back.handler());
    m->initiator->async_connect(*c, m->where(), connected.handler());
    until({&m->io}, [&] { return prepared == 2; });
  }
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  REQUIRE(ibv_modify_qp(c->native_handle(), &error, IBV_QP_STATE) == 0);
  until({&m->io}, [&] { return c->state() == queue_pair_state::failed; });
  if (context_ends) {
    std::thread releasing([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5)); // no check depends on it
      may_return = true;
    });
    other.reset();
    c.reset();
    m.reset();
    releasing.join();
    return;
  }
  m->initiator->cancel();
  until({&m->io}, [&] { return connected.done() && m->connected.done(); });
  CHECK(connected.ec == asio::error::operation_aborted);
  CHECK(calls == 1);
  may_return = true;
  m->check_next_attempt(meeting::peer::reached);
  CHECK(calls >= 2); // an attempt calls again if the peer's kernel takes it for a former one
  CHECK(calls_of_cancelled == 0);
}

} // namespace test::cm_no_thread_tests
