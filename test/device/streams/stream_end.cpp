// SPDX-License-Identifier: BSL-1.0
// The end of a stream: cancelled writes of registered memory, bytes that are sent after a close,
// and a killed peer.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/peer_process.hpp"
#include "interposer/faults.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <thread>

namespace test::stream_end_tests {
namespace {

using asio_rdma::stream;

constexpr std::size_t megabyte = std::size_t(1) << 20;
constexpr std::size_t many = 5 * megabyte; // more than is read ahead, or than the send buffer takes

} // namespace

TEST_CASE("a write of registered memory that is cancelled reports how much was written") {
  stream_pair t({}, fixed_receives(4096));
  const registered_buffer memory = filled(t.pool, many, 1);
  asio::cancellation_signal signal;
  sent write;
  const auto how = GENERATE(0, 1, 2);
  t.a.async_write_some(memory, asio::bind_cancellation_slot(signal.slot(), write.handler()));
  const std::size_t ahead = taken_ahead(t.b);
  t.until([&] { return t.b.available() == ahead; });
  CHECK(write.calls == 0);
  CHECK(in_use(memory));
  if (how == 0)
    signal.emit(asio::cancellation_type::partial);
  else if (how == 1)
    t.a.cancel();
  else
    t.a.shutdown(stream::shutdown_send);
  t.until([&] { return write.done(); });
  CHECK(write.calls == 1);
  CHECK(write.ec == (how == 2 ? error_code(asio::error::broken_pipe)
                              : error_code(asio::error::operation_aborted)));
  CHECK(write.value == ahead);
  CHECK_FALSE(in_use(memory));
  std::vector<std::uint8_t> got(ahead);
  asio::read(t.b, asio::buffer(got));
  CHECK(is_pattern(got.data(), got.size(), 1));
  if (how == 2)
    return;
  // A later write follows the accepted bytes.
  sent next;
  t.a.async_write_some(asio::buffer("next", 4), next.handler());
  std::array<char, 5> text{};
  sent read;
  t.b.async_read_some(asio::buffer(text), read.handler());
  t.until([&] { return next.done() && read.done(); });
  CHECK(std::string(text.data(), read.value) == "next");
}

TEST_CASE("a cancelled write keeps its memory until the device has finished with it") {
  stream_pair t({}, fixed_receives(4096));
  const registered_buffer memory = filled(t.pool, many, 1);
  faults::injector faults(t.dev.native_handle());
  faults.hold_completions({nullptr, t.a.impl()->target_queue_pair()->native_handle()->qp_num});
  sent write;
  t.a.async_write_some(memory, write.handler());
  const std::size_t ahead = taken_ahead(t.b);
  t.until([&] { return t.b.available() == ahead; });
  t.a.cancel();
  t.io.restart();
  t.io.poll();
  CHECK(write.calls == 0);
  CHECK(in_use(memory));
  faults.release_completions();
  t.until([&] { return write.done(); });
  CHECK(write.ec == asio::error::operation_aborted);
  CHECK(write.value == ahead);
  CHECK_FALSE(in_use(memory));
}

TEST_CASE("bytes that were written before a close arrive, and then the end") {
  stream_pair t;
  sent write;
  const auto values = pattern(200000, 4);
  t.a.async_write_some(asio::buffer(values), write.handler());
  t.until([&] { return write.done(); });
  REQUIRE(write.succeeded());
  t.a.close();
  std::vector<std::uint8_t> got(values.size() + 1);
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.ec == asio::error::eof);
  CHECK(read.value == write.value);
  CHECK(is_pattern(got.data(), read.value, 4));
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("a closed stream whose peer takes nothing gives up when it has lingered long enough") {
  stream_options o;
  o.linger = std::chrono::milliseconds(50);
  stream_pair t(o, fixed_receives(4096));
  const std::size_t room = receive_room(t.b.options());
  const std::size_t before = t.pool.statistics().blocks_in_use;
  sent write;
  const auto values = pattern(megabyte / 2, 4); // received, and copied
  asio::async_write(t.a, asio::buffer(values), write.handler());
  t.until([&] { return write.done() && t.b.available() == room; });
  CHECK(t.pool.statistics().blocks_in_use > before);
  t.a.close();
  outcome<void> end;
  t.b.async_wait(stream::wait_error, end.handler());
  t.until([&] { return end.done(); });
  // Bytes that had arrived can be read; then the read reports the reason of the end.
  std::vector<std::uint8_t> got(values.size());
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.ec == asio::error::connection_reset);
  CHECK(read.value == room);
  CHECK(is_pattern(got.data(), read.value, 4));
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

TEST_CASE("a blocking read and a blocking write end with a connection that fails") {
  stream_pair t;
  faults::injector faults(t.dev.native_handle());
  const std::uint32_t number = t.a.impl()->target_queue_pair()->native_handle()->qp_num;
  faults.fail_completion({.status = IBV_WC_FATAL_ERR, .qp_num = number});
  const bool reads = GENERATE(false, true);
  std::thread peer([&] { // the first failed completion of a belongs to its write
    error_code ignored;
    if (reads)
      t.b.write_some(asio::buffer("x", 1), ignored);
  });
  const auto values = pattern(megabyte, 1);
  char c = 0;
  error_code ec;
  while (!ec)
    reads ? t.a.read_some(asio::buffer(&c, 1), ec) : t.a.write_some(asio::buffer(values), ec);
  peer.join();
  CHECK(ec == IBV_WC_FATAL_ERR);
}

// Receives nothing that is sent to it.
TEST_CASE("the peer of a stream that is killed", "[.peer]") {
  const auto port = port_of_tester();
  if (!port)
    return;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  connector initiator(io);
  stream s(io, pool);
  test::connection connected;
  initiator.async_connect(s, endpoint(device_address(dev), *port), connected.handler());
  until(io, [&] { return connected.done(); });
  outcome<void> end;
  s.async_write_some(asio::buffer("here", 4), asio::detached);
  s.async_wait(stream::wait_error, end.handler());
  io.restart();
  io.run();
}

TEST_CASE("every operation of a stream ends with a peer that is killed, and the memory returns") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  acceptor listener(io);
  listener.open({device_address(dev), 0});
  stream s(io, pool);
  test::connection accepted;
  listener.async_accept(s, accepted.handler());
  peer_process peer(listener.local_endpoint());
  std::array<char, 4> here{};
  sent hello;
  until(io, [&] { return accepted.done(); });
  REQUIRE(accepted.succeeded());
  asio::async_read(s, asio::buffer(here), hello.handler());
  until(io, [&] { return hello.done(); });
  REQUIRE(hello.succeeded());

  const bool blocking = GENERATE(false, true);
  if (blocking) {
    std::thread kills([&] { peer.kill(); });
    error_code ec;
    while (!ec)
      s.read_some(asio::buffer(here), ec);
    kills.join();
    CHECK(ec == asio::error::connection_reset);
  } else {
    sent read, copied;
    std::array<sent, 5> lent; // as many as can be offered, and one
    outcome<registered_buffer> received;
    outcome<void> readable, writable, end;
    s.async_read_some(asio::buffer(here), read.handler());
    s.async_receive(received.handler());
    s.async_wait(stream::wait_read, readable.handler());
    s.async_wait(stream::wait_error, end.handler());
    for (sent& l : lent)
      s.async_write_some(pool.allocate(many), l.handler());
    s.async_write_some(asio::buffer("behind", 6), copied.handler());
    s.async_wait(stream::wait_write, writable.handler());
    io.restart();
    io.poll();
    CHECK(copied.calls + read.calls + received.calls == 0);
    for (const sent& l : lent)
      CHECK(l.calls == 0);
    peer.kill();
    drain(io);
    for (const error_code& ec : {read.ec, received.ec, copied.ec, lent[0].ec, lent[4].ec}) {
      INFO(describe(ec));
      // The device was processing a part of the write.
      CHECK((ec == asio::error::connection_reset || ec == errc::timed_out));
    }
    for (const outcome<void>* o : {&readable, &writable, &end})
      CHECK(o->succeeded());
    for (const int calls : {read.calls, received.calls, copied.calls})
      CHECK(calls == 1);
    for (const sent& l : lent)
      CHECK(l.calls == 1);
  }
  sent late;
  s.async_write_some(asio::buffer("late", 4), late.handler());
  drain(io);
  CHECK(late.ec);
  s.close();
  drain(io);
  CHECK(pool.statistics().blocks_in_use == 0);
}

} // namespace test::stream_end_tests
