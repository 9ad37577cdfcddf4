// SPDX-License-Identifier: BSL-1.0
// The counters of connections, streams and ports.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <thread>

namespace test::statistics_tests {

TEST_CASE("long messages and offers of a pool's memory register nothing if windows confine them",
          "[h3]") {
  talk t;
  stream_pair u;
  t.exchange(1000000);
  for (int i = 0; i != 5; ++i) {
    t.exchange(1000000 + 1000 * static_cast<std::size_t>(i));
    const registered_buffer lent = filled(u.pool, 1000000, 1);
    std::vector<char> to(lent.size());
    sent s, r;
    u.a.async_write_some(lent, s.handler());
    asio::async_read(u.b, asio::buffer(to), r.handler());
    u.until([&] { return s.done() && r.done(); });
    REQUIRE(s.succeeded());
    CHECK(is_pattern(to.data(), to.size(), 1));
  }
  const bool windows = t.dev.confines_windows();
  CHECK(t.a.statistics().rendezvous_sent == 6);
  CHECK(t.a.statistics().registrations == (windows ? 0 : 6));
  CHECK(u.a.statistics().registrations == (windows || !streams_offer(u.dev) ? 0 : 5));
  CHECK((t.b.statistics().registrations != 0) == (t.dev.type() == transport::iwarp));
  CHECK(u.b.statistics().registrations == 0);
}

TEST_CASE("streams that offer nothing register nothing for long writes, of which no byte is lost") {
  stream_pair t;
  if (streams_offer(t.dev))
    return not_on_this_device("streams that offer nothing");
  constexpr std::size_t shortest = 128 * 1024;
  const std::size_t sizes[] = {shortest, shortest + 1, 1'000'003, 5'000'000, shortest, 3'000'000};
  std::size_t all = 0;
  for (const std::size_t n : sizes)
    all += n;
  const registered_buffer of_a = filled(t.pool, all, 1), of_b = filled(t.pool, all, 2);
  const bool at_once = GENERATE(false, true);
  CAPTURE(at_once);
  std::vector<char> to_a(all), to_b(all);
  sent reads[2];
  asio::async_read(t.a, asio::buffer(to_a), reads[0].handler());
  asio::async_read(t.b, asio::buffer(to_b), reads[1].handler());
  std::deque<sent> writes;
  std::size_t at = 0, next = 0;
  for (const std::size_t n : sizes) {
    const std::array parts = {const_buffer(of_b.slice(at, n / 3)),
                              const_buffer(of_b.slice(at + n / 3, n - n / 3))};
    t.a.async_write_some(of_a.slice(at, n), writes.emplace_back().handler());
    t.b.async_write_some(parts, writes.emplace_back().handler());
    at += n;
    if (!at_once)
      t.until([&] { return writes.back().done() && writes[writes.size() - 2].done(); });
  }
  t.until([&] {
    return reads[0].done() && reads[1].done() &&
           std::all_of(writes.begin(), writes.end(), [](const sent& s) { return s.done(); });
  });
  for (const sent& w : writes) {
    CHECK(w.succeeded());
    CHECK(w.value == sizes[next++ / 2]);
  }
  CHECK(is_pattern(to_b.data(), all, 1));
  CHECK(is_pattern(to_a.data(), all, 2));
  CHECK(t.a.statistics().registrations == 0);
  CHECK(t.b.statistics().registrations == 0);
}

TEST_CASE("memory that is not a pool's is registered for each long message", "[h3]") {
  talk t;
  std::vector<std::uint8_t> own = pattern(1000000, 3);
  const registered_buffer memory(memory_region(t.pool.get_protection_domain(), asio::buffer(own)));
  sent s;
  outcome<message> r;
  t.a.async_send(memory, s.handler());
  t.b.async_receive(r.handler());
  t.until([&] { return s.done() && r.done(); });
  REQUIRE(s.succeeded());
  CHECK(is_pattern(r.value.payload.data(), r.value.size(), 3));
  CHECK(t.a.statistics().registrations == 1);
}

TEST_CASE("a connection counts messages, bytes, long messages and remote operations") {
  talk t;
  CHECK(t.a.statistics().messages_sent == 0);
  t.exchange(0);
  t.exchange(1000);
  t.exchange(1000000);
  connection_statistics a = t.a.statistics();
  connection_statistics b = t.b.statistics();
  CHECK(a.messages_sent == 3);
  CHECK(a.bytes_sent == 1001000);
  CHECK(a.rendezvous_sent == 1);
  CHECK(a.messages_received == 0);
  CHECK(b.messages_received == 3);
  CHECK(b.bytes_received == 1001000);
  CHECK(b.rendezvous_received == 1);
  CHECK(b.messages_sent == 0);
  CHECK(a.credit_waits == 0);
  CHECK(a.frames_sent >= 3); // two messages and an offer
  CHECK(b.frames_received >= 3);
  CHECK(b.frames_sent >= 1); // the answer to the offer

  CHECK(a.queue.polls > 0);
  CHECK(a.queue.events > 0);
  CHECK(a.queue.completions >= a.frames_sent + a.frames_received);

  outcome<remote_region> granted;
  const auto target = t.pool.allocate(4096);
  outcome<void> lent;
  outcome<std::variant<registered_buffer, remote_region>> arrived;
  t.b.async_send_region(target, access::remote_read | access::remote_write, lent.handler());
  t.a.async_receive_region(arrived.handler());
  t.until([&] { return lent.done() && arrived.done(); });
  REQUIRE(arrived.succeeded());
  const auto region = std::get<remote_region>(arrived.value);
  std::vector<char> bytes(3000);
  sent wrote, read;
  t.a.async_write(asio::buffer(bytes), region, wrote.handler());
  t.a.async_read(asio::buffer(bytes, 500), region, read.handler());
  t.until([&] { return wrote.done() && read.done(); });
  REQUIRE(wrote.succeeded());
  REQUIRE(read.succeeded());
  a = t.a.statistics();
  CHECK(a.remote_operations == 2);
  CHECK(a.remote_bytes == 3500);
  CHECK(t.b.statistics().remote_operations == 0);
  CHECK(a.messages_sent == 3); // no operation was a message

  t.a.close();
  CHECK(t.a.statistics().messages_sent == 0);
}

TEST_CASE("a sender that is ahead of the receiver counts that it waits") {
  connection_options apart, few;
  apart.gather = false; // each message takes a receive
  few.receives = 8;
  talk t(apart, few);
  std::vector<sent> sends(12);
  const auto data = pattern(100, 1);
  for (sent& s : sends)
    t.a.async_send(asio::buffer(data), s.handler());
  t.until([&] { return t.a.statistics().credit_waits != 0; });
  CHECK(t.a.statistics().credit_waits == 1); // one wait, however many sends wait
  CHECK(t.a.statistics().frames_sent == 5);  // three of eight are for control
  CHECK(t.b.statistics().credit_waits == 0);
  std::vector<outcome<message>> received(sends.size());
  for (auto& r : received)
    t.b.async_receive(r.handler());
  t.until([&] { return received.back().done() && sends.back().done(); });
  CHECK(t.b.statistics().messages_received == sends.size());
}

TEST_CASE("a stream counts its bytes") {
  stream_pair p;
  std::vector<char> bytes(100000), back(100000);
  sent wrote, read;
  asio::async_write(p.a, asio::buffer(bytes), wrote.handler());
  asio::async_read(p.b, asio::buffer(back), read.handler());
  // Bytes that the peer reads from the sender's memory count when the sender gets the answer to its
  // offer.
  p.until(
      [&] { return wrote.done() && read.done() && p.a.statistics().bytes_sent >= bytes.size(); });
  CHECK(p.a.statistics().bytes_sent == bytes.size());
  CHECK(p.a.statistics().bytes_received == 0);
  CHECK(p.b.statistics().bytes_received == bytes.size());
  CHECK(p.b.statistics().bytes_sent == 0);
  CHECK(p.a.statistics().frames_sent >= 1);
  CHECK(p.b.statistics().frames_received >= 1);
}

TEST_CASE("another thread reads the figures while they grow") {
  talk t;
  std::atomic<bool> over{false};
  std::atomic<bool> looked{false};
  bool grew = true;
  std::thread reader([&] {
    connection_statistics last;
    do {
      const connection_statistics now = t.b.statistics();
      grew = grew && now.messages_received >= last.messages_received &&
             now.bytes_received >= last.bytes_received && now.queue.polls >= last.queue.polls;
      last = now;
      looked = true;
    } while (!over);
  });
  while (!looked)
    std::this_thread::yield();
  for (int i = 0; i < 200; ++i)
    t.exchange(64);
  over = true;
  reader.join();
  CHECK(grew);
  CHECK(t.b.statistics().messages_received == 200);
}

TEST_CASE("a port counts its retries for lack of a receive, if the driver reports them") {
  pair p;
  const auto before = p.dev.counters(p.dev.first_port());
  if (!before.rnr) {
    CHECK(!before.retries);
    return not_on_this_device("a count of RNR");
  }
  CHECK(before.retries);
  sent s;
  p.a.async_send(p.ma.buffer(0, 8), s.handler()); // there is no receive
  p.until([&] { return s.done(); });
  CHECK(s.ec == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(p.dev.counters(p.dev.first_port()).rnr > before.rnr);
}

} // namespace test::statistics_tests
