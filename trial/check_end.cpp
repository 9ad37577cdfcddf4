// SPDX-License-Identifier: BSL-1.0
// How links end, and how operations are cancelled.
#include "check.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <cstdlib>

namespace trial {

namespace {

awaitable<error_code> error_of_receive(connection& c) {
  try {
    co_await c.async_receive(use_awaitable);
  } catch (const system_error& e) {
    co_return e.code();
  }
  co_return error_code();
}

awaitable<void> peer_closes(session& s) {
  const memory_pool pool(s.pd);
  connection c(s.io, pool);
  co_await s.link(c);
  if (s.is_near()) {
    for (unsigned i = 0; i < 3; ++i) {
      const message m = co_await c.async_receive(use_awaitable);
      compare(m.payload.data(), 1000, i);
    }
    const error_code ec = co_await error_of_receive(c);
    expect(ec == asio::error::eof, "the peer's close was reported as " + ec.message());
  } else {
    std::vector<char> text(1000);
    for (unsigned i = 0; i < 3; ++i) {
      fill(text.data(), text.size(), i);
      co_await c.async_send(asio::buffer(text), use_awaitable);
    }
  }
  co_await c.async_close(use_awaitable);
}

awaitable<void> stream_closes(session& s) {
  const memory_pool pool(s.pd);
  stream c(s.io, pool);
  co_await s.link(c);
  std::vector<char> text(30'000);
  if (!s.is_near()) {
    fill(text.data(), text.size(), 1);
    co_await asio::async_write(c, asio::buffer(text), use_awaitable);
    c.close();
    co_return co_await s.meet();
  }
  std::size_t done = 0;
  error_code ec;
  try {
    for (;;) {
      const std::size_t n = co_await c.async_read_some(asio::buffer(text), use_awaitable);
      compare(text.data(), n, 1, done);
      done += n;
    }
  } catch (const system_error& e) {
    ec = e.code();
  }
  expect(ec == asio::error::eof, "the peer's close was reported as " + ec.message());
  expect(done == text.size(), "bytes were lost at the close");
  co_await s.meet();
}

awaitable<void> peer_dies(session& s) {
  const memory_pool pool(s.pd);
  connection_options options;
  options.keep_alive = std::chrono::seconds(2);
  options.queue_pair.timeout = 14; // 67 ms
  connection c(s.io, pool, options);
  co_await s.link(c);
  co_await s.meet();
  if (!s.is_near())
    std::_Exit(0);
  s.forgo_verdict();
  const error_code ec = co_await error_of_receive(c);
  expect(ec && ec != asio::error::eof, "the peer's death was reported as " + ec.message());
  s.remark(ec.message());
}

/// A pending receive is cancelled when the other side says so, and the connection is still good.
awaitable<void> cancel_receive(session& s) {
  const memory_pool pool(s.pd);
  connection c(s.io, pool);
  co_await s.link(c);
  if (s.is_near()) {
    const auto first = co_await (c.async_receive(use_awaitable) || s.hear());
    expect(first.index() == 1, "a message arrived before it was sent");
    co_await s.tell(std::string("cancelled"));
    const message m = co_await c.async_receive(use_awaitable);
    expect(m.size() == 3, "a message was lost after a cancellation");
  } else {
    co_await s.tell(std::string("cancel"));
    co_await s.hear();
    co_await c.async_send(asio::buffer("abc", 3), use_awaitable);
  }
  co_await c.async_close(use_awaitable);
}

awaitable<void> cancel_queue_pair(session& s) {
  pair_end e(s);
  co_await e.link();
  if (s.is_near()) {
    const auto first =
        co_await (e.qp.async_receive(e.region.buffer(0, 64), use_awaitable) || s.hear());
    expect(first.index() == 1, "a receive completed without a message");
    expect(e.qp.state() == queue_pair_state::failed, "a cancelled receive is still posted");
  } else {
    co_await s.tell(std::string("cancel"));
    try {
      co_await e.qp.async_wait_disconnect(use_awaitable);
    } catch (const system_error& x) {
      expect(x.code() == asio::error::connection_reset,
             "the peer's end was reported as " + x.code().message());
    }
  }
  co_await s.meet();
}

awaitable<error_code> connect_error(session& s, queue_pair& qp, asio::ip::tcp::endpoint where) {
  connector c(s.io);
  try {
    co_await c.async_connect(qp, where, use_awaitable);
  } catch (const system_error& e) {
    co_return e.code();
  }
  co_return error_code();
}

awaitable<void> refused(session& s) {
  queue_pair qp(s.io, s.pd);
  if (s.is_near()) {
    const asio::ip::tcp::endpoint where = co_await s.hear_endpoint();
    const error_code ec = co_await connect_error(s, qp, where);
    expect(ec == error::peer_not_listening, "nothing listens, and the error is " + ec.message());
    co_await s.link(qp); // the same queue pair is still good
  } else {
    // Held, so that no other program of the machine listens there meanwhile.
    const asio::ip::tcp::socket unused(s.io, asio::ip::tcp::endpoint(s.address(), 0));
    co_await s.tell(unused.local_endpoint());
    co_await s.link(qp);
  }
  co_await s.meet();
}

} // namespace

std::span<const check> end_checks() {
  static constexpr check checks[] = {
      {"peer_closes", "", "a connection that the peer closes ends after its last message",
       peer_closes},
      {"stream_closes", "", "a stream that the peer closes ends after its last byte",
       stream_closes},
      {"peer_dies", "", "the death of the peer's process ends a connection", peer_dies},
      {"cancel_receive", "", "a cancelled receive of a connection loses no message",
       cancel_receive},
      {"cancel_queue_pair", "", "a cancelled receive ends its queue pair, at both sides",
       cancel_queue_pair},
      {"refused", "", "connecting is refused where nothing listens", refused},
  };
  return checks;
}

} // namespace trial
