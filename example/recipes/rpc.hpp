// SPDX-License-Identifier: BSL-1.0
// Remote procedure calls over messages, with deadlines and cancellation. A message has the id of
// its call as immediate data, and its kind as the first byte.
#pragma once

#include <asio_rdma/connection.hpp>
#include <boost/asio.hpp>

#include <functional>
#include <map>
#include <string>

namespace rpc {

namespace asio = boost::asio;
using asio::awaitable, asio_rdma::connection, asio_rdma::message, asio_rdma::error_code;

constexpr char a_call = 'c', a_cancellation = 'x', a_result = 'r', a_failure = 'f'; // kinds
constexpr std::size_t most_calls = 64; // of one client at a time
constexpr auto stop = asio::cancellation_type::terminal;
const auto as_result = asio::as_tuple(asio::deferred);

/// Returns the answer to a request, or throws an exception, whose text the caller gets. If the
/// caller gives up, the coroutine is cancelled.
using procedure = std::function<awaitable<std::string>(std::string)>;

struct session {
  connection client;
  procedure run;
  std::map<std::uint32_t, asio::cancellation_signal> calls = {};
};

inline awaitable<void> answer(std::shared_ptr<session> s, std::uint32_t id, std::string text) {
  try {
    text = a_result + co_await s->run(std::move(text));
  } catch (const std::exception& e) {
    text = a_failure + std::string(e.what());
  }
  co_await s->client.async_send(asio::buffer(text), id, as_result); // throws if it was cancelled
}

/// Answers one client until it closes, is gone, or breaks the protocol. Its calls run at the same
/// time, on the connection's executor. When the client has gone, they are cancelled.
inline awaitable<void> serve(connection c, procedure p) {
  const std::shared_ptr<session> s(new session{std::move(c), std::move(p)});
  for (;;) {
    const auto [ec, m] = co_await s->client.async_receive(as_result);
    if (ec == asio::error::eof)
      co_await s->client.async_close(as_result);
    if (ec || !m.immediate || m.size() == 0)
      break;
    const std::uint32_t id = *m.immediate;
    const auto running = s->calls.find(id);
    if (m.text()[0] == a_call && running == s->calls.end() && s->calls.size() < most_calls) {
      const auto slot = s->calls[id].slot();
      co_spawn(s->client.get_executor(), answer(s, id, std::string(m.text().substr(1))),
               asio::bind_cancellation_slot(slot, [s, id](auto) { s->calls.erase(id); }));
    } else if (m.text()[0] == a_call) { // this loop waits, so the client's next calls do, too
      co_await s->client.async_send(asio::buffer("ftoo many calls", 15), id, as_result);
    } else if (running != s->calls.end()) { // otherwise the answer has been sent
      running->second.emit(stop);
    }
  }
  for (auto& [id, call] : s->calls)
    call.emit(stop);
  s->client.close();
}

/// Any number of calls may be in flight. Not thread-safe: use a strand if threads share it.
class client {
public:
  explicit client(connection c) : state_(new state{std::move(c)}) {
    co_spawn(state_->server.get_executor(), receive(state_), asio::detached);
  }
  client(const client&) = delete;
  ~client() { state_->server.close(); } // the calls end with `operation_aborted`

  // [call]
  /// Errors: `timed_out` after the limit, and the connection's; those of the procedure are a
  /// `std::runtime_error`. After the limit or a cancellation the server is asked to stop the call.
  awaitable<std::string> call(std::string request, std::chrono::milliseconds limit) {
    const auto s = state_;
    const std::shared_ptr<pending> c(
        new pending{asio::steady_timer(s->server.get_executor(), limit), a_call + request});
    const std::uint32_t id = s->next_id++;
    s->calls.emplace(id, c);
    const auto sent = [c](const error_code& ec, std::size_t) {
      if (ec)
        c->end(ec);
    };
    s->server.async_send(asio::buffer(c->request), id,
                         asio::bind_cancellation_slot(c->withdraw.slot(), sent));
    const auto [ec] = co_await c->timer.async_wait(as_result);
    s->calls.erase(id); // so an answer that comes later is ignored
    if (!c->answer && !c->failure) {
      c->failure = ec ? ec : asio::error::timed_out;
      c->withdraw.emit(stop); // if the request still waits for room at the server
      s->server.async_send(asio::buffer(&a_cancellation, 1), id, asio::detached);
    }
    if (c->failure)
      throw boost::system::system_error(c->failure);
    if (c->answer->text()[0] != a_result)
      throw std::runtime_error(std::string(c->answer->text().substr(1)));
    co_return std::string(c->answer->text().substr(1));
  }
  // [call]
  awaitable<void> close() { co_await state_->server.async_close(asio::deferred); }
  std::size_t late_answers() const { return state_->late; }

private:
  struct pending {
    void end(const error_code& ec, std::optional<message> m = {}) {
      failure = ec;
      answer = std::move(m);
      timer.cancel();
    }

    asio::steady_timer timer; // ends the call: by the limit, or because it is cancelled
    const std::string request;
    std::optional<message> answer = {};
    error_code failure = {};
    asio::cancellation_signal withdraw = {};
  };
  struct state {
    connection server;
    std::map<std::uint32_t, std::shared_ptr<pending>> calls = {};
    std::uint32_t next_id = 0;
    std::size_t late = 0;
  };

  static awaitable<void> receive(std::shared_ptr<state> s) {
    for (;;) {
      auto [ec, m] = co_await s->server.async_receive(as_result);
      if (ec) {
        for (auto& [id, c] : s->calls)
          c->end(ec);
        co_return; // later calls fail when they are sent
      }
      const auto at = m.immediate ? s->calls.find(*m.immediate) : s->calls.end();
      if (at != s->calls.end() && m.size() != 0)
        at->second->end({}, std::move(m));
      else
        ++s->late;
    }
  }

  std::shared_ptr<state> state_;
};

} // namespace rpc
