// SPDX-License-Identifier: BSL-1.0
#include "cases.hpp"

#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/use_awaiter.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <coroutine>
#include <thread>

namespace bench::overhead {
namespace {

using namespace asio_rdma;

// The reference: the cost of the device and of a hand-written loop. The work requests are posted in
// chains of the given length.
void bare_loop(memory& m, std::uint64_t operations, std::uint32_t chain) {
  bare_queue_pair bare(m);
  std::uint64_t posted = 0, done = 0;
  std::array<ibv_wc, window> wc;
  std::array<ibv_send_wr, batch_size> chained;
  while (done < operations) {
    while (posted < operations && posted - done + chain <= window) {
      ibv_sge sge{reinterpret_cast<std::uintptr_t>(m.bytes.data()), 64, m.region.lkey()};
      for (std::uint32_t i = 0; i < chain; ++i) {
        ibv_send_wr& wr = chained[i];
        wr = {};
        wr.wr_id = posted + i;
        wr.next = i + 1 == chain ? nullptr : &chained[i + 1];
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
      }
      ibv_send_wr* bad;
      check(ibv_post_send(bare.qp, chained.data(), &bad) == 0, "ibv_post_send");
      posted += chain;
    }
    const int n = ibv_poll_cq(bare.cq, static_cast<int>(wc.size()), wc.data());
    for (int i = 0; i < n; ++i)
      check(wc[static_cast<std::size_t>(i)].status == IBV_WC_SUCCESS, "a send");
    done += static_cast<std::uint64_t>(n);
  }
}

void bare_sends(memory& m, std::uint64_t operations) { bare_loop(m, operations, 1); }
void bare_batches(memory& m, std::uint64_t operations) { bare_loop(m, operations, batch_size); }

template <class Executor>
struct link {
  explicit link(memory& m, int hint = 1)
      : io(hint), queue(io, m.d, {completion_mode::busy}), qp(io.get_executor()) {
    queue_pair_options options;
    options.send_depth = window;
    qp.open(m.pd, queue, options);
    qp.connect(qp.local_address());
  }

  asio::io_context io;
  completion_queue queue;
  basic_queue_pair<Executor> qp;
};

template <class Executor>
struct sender {
  basic_queue_pair<Executor>& qp;
  const_buffer buffer;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    --left;
    qp.async_send(buffer, *this);
  }
  void operator()(const error_code& ec, std::size_t) const {
    check(!ec, "async_send");
    (*this)();
  }
};

template <class Executor, int Hint = 1>
void callback_sends(memory& m, std::uint64_t operations) {
  link<Executor> l(m, Hint);
  for (std::uint32_t i = 0; i < window; ++i)
    sender<Executor>{l.qp, m.region.buffer(), operations}();
  l.io.run();
}

template <class Executor, class Token>
asio::awaitable<void, Executor> send_many(basic_queue_pair<Executor>& qp, const_buffer buffer,
                                          std::uint64_t& left, Token token) {
  while (left != 0) {
    --left;
    co_await qp.async_send(buffer, token);
  }
}

template <class Token, class Executor = asio::any_io_executor>
void coroutine_sends(memory& m, std::uint64_t operations) {
  link<Executor> l(m);
  for (std::uint32_t i = 0; i < window; ++i)
    asio::co_spawn(l.io, send_many(l.qp, m.region.buffer(), operations, Token()), rethrow);
  l.io.run();
}

// A program's own kind of coroutine, which ends by itself.
struct detached {
  struct promise_type {
    detached get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const { throw; }
  };
};

template <class Executor>
detached send_many_detached(basic_queue_pair<Executor>& qp, const_buffer buffer,
                            std::uint64_t& left) {
  while (left != 0) {
    --left;
    co_await qp.async_send(buffer, use_awaiter);
  }
}

void awaiter_sends(memory& m, std::uint64_t operations) {
  link<asio::io_context::executor_type> l(m);
  for (std::uint32_t i = 0; i < window; ++i)
    send_many_detached(l.qp, m.region.buffer(), operations);
  l.io.run();
}

// The handler of a group's last SEND posts the next group as one chain.
template <class Executor>
struct group_sender {
  basic_queue_pair<Executor>& qp;
  const_buffer buffer;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    left -= batch_size;
    const typename basic_queue_pair<Executor>::batch group(qp);
    for (std::uint32_t i = 1; i < batch_size; ++i)
      qp.async_send(buffer, [](const error_code& ec, std::size_t) { check(!ec, "async_send"); });
    qp.async_send(buffer, *this);
  }
  void operator()(const error_code& ec, std::size_t) const {
    check(!ec, "async_send");
    (*this)();
  }
};

void batched_sends(memory& m, std::uint64_t operations) {
  using executor = asio::io_context::executor_type;
  link<executor> l(m);
  for (std::uint32_t i = 0; i < window / batch_size; ++i)
    group_sender<executor>{l.qp, m.region.buffer(), operations}();
  l.io.run();
}

// The program posts each group when `run` has returned for the group before it.
void batched_sends_outside(memory& m, std::uint64_t operations) {
  link<asio::io_context::executor_type> l(m);
  for (; operations != 0; operations -= batch_size) {
    decltype(l.qp)::batch group(l.qp);
    for (std::uint32_t i = 0; i < batch_size; ++i)
      l.qp.async_send(m.region.buffer(),
                      [](const error_code& ec, std::size_t) { check(!ec, "async_send"); });
    group.commit();
    l.io.restart();
    l.io.run();
  }
}

// An acceptor's thread opens a queue pair for the thread that runs the context.
void sends_after_open_elsewhere(memory& m, std::uint64_t operations) {
  using executor = asio::io_context::executor_type;
  link<executor> l(m);
  std::uint64_t first = window;
  sender<executor>{l.qp, m.region.buffer(), first}();
  l.io.run();
  basic_queue_pair<executor> other(l.io.get_executor());
  std::thread([&] { other.open(m.pd, l.queue); }).join();
  l.io.restart();
  for (std::uint32_t i = 0; i < window; ++i)
    sender<executor>{l.qp, m.region.buffer(), operations}();
  l.io.run();
}

template <class Executor>
struct poster {
  const Executor& ex;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    --left;
    asio::post(ex, *this);
  }
};

template <class Executor, int Hint = 1>
void callback_posts(memory&, std::uint64_t operations) {
  asio::io_context io(Hint);
  const Executor ex = io.get_executor();
  for (std::uint32_t i = 0; i < window; ++i)
    poster<Executor>{ex, operations}();
  io.run();
}

// The cheapest way: to the coroutine's own executor.
asio::awaitable<void> post_many(std::uint64_t& left) {
  while (left != 0) {
    --left;
    co_await asio::post(asio::use_awaitable);
  }
}

void coroutine_posts(memory&, std::uint64_t operations) {
  asio::io_context io(1);
  for (std::uint32_t i = 0; i < window; ++i)
    asio::co_spawn(io, post_many(operations), rethrow);
  io.run();
}

} // namespace

std::vector<test_case> sends() {
  return {
      {"bare send", bare_sends},
      {"io_context::executor_type send", callback_sends<asio::io_context::executor_type>},
      {"io_context::executor_type post", callback_posts<asio::io_context::executor_type>},
      {"default concurrency hint send",
       callback_sends<asio::io_context::executor_type, default_hint>},
      {"hint UNSAFE send", callback_sends<asio::io_context::executor_type, unsafe_hint>},
      {"default concurrency hint post",
       callback_posts<asio::io_context::executor_type, default_hint>},
      {"any_io_executor send", callback_sends<asio::any_io_executor>},
      {"any_io_executor post", callback_posts<asio::any_io_executor>},
      {"use_awaitable send", coroutine_sends<asio::use_awaitable_t<>>},
      {"use_awaitable post", coroutine_posts},
      {"deferred send", coroutine_sends<asio::deferred_t>},
      {"deferred, io_context::executor_type send",
       coroutine_sends<asio::deferred_t, asio::io_context::executor_type>},
      {"use_awaiter send", awaiter_sends},
      {"bare batch", bare_batches},
      {"batch send", batched_sends},
      {"batch send, outside of handlers", batched_sends_outside},
      {"send, after an open elsewhere", sends_after_open_elsewhere},
  };
}

} // namespace bench::overhead
