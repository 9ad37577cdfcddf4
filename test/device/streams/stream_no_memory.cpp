// SPDX-License-Identifier: BSL-1.0
// Streams while an allocation fails.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/allocation_scene.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <chrono>
#include <new>
#include <vector>

namespace test::stream_no_memory_tests {
namespace {

using asio_rdma::stream;

constexpr std::size_t megabyte = std::size_t(1) << 20;

} // namespace

TEST_CASE("a blocking function for which memory is refused leaves nothing behind") {
  const bool waits = GENERATE(true, false);
  for (std::size_t n = 1, failed = 1; failed != 0; ++n) {
    CAPTURE(waits, n);
    stream_pair t;
    const auto values = pattern(100'000, 1); // more than the receives take at first
    asio::write(t.a, asio::buffer(values));
    std::vector<std::uint8_t> got(values.size());
    std::size_t taken = 0;
    t.b.non_blocking(!waits);
    error_code ec;
    {
      const failing_allocation failing(n);
      const asio::mutable_buffer to = asio::buffer(got);
      try {
        for (int i = 0; i < 1000 && taken == 0 && (!ec || ec == asio::error::would_block); ++i)
          taken = t.b.read_some(to, ec);
      } catch (const std::bad_alloc&) {
      }
      failed = failing.failed();
    }
    t.b.non_blocking(false);
    // The rest arrives, or the read reports the error.
    sent rest;
    asio::async_read(t.b, asio::buffer(got) + taken, rest.handler());
    t.until([&] { return rest.done(); });
    if (!rest.ec)
      CHECK(is_pattern(got.data(), got.size(), 1));
    else
      CHECK(failed);
    t.a.close();
    t.b.close();
    drain(t.io);
    CHECK(t.pool.statistics().blocks_in_use == 0);
  }
}

TEST_CASE("an initiating function for which memory is refused leaves nothing behind") {
  for (std::size_t n = 1, failed = 1; failed != 0; ++n) {
    CAPTURE(n);
    stream_pair t;
    const auto values = pattern(100'000, 1);
    std::vector<std::uint8_t> got(values.size());
    sent write, read;
    bool wrote = true, reads = true;
    {
      const failing_allocation failing(n);
      const asio::const_buffer from = asio::buffer(values);
      const asio::mutable_buffer to = asio::buffer(got);
      try {
        t.a.async_write_some(from, write.handler());
      } catch (const std::bad_alloc&) {
        wrote = false;
      }
      try {
        t.b.async_read_some(to, read.handler());
      } catch (const std::bad_alloc&) {
        reads = false;
      }
      failed = failing.failed();
    }
    t.a.close();
    t.b.close();
    drain(t.io);
    CHECK(write.calls == int(wrote));
    CHECK(read.calls == int(reads));
    CHECK(t.pool.statistics().blocks_in_use == 0);
  }
}

TEST_CASE("a handshake for which memory is refused leaves nothing of the protocol behind") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  const stream peer(io, pool);
  const private_data hello = peer.impl()->hello();
  const bool closes = GENERATE(false, true);
  for (std::size_t n = 1, failed = 1; failed != 0; ++n) {
    CAPTURE(closes, n);
    stream s(io, pool);
    error_code ec;
    {
      const failing_allocation failing(n);
      ec = s.impl()->on_hello(hello, true);
      failed = failing.failed();
    }
    CHECK(ec == (failed ? error_code(asio::error::no_memory) : error_code()));
    const auto impl = s.impl();
    if (closes)
      s.close();
    CHECK(impl->available() == 0); // asks the protocol, if there is one
    if (failed && !closes)
      CHECK(impl->on_hello(hello, true) == error_code());
  }
  drain(io);
}

namespace {

/// Streams that connect, write from plain and from registered memory, shut down and close.
struct stream_scene_of_allocations {
  stream_scene_of_allocations() {
    a.open(pool);
    b.open(pool);
    listener.open({device_address(dev), 0});
  }
  /// The peer of an operation that fails by itself may wait for it, so both sides close.
  auto closing() {
    return [this](const error_code& ec, auto&&...) {
      if (ec) {
        a.close();
        b.close();
      }
    };
  }
  template <class Accounts>
  void play(Accounts& accounts) {
    accounts.start("accept", [&](auto h) { listener.async_accept(b, std::move(h)); });
    accounts.start(
        "connect",
        [&](auto h) { initiator.async_connect(a, listener.local_endpoint(), std::move(h)); },
        [this](const error_code& ec, auto&&...) {
          if (ec) // an acceptor waits for the next request
            listener.close();
        });
    if (!accounts.run(io) || accounts.any_failed())
      return;
    accounts.start(
        "small write",
        [&](auto h) { a.async_write_some(asio::buffer(plain.data(), 100), std::move(h)); },
        closing());
    accounts.start(
        "read", [&](auto h) { b.async_read_some(asio::buffer(got), std::move(h)); }, closing());
    if (!accounts.run(io) || accounts.any_failed())
      return;
    accounts.start(
        "long read", // all of it: without memory for a key the write goes in frames
        [&](auto h) { asio::async_read(b, asio::buffer(into.data(), into.size()), std::move(h)); },
        closing());
    accounts.start(
        "long write", [&](auto h) { a.async_write_some(lent, std::move(h)); }, closing());
    if (!accounts.run(io) || accounts.any_failed())
      return;
    accounts.start(
        "copied write", [&](auto h) { a.async_write_some(asio::buffer(plain), std::move(h)); },
        closing());
    accounts.start(
        "wait", [&](auto h) { b.async_wait(stream::wait_read, std::move(h)); }, closing());
    if (!accounts.run(io) || accounts.any_failed())
      return;
    accounts.start(
        "received piece", [&](auto h) { b.async_receive(std::move(h)); }, closing());
    if (!accounts.run(io) || accounts.any_failed())
      return;
    error_code ec;
    for (stream* from : {&a, &b}) {
      from->write_some(asio::buffer(plain.data(), 40'000), ec);
      if (!ec)
        (from == &a ? b : a).read_some(asio::buffer(got), ec);
      if (ec)
        return;
    }
    accounts.start(
        "wait for the end", [&](auto h) { a.async_wait(stream::wait_error, std::move(h)); },
        closing());
    accounts.start("last read", [&](auto h) {
      a.async_read_some(asio::buffer(got), [h = std::move(h)](error_code e, std::size_t) mutable {
        std::move(h)(e == asio::error::eof ? error_code() : e);
      });
    });
    a.shutdown(stream::shutdown_send, ec);
    b.close();
  }
  void close() {
    a.close();
    b.close();
    listener.close();
    initiator.cancel();
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  registered_buffer lent = pool.allocate(2 * megabyte), into = pool.allocate(2 * megabyte);
  std::vector<char> plain = std::vector<char>(100'000);
  std::array<char, 50'000> got{};
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  stream a{io}, b{io};
};

} // namespace

TEST_CASE("a stream lives through the failure of each allocation, or ends") {
  fail_each_allocation<stream_scene_of_allocations>();
}

TEST_CASE("a context is destroyed, and tries to send the written bytes, while each allocation "
          "fails once") {
  stream_options patient;
  patient.linger = std::chrono::milliseconds(20);
  const auto values = pattern(100'000, 1); // more than the receives take at first
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    two_contexts t(patient);
    sent write;
    outcome<void> never;
    t.a->async_write_some(asio::buffer(values), write.handler());
    until(*t.io_a, [&] { return write.done(); });
    REQUIRE(write.value == values.size());
    t.a->async_wait(stream::wait_read, never.handler());
    {
      const failing_allocation failing(n);
      t.io_a.reset();
      failed = failing.failed();
    }
    CHECK(never.calls == 0);
    std::vector<std::uint8_t> got(values.size());
    error_code ec;
    asio::read(t.b, asio::buffer(got), ec);
    CHECK(ec == asio::error::connection_reset);
    t.a.reset();
  }
}

} // namespace test::stream_no_memory_tests
