// SPDX-License-Identifier: BSL-1.0
// Connections and streams that are made over an Asio stream, without rdma_cm. On iWARP that is
// impossible, and both sides get an error.
#include <asio_rdma/exchange.hpp>

#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <string>
#include <variant>

namespace test::connection_exchange_tests {
namespace {

using asio::ip::tcp;
using unix_stream = asio::local::stream_protocol;
using result = outcome<void>;

struct place {
  place() { asio::local::connect_pair(here, there); }

  bool by_hand() const { return dev.type() != transport::iwarp; }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  asio::io_context io{1};
  unix_stream::socket here{io}, there{io};
};

/// Runs both sides of an exchange. True if the objects are connected. On iWARP it checks that both
/// sides get an error.
template <class Socket, class A, class B>
bool connects(place& p, Socket& here, Socket& there, A& a, B& b) {
  result ra, rb;
  async_exchange(here, a, ra.handler());
  async_exchange(there, b, rb.handler());
  p.until([&] { return ra.done() && rb.done(); });
  if (p.by_hand()) {
    CHECK(ra.ec == error_code());
    CHECK(rb.ec == error_code());
    return ra.succeeded() && rb.succeeded();
  }
  CHECK(ra.ec == asio::error::operation_not_supported);
  CHECK(rb.ec == asio::error::operation_not_supported);
  return false;
}

std::pair<tcp::socket, tcp::socket> tcp_sockets(asio::io_context& io) {
  tcp::acceptor listener(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  std::pair<tcp::socket, tcp::socket> sockets{tcp::socket(io), tcp::socket(io)};
  sockets.first.connect(listener.local_endpoint());
  listener.accept(sockets.second);
  return sockets;
}

void one_message(place& p, asio_rdma::connection& from, asio_rdma::connection& to,
                 std::size_t bytes) {
  const auto data = pattern(bytes, 5);
  sent s;
  outcome<message> r;
  from.async_send(asio::buffer(data), s.handler());
  to.async_receive(r.handler());
  p.until([&] { return s.done() && r.done(); });
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(is_pattern(r.value.payload.data(), r.value.size(), 5));
  CHECK(r.value.size() == bytes);
}

void talk_and_part(place& p, asio_rdma::connection& a, asio_rdma::connection& b) {
  for (const std::size_t bytes : {std::size_t(10), std::size_t(500000)}) {
    one_message(p, a, b, bytes);
    one_message(p, b, a, bytes);
  }
  outcome<remote_region> granted;
  a.async_request_memory(4096, granted.handler());
  p.until([&] { return granted.done(); });
  REQUIRE(granted.succeeded());
  const std::string text = "written without the connection manager";
  std::string back(text.size(), ' ');
  sent wrote, read;
  a.async_write(asio::buffer(text), granted.value.slice(100), wrote.handler());
  a.async_read(asio::buffer(back), granted.value.slice(100), read.handler());
  p.until([&] { return wrote.done() && read.done(); });
  CHECK(wrote.succeeded());
  CHECK(read.succeeded());
  CHECK(back == text);
  result closed_a, closed_b;
  a.async_close(closed_a.handler());
  b.async_close(closed_b.handler());
  p.until([&] { return closed_a.done() && closed_b.done(); });
  CHECK(closed_a.succeeded());
  CHECK(closed_b.succeeded());
}

/// The first record that an object sends, taken from the wire.
template <class Object>
std::array<char, 56> record_of(place& p, Object& object, result& r) {
  static std::deque<unix_stream::socket> kept; // until the exchange ends
  kept.clear();
  unix_stream::socket& mine = kept.emplace_back(p.io);
  unix_stream::socket& its = kept.emplace_back(p.io);
  asio::local::connect_pair(mine, its);
  async_exchange(its, object, r.handler());
  std::array<char, 56> record{};
  p.until([&] { return mine.available() >= record.size(); });
  asio::read(mine, asio::buffer(record));
  mine.close();
  p.until([&] { return r.done(); });
  kept.clear();
  return record;
}

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  return o;
}

} // namespace

TEST_CASE("a connection over a Unix socket: messages, remote memory, goodbye") {
  place p;
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool, generous());
  if (!connects(p, p.here, p.there, a, b))
    return;
  talk_and_part(p, a, b);
}

TEST_CASE("a connection over TCP") {
  place p;
  auto [here, there] = tcp_sockets(p.io);
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool, generous());
  if (!connects(p, here, there, a, b))
    return;
  char byte = 'x'; // the socket can be used again, and has no bytes left in it
  asio::write(here, asio::buffer(&byte, 1));
  p.until([&, &there = there] { return there.available() == 1; });
  talk_and_part(p, a, b);
}

TEST_CASE("a stream over TCP has its endpoints") {
  place p;
  auto [here, there] = tcp_sockets(p.io);
  asio_rdma::stream a(p.io, p.pool), b(p.io, p.pool);
  if (!connects(p, here, there, a, b))
    return;
  CHECK(a.remote_endpoint() == here.remote_endpoint());
  CHECK(b.local_endpoint() == there.local_endpoint());
  const auto bytes = pattern(300000, 2);
  std::vector<std::uint8_t> read_bytes(bytes.size());
  sent wrote, read, end;
  asio::async_write(a, asio::buffer(bytes), wrote.handler());
  asio::async_read(b, asio::buffer(read_bytes), read.handler());
  p.until([&] { return wrote.done() && read.done(); });
  CHECK(read.succeeded());
  CHECK(read_bytes == bytes);
  a.shutdown(asio::socket_base::shutdown_send);
  b.async_read_some(asio::buffer(read_bytes), end.handler());
  p.until([&] { return end.done(); });
  CHECK(end.ec == asio::error::eof);
}

TEST_CASE("a stream over a Unix socket has no endpoints") {
  place p;
  asio_rdma::stream a(p.io, p.pool), b(p.io, p.pool);
  if (!connects(p, p.here, p.there, a, b))
    return;
  CHECK(a.remote_endpoint() == tcp::endpoint());
}

TEST_CASE("objects of different kinds do not fit: both sides report it, and are unchanged") {
  place p;
  queue_pair qp(p.io, p.pd);
  asio_rdma::connection c(p.io, p.pool), c2(p.io, p.pool);
  asio_rdma::stream s(p.io, p.pool);
  result ra, rb;
  SECTION("a queue pair and a connection") {
    async_exchange(p.here, qp, ra.handler());
    async_exchange(p.there, c, rb.handler());
  }
  SECTION("a connection and a stream") {
    async_exchange(p.here, s, ra.handler());
    async_exchange(p.there, c, rb.handler());
  }
  SECTION("a stream and a queue pair") {
    async_exchange(p.here, qp, ra.handler());
    async_exchange(p.there, s, rb.handler());
  }
  p.until([&] { return ra.done() && rb.done(); });
  const error_code expected = p.by_hand() ? error_code(error::incompatible_peer)
                                          : error_code(asio::error::operation_not_supported);
  CHECK(ra.ec == expected);
  CHECK(rb.ec == expected);
  if (connects(p, p.here, p.there, c, c2))
    one_message(p, c, c2, 100);
}

TEST_CASE("by rdma_cm both sides learn that their objects are of different kinds") {
  place p;
  asio_rdma::stream s(p.io, p.pool);
  acceptor listener(p.io);
  CHECK(listener.statistics().refused_incompatible == 0);
  listener.open({device_address(p.dev), 0});
  connector initiator(p.io);
  test::connection accepted;
  listener.async_accept(s, accepted.handler());
  std::uint64_t refused = 0;
  const auto connects_to_none = [&](auto& object, const std::string& own) {
    test::connection connected;
    initiator.async_connect(object, listener.local_endpoint(), connected.handler());
    p.until([&] { return connected.done(); });
    INFO(describe(connected.ec));
    CHECK(connected.ec == error::incompatible_peer);
    CHECK(connected.ec.message().find("the peer has a stream and this side " + own) !=
          std::string::npos);
    CHECK(listener.statistics().refused_incompatible == ++refused);
  };
  asio_rdma::connection c(p.io, p.pool);
  connects_to_none(c, "a connection");
  const acceptor_statistics found = listener.statistics();
  CHECK(found.last_incompatible.address() == device_address(p.dev));
  CHECK(found.last_reason == error::incompatible_peer);
  CHECK(found.last_reason.message().find("the peer has a connection and this side a stream") !=
        std::string::npos);
  CHECK(found.refused_backlog == 0);
  CHECK(found.waiting == 0);
  queue_pair qp(p.io, p.pd);
  connects_to_none(qp, "a bare queue pair");
  CHECK(listener.statistics().last_reason.message().find("this library's protocol") !=
        std::string::npos);

  CHECK_FALSE(accepted.done()); // it waits for a connector that fits
  asio_rdma::stream fits(p.io, p.pool);
  test::connection connected;
  initiator.async_connect(fits, listener.local_endpoint(), connected.handler());
  p.until([&] { return accepted.done() && connected.done(); });
  CHECK(accepted.succeeded());
  CHECK(listener.statistics().refused_incompatible == refused);
}

TEST_CASE("a request that the program has taken reports that its object does not fit") {
  place p;
  acceptor listener(p.io, {device_address(p.dev), 0});
  connector initiator(p.io);
  asio_rdma::connection c(p.io, p.pool);
  asio_rdma::stream s(p.io, p.pool);
  test::connection connected, accepted;
  outcome<connection_request> request;
  listener.async_wait_request(request.handler());
  initiator.async_connect(c, listener.local_endpoint(), connected.handler());
  p.until([&] { return request.done(); });
  listener.async_accept(std::move(request.value), s, accepted.handler());
  p.until([&] { return accepted.done() && connected.done(); });
  CHECK(accepted.ec == error::incompatible_peer);
  CHECK(accepted.ec.message().find("the peer has a connection") != std::string::npos);
  CHECK(connected.ec == error::incompatible_peer);
}

TEST_CASE("an invalid or unsuitable handshake ends the exchange and is answered") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool), c(p.io, p.pool);
  result ra, unused;
  SECTION("another protocol") {
    async_exchange(p.here, a, ra.handler());
    asio::write(p.there, asio::buffer(std::string("220 mail ready\r\n")));
  }
  SECTION("too few receives") {
    auto record = record_of(p, b, unused);
    record[8] = 1;
    async_exchange(p.here, a, ra.handler());
    asio::write(p.there, asio::buffer(record));
  }
  SECTION("receives that are too small") {
    auto record = record_of(p, b, unused);
    record[12] = 16;
    record[13] = 0;
    async_exchange(p.here, a, ra.handler());
    asio::write(p.there, asio::buffer(record));
  }
  p.there.shutdown(unix_stream::socket::shutdown_send); // and no verdict
  p.until([&] { return ra.done(); });
  CHECK(ra.ec == error::incompatible_peer);
  std::array<char, 64> heard{};
  asio::read(p.there, asio::buffer(heard));
  CHECK(std::string(heard.data() + 56, 5) == std::string("ARDV\x01"));
  unix_stream::socket here(p.io), there(p.io);
  asio::local::connect_pair(here, there);
  if (connects(p, here, there, a, c)) // its state has not changed
    one_message(p, a, c, 100);
}

TEST_CASE("an exchange of a connection is cancelled") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool);
  result ra, unused;
  asio::cancellation_signal cancel;
  const auto start = [&] {
    async_exchange(p.here, a, asio::bind_cancellation_slot(cancel.slot(), ra.handler()));
  };
  SECTION("while the peer is silent: the connection can still be used") {
    start();
    p.until([&] { return p.there.available() == 56; });
    cancel.emit(asio::cancellation_type::terminal);
    p.until([&] { return ra.done(); });
    CHECK(ra.ec == asio::error::operation_aborted);
    unix_stream::socket here(p.io), there(p.io);
    asio::local::connect_pair(here, there);
    if (connects(p, here, there, a, b))
      one_message(p, a, b, 100);
  }
  SECTION("when it is connected, and does not know whether the peer is: it has failed") {
    const auto record = record_of(p, b, unused);
    start();
    asio::write(p.there, asio::buffer(record));
    p.until([&] { return p.there.available() == 64; });
    outcome<message> r;
    a.async_receive(r.handler());
    cancel.emit(asio::cancellation_type::terminal);
    p.until([&] { return ra.done() && r.done(); });
    CHECK(ra.ec == asio::error::operation_aborted);
    CHECK(r.ec == asio::error::operation_aborted);
  }
}

TEST_CASE(
    "a connection that is closed during its exchange ends the exchange, and the peer is notified") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool);
  result ra, rb;
  async_exchange(p.here, a, ra.handler());
  p.until([&] { return p.there.available() == 56; });
  a.close();
  async_exchange(p.there, b, rb.handler());
  p.until([&] { return ra.done() && rb.done(); });
  CHECK(ra.ec == asio::error::operation_aborted);
  CHECK(rb.ec == error::rejected);
}

TEST_CASE("an object that is not open, or is connected already, is refused") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io), b(p.io, p.pool), c(p.io, p.pool), d(p.io, p.pool);
  result ra;
  async_exchange(p.here, a, ra.handler());
  p.until([&] { return ra.done(); });
  CHECK(ra.ec == asio::error::bad_descriptor);
  REQUIRE(connects(p, p.here, p.there, b, c));
  result rb, rd;
  async_exchange(p.here, b, rb.handler());
  async_exchange(p.there, d, rd.handler());
  p.until([&] { return rb.done() && rd.done(); });
  CHECK(rb.ec == asio::error::already_connected);
  CHECK(rd.ec == error::rejected);
  one_message(p, b, c, 100); // as before
}

TEST_CASE("an exchange beside an attempt by the connection manager leaves that attempt alone") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool), c(p.io, p.pool);
  acceptor listener(p.io, {device_address(p.dev), 0});
  connector initiator(p.io);
  test::connection accepted, connected;
  outcome<connection_request> request;
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  listener.async_wait_request(request.handler());
  p.until([&] { return request.done(); });
  result ra, rc;
  async_exchange(p.here, a, ra.handler());
  async_exchange(p.there, c, rc.handler());
  p.until([&] { return ra.done() && rc.done(); });
  CHECK(ra.ec == asio::error::already_connected);
  CHECK(rc.ec == error::rejected);
  listener.async_accept(std::move(request.value), b, accepted.handler());
  p.until([&] { return accepted.done() && connected.done(); });
  INFO(describe(connected.ec));
  REQUIRE(connected.succeeded());
  REQUIRE(accepted.succeeded());
  one_message(p, a, b, 100);
}

TEST_CASE("an attempt by the connection manager beside an exchange leaves that exchange alone") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool);
  acceptor listener(p.io, {device_address(p.dev), 0});
  connector initiator(p.io);
  result ra, rb;
  async_exchange(p.here, a, ra.handler());
  async_exchange(p.there, b, rb.handler());
  const bool begun = GENERATE(false, true);
  if (begun)
    p.until([&] { return a.impl()->target_queue_pair()->check_attach() || ra.done(); });
  test::connection connected;
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  p.until([&] { return ra.done() && rb.done(); });
  if (!begun) { // the attempt was first
    CHECK(ra.ec == asio::error::already_connected);
    CHECK(rb.ec == error::rejected);
    return;
  }
  REQUIRE(ra.succeeded());
  REQUIRE(rb.succeeded());
  p.until([&] { return connected.done(); });
  CHECK(connected.ec == asio::error::already_connected);
  one_message(p, a, b, 100);
}

TEST_CASE(
    "a connection that is closed before the peer has confirmed is not reported as connected") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  asio_rdma::connection a(p.io, p.pool), b(p.io, p.pool);
  result ra, unused;
  const auto record = record_of(p, b, unused);
  async_exchange(p.here, a, ra.handler());
  asio::write(p.there, asio::buffer(record));
  std::array<char, 64> heard{};
  p.until([&] { return p.there.available() == heard.size(); });
  asio::read(p.there, asio::buffer(heard));
  a.close();
  asio::write(p.there, asio::buffer(heard.data() + record.size(), heard.size() - record.size()));
  p.until([&] { return ra.done(); });
  CHECK(ra.ec == asio::error::operation_aborted);
}

TEST_CASE("the end of a peer without a connection manager is detected by keep_alive") {
  place p;
  if (!p.by_hand())
    return not_on_this_device("connecting by address");
  connection_options o;
  o.keep_alive = std::chrono::milliseconds(20);
  o.queue_pair = impatient();
  asio_rdma::connection a(p.io, p.pool, o), b(p.io, p.pool);
  REQUIRE(connects(p, p.here, p.there, a, b));
  outcome<message> r;
  a.async_receive(r.handler());
  b.close();
  p.until([&] { return r.done(); });
  CHECK(r.ec == errc::timed_out);
}

TEST_CASE("a connection that has ended before its peer is known is not connected any more") {
  place p;
  if (p.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  shared_receives shared(p.io, p.pool);
  asio_rdma::connection c(p.io, shared), peer(p.io, p.pool);
  shared.close();
  drain(p.io);
  result mine, its;
  async_exchange(p.here, c, mine.handler());
  async_exchange(p.there, peer, its.handler());
  p.until([&] { return mine.done(); });
  CHECK(mine.ec);
  p.here.close();
  p.until([&] { return its.done(); });
  outcome<message> whole;
  outcome<std::uint32_t> told;
  outcome<std::variant<registered_buffer, remote_region>> region;
  c.async_receive(whole.handler());
  c.async_receive_immediate(told.handler());
  c.async_receive_region(region.handler());
  c.close();
  p.until([&] { return whole.done() && told.done() && region.done(); });
  CHECK(whole.ec);
  CHECK(told.ec);
  CHECK(region.ec);
}

} // namespace test::connection_exchange_tests
