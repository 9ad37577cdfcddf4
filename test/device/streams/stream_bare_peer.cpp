// SPDX-License-Identifier: BSL-1.0
// A stream whose peer is a bare queue pair: its offers, their keys, and what it gets in their
// place.
#include "catch.hpp"
#include "connecting/handshake.hpp"
#include "device/streams/stream_support.hpp"
#include "interposer/faults.hpp"
#include "link/frame.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <span>

namespace test::bare_peer_tests {
namespace {

using namespace std::chrono_literals;
using asio_rdma::stream;

/// A peer that sends its frames on a queue pair directly. Its handshake announces a number of READs
/// that it answers at a time, but it answers none.
struct frames_only {
  static constexpr std::size_t size = 16384, count = 16;

  explicit frames_only(std::uint8_t reads = 0, const stream_options& o = {}) {
    detail::handshake h;
    h.what = detail::handshake::kind::stream;
    h.receives = count;
    h.receive_size = size;
    h.max_reads = reads;
    const detail::handshake_bytes bytes = encode(h);
    connect_options c;
    c.data.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(h.size()));
    s.open(pool, o);
    peer.open(pd);
    for (std::size_t i = 0; i < count; ++i)
      receive(i);
    acceptor listener(io);
    connector initiator(io);
    listener.open({device_address(dev), 0});
    test::connection accepted, connected;
    listener.async_accept(s, accepted.handler());
    initiator.async_connect(peer, listener.local_endpoint(), c, connected.handler());
    until(io, [&] { return accepted.done() && connected.done(); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
    if (const error_code ec = decode(connected.value.data, handshake_of_stream))
      throw system_error(ec, "handshake");
    // On iWARP the connecting side sends first.
    const detail::frame_bytes credits = encode(detail::frame_header{});
    send(credits);
  }
  void receive(std::size_t i) {
    peer.async_receive(place(i), [this, i](error_code ec, received r) {
      if (!ec)
        frames.emplace_back(static_cast<const std::uint8_t*>(place(i).data()), r.bytes);
    });
  }
  /// Posts the receives of the frames that have arrived again, and returns their credits. Returns
  /// the error if the stream has ended the connection.
  error_code return_credits() {
    detail::frame_header h;
    for (; returned < frames.size(); ++returned, ++h.credits)
      receive(returned % count);
    return try_send(encode(h));
  }
  void send(std::span<const std::byte> frame) {
    if (const error_code ec = try_send(frame))
      throw system_error(ec, "send");
  }
  error_code try_send(std::span<const std::byte> frame) {
    std::copy(frame.begin(), frame.end(), static_cast<std::byte*>(place(count).data()));
    sent done;
    peer.async_send(place(count).first(frame.size()), done.handler());
    until(io, [&] { return done.done(); });
    return done.ec;
  }
  mutable_buffer place(std::size_t i) { return mutable_buffer(memory) + i * size; }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  registered_buffer memory = pool.allocate((count + 1) * size);
  asio::io_context io{1};
  std::vector<std::span<const std::uint8_t>> frames;
  std::size_t returned = 0;
  detail::handshake handshake_of_stream;
  stream s{io};
  queue_pair peer{io};
};

/// The number of READs that a peer announces that may neither make offers nor get any.
std::uint8_t reads_without_offers() {
  return streams_offer(open_device()) ? std::uint8_t(0)
                                      : GENERATE(std::uint8_t(0), std::uint8_t(1));
}

/// An offer that has arrived.
struct offer {
  detail::frame_header header;
  remote_buffer memory;
};

/// Waits for an offer.
offer next_offer(frames_only& t) {
  const auto is_offer = [](const auto& f) {
    return f[0] == static_cast<std::uint8_t>(detail::frame_type::offer);
  };
  auto found = t.frames.end();
  until(t.io, [&] {
    found = std::find_if(t.frames.begin(), t.frames.end(), is_offer);
    return found != t.frames.end();
  });
  offer result;
  detail::offer_payload payload;
  const auto frame = std::as_bytes(*found);
  REQUIRE_FALSE(decode(frame, result.header));
  REQUIRE_FALSE(decode(frame.subspan(detail::frame_header::size), payload));
  result.memory = payload.memory;
  return result;
}

/// The peer reads; the memory that it reads to is zero before.
struct reading {
  reading(frames_only& t, const remote_buffer& from) : to(t.pool.allocate(from.size)) {
    to.zero();
    t.peer.async_read(to, from, done.handler());
    until(t.io, [&] { return done.done(); });
  }
  bool is_refused() const {
    const auto* const p = static_cast<const std::uint8_t*>(to.data());
    return done.ec && std::all_of(p, p + to.size(), [](std::uint8_t x) { return x == 0; });
  }
  registered_buffer to;
  sent done;
};

} // namespace

TEST_CASE("a peer that answers no READs, or is on iWARP, gets frames") {
  frames_only t(reads_without_offers());
  CHECK((t.handshake_of_stream.max_reads != 0) == streams_offer(t.dev)); // for peers that offer
  const auto values = pattern(100'000, 1);
  const registered_buffer lent = filled(t.pool, 150'000, 1);
  const bool lends = GENERATE(false, true);
  sent write;
  if (lends)
    t.s.async_write_some(lent, write.handler());
  else
    asio::async_write(t.s, asio::buffer(values), write.handler());
  const std::size_t all = lends ? lent.size() : values.size();
  const auto bytes = [&] {
    std::size_t result = 0;
    for (const auto& f : t.frames)
      result += f[0] == 2 ? f.size() - detail::frame_header::size : 0;
    return result;
  };
  until(t.io, [&] {
    return bytes() == all || std::any_of(t.frames.begin(), t.frames.end(), [](const auto& f) {
             return f[0] == 3; // an offer
           });
  });
  CHECK(bytes() == all);
  until(t.io, [&] { return write.done(); });
  CHECK(write.succeeded());
}

TEST_CASE("an offer from a peer that answers no READs, or is on iWARP, is a violation") {
  frames_only t(reads_without_offers());
  detail::frame_header h;
  h.type = detail::frame_type::offer;
  h.length = detail::offer_payload::size;
  detail::payload_bytes payload{};
  encode(detail::offer_payload{{0x1000, 50'000, 1}}, payload);
  const detail::frame_bytes head = encode(h);
  std::vector<std::byte> frame(head.begin(), head.end());
  frame.insert(frame.end(), payload.begin(), payload.begin() + h.length);
  char c = 0;
  sent read;
  t.s.async_read_some(asio::buffer(&c, 1), read.handler());
  t.send(frame);
  until(t.io, [&] { return read.done(); });
  CHECK(read.ec == error::protocol_violation);
}

TEST_CASE("a write that is withdrawn because another one was dropped ends without an answer") {
  stream_options o;
  o.linger = 1ms; // a withdrawal has one second more
  frames_only t(1, o);
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  t.s.set_option(asio::socket_base::linger(true, 3600));
  const registered_buffer first = t.pool.allocate(150'000), second = t.pool.allocate(150'000);
  sent dropped, withdrawn;
  t.s.async_write_some(first, dropped.handler());
  t.s.async_write_some(second, withdrawn.handler());
  until(t.io, [&] {
    return std::count_if(t.frames.begin(), t.frames.end(),
                         [](const auto& f) { return f[0] == 3; }) == 2;
  });
  detail::frame_header h;
  h.type = detail::frame_type::dropped;
  t.send(encode(h));
  until(t.io, [&] { return dropped.done() && withdrawn.done(); });
  CHECK(dropped.ec == asio::error::broken_pipe);
  CHECK(withdrawn.ec == asio::error::broken_pipe);
  CHECK_FALSE(in_use(first));
  CHECK_FALSE(in_use(second));
}

TEST_CASE("a write that is withdrawn ends without an answer though other bytes flow") {
  stream_options o;
  o.linger = 1ms; // a withdrawal has one second more
  frames_only t(1, o);
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  const registered_buffer lent = t.pool.allocate(150'000);
  asio::cancellation_signal cancel;
  sent withdrawn;
  t.s.async_write_some(lent, asio::bind_cancellation_slot(cancel.slot(), withdrawn.handler()));
  until(t.io, [&] { return !t.frames.empty(); });
  cancel.emit(asio::cancellation_type::partial);
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  while (!withdrawn.done()) {
    REQUIRE(std::chrono::steady_clock::now() < give_up);
    const std::size_t before = t.frames.size();
    sent write;
    t.s.async_write_some(asio::buffer("x", 1), write.handler());
    until(t.io, [&] { return withdrawn.done() || (write.done() && t.frames.size() != before); });
    if (!withdrawn.done() && t.return_credits()) // the time is over, and the stream ends
      until(t.io, [&] { return withdrawn.done(); });
  }
  CHECK(withdrawn.ec == asio::error::operation_aborted);
  CHECK_FALSE(in_use(lent));
  sent after;
  t.s.async_write_some(asio::buffer("x", 1), after.handler());
  until(t.io, [&] { return after.done(); });
  CHECK(after.ec == asio::error::timed_out);
}

TEST_CASE("an offer opens its own bytes to the peer, until the write completes") {
  frames_only t(1);
  if (!streams_offer(t.dev))
    return not_on_this_device("an offer");
  const std::size_t page = 4096, bytes = 150'000;
  const registered_buffer all = filled(t.pool, bytes + 2 * page, 1);
  const registered_buffer lent = all.slice(page, bytes);
  sent write;
  t.s.async_write_some(lent, write.handler());
  const offer o = next_offer(t);
  REQUIRE(o.memory.size == bytes);
  const reading whole(t, o.memory);
  REQUIRE(whole.done.succeeded());
  CHECK(std::equal(static_cast<const char*>(lent.data()),
                   static_cast<const char*>(lent.data()) + bytes,
                   static_cast<const char*>(whole.to.data())));
  remote_buffer wrong = o.memory.first(64);
  switch (GENERATE(0, 1, 2)) {
  case 0:
    wrong.address -= 64;
    break;
  case 1:
    wrong.address += bytes;
    break;
  default:
    detail::frame_header taken;
    taken.type = detail::frame_type::taken;
    taken.id = o.header.id;
    t.send(encode(taken));
    until(t.io, [&] { return write.done(); });
    CHECK(write.succeeded());
  }
  CHECK(reading(t, wrong).is_refused());
}

TEST_CASE("offered memory is registered if the device has no more windows", "[h3]") {
  stream_pair t;
  faults::injector faults(t.dev.native_handle());
  faults.fail(faults::call::alloc_mw, ENOMEM, {1, faults::forever});
  const registered_buffer lent = filled(t.pool, 1'000'000, 1);
  std::vector<std::uint8_t> got(lent.size());
  sent write, read;
  t.a.async_write_some(lent, write.handler());
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] { return write.done() && read.done(); });
  CHECK(write.succeeded());
  CHECK(is_pattern(got.data(), got.size(), 1));
  CHECK(t.a.statistics().registrations == (streams_offer(t.dev) ? 1 : 0));
}

} // namespace test::bare_peer_tests
