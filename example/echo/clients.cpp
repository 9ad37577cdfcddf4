// SPDX-License-Identifier: BSL-1.0
#include "echo.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <cstring>
#include <exception>
#include <future>
#include <stdexcept>

using asio_rdma::received;
using boost::system::system_error;
using namespace asio::experimental::awaitable_operators;

void client::set(std::uint64_t number) { std::memcpy(memory.data(), &number, sizeof(number)); }

void client::check(std::size_t bytes) const {
  if (bytes != message_size ||
      std::memcmp(memory.data(), memory.data() + message_size, message_size) != 0)
    throw std::runtime_error("the reply differs from the request");
}

// --- Callbacks ---------------------------------------------------------------------------------

namespace {

class callback_client {
public:
  callback_client(client& c, const stop_flag& stop) : client_(c), stop_(stop) {}

  count run() {
    start();
    return result_.get_future().get();
  }

private:
  void start() {
    client_.set(trips_);
    waiting_ = 2;
    client_.qp.async_receive(client_.reply(), [this](error_code ec, received r) {
      bytes_ = r.bytes;
      done(ec);
    });
    client_.qp.async_send(client_.request(), [this](error_code ec, std::size_t) { done(ec); });
  }

  void done(error_code ec) {
    if (ec && !error_)
      error_ = ec;
    if (--waiting_ != 0)
      return;
    try {
      if (error_)
        throw system_error(error_);
      client_.check(bytes_);
    } catch (...) {
      return result_.set_exception(std::current_exception());
    }
    ++trips_;
    if (stop_)
      result_.set_value(trips_);
    else
      start();
  }

  client& client_;
  const stop_flag& stop_;
  std::promise<count> result_;
  count trips_ = 0;
  std::atomic<int> waiting_ = 0; // the first two may complete while the second is started
  std::size_t bytes_ = 0;
  error_code error_;
};

} // namespace

count by_callback(client& c, const stop_flag& stop) { return callback_client(c, stop).run(); }

// --- Futures -----------------------------------------------------------------------------------

count by_future(client& c, const stop_flag& stop) {
  count trips = 0;
  while (!stop) {
    c.set(trips);
    std::future<received> reply = c.qp.async_receive(c.reply(), asio::use_future);
    std::future<std::size_t> sent = c.qp.async_send(c.request(), asio::use_future);
    sent.get();
    c.check(reply.get().bytes);
    ++trips;
  }
  return trips;
}

// --- Coroutines --------------------------------------------------------------------------------

asio::awaitable<count> by_awaitable(client& c, const stop_flag& stop) {
  count trips = 0;
  while (!stop) {
    c.set(trips);
    const auto [reply, sent] = co_await (c.qp.async_receive(c.reply(), asio::use_awaitable) &&
                                         c.qp.async_send(c.request(), asio::use_awaitable));
    c.check(reply.bytes);
    ++trips;
  }
  co_return trips;
}

// Errors as values instead of exceptions.
asio::awaitable<count> by_tuple(client& c, const stop_flag& stop) {
  constexpr auto tuple = asio::as_tuple(asio::use_awaitable);
  count trips = 0;
  while (!stop) {
    c.set(trips);
    // && appends to the tuple on its left.
    const auto [reply_error, reply, sent] =
        co_await (c.qp.async_receive(c.reply(), tuple) && c.qp.async_send(c.request(), tuple));
    const auto& [send_error, bytes] = sent;
    if (send_error || reply_error)
      throw system_error(send_error ? send_error : reply_error);
    c.check(reply.bytes);
    ++trips;
  }
  co_return trips;
}

// Operations as values, started together.
asio::awaitable<count> by_deferred(client& c, const stop_flag& stop) {
  count trips = 0;
  while (!stop) {
    c.set(trips);
    auto receive = c.qp.async_receive(c.reply(), asio::deferred);
    auto send = c.qp.async_send(c.request(), asio::deferred);
    auto both = asio::experimental::make_parallel_group(std::move(receive), std::move(send));
    const auto [order, reply_error, reply, send_error, sent] =
        co_await both.async_wait(asio::experimental::wait_for_one_error(), asio::use_awaitable);
    if (send_error || reply_error)
      throw system_error(order[0] == 0 ? reply_error : send_error);
    c.check(reply.bytes);
    ++trips;
  }
  co_return trips;
}
