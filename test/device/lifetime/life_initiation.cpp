// SPDX-License-Identifier: BSL-1.0
//
// A handler may run on another thread before the function that started its operation has returned,
// and the handler may destroy the object of the operation. ThreadSanitizer finds later accesses to
// that object.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace test::life_initiation_tests {
namespace {

/// The first ibv_post_send returns to the library only when another thread has handled the
/// completion. No synchronisation here orders the two threads.
class told_at_once {
public:
  explicit told_at_once(ibv_context* c) noexcept : context_(c) {
    is_first = true;
    post_send = std::exchange(c->ops.post_send, &told_at_once::post);
    poll_cq = std::exchange(c->ops.poll_cq, &told_at_once::poll);
  }
  told_at_once(const told_at_once&) = delete;
  ~told_at_once() {
    context_->ops.post_send = post_send;
    context_->ops.poll_cq = poll_cq;
  }

private:
  static int post(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    if (!is_first.exchange(false, std::memory_order_relaxed))
      return post_send(qp, wr, bad);
    awaited.store(wr->wr_id, std::memory_order_relaxed);
    const int e = post_send(qp, wr, bad);
    while (e == 0 && awaited.load(std::memory_order_relaxed) != 0)
      std::this_thread::yield();
    return e;
  }

  static int poll(ibv_cq* cq, int most, ibv_wc* wc) {
    const int n = poll_cq(cq, most, wc);
    for (int i = 0; i < n; ++i)
      if (wc[i].wr_id == awaited.load(std::memory_order_relaxed))
        awaited.store(0, std::memory_order_relaxed);
    return n;
  }

  static inline int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  static inline int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
  static inline std::atomic<bool> is_first{false};
  static inline std::atomic<std::uint64_t> awaited{0};

  ibv_context* context_;
};

template <class Object, class Buffers>
asio::awaitable<void> send_once(Object object, Buffers what) {
  co_await object.async_send(what, asio::use_awaitable);
}

struct rethrown {
  int calls = 0;
  std::exception_ptr error;
  auto handler() {
    return [this](std::exception_ptr e) {
      ++calls;
      error = e;
    };
  }
};

/// Runs the coroutine, which owns `Object`, on two threads.
template <class Start>
void run_to_its_end(asio::io_context& io, const device& d, Start&& start) {
  rethrown end;
  io.restart();
  asio::co_spawn(io, start(), end.handler());
  {
    const told_at_once first(d.native_handle());
    run_by_threads(io, 2);
  }
  CHECK(end.calls == 1);
  CHECK_FALSE(end.error);
}

} // namespace

TEST_CASE("a coroutine without a strand owns the queue pair that it sends by") {
  const resource_check nothing_left;
  ground g;
  const int buffers = GENERATE(1, 2);
  for (int round = 0; round < 20; ++round) {
    asio::io_context io;
    auto q = std::make_unique<joined>(io, g);
    got r;
    q->b.async_receive(g.part(1, 128), r.handler());
    run_to_its_end(io, g.dev, [&] {
      return buffers == 1 ? send_once(std::move(q->a), std::array{const_buffer(g.part(0))})
                          : send_once(std::move(q->a),
                                      std::array{const_buffer(g.part(0)), const_buffer(g.part(2))});
    });
    CHECK(r.succeeded());
  }
}

} // namespace test::life_initiation_tests
