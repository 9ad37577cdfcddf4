// SPDX-License-Identifier: BSL-1.0
// The same script on streams and on TCP sockets, compared step by step.
#include "catch.hpp"
#include "device/streams/stream_scripts.hpp"

#include <vector>

namespace test::stream_as_socket_tests {
namespace {

// After an asynchronous read has returned `eof`, the next read on Boost.Asio 1.81's sockets waits
// for ever, so no script has two.
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
    {"shutdown after written bytes",
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
    {"the peer's shutdown ends a waiting read",
     {{'b', verb::begin_read, 10}, {'a', verb::shutdown_send}, {'b', verb::end}}},
    {"shutdown of reading here",
     {{'a', verb::begin_read, 10},
      {'a', verb::shutdown_receive},
      {'a', verb::end},
      {'a', verb::sync_read, 10},
      {'a', verb::write, 4},
      {'b', verb::read, 10}}},
    {"shutdown of reading leaves the bytes that have arrived",
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
    {"the peer reads the written bytes before the close",
     {{'a', verb::write, 10},
      {'a', verb::close},
      {'b', verb::read, 6},
      {'b', verb::read, 10},
      {'b', verb::read, 10},
      {'b', verb::is_open}}},
    {"close ends waiting operations",
     {{'a', verb::begin_read, 10},
      {'a', verb::begin_wait},
      {'a', verb::close},
      {'a', verb::end},
      {'a', verb::end}}},
    {"operations after the peer's close",
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
    {"operations on a closed socket",
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
    {"operations on a socket that was never open",
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
    {"operations on a socket that is not connected",
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
    {"cancelling without an operation, and after one has completed",
     {{'a', verb::cancel},
      {'a', verb::write, 10},
      {'b', verb::wait_read},
      {'b', verb::begin_read, 10},
      {'b', verb::end},
      {'b', verb::cancel},
      {'b', verb::read, 0}}},
    {"a reset connection",
     {{'b', verb::begin_read, 10}, {'a', verb::die}, {'b', verb::end}, {'b', verb::is_open}}},
    {"a reset connection has the bytes that had arrived",
     {{'a', verb::write, 10},
      {'b', verb::wait_read},
      {'a', verb::die},
      {'b', verb::wait_error},
      {'b', verb::read, 4},
      {'b', verb::read, 10},
      {'b', verb::read, 10}}},
    {"a reset ends a blocking read", {{'a', verb::die}, {'b', verb::sync_read, 10}}},
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
    {"operations on a moved object",
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

} // namespace

TEST_CASE("a stream behaves like a TCP socket, step by step") {
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

TEST_CASE("with message flags a stream reads and writes nothing") {
  using base = asio::socket_base;
  const auto flags = GENERATE(
      values<base::message_flags>({base::message_peek, base::message_out_of_band,
                                   base::message_do_not_route, base::message_end_of_record}));
  stream_pair t;
  const auto out = asio::buffer("abc", 3);
  char memory[10];
  const auto in = asio::buffer(memory);
  const auto refused = [&t](sent& op) {
    t.until([&] { return op.done(); });
    return op.ec == asio::error::operation_not_supported && op.value == 0;
  };
  error_code ec;
  CHECK(t.a.send(out, flags, ec) == 0);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK_THROWS_AS(t.a.send(out, flags), system_error);
  sent send, receive;
  t.a.async_send(out, flags, send.handler());
  CHECK(refused(send));

  CHECK(t.a.send(out, 0) == 3);
  t.b.wait(base::wait_read);
  CHECK(t.b.available() == 3);
  CHECK(t.b.receive(in, flags, ec) == 0);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK_THROWS_AS(t.b.receive(in, flags), system_error);
  t.b.async_receive(in, flags, receive.handler());
  CHECK(refused(receive));
  CHECK(t.b.available() == 3);
  CHECK(t.b.receive(in, 0) == 3);

  sent sends, receives;
  t.a.async_send(out, 0, sends.handler());
  t.b.async_receive(in, 0, receives.handler());
  t.until([&] { return sends.done() && receives.done(); });
  CHECK(sends.succeeded());
  CHECK(receives.value == 3);
}

TEST_CASE("a stream that is open is not opened again") {
  stream_pair t;
  error_code ec;
  t.a.open(t.pool, {}, ec);
  CHECK(ec == asio::error::already_open);
}

} // namespace test::stream_as_socket_tests
