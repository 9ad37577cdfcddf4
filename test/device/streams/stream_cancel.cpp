// SPDX-License-Identifier: BSL-1.0
// Each operation of a stream in each state, cancelled twice, by each pair of types.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"
#include "interposer/faults.hpp"
#include "streams/stream_impl.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace test::stream_cancel_tests {
namespace {

using asio::cancellation_type;
using asio_rdma::stream;

constexpr std::size_t megabyte = std::size_t(1) << 20;
constexpr std::size_t many = 5 * megabyte; // more than is read ahead, or than the send buffer takes

constexpr cancellation_type types[] = {cancellation_type::total, cancellation_type::partial,
                                       cancellation_type::terminal};

bool ends(cancellation_type t) { return t != cancellation_type::total; }

/// A write in one state, and the number of bytes accepted before it.
struct scene {
  explicit scene(std::size_t bytes, const stream_options& of_a = {})
      : t(of_a, fixed_receives(4096)), memory(filled(t.pool, bytes, 1)) {}

  auto bind() { return asio::bind_cancellation_slot(signal.slot(), write.handler()); }
  void start() { t.a.async_write_some(memory, bind()); }
  /// Writes copied bytes until there is no room. No room becomes free.
  void fill_room() {
    faults.hold_completions();
    const auto values = pattern(20'000, 1);
    t.a.non_blocking(true);
    for (error_code ec; !ec;)
      before += t.a.write_some(asio::buffer(values), ec);
    t.a.non_blocking(false);
  }
  void emit(cancellation_type first, cancellation_type second) {
    signal.emit(first);
    poll();
    signal.emit(second);
    poll();
  }
  void poll() {
    t.io.restart();
    t.io.poll();
  }
  /// Starts a write and a read, and returns when the reader's device writes to `to`. Its
  /// completions are held.
  template <class OfWrite, class OfRead>
  void read_directly(const registered_buffer& to, OfWrite&& of_write, OfRead&& of_read) {
    poll(); // the streams have no more work of their own
    faults.hold_completions();
    t.b.async_read_some(to, std::forward<OfRead>(of_read));
    t.a.async_write_some(memory, std::forward<OfWrite>(of_write));
    const auto posted = faults.counts().send_requests;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (faults.counts().send_requests == posted) { // until the offer was received
      REQUIRE(std::chrono::steady_clock::now() < give_up);
      faults.release_completions(1);
      poll();
    }
  }
  /// Reads everything, and compares the number of bytes with the handlers' results. `taken` bytes
  /// were read before.
  void read_all(std::size_t taken = 0) {
    faults.release_completions();
    std::vector<std::uint8_t> got;
    sent end;
    asio::async_read(t.b, asio::dynamic_buffer(got), end.handler());
    t.until([&] { return write.done(); });
    t.a.shutdown(stream::shutdown_send);
    t.until([&] { return end.done(); });
    CHECK(end.ec == asio::error::eof);
    CHECK(taken + got.size() == before + write.value);
    CHECK(write.calls == 1);
    CHECK_FALSE(in_use(memory));
  }

  stream_pair t;
  faults::injector faults{t.dev.native_handle()};
  registered_buffer memory;
  asio::cancellation_signal signal;
  sent write;
  std::size_t before = 0;
};

} // namespace

TEST_CASE("a write that waits is cancelled by each type") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto bytes = GENERATE(std::size_t(10), 1000u, many); // copied, in frames, long
  CAPTURE(first, second, bytes);
  scene s(bytes);
  s.fill_room();
  if (bytes == 10)
    s.t.a.async_write_some(asio::buffer("0123456789", 10), s.bind());
  else
    s.start();
  s.poll();
  REQUIRE(s.write.calls == 0);
  s.emit(first, second);
  CHECK(s.write.calls == 1);
  CHECK(s.write.ec == asio::error::operation_aborted);
  CHECK(s.write.value == 0);
  s.read_all();
}

TEST_CASE(
    "a long write that the peer has taken in part ends by the types that allow a part of it") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  CAPTURE(first, second);
  scene s(many);
  const std::size_t ahead = taken_ahead(s.t.b);
  s.start();
  s.t.until([&] { return s.t.b.available() == ahead; });
  // At once: terminal cancellation while only the end of the key is outstanding ends the stream.
  s.signal.emit(first);
  s.signal.emit(second);
  s.poll();
  if (ends(first) || ends(second)) {
    s.t.until([&] { return s.write.done(); });
    CHECK(s.write.ec == asio::error::operation_aborted);
    CHECK(s.write.value == ahead);
  } else {
    CHECK(s.write.calls == 0);
  }
  s.read_all();
  CHECK((s.write.value == many) == !s.write.ec);
}

TEST_CASE("a write in frames that has begun ends by the types that allow a part of it") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  CAPTURE(first, second);
  stream_options one_at_a_time;
  one_at_a_time.sends = 1;
  scene s(6000, one_at_a_time); // two frames; the second one waits for the end of the first SEND
  const std::size_t payload = s.t.b.options().receive_size - 16;
  s.poll();
  s.faults.hold_completions({nullptr, s.t.a.impl()->target_queue_pair()->native_handle()->qp_num});
  s.start();
  s.t.until([&] { return s.t.b.available() == payload; });
  s.emit(first, second);
  CHECK(s.write.calls == 0);
  CHECK(in_use(s.memory));
  s.faults.release_completions();
  s.t.until([&] { return s.write.done(); });
  if (ends(first) || ends(second)) {
    CHECK(s.write.ec == asio::error::operation_aborted);
    CHECK(s.write.value == payload);
  } else {
    CHECK(s.write.succeeded());
  }
  s.read_all();
}

TEST_CASE("reads and waits are cancelled by each type, and have taken nothing") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto kind = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(first, second, kind);
  stream_pair t;
  asio::cancellation_signal signal;
  sent read;
  outcome<registered_buffer> piece;
  outcome<void> wait;
  const registered_buffer to = t.pool.allocate(megabyte);
  char c = 0;
  if (kind == 0)
    t.b.async_read_some(asio::buffer(&c, 1),
                        asio::bind_cancellation_slot(signal.slot(), read.handler()));
  else if (kind == 1)
    t.b.async_read_some(to, asio::bind_cancellation_slot(signal.slot(), read.handler()));
  else if (kind == 2)
    t.b.async_receive(asio::bind_cancellation_slot(signal.slot(), piece.handler()));
  else
    t.b.async_wait(kind == 3 ? stream::wait_read : stream::wait_error,
                   asio::bind_cancellation_slot(signal.slot(), wait.handler()));
  t.io.restart();
  t.io.poll();
  signal.emit(first);
  t.io.restart();
  t.io.poll();
  signal.emit(second);
  t.until([&] { return read.calls + piece.calls + wait.calls != 0; });
  CHECK(read.calls + piece.calls + wait.calls == 1);
  for (const error_code& ec : {read.ec, piece.ec, wait.ec})
    CHECK((!ec || ec == asio::error::operation_aborted));
  CHECK((read.ec || piece.ec || wait.ec));
  CHECK_FALSE(in_use(to));
  sent write, again;
  t.a.async_write_some(asio::buffer("x", 1), write.handler());
  t.b.async_read_some(asio::buffer(&c, 1), again.handler());
  t.until([&] { return write.done() && again.done(); });
  CHECK(again.value == 1);
}

TEST_CASE(
    "a read whose memory the device is writing ends after the device has ended, by each type, "
    "and has taken nothing") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  CAPTURE(first, second);
  scene s(many);
  if (!streams_offer(s.t.dev))
    return not_on_this_device("an offer");
  const registered_buffer to = s.t.pool.allocate(megabyte);
  sent read;
  s.read_directly(to, s.write.handler(),
                  asio::bind_cancellation_slot(s.signal.slot(), read.handler()));
  s.emit(first, second);
  CHECK(read.calls == 0);
  CHECK(in_use(to));
  s.faults.release_completions();
  s.t.until([&] { return read.done(); });
  CHECK(read.calls == 1);
  CHECK(read.ec == asio::error::operation_aborted);
  CHECK(read.value == 0);
  CHECK_FALSE(in_use(to));
  s.read_all();
  CHECK(s.write.value == many);
}

TEST_CASE(
    "a write that the peer reads to its reader's memory ends by the types that allow a part of "
    "it, when that read has ended") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  CAPTURE(first, second);
  scene s(many);
  if (!streams_offer(s.t.dev))
    return not_on_this_device("an offer");
  const registered_buffer to = s.t.pool.allocate(megabyte);
  sent read;
  s.read_directly(to, s.bind(), read.handler());
  s.emit(first, second);
  CHECK(s.write.calls == 0);
  CHECK(in_use(s.memory));
  s.faults.release_completions();
  s.t.until([&] { return read.done(); });
  CHECK(read.succeeded());
  CHECK(read.value == megabyte);
  CHECK(is_pattern(to.data(), megabyte, 1));
  if (ends(first) || ends(second)) {
    s.t.until([&] { return s.write.done(); });
    CHECK(s.write.ec == asio::error::operation_aborted);
    CHECK(s.write.value >= megabyte);
  }
  s.read_all(megabyte);
  if (!ends(first) && !ends(second))
    CHECK(s.write.succeeded());
}

TEST_CASE("a wait for room is cancelled by each type, and the next write finds the room") {
  const auto first = GENERATE(from_range(std::begin(types), std::end(types)));
  const auto second = GENERATE(from_range(std::begin(types), std::end(types)));
  CAPTURE(first, second);
  scene s(1000);
  s.fill_room();
  outcome<void> wait;
  s.t.a.async_wait(stream::wait_write,
                   asio::bind_cancellation_slot(s.signal.slot(), wait.handler()));
  s.poll();
  REQUIRE(wait.calls == 0);
  s.emit(first, second);
  CHECK(wait.calls == 1);
  CHECK(wait.ec == asio::error::operation_aborted);
  s.t.a.async_write_some(s.memory, s.write.handler());
  s.poll();
  CHECK(s.write.calls == 0);
  s.read_all();
  CHECK(s.write.value == 1000);
  CHECK(wait.calls == 1);
}

} // namespace test::stream_cancel_tests
