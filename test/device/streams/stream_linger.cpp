// SPDX-License-Identifier: BSL-1.0
// Bytes that were written but not yet sent: which calls wait for them, and how long.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/pairs.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <functional>
#include <future>
#include <optional>
#include <thread>

namespace test::stream_linger_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::stream;
using bytes = std::vector<std::uint8_t>;

constexpr std::size_t megabyte = std::size_t(1) << 20;

/// Longer than any wait that a test measures.
constexpr auto much_longer = 15s;

stream_options patient_for(std::chrono::milliseconds linger) {
  stream_options o;
  o.linger = linger;
  return o;
}

/// Reads from b until the end, on its own thread.
struct reader {
  explicit reader(stream& s)
      : thread([this, &s] { asio::read(s, asio::dynamic_buffer(got), ec); }) {}

  void check(std::size_t wanted) {
    thread.join();
    CHECK(ec == asio::error::eof);
    CHECK(got.size() == wanted);
    CHECK(is_pattern(got.data(), got.size(), 1));
  }

  bytes got;
  error_code ec;
  std::thread thread;
};

/// Reads to the end. Returns the number of bytes.
std::size_t read_all(stream& s, error_code& ec) {
  bytes got;
  asio::read(s, asio::dynamic_buffer(got), ec);
  return got.size();
}

/// Writes bytes that the peer has yet to read.
void write_ahead(two_contexts& t, const bytes& values) {
  sent write;
  t.a->async_write_some(asio::buffer(values), write.handler());
  test::until(*t.io_a, [&] { return write.done(); });
  REQUIRE(write.value == values.size());
}

/// `time`: enough for all other work of the context.
void check_has_work(two_contexts& t, std::chrono::milliseconds time) {
  t.io_a->restart();
  t.io_a->run_for(time);
  CHECK_FALSE(t.io_a->stopped());
}

/// The peer reads on its own thread. Then the context has no more work.
void check_is_read(two_contexts& t, const bytes& values) {
  sent read;
  bytes got(values.size());
  asio::async_read(t.b, asio::buffer(got), read.handler());
  std::thread other([&] { test::until(t.io_b, [&] { return read.done(); }); });
  t.io_a->run();
  other.join();
  CHECK(t.io_a->stopped());
  CHECK(got == values);
}

} // namespace

TEST_CASE(
    "bytes that were written arrive though no thread runs the context, which is then destroyed") {
  two_contexts t;
  const auto values = pattern(GENERATE(std::size_t(10), 20000u, 100000u, 3 * megabyte), 1);
  const auto how = GENERATE(0, 1, 2);
  CAPTURE(values.size(), how);
  {
    std::optional<reader> r;
    if (values.size() > megabyte) // more than there is room for
      r.emplace(t.b);
    asio::write(*t.a, asio::buffer(values));
    if (how == 0) { // as a program that returns from main
      t.a.reset();
    } else if (how == 1) { // a handler that is never called owns it
      auto s = std::make_shared<stream>(std::move(*t.a));
      s->async_wait(stream::wait_read, [s](const error_code&) {});
    } // otherwise it is destroyed after its context
    if (!r)
      r.emplace(t.b);
    t.io_a.reset();
    r->check(values.size());
  }
  t.a.reset();
}

TEST_CASE("a context has work until the peer has read the written bytes") {
  two_contexts t({}, fixed_receives(4096));
  const auto values = pattern(100000, 1); // more than the receives take
  write_ahead(t, values);
  check_has_work(t, 50ms);
  check_is_read(t, values);
  // Once more: the context has stopped, and works again.
  write_ahead(t, values);
  check_has_work(t, 50ms);
  reader r(t.b);
  t.a->close();
  t.io_a->restart();
  t.io_a->run();
  r.check(values.size());
}

TEST_CASE("a context that is destroyed behind a small write sends the bytes before it") {
  two_contexts t({}, fixed_receives(4096));
  const auto values = pattern(100010, 1); // more than the receives take
  CHECK(t.a->write_some(asio::buffer(values.data(), 100000)) == 100000);
  CHECK(t.a->write_some(asio::buffer(values.data() + 100000, 10)) == 10);
  t.a.reset();
  reader r(t.b);
  t.io_a.reset();
  r.check(values.size());
}

TEST_CASE("the option linger does not shorten the work of an open stream") {
  const int seconds = GENERATE(0, 1);
  two_contexts t({}, fixed_receives(4096));
  const auto values = pattern(100000, 1); // more than the receives take
  write_ahead(t, values);
  t.a->set_option(asio::socket_base::linger(true, seconds));
  check_has_work(t, seconds * 3s + 50ms);
  check_is_read(t, values);
  // It limits the wait of the close, for a peer that takes no more.
  write_ahead(t, values);
  t.a->close();
  const auto start = std::chrono::steady_clock::now();
  drain(*t.io_a);
  CHECK(std::chrono::steady_clock::now() - start < much_longer);
  error_code ec;
  bytes got(values.size());
  asio::read(t.b, asio::buffer(got), ec);
  CHECK(ec == asio::error::connection_reset);
}

TEST_CASE("a context waits no longer for a peer that takes nothing") {
  two_contexts t(patient_for(50ms));
  const auto values = pattern(megabyte / 2, 1);
  sent write;
  t.a->async_write_some(asio::buffer(values), write.handler());
  const auto waits = [](auto&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const auto waited = std::chrono::steady_clock::now() - start;
    CHECK(waited >= 50ms);
    CHECK(waited < much_longer);
  };
  waits([&] { drain(*t.io_a); });
  REQUIRE(write.value == values.size());
  const bool destroyed = GENERATE(false, true);
  bytes got(values.size());
  if (destroyed) {
    if (GENERATE(false, true)) { // else the context has waited, and does not wait again
      t.io_a->restart();
      waits([&] { t.io_a.reset(); });
    } else {
      CHECK(t.io_a->stopped());
      t.io_a.reset();
    }
    error_code ec;
    asio::read(t.b, asio::buffer(got), ec);
    CHECK(ec == asio::error::connection_reset);
    return t.a.reset();
  }
  // The bytes are still sent to a peer that reads later.
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  std::thread other([&] { test::until(t.io_b, [&] { return read.done(); }); });
  const auto guard = asio::make_work_guard(*t.io_a);
  test::until(*t.io_a, [&] { return t.a->statistics().bytes_sent == values.size(); });
  other.join();
  CHECK(got == values);
}

TEST_CASE("a stopped context that is destroyed waits for no peer") {
  two_contexts t(patient_for(std::chrono::hours(1)), fixed_receives(4096));
  const auto values = pattern(100000, 1); // more than the receives take
  write_ahead(t, values);
  check_has_work(t, 50ms);
  if (GENERATE(false, true)) { // the context was stopped before, for lack of work
    std::thread reads([&] {
      bytes got(values.size());
      asio::read(t.b, asio::buffer(got));
    });
    t.io_a->run();
    reads.join();
    CHECK(t.io_a->stopped());
    CHECK(t.a->write_some(asio::buffer(values)) == values.size());
    check_has_work(t, 50ms);
  }
  t.io_a->stop();
  if (GENERATE(false, true))
    t.a.reset();  // lingers
  t.io_a.reset(); // would take an hour
  error_code ec;
  CHECK(read_all(t.b, ec) < values.size());
  CHECK(ec == asio::error::connection_reset);
  t.a.reset();
}

TEST_CASE("a stopped context that is destroyed tells an idle peer of the end") {
  two_contexts t;
  char c = 0;
  t.a->async_read_some(asio::buffer(&c, 1), [](auto...) {}); // keeps the context running
  check_has_work(t, 50ms);
  t.io_a->stop();
  if (GENERATE(false, true))
    t.a.reset();
  const auto start = std::chrono::steady_clock::now();
  t.io_a.reset();
  const bool in_time = std::chrono::steady_clock::now() - start < 90ms;
  error_code ec;
  CHECK(read_all(t.b, ec) == 0);
  CHECK((ec == asio::error::eof || !in_time));
  t.a.reset();
}

TEST_CASE("a context that has run out of work sends what is written then before it is destroyed") {
  two_contexts t({}, fixed_receives(4096));
  const auto values = pattern(100000, 1); // more than the receives take
  const bool before = GENERATE(false, true);
  t.io_a->restart();
  t.io_a->run();
  REQUIRE(t.io_a->stopped());
  sent write;
  if (GENERATE(false, true))
    CHECK(t.a->write_some(asio::buffer(values)) == values.size());
  else
    t.a->async_write_some(asio::buffer(values), write.handler());
  if (before)
    t.a.reset();
  reader r(t.b);
  t.io_a.reset();
  r.check(values.size());
  t.a.reset();
}

TEST_CASE("a close continues as long as the peer takes bytes now and then") {
  constexpr auto linger = 1000ms;
  stream_options little = patient_for(linger);
  little.sends = 2; // blocks, each of which takes many writes
  stream_pair t(little);
  // Frames, so each receive that is read is progress.
  const auto values = pattern(20000, 1);
  std::size_t written = 0;
  t.a.non_blocking(true);
  for (error_code ec; !ec;)
    written += t.a.write_some(asio::buffer(values), ec);
  t.a.close();
  const auto start = std::chrono::steady_clock::now();
  asio::steady_timer pause(t.io);
  bytes got(4096);
  std::size_t read = 0;
  sent some;
  const std::function<void()> next = [&] {
    pause.expires_after(linger / 20);
    pause.async_wait([&](auto) {
      t.b.async_read_some(asio::buffer(got), [&](const error_code& ec, std::size_t n) {
        read += n;
        ec ? some.handler()(ec, read) : next();
      });
    });
  };
  next();
  t.until([&] { return some.done(); });
  CHECK(some.ec == asio::error::eof);
  CHECK(read == written);
  CHECK(std::chrono::steady_clock::now() - start > 2 * linger); // otherwise the test proves nothing
}

TEST_CASE("a close continues while a handler blocks the thread that takes completions") {
  stream_options patient = patient_for(500ms), few;
  patient.sends = 8;
  few.receives = 5; // so most bytes wait for the peer's answers
  two_contexts t(patient, few, 2);
  const auto values = pattern(4 * megabyte, 1); // more than the blocks and the receives take
  std::size_t written = 0;
  t.a->non_blocking(true);
  for (error_code ec; !ec;)
    written += t.a->write_some(asio::buffer(values.data() + written, 20000), ec);
  REQUIRE(written + 20000 < values.size());
  std::promise<void> entered, heard;
  char c = 0;
  t.a->async_read_some(asio::buffer(&c, 1), [&](auto...) {
    entered.set_value();
    heard.get_future().wait_for(20s); // an ended stream would make this time out
  });
  t.a->close();
  t.io_a->restart();
  std::thread one([&] { t.io_a->run(); }), other([&] { t.io_a->run(); });
  entered.get_future().wait();
  reader r(t.b);
  r.check(written);
  heard.set_value();
  one.join();
  other.join();
}

TEST_CASE("a cancelled write ends though its peer does not report how much it has read") {
  const auto linger = GENERATE(0ms, 1ms, 50ms);
  CAPTURE(linger);
  two_contexts t(patient_for(linger));
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  const registered_buffer memory = filled(t.pool, 4 * megabyte, 1);
  asio::cancellation_signal signal;
  sent write;
  t.a->async_write_some(memory, asio::bind_cancellation_slot(signal.slot(), write.handler()));
  t.io_a->restart();
  t.io_a->poll();
  REQUIRE(write.calls == 0);
  signal.emit(asio::cancellation_type::partial);
  // Reads that are cancelled meanwhile do not affect the write.
  asio::steady_timer pause(*t.io_a);
  char c = 0;
  std::function<void()> read = [&] {
    t.a->async_read_some(asio::buffer(&c, 1), [](auto...) {});
    t.a->cancel();
    pause.expires_after(linger / 5 + 1ms);
    pause.async_wait([&](auto) {
      if (write.calls == 0)
        read();
    });
  };
  read();
  drain(*t.io_a);
  CHECK(write.calls == 1);
  CHECK(write.ec == asio::error::operation_aborted);
  CHECK_FALSE(in_use(memory));
  sent late;
  t.a->async_write_some(asio::buffer("late", 4), late.handler());
  drain(*t.io_a);
  CHECK(late.ec == asio::error::timed_out);
}

TEST_CASE("the option linger: 0 resets the connection, at once") {
  stream_pair t;
  asio::socket_base::linger option(true, 1);
  t.a.get_option(option);
  CHECK_FALSE(option.enabled());
  t.a.set_option(asio::socket_base::linger(true, 5));
  CHECK(t.a.options().linger == 5s);
  t.a.set_option(asio::socket_base::linger(false, 7));
  CHECK(t.a.options().linger == stream_options().linger);
  t.a.set_option(asio::socket_base::linger(true, 0));
  t.a.get_option(option);
  CHECK(option.enabled());
  CHECK(option.timeout() == 0);
  sent write, read;
  const auto values = pattern(megabyte, 1);
  t.a.async_write_some(asio::buffer(values), write.handler());
  t.until([&] { return write.done(); });
  t.a.close();
  bytes got(2 * megabyte);
  asio::async_read(t.b, asio::buffer(got), read.handler());
  drain(t.io);
  CHECK(read.ec == asio::error::connection_reset);
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

} // namespace test::stream_linger_tests
