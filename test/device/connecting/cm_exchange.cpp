// SPDX-License-Identifier: BSL-1.0
// Queue pairs that are set up by hand over a stream. On iWARP that is impossible, and both sides
// get an error.
#include <asio_rdma/exchange.hpp>

#include "catch.hpp"
#include "device/support/pair.hpp"
#include "device/support/tls_identity.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <string>

namespace test::cm_exchange_tests {
namespace {

using asio::cancellation_type;
using asio::ip::tcp;
using unix_stream = asio::local::stream_protocol;
using result = outcome<void>;

/// Two open queue pairs, and two ends of a stream.
struct sides {
  explicit sides(const queue_pair_options& of_a = {}, const queue_pair_options& of_b = {}) {
    a.open(pd, of_a);
    b.open(pd, of_b);
    asio::local::connect_pair(here, there);
  }
  bool by_hand() const { return dev.type() != transport::iwarp; }

  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  memory ma{pd, 4096, all_rights}, mb{pd, 4096, all_rights};
  queue_pair a{io}, b{io};
  unix_stream::socket here{io}, there{io};
};

/// A stream on which reading or writing blocks for ever after a number of calls.
class stuck_stream {
public:
  using executor_type = unix_stream::socket::executor_type;

  explicit stuck_stream(unix_stream::socket& socket)
      : socket_(socket), never_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

  executor_type get_executor() { return socket_.get_executor(); }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return run(--reads < 0, token,
               [this, buffers](auto&& self) { socket_.async_read_some(buffers, std::move(self)); });
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return run(--writes < 0, token, [this, buffers](auto&& self) {
      socket_.async_write_some(buffers, std::move(self));
    });
  }
  bool is_stuck() const { return reads < 0 || writes < 0; }

  int reads = 1000, writes = 1000;

private:
  template <class Token, class Start>
  auto run(bool stuck, Token& token, Start start) {
    return asio::async_compose<Token, void(error_code, std::size_t)>(
        [this, stuck, start, started = false](auto& self, error_code ec = {},
                                              std::size_t n = 0) mutable {
          if (std::exchange(started, true))
            return self.complete(ec, n);
          self.reset_cancellation_state(asio::enable_total_cancellation());
          if (stuck)
            never_.async_wait(std::move(self));
          else
            start(std::move(self));
        },
        token, socket_);
  }

  unix_stream::socket& socket_;
  asio::steady_timer never_;
};

/// Posts a receive before the exchange, as the peer may send right after the exchange.
template <class Socket>
asio::awaitable<void> talk(Socket& stream, queue_pair& qp, memory& m, std::string text,
                           got& heard) {
  qp.async_receive(m.buffer(1024, 1024), heard.handler());
  co_await async_exchange(stream, qp, asio::use_awaitable);
  m.put(0, text);
  co_await qp.async_send(m.buffer(0, text.size()), asio::use_awaitable);
  // The exchange no longer uses the stream.
  std::array<char, 1> byte{};
  co_await asio::async_write(stream, asio::buffer(byte), asio::use_awaitable);
  co_await asio::async_read(stream, asio::buffer(byte), asio::use_awaitable);
}

template <class Socket>
void talk_both(sides& s, Socket& here, Socket& there) {
  got heard_a, heard_b;
  int ended = 0;
  error_code ec_a, ec_b;
  const auto end = [&ended](error_code& ec) {
    return [&ended, &ec](std::exception_ptr e) {
      ++ended;
      try {
        if (e)
          std::rethrow_exception(e);
      } catch (const boost::system::system_error& error) {
        ec = error.code();
      }
    };
  };
  asio::co_spawn(s.io, talk(here, s.a, s.ma, "from a", heard_a), end(ec_a));
  asio::co_spawn(s.io, talk(there, s.b, s.mb, "from b", heard_b), end(ec_b));
  until(s.io, [&] { return ended == 2; });
  if (s.by_hand()) {
    CHECK(!ec_a);
    CHECK(!ec_b);
    until(s.io, [&] { return heard_a.done() && heard_b.done(); });
    CHECK(s.ma.text(1024, heard_a.value.bytes) == "from b");
    CHECK(s.mb.text(1024, heard_b.value.bytes) == "from a");
    CHECK(s.a.state() == queue_pair_state::connected);
  } else {
    CHECK(ec_a == asio::error::operation_not_supported);
    CHECK(ec_b == asio::error::operation_not_supported);
    CHECK(s.a.state() == queue_pair_state::open);
    CHECK(s.b.state() == queue_pair_state::open);
    s.a.close();
    s.b.close();
    drain(s.io); // runs the handlers of the receives
  }
}

} // namespace

TEST_CASE("messages after an exchange over a Unix socket") {
  sides s;
  talk_both(s, s.here, s.there);
}

TEST_CASE("messages after an exchange over TCP") {
  sides s;
  tcp::acceptor acceptor(s.io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket here(s.io), there(s.io);
  here.connect(acceptor.local_endpoint());
  acceptor.accept(there);
  talk_both(s, here, there);
}

TEST_CASE("messages after an exchange over TLS") {
  const identity of_a, of_b;
  asio::ssl::context context_a = context_of(of_a, of_b), context_b = context_of(of_b, of_a);
  sides s;
  using tls_stream = asio::ssl::stream<unix_stream::socket&>;
  tls_stream here(s.here, context_a), there(s.there, context_b);
  result client, server;
  here.async_handshake(asio::ssl::stream_base::client, client.handler());
  there.async_handshake(asio::ssl::stream_base::server, server.handler());
  until(s.io, [&] { return client.done() && server.done(); });
  REQUIRE(client.succeeded());
  REQUIRE(server.succeeded());
  talk_both(s, here, there);
}

TEST_CASE("a peer of another protocol ends the exchange and is notified") {
  sides s;
  result a;
  async_exchange(s.here, s.a, a.handler());
  asio::write(s.there, asio::buffer(std::string("220 mail ready\r\n")));
  until(s.io, [&] { return a.done(); });
  if (s.by_hand())
    CHECK(a.ec == error::incompatible_peer);
  else
    CHECK(a.ec == asio::error::operation_not_supported);
  CHECK(s.a.state() == queue_pair_state::open);
  std::array<char, 64> heard{};
  CHECK(asio::read(s.there, asio::buffer(heard)) == heard.size());
  CHECK(std::string(heard.data() + 56, 5) == std::string("ARDV\x01"));
  drain(s.io);
}

TEST_CASE("a peer that closes ends the exchange") {
  sides s;
  result a;
  async_exchange(s.here, s.a, a.handler());
  SECTION("at once") {
    s.there.close();
    until(s.io, [&] { return a.done(); });
    CHECK(a.ec.failed());
    CHECK(s.a.state() == queue_pair_state::open);
  }
  SECTION("in the middle of its record") {
    asio::write(s.there, asio::buffer("ARDM\x05", 5));
    std::array<char, 56> record{};
    until(s.io, [&] { return s.there.available() == record.size(); });
    asio::read(s.there, asio::buffer(record));
    s.there.close();
    until(s.io, [&] { return a.done(); });
    CHECK(a.ec == (s.by_hand() ? error_code(asio::error::eof)
                               : error_code(asio::error::operation_not_supported)));
    CHECK(s.a.state() == queue_pair_state::open);
  }
  SECTION("after its record, when this side has connected") {
    result b;
    stuck_stream there(s.there);
    there.writes = 1; // only the record is sent
    async_exchange(there, s.b, b.handler());
    until(s.io, [&] { return there.is_stuck() && s.there.available() == 8; });
    std::array<char, 8> verdict{};
    asio::read(s.there, asio::buffer(verdict));
    s.there.close();
    until(s.io, [&] { return a.done(); });
    if (s.by_hand()) {
      CHECK(a.ec == asio::error::eof);
      CHECK(s.a.state() == queue_pair_state::failed);
    } else {
      CHECK(a.ec == asio::error::operation_not_supported);
    }
    CHECK(b.calls == 0);
    return; // b's exchange ends with the context
  }
  drain(s.io);
}

TEST_CASE("queue pairs of different types do not fit, and both sides report it") {
  queue_pair_options uc;
  uc.type = IBV_QPT_UC;
  error_code none;
  sides s;
  if (!s.by_hand())
    return not_on_this_device("connecting by address");
  queue_pair b(s.io);
  b.open(s.pd, uc, none);
  if (none)
    return not_on_this_device("unreliable connections");
  result a_done, b_done;
  async_exchange(s.here, s.a, a_done.handler());
  async_exchange(s.there, b, b_done.handler());
  drain(s.io);
  CHECK(a_done.ec == error::incompatible_peer);
  CHECK(b_done.ec == error::incompatible_peer);
  CHECK(s.a.state() == queue_pair_state::open);
}

TEST_CASE("a side that cannot connect gives its reason, the other is rejected") {
  sides s;
  if (!s.by_hand())
    return not_on_this_device("connecting by address");
  SECTION("connected before") {
    queue_pair c(s.io, s.pd);
    test::connect(s.io, s.a, c);
    result a, b;
    async_exchange(s.here, s.a, a.handler());
    async_exchange(s.there, s.b, b.handler());
    drain(s.io);
    CHECK(a.ec == asio::error::already_connected);
    CHECK(s.a.state() == queue_pair_state::connected);
    CHECK(b.ec == error::rejected);
    CHECK(s.b.state() == queue_pair_state::failed);
  }
  SECTION("closed meanwhile") {
    result a, b;
    async_exchange(s.here, s.a, a.handler());
    s.a.close();
    async_exchange(s.there, s.b, b.handler());
    drain(s.io);
    CHECK(a.ec == asio::error::operation_aborted);
    CHECK(b.ec == error::rejected);
  }
  SECTION("not open") {
    s.a.close();
    result a;
    async_exchange(s.here, s.a, a.handler());
    CHECK(a.calls == 0);
    drain(s.io);
    CHECK(a.ec == asio::error::bad_descriptor);
  }
}

TEST_CASE("an exchange is cancelled in each of its steps") {
  struct step {
    const char* name;
    int writes, reads;
    queue_pair_state after;
  };
  const auto [name, writes, reads, after] = GENERATE(values<step>({
      {"writing the record", 0, 1000, queue_pair_state::open},
      {"reading the record", 1000, 0, queue_pair_state::open},
      {"writing the verdict", 1, 1000, queue_pair_state::failed},
      {"reading the verdict", 1000, 1, queue_pair_state::failed},
  }));
  const auto type =
      GENERATE(cancellation_type::terminal, cancellation_type::partial, cancellation_type::all);
  INFO(name << ", type " << static_cast<unsigned>(type));
  sides s;
  if (!s.by_hand())
    return not_on_this_device("connecting by address");
  stuck_stream here(s.here);
  here.writes = writes;
  here.reads = reads;
  asio::cancellation_signal cancel;
  result a, b;
  async_exchange(here, s.a, asio::bind_cancellation_slot(cancel.slot(), a.handler()));
  async_exchange(s.there, s.b, b.handler());
  until(s.io, [&] { return here.is_stuck(); });
  cancel.emit(cancellation_type::total); // no effect: a part may have been sent
  s.io.poll();
  CHECK(a.calls == 0);
  cancel.emit(type);
  until(s.io, [&] { return a.done(); });
  CHECK(a.ec == asio::error::operation_aborted);
  CHECK(s.a.state() == after);
  CHECK(s.here.is_open()); // the caller still owns the stream
  s.here.close();
  drain(s.io);
  CHECK(b.calls == 1);
}

TEST_CASE("an exchange is destroyed with its context") {
  auto s = std::make_unique<sides>();
  const auto witness = std::make_shared<int>();
  async_exchange(s->here, s->a, [witness](error_code) { FAIL("was called"); });
  s->io.poll();
  CHECK(witness.use_count() == 2);
  s.reset();
  CHECK(witness.use_count() == 1);
}

} // namespace test::cm_exchange_tests
