// SPDX-License-Identifier: BSL-1.0
//
// The work of verbs_loop.hpp by the library, as a program would write it: queue pairs of one
// io_context, which share its completion queue, with handlers that are callbacks or coroutines.
#pragma once

#include "cm_link.hpp"

#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/use_awaiter.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>

#include <coroutine>
#include <exception>
#include <optional>

namespace bench {

namespace asio = asio_rdma::asio;

enum class style {
  callbacks,
  coroutines, ///< `asio::awaitable`, `co_await` of `deferred`.
  awaiters    ///< Coroutines of a type of the program's, `co_await` of `use_awaiter`.
};

inline asio_rdma::completion_queue_options completion_options(const plan& p) {
  using asio_rdma::completion_mode;
  return {p.how == mode::event      ? completion_mode::event
          : p.how == mode::adaptive ? completion_mode::adaptive
                                    : completion_mode::busy,
          1024};
}

inline int concurrency_hint(const plan& p) {
  return p.any_thread ? BOOST_ASIO_CONCURRENCY_HINT_DEFAULT : 1;
}

/// A coroutine that starts at once, and whose end nothing awaits.
struct unawaited {
  struct promise_type {
    unawaited get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

/// How a coroutine of asio_loop is written.
struct as_awaitable {
  using task = asio::awaitable<void>;
  static constexpr auto token = asio::deferred;
};
struct as_unawaited {
  using task = unawaited;
  static constexpr auto token = asio_rdma::use_awaiter;
};

/// Calls `callbacks`, or spawns the coroutine that `coroutine` makes.
template <class Callbacks, class Coroutine>
void start_as(asio::io_context& io, style s, Callbacks&& callbacks, Coroutine&& coroutine) {
  if (s == style::callbacks)
    callbacks();
  else
    asio::co_spawn(io, coroutine(), [](const std::exception_ptr& e) {
      if (e)
        std::rethrow_exception(e);
    });
}

class asio_loop final : public loop {
public:
  /// The ends in this process; each may be null.
  asio_loop(const plan& p, style s, cm_end* active, cm_end* passive, process_pipe* to_active)
      : plan_(p),
        style_(s),
        device_((active ? active : passive)->context(), asio_rdma::ownership::borrow),
        pd_(device_),
        queue_(io_, device_, completion_options(p)) {
    connect_ends(active, passive, pd_.native_handle(), queue_.native_handle(), to_active);
    if (active) {
      adopt(active_, *active);
      near_.emplace(pd_.native_handle(), 'a');
    }
    if (passive) {
      adopt(passive_, *passive);
      far_.emplace(pd_.native_handle(), 'p');
    }
    std::uint32_t receives = 0;
    if (active && p.what == work::send)
      for (std::uint32_t i = 0; i < p.receives(); ++i, ++receives)
        start([this] { await_answer(); }, [this](auto way) { return answers(way); });
    if (passive && (p.what == work::send || p.what == work::rate))
      for (std::uint32_t i = 0; i < p.receives(); ++i, ++receives)
        p.what == work::send
            ? start([this] { await_question(); }, [this](auto way) { return questions(way); })
            : start([this] { await_message(); }, [this](auto way) { return messages(way); });
    while (s == style::coroutines && posted_ < receives)
      io_.run_one();
    if (!active)
      to_active->put('r');
    else if (!passive)
      to_active->get<char>();
  }

  queue_counters counters() const override {
    const auto c = queue_.counters();
    return {c.polls, c.arms, c.events};
  }

  void run(std::uint64_t operations) override {
    left_ = to_send_ = to_receive_ = operations;
    io_.restart();
    if (plan_.what == work::send) {
      send(active_, *near_);
    } else {
      if (plan_.what != work::rate)
        to_receive_ = 0;
      for (std::uint32_t i = 0; i < plan_.window(); ++i)
        start([this] { start_one(); }, [this](auto way) { return start_many(way); });
    }
    io_.run();
  }

  void serve() override {
    for (;;) {
      io_.run();
      io_.restart();
    }
  }

private:
  using queue_pair = asio_rdma::queue_pair;

  static void check(const asio_rdma::error_code& ec, const char* what) {
    if (ec)
      fail(what, ec.message().c_str());
  }

  void adopt(queue_pair& qp, const cm_end& end) {
    qp.assign(pd_, queue_, end.qp());
    qp.set_connected(); // siw does not report the connection
  }

  template <class Callbacks, class Coroutine>
  void start(Callbacks&& callbacks, Coroutine&& coroutine) {
    if (style_ == style::awaiters)
      coroutine(as_unawaited());
    else
      start_as(io_, style_, callbacks, [&] { return coroutine(as_awaitable()); });
  }

  asio_rdma::const_buffer out(const memory& m) const { return {m.data, plan_.bytes, m.mr->lkey}; }
  asio_rdma::mutable_buffer in(const memory& m) const {
    return {m.data + memory::half, plan_.bytes, m.mr->lkey};
  }
  asio_rdma::mutable_buffer into(const memory& m) const {
    return {m.data, plan_.bytes, m.mr->lkey};
  }
  asio_rdma::remote_buffer remote() const {
    return {reinterpret_cast<std::uintptr_t>(far_->data + memory::half), memory::half,
            far_->mr->rkey};
  }

  void send(queue_pair& qp, const memory& m) {
    qp.async_send(out(m), [](const asio_rdma::error_code& ec, std::size_t) { check(ec, "send"); });
  }

  void one_sent() {
    if (--to_send_ == 0 && to_receive_ == 0)
      io_.stop();
  }
  void one_received() {
    if (--to_receive_ == 0 && to_send_ == 0)
      io_.stop();
  }

  // Round trips

  void await_answer() {
    active_.async_receive(in(*near_),
                          [this](const asio_rdma::error_code& ec, const asio_rdma::received&) {
                            check(ec, "receive");
                            await_answer();
                            if (--left_ != 0)
                              send(active_, *near_);
                            else
                              io_.stop();
                          });
  }
  void await_question() {
    passive_.async_receive(in(*far_),
                           [this](const asio_rdma::error_code& ec, const asio_rdma::received&) {
                             check(ec, "receive");
                             await_question();
                             send(passive_, *far_);
                           });
  }

  template <class Way>
  typename Way::task answers(Way way) {
    ++posted_;
    for (;;) {
      co_await active_.async_receive(in(*near_), way.token);
      if (--left_ != 0)
        co_await active_.async_send(out(*near_), way.token);
      else
        io_.stop();
    }
  }
  template <class Way>
  typename Way::task questions(Way way) {
    ++posted_;
    for (;;) {
      co_await passive_.async_receive(in(*far_), way.token);
      co_await passive_.async_send(out(*far_), way.token);
    }
  }

  // Messages one way

  void await_message() {
    passive_.async_receive(in(*far_),
                           [this](const asio_rdma::error_code& ec, const asio_rdma::received&) {
                             check(ec, "receive");
                             one_received();
                             await_message();
                           });
  }
  template <class Way>
  typename Way::task messages(Way way) {
    ++posted_;
    for (;;) {
      co_await passive_.async_receive(in(*far_), way.token);
      one_received();
    }
  }

  // A window of messages, reads or writes

  void start_one() {
    if (left_ == 0)
      return;
    --left_;
    auto done = [this](const asio_rdma::error_code& ec, std::size_t) {
      check(ec, "operation");
      one_sent();
      start_one();
    };
    switch (plan_.what) {
    case work::read:
      return active_.async_read(into(*near_), remote(), done);
    case work::write:
      return active_.async_write(out(*near_), remote(), done);
    default:
      return active_.async_send(out(*near_), done);
    }
  }
  template <class Way>
  typename Way::task start_many(Way way) {
    while (left_ != 0) {
      --left_;
      switch (plan_.what) {
      case work::read:
        co_await active_.async_read(into(*near_), remote(), way.token);
        break;
      case work::write:
        co_await active_.async_write(out(*near_), remote(), way.token);
        break;
      default:
        co_await active_.async_send(out(*near_), way.token);
      }
      one_sent();
    }
  }

  plan plan_;
  style style_;
  asio::io_context io_{1};
  asio_rdma::device device_;
  asio_rdma::protection_domain pd_;
  asio_rdma::completion_queue queue_;
  queue_pair active_{io_}, passive_{io_};
  std::optional<memory> near_, far_;
  std::uint32_t posted_ = 0; // receives of coroutines
  std::uint64_t left_ = 0, to_send_ = 0, to_receive_ = 0;
};

} // namespace bench
