// SPDX-License-Identifier: BSL-1.0
// Connections by rdma_cm on a context that several threads run.
#include "catch.hpp"
#include "device/connecting/cm_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace test::cm_threads_tests {
namespace {

constexpr auto with_ec = asio::as_tuple(asio::use_awaitable);

constexpr int clients = 40, thread_count = 4;

/// The result of an operation. A coroutine of the same strand starts the operation and waits for it
/// later.
template <class T>
class pending {
public:
  explicit pending(const asio::any_io_executor& ex)
      : over_(ex, asio::steady_timer::time_point::max()) {}

  auto handler() {
    return asio::bind_executor(over_.get_executor(), [this](error_code ec, T value) {
      result.handler()(ec, std::move(value));
      over_.cancel();
    });
  }
  asio::awaitable<void> wait() {
    if (!result.done())
      co_await over_.async_wait(with_ec);
  }

  outcome<T> result;

private:
  asio::steady_timer over_;
};

/// Clients of one acceptor, each with its own strand and connector; some give up.
class crowd {
  auto counted() {
    return [this](std::exception_ptr e) {
      thrown += e ? 1 : 0;
    };
  }

public:
  void run() {
    for (int i = 0; i < clients; ++i)
      asio::co_spawn(asio::make_strand(io_), gives_up(i) ? give_up(i) : talk(i), counted());
    asio::co_spawn(listener_.get_executor(), listen(), counted());
    std::vector<std::thread> threads;
    for (int i = 0; i < thread_count; ++i)
      threads.emplace_back([this] { io_.run(); });
    for (std::thread& t : threads)
      t.join();
  }

  static bool gives_up(int client) { return client % 4 == 1; }

  std::atomic<int> thrown{0}, failed{0}, answered{0}, asked{0}, given_up{0};
  std::string unexpected; // unexpected errors of clients that gave up

private:
  asio::awaitable<void> talk(int i) {
    const auto ex = co_await asio::this_coro::executor;
    queue_pair qp(ex, pd_);
    connector c(ex);
    memory m(pd_, 64, access::local_write);
    m.put_word(0, static_cast<std::uint64_t>(i));
    pending<received> answer(ex);
    qp.async_receive(m.buffer(8, 8), answer.handler());
    auto [ec, info] = co_await c.async_connect(qp, to_, with_ec);
    if (!ec) {
      qp.async_send(m.buffer(0, 8), asio::detached);
      co_await answer.wait();
      ec = answer.result.ec;
      answered += m.word(8) == static_cast<std::uint64_t>(i) + 1 ? 1 : 0;
    } else {
      qp.close();
      co_await answer.wait();
    }
    failed += ec ? 1 : 0;
    co_await over();
  }

  // Gives up after none to a few turns, in each of the ways.
  asio::awaitable<void> give_up(int i) {
    const auto ex = co_await asio::this_coro::executor;
    queue_pair qp(ex, pd_);
    connector c(ex);
    asio::cancellation_signal signal;
    pending<connection_info> connecting(ex);
    c.async_connect(qp, to_, asio::bind_cancellation_slot(signal.slot(), connecting.handler()));
    for (int turn = 0; turn < i / 4; ++turn)
      co_await asio::post(ex, asio::use_awaitable);
    switch (i / 4 % 3) {
    case 0:
      c.cancel();
      break;
    case 1:
      signal.emit(asio::cancellation_type::total);
      break;
    case 2:
      qp.close();
      break;
    }
    co_await connecting.wait();
    const connection& done = connecting.result;
    given_up += done.calls;
    if (done.ec && done.ec != asio::error::operation_aborted) {
      const std::lock_guard lock(mutex_);
      unexpected += describe(done.ec) + '\n';
    }
    co_await over();
  }

  // After the last client the acceptor closes.
  asio::awaitable<void> over() {
    if (++ended_ == clients)
      co_await asio::co_spawn(
          listener_.get_executor(),
          [this]() -> asio::awaitable<void> {
            listener_.close();
            co_return;
          },
          asio::use_awaitable);
  }

  asio::awaitable<void> listen() {
    for (;;) {
      auto [ec, request] = co_await listener_.async_wait_request(with_ec);
      if (ec)
        co_return;
      asio::co_spawn(asio::make_strand(io_), serve(std::move(request)), counted());
    }
  }

  asio::awaitable<void> serve(connection_request request) {
    const auto ex = co_await asio::this_coro::executor;
    queue_pair qp(ex, pd_);
    acceptor accepting(ex);
    memory m(pd_, 64, access::local_write);
    pending<received> question(ex);
    qp.async_receive(m.buffer(0, 8), question.handler());
    const auto [ec, info] = co_await accepting.async_accept(std::move(request), qp, with_ec);
    if (ec)
      qp.close(); // the client has given up
    co_await question.wait();
    if (question.result.succeeded()) {
      ++asked;
      m.put_word(8, m.word(0) + 1);
      qp.async_send(m.buffer(8, 8), asio::detached);
      co_await qp.async_wait_disconnect(with_ec);
    }
  }

  device dev_ = open_device();
  protection_domain pd_{dev_};
  asio::io_context io_{thread_count};
  acceptor listener_{asio::make_strand(io_), endpoint(device_address(dev_), 0)};
  const endpoint to_ = listener_.local_endpoint();
  std::atomic<int> ended_{0};
  std::mutex mutex_;
};

} // namespace

TEST_CASE("four threads connect, accept and give up on one context") {
  const connections_check nothing_left;
  crowd c;
  c.run();
  constexpr int givers_up = clients / 4, talkers = clients - givers_up;
  CHECK(c.thrown == 0);
  CHECK(c.failed == 0);
  CHECK(c.answered == talkers);
  CHECK(c.asked == talkers);
  CHECK(c.given_up == givers_up);
  CHECK(c.unexpected == "");
}

} // namespace test::cm_threads_tests
