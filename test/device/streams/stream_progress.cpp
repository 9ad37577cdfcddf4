// SPDX-License-Identifier: BSL-1.0
// Peers that are slow, or that take no more bytes.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "interposer/faults.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <span>
#include <thread>

namespace test::stream_progress_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::stream;

constexpr std::size_t megabyte = std::size_t(1) << 20;
constexpr std::size_t many = 5 * megabyte; // more than is read ahead, or than the send buffer takes

stream_options large_receives() { return fixed_receives(131088); }

/// Writes copied bytes until no more fit; returns their number.
std::size_t fill(stream& s, const std::vector<std::uint8_t>& values) {
  s.non_blocking(true);
  std::size_t written = 0;
  for (error_code ec; !ec && written < values.size();)
    written += s.write_some(
        asio::buffer(&values[written], std::min(values.size() - written, 16 * megabyte)), ec);
  s.non_blocking(false);
  return written;
}

stream_options patient_for(std::chrono::milliseconds linger) {
  stream_options o;
  o.linger = linger;
  return o;
}

/// Two streams, of which `a` has written more than the receives of `b` take. `close` closes `a`,
/// whose context a thread then runs.
struct written_ahead : two_contexts {
  explicit written_ahead(std::chrono::milliseconds linger)
      : two_contexts(patient_for(linger), large_receives()), written(fill(*a, values)) {
    REQUIRE(written > receive_room(b.options()));
  }
  std::thread close() {
    a->close();
    return std::thread([this] {
      io_a->restart();
      io_a->run();
      ended = true;
    });
  }

  const std::vector<std::uint8_t> values = pattern(many, 1);
  const std::size_t written;
  std::atomic<bool> ended = false; ///< The context has no work left.
};

} // namespace

TEST_CASE("a close continues as long as the peer takes few of the bytes that it has") {
  constexpr auto linger = 1000ms;
  stream_pair t(patient_for(linger), large_receives());
  const auto values = pattern(many, 1);
  const std::size_t written = fill(t.a, values);
  REQUIRE(written > receive_room(t.b.options()));
  std::vector<std::uint8_t> got(written + 1); // touched before the time runs
  t.a.close();
  // Far fewer bytes than are read at a time.
  std::size_t taken = 0;
  error_code failure;
  asio::steady_timer pause(t.io);
  const auto end_of_slowness = std::chrono::steady_clock::now() + 3 * linger;
  const std::function<void()> next = [&] {
    pause.expires_after(linger / 20);
    pause.async_wait([&](auto) {
      t.b.async_read_some(asio::buffer(&got[taken], 1000), [&](error_code ec, std::size_t n) {
        taken += n;
        failure = ec;
        if (!ec && std::chrono::steady_clock::now() < end_of_slowness)
          next();
        else
          t.io.stop();
      });
    });
  };
  next();
  t.io.restart();
  t.io.run_for(60s);
  CHECK(failure == error_code());
  sent rest;
  asio::async_read(t.b, asio::buffer(&got[taken], got.size() - taken), rest.handler());
  t.until([&] { return rest.done(); });
  CHECK(rest.ec == asio::error::eof);
  CHECK(taken + rest.value == written);
  CHECK(is_pattern(got.data(), taken + rest.value, 1));
}

TEST_CASE("a close continues while the peer takes few bytes by functions that find some at once") {
  constexpr auto linger = 500ms;
  written_ahead t(linger);
  const bool blocking = GENERATE(true, false);
  CAPTURE(blocking);
  std::vector<std::uint8_t> got(t.written + 1); // touched before the time runs
  std::thread closing = t.close();
  std::size_t taken = 0;
  error_code ec;
  t.b.non_blocking(!blocking);
  const auto end_of_slowness = std::chrono::steady_clock::now() + 5 * linger;
  while (!ec && std::chrono::steady_clock::now() < end_of_slowness) {
    std::this_thread::sleep_for(linger / 20);
    taken += t.b.read_some(asio::buffer(&got[taken], 1000), ec);
    if (ec == asio::error::would_block)
      ec = {};
  }
  CHECK(taken > 1000);
  CHECK(taken < t.b.options().receive_size); // so no receive is free yet
  t.b.non_blocking(false);
  if (!ec)
    taken += asio::read(t.b, asio::buffer(&got[taken], got.size() - taken), ec);
  closing.join();
  CHECK(ec == asio::error::eof);
  CHECK(taken == t.written);
  CHECK(is_pattern(got.data(), taken, 1));
}

TEST_CASE("a close ends in time though the peer takes a byte now and then") {
  constexpr auto linger = 20ms;
  written_ahead t(linger);
  std::thread closing = t.close();
  constexpr std::size_t too_many = 5000; // 25 s
  std::vector<std::uint8_t> rest;
  error_code ec;
  for (std::size_t taken = 0; !t.ended && taken < too_many; ++taken) {
    char byte;
    asio::read(t.b, asio::buffer(&byte, 1), ec);
    std::this_thread::sleep_for(linger / 4);
  }
  CHECK(t.ended);
  asio::read(t.b, asio::dynamic_buffer(rest), ec);
  CHECK(ec == asio::error::connection_reset);
  closing.join();
}

TEST_CASE("a peer is queried before a close gives up, also if the context was blocked") {
  constexpr auto linger = 1000ms;
  stream_pair t(patient_for(linger), large_receives());
  const auto values = pattern(many, 1);
  const std::size_t written = fill(t.a, values);
  const std::size_t room = receive_room(t.b.options());
  REQUIRE(written > room);
  t.until([&] { return t.b.available() == room; });
  std::vector<std::uint8_t> got(written + 1); // touched before the time runs
  t.a.close();
  t.io.restart();
  t.io.run_for(linger / 10); // until no more bytes move
  std::size_t taken = asio::read(t.b, asio::buffer(got.data(), 1000));
  // Later than the answer to a question that was sent in time, but early enough that the stream
  // does not notice the blocked context.
  std::this_thread::sleep_for(linger + linger * 2 / 5);
  t.io.restart();
  t.io.poll();
  sent rest;
  asio::async_read(t.b, asio::buffer(&got[taken], got.size() - taken), rest.handler());
  t.until([&] { return rest.done(); });
  CHECK(rest.ec == asio::error::eof);
  taken += rest.value;
  CHECK(taken == written);
  CHECK(is_pattern(got.data(), taken, 1));
}

TEST_CASE("a shutdown of both directions drops the bytes that arrive later") {
  stream_pair t;
  const auto form = GENERATE(0, 1, 2), order = GENERATE(0, 1, 2);
  CAPTURE(form, order);
  const registered_buffer lent = filled(t.pool, 32 * megabyte, 1);
  sent write;
  t.a.async_write_some(asio::buffer("before", 6), [](auto...) {});
  t.until([&] { return t.b.available() == 6; });
  if (form == 0) // the peer reads it from a's memory
    t.a.async_write_some(lent, write.handler());
  else
    asio::async_write(t.a, asio::buffer(lent.data(), form == 1 ? lent.size() : 20000),
                      write.handler());
  t.until([&] { return t.b.available() > 6; });
  if (order == 0) {
    t.b.shutdown(stream::shutdown_both);
  } else {
    t.b.shutdown(order == 1 ? stream::shutdown_receive : stream::shutdown_send);
    t.b.shutdown(order == 1 ? stream::shutdown_send : stream::shutdown_receive);
  }
  t.until([&] { return write.done(); });
  CHECK(write.ec == (form == 2 ? error_code() : error_code(asio::error::broken_pipe)));
  // Bytes that had arrived before can be read.
  std::array<char, 6> before{};
  asio::read(t.b, asio::buffer(before));
  CHECK(std::string(before.data(), before.size()) == "before");
  error_code ec;
  std::vector<char> rest(2 * megabyte);
  asio::read(t.b, asio::buffer(rest), ec);
  CHECK(ec == asio::error::eof);
  // The writer gets the notice, after writes whose bytes are dropped.
  for (error_code late; late != asio::error::broken_pipe;) {
    sent small;
    t.a.async_write_some(asio::buffer(rest.data(), 10000), small.handler());
    t.until([&] { return small.done(); });
    late = small.ec;
    REQUIRE((!late || late == asio::error::broken_pipe));
  }
  CHECK_FALSE(in_use(lent));
  t.a.close();
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 1);
}

TEST_CASE("a withdrawn write leaves a connection open whose close would not linger") {
  stream_pair t({}, large_receives());
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  t.a.set_option(asio::socket_base::linger(true, 0));
  const auto values = pattern(megabyte / 4, 1);
  const registered_buffer lent = filled(t.pool, many, 2);
  sent before, write;
  asio::async_write(t.a, asio::buffer(values), before.handler());
  t.until([&] { return before.done(); });
  const bool by_shutdown = GENERATE(false, true);
  t.a.async_write_some(lent, write.handler());
  t.until([&] { return t.b.available() >= megabyte; });
  REQUIRE(write.calls == 0);
  faults.hold_completions({nullptr, t.b.impl()->target_queue_pair()->native_handle()->qp_num});
  if (by_shutdown)
    t.a.shutdown(stream::shutdown_send);
  else
    t.a.cancel();
  while (faults.held() == 0) // a timer that is due runs meanwhile
    t.io.poll();
  t.io.restart();
  t.io.poll();
  faults.release_completions();
  t.until([&] { return write.done(); });
  CHECK(write.ec == (by_shutdown ? error_code(asio::error::broken_pipe)
                                 : error_code(asio::error::operation_aborted)));
  std::vector<std::uint8_t> got(values.size() + write.value);
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.succeeded());
  CHECK(is_pattern(got.data(), values.size(), 1));
  CHECK(write.value != 0);
  CHECK(is_pattern(&got[values.size()], write.value, 2));
}

TEST_CASE("a write that is withdrawn while the peer reads it directly ends at the next piece") {
  constexpr std::size_t pieces = 64;
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer from = filled(t.pool, pieces * megabyte, 7);
  const registered_buffer to = t.pool.allocate(from.size());
  char c = 0;
  asio::write(t.a, asio::buffer("x", 1)); // so that the next completion is that of the offer
  asio::read(t.b, asio::buffer(&c, 1));
  const std::uint32_t number = t.b.impl()->target_queue_pair()->native_handle()->qp_num;
  faults.hold_completions({nullptr, number});
  const auto wait_held = [&](std::size_t n) {
    while (faults.held() < n) {
      t.io.restart();
      if (t.io.poll() == 0)
        std::this_thread::yield();
    }
  };
  sent write, read;
  t.b.async_read_some(to, read.handler());
  t.a.async_write_some(from, write.handler());
  wait_held(1); // the offer
  faults.release_completions(1);
  wait_held(4); // the READs that are posted at a time
  t.a.cancel();
  wait_held(5); // the withdrawal
  faults.release_completions();
  t.until([&] { return write.done() && read.done(); });
  CHECK(read.succeeded());
  CHECK(read.value < from.size() / 2);
  CHECK(write.ec == asio::error::operation_aborted);
  CHECK(write.value == read.value);
  CHECK(is_pattern(to.data(), read.value, 7));
  // A later write follows the accepted bytes.
  sent next, after;
  t.a.async_write_some(asio::buffer("next", 4), next.handler());
  std::array<char, 5> text{};
  t.b.async_read_some(asio::buffer(text), after.handler());
  t.until([&] { return next.done() && after.done(); });
  CHECK(std::string(text.data(), after.value) == "next");
}

TEST_CASE("a write whose reader closes reports how much of it was read") {
  stream_pair t({}, fixed_receives(4096));
  const std::size_t ahead = taken_ahead(t.b);
  const registered_buffer lent = filled(t.pool, many, 1);
  sent write;
  t.a.async_write_some(lent, write.handler());
  t.until([&] { return t.b.available() == ahead; });
  std::vector<char> some(1000);
  asio::read(t.b, asio::buffer(some));
  t.b.close();
  t.until([&] { return write.done(); });
  CHECK(write.ec == asio::error::broken_pipe);
  CHECK(write.value == ahead);
}

} // namespace test::stream_progress_tests
