// SPDX-License-Identifier: BSL-1.0
// The fate of operations when the execution context is destroyed.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>

#include <memory>
#include <utility>

namespace test::asio_context_tests {
namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

/// A handler that must never be called, only destroyed.
struct never_called {
  std::shared_ptr<int> token;
  template <class... Args>
  void operator()(Args&&...) const {
    FAIL("a handler was called");
  }
};

/// A handler whose destruction acts on its queue pairs.
struct restless {
  std::shared_ptr<linked<asio::any_io_executor>> q;
  const ground* where;
  int* destroyed;
  restless(std::shared_ptr<linked<asio::any_io_executor>> p, const ground& g, int& n)
      : q(std::move(p)), where(&g), destroyed(&n) {}
  restless(restless&&) = default;
  ~restless() {
    if (!q)
      return;
    ++*destroyed;
    q->a.cancel();
    q->b.close();
    q->a.close();
  }
  template <class... Args>
  void operator()(Args&&...) {
    FAIL("a handler was called");
  }
};

} // namespace

TEST_CASE("a context that is destroyed destroys the handlers of its operations, uncalled") {
  const auto mode = GENERATE(completion_mode::event, completion_mode::adaptive,
                             completion_mode::busy, completion_mode::manual);
  ground g;
  INFO("mode " << static_cast<int>(mode));
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>();
    alive = token;
    asio::io_context io(1);
    completion_queue::set_default_options(io, in_mode(mode));
    const strand_type strand(io.get_executor());
    linked<asio::any_io_executor> q(io, g);
    for (int i = 0; i < 300; ++i) { // posted and waiting for room
      q.b.async_receive(g.part(1), never_called{token});
      q.a.async_write(g.part(0), g.remote_part(2), never_called{token});
      q.a.async_write(g.part(0), g.remote_part(2),
                      asio::bind_executor(strand, never_called{token}));
    }
    q.a.async_wait_disconnect(never_called{token});
    queue_pair(io).async_send(g.part(0), never_called{token});
  }
  CHECK(alive.expired());
}

TEST_CASE("a queue pair may outlive its context") {
  ground g;
  auto io = std::make_unique<asio::io_context>(1);
  linked<asio::any_io_executor> q(*io, g);
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> alive = token;
  q.b.async_receive(g.part(1), never_called{token});
  q.a.async_write(g.part(0), g.remote_part(1), never_called{token});
  q.a.async_wait_disconnect(never_called{std::move(token)});
  io.reset();
  CHECK(alive.expired());
  CHECK(q.a.state() == queue_pair_state::closed);
  q.a.cancel();
  q.a.close();
}

TEST_CASE("a completion queue, a batch and a cancellation signal may outlive their context") {
  ground g;
  auto io = std::make_unique<asio::io_context>(1);
  completion_queue cq(*io, g.dev);
  queue_pair a(*io);
  a.open(g.pd, cq);
  asio::cancellation_signal signal;
  a.async_receive(g.part(1), asio::bind_cancellation_slot(signal.slot(),
                                                          never_called{std::make_shared<int>()}));
  queue_pair::batch batch(a);
  a.async_receive(g.part(1), never_called{std::make_shared<int>()});
  io.reset();
  signal.emit(asio::cancellation_type::terminal);
  batch.commit();
  CHECK(cq.poll() == 0);
}

TEST_CASE("handlers may own the queue pairs that they wait for") {
  ground g;
  std::weak_ptr<linked<asio::any_io_executor>> alive;
  {
    asio::io_context io(1);
    auto q = std::make_shared<linked<asio::any_io_executor>>(io, g);
    alive = q;
    for (int i = 0; i < 200; ++i) {
      q->b.async_receive(g.part(1), [q](error_code, received) {});
      q->a.async_write(g.part(0), g.remote_part(1), [q](error_code, std::size_t) {});
    }
    q->a.async_wait_disconnect([q](error_code) {});
    q->b.async_wait_disconnect([q](error_code) {});
  }
  CHECK(alive.expired());
}

TEST_CASE("a context is destroyed with a failure that was not polled, while handlers own the queue "
          "pair") {
  ground g;
  std::weak_ptr<queue_pair> alive;
  std::unique_ptr<linked<asio::any_io_executor>> q; // its manager outlives the queue pairs
  {
    asio::io_context io(1);
    q = std::make_unique<linked<asio::any_io_executor>>(io, g);
    auto b = std::make_shared<queue_pair>(std::move(q->b));
    alive = b;
    for (int i = 0; i < 3; ++i)
      b->async_receive(g.part(1), [](error_code, received) {});
    b->async_wait_disconnect([b](error_code) {}); // the handler is the last owner
    // The device flushes b's receives; the completion queue has not been polled yet.
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(b->native_handle(), &attr, IBV_QP_STATE) == 0);
    // Closing a polls the completion queue, while the context shuts down.
    q->a.async_receive(g.part(2), [](error_code, received) {});
    auto keeps_a = std::make_shared<queue_pair>(std::move(q->a));
    keeps_a->async_wait_disconnect([keeps_a](error_code) {});
  }
  CHECK(alive.expired());
}

TEST_CASE("a destroyed handler that starts operations, or closes its queue pair, does no harm") {
  ground g;
  int destroyed = 0;
  {
    asio::io_context io(1);
    auto q = std::make_shared<linked<asio::any_io_executor>>(io, g);
    for (int i = 0; i < 3; ++i) {
      q->b.async_receive(g.part(1), restless(q, g, destroyed));
      q->a.async_write(g.part(0), g.remote_part(1), restless(q, g, destroyed));
      q->a.async_wait_disconnect(restless(q, g, destroyed));
    }
  }
  CHECK(destroyed == 9);
}

} // namespace test::asio_context_tests
