// SPDX-License-Identifier: BSL-1.0
// Scripts that are played on streams and on TCP sockets, to compare the results.
#pragma once

#include "device/streams/stream_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace test {

enum class verb {
  write,       // waits until it is complete
  read,        // waits until it is complete
  begin_read,  // does not wait
  begin_write, // does not wait
  begin_wait,  // for bytes to read; does not wait
  end,         // waits for the begun operation
  cancel_one,  // cancels the begun operation
  cancel,      // cancels all operations
  wait_read,
  wait_write,
  wait_error,
  available,
  shutdown_send,
  shutdown_receive,
  shutdown_both,
  close,
  die, // resets the connection
  remote,
  local,
  is_open,
  sync_write,
  sync_read,
  non_blocking,
  move, // to another object and back
  fill, // writes until it would block
  drain // reads until the end
};

/// a and b are connected, u is open and not connected, n is not open.
struct step {
  char who;
  verb what;
  std::size_t bytes = 0;
};

struct script {
  std::string name;
  std::vector<step> steps;
};

/// The part in which the two kinds differ: making the connection.
struct stream_world {
  using socket = asio_rdma::stream;

  stream_world() { unconnected.open(pair.pool); }

  stream_pair pair;
  asio::io_context& io = pair.io;
  socket &a = pair.a, &b = pair.b;
  socket unconnected{io}, never_open{io};
};

struct tcp_world {
  using socket = asio::ip::tcp::socket;

  tcp_world() {
    asio::ip::tcp::acceptor listener(io, {asio::ip::address_v4::loopback(), 0});
    a.connect(listener.local_endpoint());
    listener.accept(b);
    unconnected.open(asio::ip::tcp::v4());
  }

  asio::io_context io{1};
  socket a{io}, b{io}, unconnected{io}, never_open{io};
};

/// Plays scripts on one kind of object, and records the result of each step.
template <class World>
class player {
public:
  using socket = typename World::socket;

  std::vector<std::string> play(const script& s) {
    std::vector<std::string> log;
    for (const step& next : s.steps)
      log.push_back(play(next));
    for (auto& [who, list] : begun_)
      for (auto& op : list)
        if (!op->done)
          op->signal.emit(asio::cancellation_type::terminal);
    return log;
  }

private:
  struct begun {
    std::vector<char> memory;
    asio::cancellation_signal signal;
    bool done = false;
    error_code ec;
    std::size_t bytes = 0;
  };

  socket& of(char who) {
    switch (who) {
    case 'a':
      return world_.a;
    case 'b':
      return world_.b;
    case 'u':
      return world_.unconnected;
    default:
      return world_.never_open;
    }
  }

  static std::string text(const error_code& ec, std::size_t bytes = 0) {
    // Compared by value: the same error has Asio's or the system's category.
    const std::string name = !ec ? "ok" : ec == asio::error::eof ? "eof" : ec.message();
    return std::to_string(bytes) + " " + name;
  }

  std::string end(begun& op) {
    try {
      test::until(world_.io, [&] { return op.done; });
    } catch (const std::exception&) {
      return "never";
    }
    std::string values;
    for (std::size_t i = 0; i < op.bytes && i < op.memory.size(); ++i)
      values += op.memory[i];
    return text(op.ec, op.bytes) + " " + values;
  }

  begun& start(const step& s) {
    begun& op = *begun_[s.who].emplace_back(std::make_unique<begun>());
    socket& o = of(s.who);
    op.memory.resize(s.bytes);
    auto bytes_done =
        asio::bind_cancellation_slot(op.signal.slot(), [&op](const error_code& ec, std::size_t n) {
          op.done = true;
          op.ec = ec;
          op.bytes = n;
        });
    auto done = asio::bind_cancellation_slot(op.signal.slot(), [&op](const error_code& ec) {
      op.done = true;
      op.ec = ec;
    });
    switch (s.what) {
    case verb::read:
    case verb::begin_read:
      o.async_read_some(asio::buffer(op.memory), std::move(bytes_done));
      break;
    case verb::write:
    case verb::begin_write:
      for (char& c : op.memory)
        c = static_cast<char>('a' + written_++ % 26);
      o.async_write_some(asio::buffer(op.memory), std::move(bytes_done));
      break;
    case verb::wait_write:
      o.async_wait(asio::socket_base::wait_write, std::move(done));
      break;
    case verb::wait_error:
      o.async_wait(asio::socket_base::wait_error, std::move(done));
      break;
    default:
      o.async_wait(asio::socket_base::wait_read, std::move(done));
    }
    return op;
  }

  /// Waits for room, at most for a moment.
  void wait_for_room(char who) {
    begun& op = start({who, verb::wait_write});
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    world_.io.restart();
    while (!op.done && world_.io.run_one_until(limit) != 0)
      continue;
    op.signal.emit(asio::cancellation_type::terminal);
    end(op);
    begun_[who].pop_back();
  }

  std::string play(const step& s) {
    socket& o = of(s.who);
    error_code ec;
    std::vector<char> memory(s.bytes, 'x');
    std::size_t n = 0;
    switch (s.what) {
    case verb::write:
    case verb::read:
    case verb::wait_read:
    case verb::wait_write:
    case verb::wait_error: {
      const std::string result = end(start(s));
      begun_[s.who].pop_back();
      return result;
    }
    case verb::begin_read:
    case verb::begin_write:
    case verb::begin_wait:
      start(s);
      return "begun";
    case verb::end: {
      const std::string result = end(*begun_[s.who].front());
      begun_[s.who].erase(begun_[s.who].begin());
      return result;
    }
    case verb::cancel_one:
      begun_[s.who].back()->signal.emit(asio::cancellation_type::total);
      return "";
    case verb::cancel:
      o.cancel(ec);
      break;
    case verb::available:
      n = o.available(ec);
      break;
    case verb::shutdown_send:
      o.shutdown(asio::socket_base::shutdown_send, ec);
      break;
    case verb::shutdown_receive:
      o.shutdown(asio::socket_base::shutdown_receive, ec);
      break;
    case verb::shutdown_both:
      o.shutdown(asio::socket_base::shutdown_both, ec);
      break;
    case verb::close:
      o.close(ec);
      break;
    case verb::die:
      o.set_option(asio::socket_base::linger(true, 0));
      o.close();
      return "";
    case verb::remote: {
      const auto e = o.remote_endpoint(ec);
      socket& peer = s.who == 'a' ? world_.b : world_.a;
      error_code ignored;
      return text(ec) + (!ec && e == peer.local_endpoint(ignored) ? " the peer's" : "");
    }
    case verb::local:
      o.local_endpoint(ec);
      break;
    case verb::is_open:
      return o.is_open() ? "open" : "closed";
    case verb::sync_write:
      n = o.write_some(asio::buffer(memory), ec);
      break;
    case verb::sync_read:
      n = o.read_some(asio::buffer(memory), ec);
      break;
    case verb::non_blocking:
      o.non_blocking(true, ec);
      break;
    // The number of bytes differs, so only the final error is recorded.
    case verb::fill:
      memory.resize(100000, 'x');
      for (std::size_t before = 1; before != n;) { // bytes that arrive make room again
        before = n;
        ec.clear();
        while (!ec)
          n += o.write_some(asio::buffer(memory), ec);
        if (before != n)
          wait_for_room(s.who);
      }
      return text(ec);
    case verb::drain: {
      memory.resize(100000);
      std::string result;
      while (result.empty()) {
        begun& op = start({s.who, verb::read, memory.size()});
        if (end(op) == "never")
          return "never";
        if (op.ec)
          result = text(op.ec);
        begun_[s.who].pop_back();
      }
      return result;
    }
    default: {
      socket other(std::move(o));
      o = std::move(other);
    }
    }
    return text(ec, n);
  }

  World world_;
  std::map<char, std::vector<std::unique_ptr<begun>>> begun_;
  std::size_t written_ = 0;
};

} // namespace test
