// SPDX-License-Identifier: BSL-1.0
//
// Messages by `asio_rdma::connection` with its default options. verbs_loop does the same with
// receives whose size and number it knows. With plain memory the messages are sent from a vector,
// and received into one. With memory that the program has registered they are sent from it, and
// received into memory of the pool.
#pragma once

#include "asio_loop.hpp"

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>

#include <vector>

namespace bench {

class connection_loop final : public loop {
public:
  enum class memory { registered, own, plain };

  /// The ends in this process; each may be null. They only name the device. Own and plain
  /// memory are for callbacks.
  connection_loop(const plan& p, style s, memory m, const cm_end* active, const cm_end* passive,
                  process_pipe* to_active)
      : plan_(p),
        style_(s),
        plain_(m == memory::plain ? p.bytes : 0, 'a'),
        payload_of_own_(m == memory::own ? p.bytes : 0, 'a'),
        io_(concurrency_hint(p)),
        device_((active ? active : passive)->context(), asio_rdma::ownership::borrow),
        pd_(device_),
        pool_(pd_),
        queue_(io_, device_, completion_options(p)) {
    pool_.reserve(2 * (p.window() + 4) * p.bytes);
    payload_ = pool_.allocate(p.bytes);
    std::memset(payload_.data(), 'a', p.bytes);
    if (m == memory::own)
      own_ = asio_rdma::memory_region(pd_, payload_of_own_.data(), payload_of_own_.size());
    const auto address = asio::ip::make_address(p.address);
    asio_rdma::acceptor acceptor(io_);
    asio_rdma::connector connector(io_);
    unsigned missing = 0;
    const auto done = [&missing](const asio_rdma::error_code& ec, const auto&) {
      check(ec, "connect");
      --missing;
    };
    if (passive) {
      ++missing;
      acceptor.open({address, 0});
      passive_.open(pool_, queue_);
      acceptor.async_accept(passive_, done);
    }
    const std::uint16_t port =
        exchange_port(passive ? acceptor.local_endpoint().port() : 0, active, passive, to_active);
    if (active) {
      ++missing;
      active_.open(pool_, queue_);
      connector.async_connect(active_, {address, port}, done);
    }
    while (missing != 0)
      io_.run_one();
    counts_received_ = passive != nullptr;
    if (!passive)
      return;
    if (p.what == work::send)
      start([this] { answer(); }, &connection_loop::answers);
    else
      for (std::uint32_t i = 0; i < p.window(); ++i)
        start([this] { take(); }, &connection_loop::takes);
  }

  queue_counters counters() const override {
    const auto c = queue_.counters();
    return {c.polls, c.arms, c.events,
            active_.statistics().registrations + passive_.statistics().registrations};
  }

  void run(std::uint64_t operations) override {
    left_ = to_send_ = operations;
    to_receive_ = counts_received_ ? operations : 0;
    io_.restart();
    if (plan_.what == work::send)
      start([this] { ask(); }, &connection_loop::asks);
    else
      for (std::uint32_t i = 0; i < plan_.window(); ++i)
        start([this] { send_one(); }, &connection_loop::sends);
    io_.run();
  }

  void serve() override {
    for (;;) {
      io_.run();
      io_.restart();
    }
  }

private:
  using awaitable = asio::awaitable<void>;

  static void check(const asio_rdma::error_code& ec, const char* what) {
    if (ec)
      fail(what, ec.message().c_str());
  }

  template <class F>
  void start(F&& callbacks, awaitable (connection_loop::*coroutine)()) {
    start_as(io_, style_, callbacks, [&] { return (this->*coroutine)(); });
  }

  void progressed() {
    if (to_send_ == 0 && to_receive_ == 0)
      io_.stop();
  }

  // Round trips: each message is sent back unchanged

  void answer() {
    if (!plain_.empty()) {
      passive_.async_receive(asio::buffer(plain_), [this](const asio_rdma::error_code& ec,
                                                          std::size_t n) {
        check(ec, "receive");
        passive_.async_send(asio::buffer(plain_, n),
                            [](const asio_rdma::error_code& e, std::size_t) { check(e, "send"); });
        answer();
      });
      return;
    }
    passive_.async_receive([this](const asio_rdma::error_code& ec, asio_rdma::message m) {
      check(ec, "receive");
      passive_.async_send(m.payload,
                          [](const asio_rdma::error_code& e, std::size_t) { check(e, "send"); });
      answer();
    });
  }
  void ask() {
    const auto sent = [](const asio_rdma::error_code& ec, std::size_t) {
      check(ec, "send");
    };
    const auto answered = [this](const asio_rdma::error_code& ec, const auto&) {
      check(ec, "receive");
      if (--left_ != 0)
        ask();
      else
        io_.stop();
    };
    if (plain_.empty()) {
      active_.async_send(payload_, sent);
      active_.async_receive(answered);
    } else {
      active_.async_send(asio::buffer(plain_), sent);
      active_.async_receive(asio::buffer(into_), answered);
    }
  }

  awaitable answers() {
    for (;;) {
      const asio_rdma::message m = co_await passive_.async_receive(asio::deferred);
      co_await passive_.async_send(m.payload, asio::deferred);
    }
  }
  awaitable asks() {
    do {
      co_await active_.async_send(payload_, asio::deferred);
      co_await active_.async_receive(asio::deferred);
    } while (--left_ != 0);
    io_.stop();
  }

  // A window of messages one way

  void take() {
    const auto took = [this](const asio_rdma::error_code& ec, const auto&) {
      check(ec, "receive");
      --to_receive_;
      progressed();
      take();
    };
    if (plain_.empty())
      passive_.async_receive(took);
    else
      passive_.async_receive(asio::buffer(into_), took);
  }
  awaitable takes() {
    for (;;) {
      co_await passive_.async_receive(asio::deferred);
      --to_receive_;
      progressed();
    }
  }

  void send_one() {
    if (left_ == 0)
      return;
    --left_;
    const auto sent = [this](const asio_rdma::error_code& ec, std::size_t) {
      check(ec, "send");
      --to_send_;
      progressed();
      send_one();
    };
    if (own_.is_open())
      active_.async_send(own_.buffer(), sent);
    else if (plain_.empty())
      active_.async_send(payload_, sent);
    else
      active_.async_send(asio::buffer(plain_), sent);
  }
  awaitable sends() {
    while (left_ != 0) {
      --left_;
      co_await active_.async_send(payload_, asio::deferred);
      --to_send_;
      progressed();
    }
  }

  plan plan_;
  style style_;
  std::vector<char> plain_, into_ = std::vector<char>(plain_.size()); // empty: registered memory
  std::vector<char> payload_of_own_;                                  // of `own_`
  asio::io_context io_;
  asio_rdma::device device_;
  asio_rdma::protection_domain pd_;
  asio_rdma::memory_region own_;
  asio_rdma::memory_pool pool_;
  asio_rdma::completion_queue queue_;
  asio_rdma::connection active_{io_}, passive_{io_};
  asio_rdma::registered_buffer payload_;
  bool counts_received_ = false;
  std::uint64_t left_ = 0, to_send_ = 0, to_receive_ = 0;
};

} // namespace bench
