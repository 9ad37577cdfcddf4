// SPDX-License-Identifier: BSL-1.0
// The same script on streams and on TCP sockets, compared step by step.
#include "catch.hpp"
#include "stream_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace test;
using tcp = asio::ip::tcp;

enum class verb {
  write,       // until it is complete
  read,        // likewise
  begin_read,  // and go on
  begin_write, // likewise
  begin_wait,  // for something to read, and go on
  end,         // until what was begun is complete
  cancel_one,  // what was begun
  cancel,      // everything of the object
  wait_read,
  wait_write,
  wait_error,
  available,
  shutdown_send,
  shutdown_receive,
  shutdown_both,
  close,
  die, // the connection is reset
  remote,
  local,
  is_open,
  sync_write,
  sync_read,
  non_blocking,
  move // to another object and back
};

/// a and b are connected, u is open and not connected, n is not open.
struct step {
  char who;
  verb what;
  std::size_t bytes = 0;
};

struct script {
  const char* name;
  std::vector<step> steps;
};

// After an asynchronous read has given `eof`, Boost.Asio 1.81's sockets let the next one wait for
// ever, so no script has two.
const std::vector<script> scripts = {
    {"bytes arrive, in parts",
     {{'a', verb::write, 10},
      {'b', verb::wait_read},
      {'b', verb::available},
      {'b', verb::read, 4},
      {'b', verb::available},
      {'b', verb::read, 100},
      {'b', verb::available}}},
    {"nothing is read or written at once, connected or not",
     {{'a', verb::write, 0},
      {'a', verb::read, 0},
      {'a', verb::sync_write, 0},
      {'a', verb::sync_read, 0},
      {'u', verb::read, 0},
      {'u', verb::write, 0},
      {'u', verb::sync_read, 0}}},
    {"a read waits for bytes",
     {{'b', verb::begin_read, 100}, {'a', verb::write, 7}, {'b', verb::end}}},
    {"two reads are served in order",
     {{'b', verb::begin_read, 3},
      {'b', verb::begin_read, 100},
      {'a', verb::write, 8},
      {'b', verb::end},
      {'b', verb::end}}},
    {"shutdown behind what was written",
     {{'a', verb::write, 10},
      {'a', verb::shutdown_send},
      {'b', verb::read, 4},
      {'b', verb::read, 100},
      {'b', verb::read, 100},
      {'b', verb::sync_read, 100},
      {'b', verb::available}}},
    {"after a shutdown the other way is open",
     {{'a', verb::shutdown_send},
      {'b', verb::read, 10},
      {'b', verb::write, 5},
      {'a', verb::read, 10},
      {'a', verb::write, 5},
      {'a', verb::sync_write, 5},
      {'a', verb::shutdown_send},
      {'a', verb::wait_write}}},
    {"a read that waits hears of the shutdown",
     {{'b', verb::begin_read, 10}, {'a', verb::shutdown_send}, {'b', verb::end}}},
    {"shutdown of reading here",
     {{'a', verb::begin_read, 10},
      {'a', verb::shutdown_receive},
      {'a', verb::end},
      {'a', verb::sync_read, 10},
      {'a', verb::write, 4},
      {'b', verb::read, 10}}},
    {"shutdown of reading leaves what had come",
     {{'b', verb::write, 5},
      {'a', verb::wait_read},
      {'a', verb::shutdown_receive},
      {'a', verb::read, 10},
      {'a', verb::read, 10}}},
    {"shutdown of both ways",
     {{'a', verb::write, 3},
      {'a', verb::shutdown_both},
      {'a', verb::read, 10},
      {'a', verb::write, 10},
      {'b', verb::read, 10},
      {'b', verb::read, 10}}},
    {"close is heard behind what was written",
     {{'a', verb::write, 10},
      {'a', verb::close},
      {'b', verb::read, 6},
      {'b', verb::read, 10},
      {'b', verb::read, 10},
      {'b', verb::is_open}}},
    {"close ends what waits",
     {{'a', verb::begin_read, 10},
      {'a', verb::begin_wait},
      {'a', verb::close},
      {'a', verb::end},
      {'a', verb::end}}},
    {"what is left to do after the peer's close",
     {{'a', verb::write, 3},
      {'a', verb::close},
      {'b', verb::read, 10},
      {'b', verb::sync_read, 10},
      {'b', verb::available},
      {'b', verb::shutdown_both},
      {'b', verb::sync_write, 10},
      {'b', verb::is_open},
      {'b', verb::close},
      {'b', verb::is_open}}},
    {"what is closed",
     {{'a', verb::close},
      {'a', verb::is_open},
      {'a', verb::read, 10},
      {'a', verb::write, 10},
      {'a', verb::sync_read, 10},
      {'a', verb::sync_write, 10},
      {'a', verb::read, 0},
      {'a', verb::sync_read, 0},
      {'a', verb::wait_read},
      {'a', verb::shutdown_send},
      {'a', verb::cancel},
      {'a', verb::available},
      {'a', verb::remote},
      {'a', verb::local},
      {'a', verb::non_blocking},
      {'a', verb::close}}},
    {"what was never open",
     {{'n', verb::is_open},
      {'n', verb::read, 10},
      {'n', verb::write, 10},
      {'n', verb::sync_read, 10},
      {'n', verb::wait_write},
      {'n', verb::shutdown_both},
      {'n', verb::cancel},
      {'n', verb::available},
      {'n', verb::remote},
      {'n', verb::local},
      {'n', verb::close}}},
    {"what is not connected",
     {{'u', verb::is_open},
      {'u', verb::read, 10},
      {'u', verb::write, 10},
      {'u', verb::sync_read, 10},
      {'u', verb::sync_write, 10},
      {'u', verb::shutdown_send},
      {'u', verb::shutdown_both},
      {'u', verb::cancel},
      {'u', verb::available},
      {'u', verb::remote},
      {'u', verb::wait_read},
      {'u', verb::wait_write},
      {'u', verb::close},
      {'u', verb::read, 10}}},
    {"cancelled reads have taken nothing",
     {{'b', verb::begin_read, 10},
      {'b', verb::cancel},
      {'b', verb::end},
      {'b', verb::begin_read, 10},
      {'b', verb::cancel_one},
      {'b', verb::end},
      {'a', verb::write, 8},
      {'b', verb::read, 10}}},
    {"cancelled waits",
     {{'b', verb::begin_wait},
      {'b', verb::cancel_one},
      {'b', verb::end},
      {'b', verb::begin_wait},
      {'b', verb::cancel},
      {'b', verb::end},
      {'b', verb::begin_wait},
      {'a', verb::write, 1},
      {'b', verb::end},
      {'b', verb::available}}},
    {"cancelling nothing, and what is complete",
     {{'a', verb::cancel},
      {'a', verb::write, 10},
      {'b', verb::wait_read},
      {'b', verb::begin_read, 10},
      {'b', verb::end},
      {'b', verb::cancel},
      {'b', verb::read, 0}}},
    {"a reset connection",
     {{'b', verb::begin_read, 10}, {'a', verb::die}, {'b', verb::end}, {'b', verb::is_open}}},
    {"a reset connection has what had come",
     {{'a', verb::write, 10},
      {'b', verb::wait_read},
      {'a', verb::die},
      {'b', verb::wait_error},
      {'b', verb::read, 4},
      {'b', verb::read, 10},
      {'b', verb::read, 10}}},
    {"a blocked reader hears of the reset", {{'a', verb::die}, {'b', verb::sync_read, 10}}},
    {"without a handler, and without waiting",
     {{'b', verb::non_blocking},
      {'b', verb::sync_read, 10},
      {'a', verb::sync_write, 10},
      {'b', verb::wait_read},
      {'b', verb::sync_read, 4},
      {'b', verb::sync_read, 100},
      {'b', verb::sync_read, 100},
      {'a', verb::shutdown_send},
      {'b', verb::wait_read},
      {'b', verb::sync_read, 100}}},
    {"without a handler, waiting",
     {{'a', verb::sync_write, 100},
      {'b', verb::sync_read, 60},
      {'b', verb::sync_read, 60},
      {'a', verb::shutdown_send},
      {'b', verb::sync_read, 60},
      {'b', verb::sync_write, 60},
      {'a', verb::sync_read, 100}}},
    {"a moved object goes on",
     {{'a', verb::write, 5},
      {'b', verb::move},
      {'b', verb::read, 10},
      {'b', verb::begin_read, 10},
      {'b', verb::move},
      {'a', verb::write, 6},
      {'b', verb::end}}},
    {"endpoints",
     {{'a', verb::remote},
      {'a', verb::local},
      {'b', verb::remote},
      {'b', verb::local},
      {'a', verb::shutdown_both},
      {'a', verb::local}}},
};

/// What the two kinds have not in common: how they come to be connected.
struct stream_world {
  using socket = asio_rdma::stream;

  stream_world() { unconnected.open(pair.pool); }

  stream_pair pair;
  asio::io_context& io = pair.io;
  socket &a = pair.a, &b = pair.b;
  socket unconnected{io}, never_open{io};
};

struct tcp_world {
  using socket = tcp::socket;

  tcp_world() {
    tcp::acceptor listener(io, {asio::ip::address_v4::loopback(), 0});
    a.connect(listener.local_endpoint());
    listener.accept(b);
    unconnected.open(tcp::v4());
  }

  asio::io_context io{1};
  socket a{io}, b{io}, unconnected{io}, never_open{io};
};

/// Plays scripts on one kind, and tells what came of each step.
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
    // By its value: one is of Asio's category, or of the system's.
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

} // namespace

TEST_CASE("a stream does what a TCP socket does, step by step") {
  for (const script& s : scripts) {
    const auto wanted = player<tcp_world>().play(s);
    const auto got = player<stream_world>().play(s);
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(s.name, i, int(s.steps[i].what));
      CHECK(got[i] == wanted[i]);
      CHECK(wanted[i] != "never");
    }
  }
}

TEST_CASE("a stream that is open is not opened again") {
  stream_pair t;
  error_code ec;
  t.a.open(t.pool, {}, ec);
  CHECK(ec == asio::error::already_open);
}
