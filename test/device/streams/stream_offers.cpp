// SPDX-License-Identifier: BSL-1.0
// Long writes of a stream, which the peer reads from the writer's memory.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "interposer/faults.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <deque>
#include <thread>

namespace test::stream_offers_tests {
namespace {

using asio_rdma::stream;
using faults::call;

constexpr std::size_t megabyte = std::size_t(1) << 20;
constexpr std::size_t many = 4 * megabyte; // more than is read ahead, so not in one read

bool is_filled(const registered_buffer& b, std::uint32_t seed) {
  return is_pattern(static_cast<const std::uint8_t*>(b.data()), b.size(), seed);
}

std::uint32_t number_of(stream& s) {
  return s.impl()->target_queue_pair()->native_handle()->qp_num;
}

/// Runs the context until `n` completions are held back.
void wait_held(stream_pair& t, faults::injector& faults, std::size_t n) {
  while (faults.held() < n) {
    t.io.restart();
    if (t.io.poll() == 0)
      std::this_thread::yield();
  }
}

} // namespace

TEST_CASE("a long write is read to the memory of a read that waits") {
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  const registered_buffer from = filled(t.pool, many, 7), to = t.pool.allocate(many);
  sent write, read;
  const auto form = GENERATE(0, 1);
  if (form == 0)
    t.b.async_read_some(to, read.handler());
  else
    t.b.async_read_some(asio::buffer(to.data(), to.size()), read.handler());
  t.a.async_write_some(from, write.handler());
  t.until([&] { return read.done() && write.done(); });
  CHECK(read.succeeded());
  CHECK(read.value == many);
  CHECK(write.succeeded());
  CHECK(write.value == many);
  CHECK(is_filled(to, 7));
}

TEST_CASE(
    "a cancelled read ends when the device no longer writes its memory, and has taken nothing") {
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer from = filled(t.pool, many, 7), to = t.pool.allocate(many);
  sent write, read;
  asio::cancellation_signal signal;
  char c = 0;
  asio::write(t.a, asio::buffer("x", 1)); // so that the next completion is that of the offer
  asio::read(t.b, asio::buffer(&c, 1));
  faults.hold_completions({nullptr, number_of(t.b)});
  t.b.async_read_some(to, asio::bind_cancellation_slot(signal.slot(), read.handler()));
  t.a.async_write_some(from, write.handler());
  wait_held(t, faults, 1); // the offer
  faults.release_completions(1);
  wait_held(t, faults, 1); // the READs
  const auto how = GENERATE(0, 1, 2);
  if (how == 0)
    signal.emit(asio::cancellation_type::total);
  else if (how == 1)
    t.b.cancel();
  else
    t.b.close();
  t.io.restart();
  t.io.poll();
  CHECK(read.calls == 0);
  CHECK(in_use(to));
  faults.release_completions();
  t.until([&] { return read.done(); });
  CHECK(read.ec == asio::error::operation_aborted);
  CHECK(read.value == 0);
  CHECK_FALSE(in_use(to));
  if (how == 2) {
    t.until([&] { return write.done(); });
    CHECK(write.ec == asio::error::broken_pipe);
    CHECK(write.value == 0);
    return;
  }
  CHECK(write.calls == 0);
  sent again;
  asio::async_read(t.b, asio::buffer(to.data(), to.size()), again.handler());
  t.until([&] { return again.done() && write.done(); });
  CHECK(again.value == many);
  CHECK(write.succeeded());
  CHECK(is_filled(to, 7));
}

TEST_CASE("bytes that a cancelled read has not yet requested are not read") {
  constexpr std::size_t reads = 32, under_way = 4;
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer from = filled(t.pool, reads * megabyte, 7);
  const registered_buffer to = t.pool.allocate(from.size());
  sent write, read;
  char c = 0;
  asio::write(t.a, asio::buffer("x", 1)); // so that the next completion is that of the offer
  asio::read(t.b, asio::buffer(&c, 1));
  faults.hold_completions({nullptr, number_of(t.b)});
  t.b.async_read_some(to, read.handler());
  t.a.async_write_some(from, write.handler());
  wait_held(t, faults, 1); // the offer
  faults.release_completions(1);
  wait_held(t, faults, under_way);
  const std::uint64_t posted = faults.counts().send_requests;
  t.b.cancel();
  faults.release_completions();
  t.until([&] { return read.done(); });
  CHECK(read.ec == asio::error::operation_aborted);
  // Some bytes are read ahead for the next read.
  CHECK(faults.counts().send_requests - posted < (reads - under_way) / 2);
  sent again;
  asio::async_read(t.b, asio::buffer(to.data(), to.size()), again.handler());
  t.until([&] { return again.done() && write.done(); });
  CHECK(again.value == from.size());
  CHECK(write.succeeded());
  CHECK(is_filled(to, 7));
}

TEST_CASE("copied bytes arrive in order with offered ones") {
  stream_pair t;
  const auto values = pattern(6 * megabyte, 3);
  const registered_buffer lent = filled(t.pool, many, 5);
  std::vector<std::uint8_t> got(values.size() + many + values.size());
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.play([&]() -> asio::awaitable<void> {
    co_await asio::async_write(t.a, asio::buffer(values), asio::use_awaitable);
    co_await t.a.async_write_some(lent, asio::use_awaitable);
    for (std::size_t at = 0, n = 1; at < values.size(); at += n, n = 3 * n + 1) {
      n = std::min(n, values.size() - at);
      co_await asio::async_write(t.a, asio::buffer(&values[at], n), asio::use_awaitable);
    }
    t.a.close();
  }());
  t.until([&] { return read.done(); });
  CHECK(read.succeeded());
  CHECK(is_pattern(got.data(), values.size(), 3));
  CHECK(is_pattern(&got[values.size()], many, 5));
  CHECK(is_pattern(&got[values.size() + many], values.size(), 3));
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use == 1); // the test has one
}

TEST_CASE("both sides write before they read") {
  stream_pair t;
  // In the peer's receives, more than they take, offered if possible; in place, and copied.
  const std::size_t size = GENERATE(40u, 64u, 100u, 200u) * std::size_t(1024);
  const bool copies = GENERATE(true, false);
  CAPTURE(size, copies);
  const registered_buffer lent = filled(t.pool, size, 1), back = filled(t.pool, size, 2);
  const auto copied = pattern(size, 2);
  sent writes[2];
  t.a.async_write_some(lent, writes[0].handler());
  if (copies)
    asio::async_write(t.b, asio::buffer(copied), writes[1].handler());
  else
    t.b.async_write_some(back, writes[1].handler());
  t.until([&] { return writes[0].done() && writes[1].done(); });
  std::vector<std::uint8_t> got(lent.size());
  asio::read(t.b, asio::buffer(got));
  CHECK(is_pattern(got.data(), got.size(), 1));
  asio::read(t.a, asio::buffer(got));
  CHECK(is_pattern(got.data(), got.size(), 2));
}

TEST_CASE("both sides make several writes of registered memory before they read") {
  stream_pair t;
  const auto [size, writes] = GENERATE(
      table<std::size_t, int>({{300, 30}, {50'000, 3}, {20'000, 5}, {200'000, 4}, {900'000, 1}}));
  CAPTURE(size, writes);
  const std::size_t all = size * static_cast<std::size_t>(writes);
  const registered_buffer of_a = filled(t.pool, all, 1), of_b = filled(t.pool, all, 2);
  std::deque<sent> sends;
  for (int i = 0; i < writes; ++i) {
    const std::size_t at = size * static_cast<std::size_t>(i);
    t.a.async_write_some(const_buffer(of_a.slice(at, size)), sends.emplace_back().handler());
    t.b.async_write_some(const_buffer(of_b.slice(at, size)), sends.emplace_back().handler());
  }
  t.until([&] {
    return std::all_of(sends.begin(), sends.end(), [](const sent& s) { return s.done(); });
  });
  std::vector<std::uint8_t> got(all);
  asio::read(t.b, asio::buffer(got));
  CHECK(is_pattern(got.data(), got.size(), 1));
  asio::read(t.a, asio::buffer(got));
  CHECK(is_pattern(got.data(), got.size(), 2));
}

TEST_CASE("memory that cannot be registered is sent in frames") {
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  const registered_buffer lent = filled(t.pool, megabyte, 1);
  const registered_buffer to = t.pool.allocate(megabyte);
  faults.fail(call::alloc_mw, ENOMEM, {1, faults::forever});
  faults.fail(call::reg_mr, ENOMEM, {1, faults::forever});
  sent write, read;
  t.a.async_write_some(lent, write.handler());
  asio::async_read(t.b, asio::buffer(to.data(), to.size()), read.handler());
  t.until([&] { return write.done() && read.done(); });
  CHECK(faults.counts().refused_of(call::reg_mr) != 0);
  CHECK(write.succeeded());
  CHECK(read.succeeded());
  CHECK(is_filled(to, 1));
}

TEST_CASE("a key of a write that cannot be ended ends the connection, and keeps the memory") {
  stream_pair t;
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  faults::injector faults(t.dev.native_handle());
  sent write, read;
  {
    const registered_buffer lent = filled(t.pool, megabyte, 1);
    faults.fail(call::alloc_mw, ENOMEM, {1, faults::forever}); // the key is no window's
    faults.fail(call::dereg_mr, EBUSY, {1, faults::forever});
    std::vector<std::uint8_t> got(megabyte);
    asio::async_read(t.b, asio::buffer(got), read.handler());
    t.a.async_write_some(lent, write.handler());
    outcome<void> end;
    t.a.async_wait(stream::wait_error, end.handler());
    t.until([&] { return write.done() && end.done() && read.done(); });
    CHECK(write.ec == error::device_keeps_memory);
    CHECK(in_use(lent));
  }
  t.a.close();
  t.b.close();
  drain(t.io);
  CHECK(t.pool.statistics().blocks_in_use != 0);
  faults.clear();
  t.pool.trim();
  CHECK(t.pool.statistics().blocks_in_use == 0);
}

} // namespace test::stream_offers_tests
