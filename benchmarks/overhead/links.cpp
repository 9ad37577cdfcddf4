// SPDX-License-Identifier: BSL-1.0
#include "cases.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/exchange.hpp>
#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace bench::overhead {
namespace {

using namespace asio_rdma;

constexpr std::uint32_t messages = 8; // in flight

// By verbs: a SEND of one queue pair meets a RECEIVE of the other.
void bare_sends_and_receives(memory& m, std::uint64_t operations) {
  bare_queue_pair a(m), b(m);
  a.connect(b.qp->qp_num);
  b.connect(a.qp->qp_num);
  std::array<char, 64> target;
  memory_region region(m.pd, target.data(), target.size());
  std::uint64_t posted = 0, done = 0;
  std::array<ibv_wc, window> wc;
  while (done < operations) {
    for (; posted < operations && posted - done < window; ++posted) {
      ibv_sge to{reinterpret_cast<std::uintptr_t>(target.data()), 64, region.lkey()};
      ibv_recv_wr receive{}, *bad_receive;
      receive.wr_id = posted;
      receive.sg_list = &to;
      receive.num_sge = 1;
      check(ibv_post_recv(b.qp, &receive, &bad_receive) == 0, "ibv_post_recv");
      ibv_sge from{reinterpret_cast<std::uintptr_t>(m.bytes.data()), 64, m.region.lkey()};
      ibv_send_wr send{}, *bad_send;
      send.wr_id = posted;
      send.sg_list = &from;
      send.num_sge = 1;
      send.opcode = IBV_WR_SEND;
      send.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
      check(ibv_post_send(a.qp, &send, &bad_send) == 0, "ibv_post_send");
    }
    for (ibv_cq* cq : {a.cq, b.cq}) {
      const int n = ibv_poll_cq(cq, static_cast<int>(wc.size()), wc.data());
      for (int i = 0; i < n; ++i)
        check(wc[static_cast<std::size_t>(i)].status == IBV_WC_SUCCESS, "a completion");
      if (cq == b.cq)
        done += static_cast<std::uint64_t>(n);
    }
  }
}

// Two connected queue pairs with one completion queue.
template <class Executor>
struct two_queue_pairs {
  two_queue_pairs(memory& m, int hint)
      : io(hint),
        queue(io, m.d, {completion_mode::busy}),
        a(io.get_executor()),
        b(io.get_executor()) {
    queue_pair_options options;
    options.send_depth = options.receive_depth = window;
    a.open(m.pd, queue, options);
    b.open(m.pd, queue, options);
    a.connect(b.local_address());
    b.connect(a.local_address());
  }

  asio::io_context io;
  completion_queue queue;
  basic_queue_pair<Executor> a, b;
};

using executor = asio::io_context::executor_type;

// Starts a RECEIVE and its SEND, and again when the message has been received.
struct transfer {
  two_queue_pairs<executor>& l;
  memory& m;
  mutable_buffer target;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    --left;
    l.b.async_receive(target, [again = *this](const error_code& ec, auto&&...) {
      check(!ec, "async_receive");
      again();
    });
    l.a.async_send(m.region.buffer(),
                   [](const error_code& ec, std::size_t) { check(!ec, "async_send"); });
  }
};

template <int Hint = 1>
void sends_and_receives(memory& m, std::uint64_t operations) {
  two_queue_pairs<executor> l(m, Hint);
  std::array<char, 64> target;
  memory_region region(m.pd, target.data(), target.size());
  for (std::uint32_t i = 0; i < window / 2; ++i)
    transfer{l, m, region.buffer(), operations}();
  l.io.run();
}

// Two connected objects (connections or streams) with default options and one completion queue.
template <class Object>
struct two_objects {
  explicit two_objects(memory& m, int hint = 1)
      : io(hint),
        pool(m.pd),
        queue(io, m.d, {completion_mode::busy}),
        a(io.get_executor()),
        b(io.get_executor()) {
    a.open(pool, queue);
    b.open(pool, queue);
    asio::local::stream_protocol::socket sa(io), sb(io);
    asio::local::connect_pair(sa, sb);
    unsigned missing = 2;
    const auto connected = [&missing](const error_code& ec) {
      check(!ec, "async_exchange");
      --missing;
    };
    async_exchange(sa, a, connected);
    async_exchange(sb, b, connected);
    while (missing != 0)
      io.run_one();
  }

  // Until both counts are 0.
  void run(const std::uint64_t& first, const std::uint64_t& second) {
    io.restart();
    io.run();
    check(first == 0 && second == 0, "io_context::run");
  }

  asio::io_context io;
  memory_pool pool;
  completion_queue queue;
  Object a, b;
};

// Starts an operation of 64 bytes, and again when it has completed.
template <class Start>
struct repeated {
  Start start;
  std::uint64_t& to_start;
  std::uint64_t& to_end;

  void operator()() const {
    if (to_start == 0)
      return;
    --to_start;
    start(*this);
  }
  void operator()(const error_code& ec, std::size_t n) const {
    check(!ec && n == 64, "a message");
    --to_end;
    (*this)();
  }
};

// From plain memory to plain memory.
template <int Hint = 1>
void callback_messages(memory& m, std::uint64_t operations) {
  two_objects<basic_connection<executor>> l(m, Hint);
  std::array<char, 64> target;
  std::uint64_t to_send = operations, to_receive = operations;
  std::uint64_t sent = operations, received = operations;
  const auto send = [&](const auto& again) {
    l.a.async_send(asio::buffer(m.bytes), again);
  };
  const auto receive = [&](const auto& again) {
    l.b.async_receive(asio::buffer(target), again);
  };
  for (std::uint32_t i = 0; i < messages; ++i) {
    repeated<decltype(receive)>{receive, to_receive, received}();
    repeated<decltype(send)>{send, to_send, sent}();
  }
  l.run(sent, received);
}

asio::awaitable<void> send_messages(connection& c, const std::array<char, 64>& bytes,
                                    std::uint64_t& left) {
  for (; left != 0; --left)
    co_await c.async_send(asio::buffer(bytes), asio::deferred);
}

asio::awaitable<void> receive_messages(connection& c, std::uint64_t& left) {
  std::array<char, 64> bytes;
  for (; left != 0; --left)
    co_await c.async_receive(asio::buffer(bytes), asio::deferred);
}

void coroutine_messages(memory& m, std::uint64_t operations) {
  two_objects<connection> l(m);
  std::uint64_t sent = operations, received = operations;
  asio::co_spawn(l.io, receive_messages(l.b, received), rethrow);
  asio::co_spawn(l.io, send_messages(l.a, m.bytes, sent), rethrow);
  l.run(sent, received);
}

// Each write is read before the next.
struct stream_transfer {
  two_objects<basic_stream<executor>>& l;
  const std::array<char, 64>& bytes;
  std::array<char, 64>& target;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    l.a.async_write_some(asio::buffer(bytes), [](const error_code& ec, std::size_t n) {
      check(!ec && n == 64, "async_write_some");
    });
    l.b.async_read_some(asio::buffer(target), [again = *this](const error_code& ec, std::size_t n) {
      check(!ec && n == 64, "async_read_some");
      --again.left;
      again();
    });
  }
};

template <int Hint = 1>
void stream_transfers(memory& m, std::uint64_t operations) {
  two_objects<basic_stream<executor>> l(m, Hint);
  std::array<char, 64> target;
  stream_transfer{l, m.bytes, target, operations}();
  l.run(operations, operations);
}

} // namespace

std::vector<test_case> links() {
  return {
      {"bare send and receive", bare_sends_and_receives},
      {"send and receive", sends_and_receives<>},
      {"send and receive, default concurrency hint", sends_and_receives<default_hint>},
      {"message", callback_messages<>},
      {"message, default concurrency hint", callback_messages<default_hint>},
      {"message, deferred, one at a time", coroutine_messages},
      {"stream", stream_transfers<>},
      {"stream, default concurrency hint", stream_transfers<default_hint>},
  };
}

} // namespace bench::overhead
