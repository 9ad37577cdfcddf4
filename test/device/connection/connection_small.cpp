// SPDX-License-Identifier: BSL-1.0
// Small messages, which share frames, and receives that grow to large ones.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace test::connection_small_tests {
namespace {

/// Sends messages of sizes that a function gives, a number of them at a time, and receives them.
struct flow {
  explicit flow(talk& of) : t(of) {}

  void send_one() {
    const std::uint32_t n = begun++;
    auto& bytes = memory[n] = pattern(size_of(n), n);
    t.a.async_send(asio::buffer(bytes), n, [this, n](error_code ec, std::size_t size) {
      failures += ec || size != memory[n].size() ? 1u : 0u;
      memory.erase(n);
      ++sent;
      if (begun != count)
        send_one();
    });
  }
  void receive_one() {
    if (received % 3 == 0) { // into the receiver's memory
      t.b.async_receive(asio::buffer(into), [this](error_code ec, std::size_t size) {
        arrived(ec, into.data(), size, received);
      });
      return;
    }
    t.b.async_receive([this](error_code ec, message m) {
      arrived(ec, m.payload.data(), m.size(), m.immediate);
      kept.push_back(std::move(m));
      if (kept.size() > 50)
        kept.pop_front();
    });
  }
  void arrived(const error_code& ec, const void* data, std::size_t size,
               const std::optional<std::uint32_t>& immediate) {
    const std::uint32_t n = received++;
    failures += ec || immediate != n || size != size_of(n) || !is_pattern(data, size, n) ? 1u : 0u;
    if (received != count)
      receive_one();
  }
  /// Sends and receives the messages, `window` of them at a time.
  void run(std::uint32_t window) {
    receive_one();
    for (std::uint32_t i = 0; i < window; ++i)
      send_one();
    t.until([&] { return sent == count && received == count; });
    CHECK(failures == 0);
    for (std::size_t i = 0; i < kept.size(); ++i) { // nothing has overwritten them
      const std::uint32_t n = kept[i].immediate.value_or(0);
      CHECK(is_pattern(kept[i].payload.data(), size_of(n), n));
    }
  }

  talk& t;
  std::function<std::size_t(std::uint32_t)> size_of = [](std::uint32_t) {
    return std::size_t(64);
  };
  std::uint32_t count = 0;
  std::uint32_t begun = 0, sent = 0, received = 0, failures = 0;
  std::map<std::uint32_t, std::vector<std::uint8_t>> memory;
  std::vector<std::uint8_t> into = std::vector<std::uint8_t>(200'000);
  std::deque<message> kept;
};

} // namespace

TEST_CASE("small messages, sixteen at a time, share frames and arrive whole") {
  talk t;
  flow f(t);
  f.size_of = [](std::uint32_t n) {
    return n % 50 == 0 ? 1000 : n % 241;
  };
  f.count = 4000;
  f.run(16);
  CHECK(t.a.statistics().messages_sent == f.count);
  CHECK(t.b.statistics().messages_received == f.count);
  CHECK(t.a.statistics().frames_sent < f.count / 2);
}

TEST_CASE("small messages one after another have a frame each") {
  talk t;
  flow f(t);
  f.count = 200;
  f.run(1);
  CHECK(t.a.statistics().frames_sent >= f.count);
}

TEST_CASE("a handler of a small message may end the connection beside others of its frame") {
  const bool by_destruction = GENERATE(true, false);
  talk t;
  std::vector<std::uint8_t> bytes = pattern(20, 1);
  int ended = 0;
  for (int i = 0; i < 10; ++i)
    t.a.async_send(asio::buffer(bytes), [&](error_code, std::size_t) {
      if (++ended == 3) { // the second frame has completed
        if (by_destruction)
          const asio_rdma::connection gone(std::move(t.a));
        else
          t.a.close();
      }
    });
  t.until([&] { return ended == 10; });
}

TEST_CASE("receives grow to messages that were offered, and later ones are sent whole") {
  talk t;
  flow f(t);
  f.size_of = [](std::uint32_t n) {
    return std::size_t(n % 3 == 2 ? 10 : 65536 - n % 7);
  };
  f.count = 300;
  f.run(4);
  const auto offered = t.a.statistics().rendezvous_sent;
  CHECK(offered > 0);
  CHECK(offered < 40);
  flow later(t);
  later.size_of = f.size_of;
  later.count = 100;
  later.run(4);
  CHECK(t.a.statistics().rendezvous_sent == offered);
}

// They have been prepared as elements of the scatter/gather list, not as copies.
TEST_CASE("small messages that were to be offered share frames once receives have grown") {
  constexpr std::uint32_t count = 100;
  constexpr std::size_t size = 100;
  connection_options one_offer, tiny_receives;
  one_offer.offers = 1;
  tiny_receives.receives = 5;
  tiny_receives.receive_size = 56;
  talk t(one_offer, tiny_receives);
  const registered_buffer first = filled(t.pool, 4000, count);
  std::vector<registered_buffer> memory;
  sent long_one;
  t.a.async_send(asio::buffer(first.data(), first.size()), count, long_one.handler());
  std::uint32_t sent_well = 0, received = 0, wrong = 0;
  for (std::uint32_t n = 0; n < count; ++n) {
    memory.push_back(filled(t.pool, size, n));
    t.a.async_send(asio::buffer(memory[n].data(), size), n,
                   [&](error_code ec, std::size_t) { sent_well += ec ? 0u : 1u; });
  }
  const std::function<void()> receive = [&] {
    t.b.async_receive([&](error_code ec, const message& m) {
      const std::uint32_t expected = received == 0 ? count : received - 1;
      wrong += ec || m.immediate != expected || m.size() != (received == 0 ? first.size() : size) ||
                       !is_pattern(m.payload.data(), m.size(), expected)
                   ? 1u
                   : 0u;
      if (++received <= count && !ec)
        receive();
    });
  };
  receive();
  t.until([&] { return received == count + 1 && sent_well == count; });
  CHECK(wrong == 0);
  const auto sent_by_a = t.a.statistics();
  CHECK(sent_by_a.rendezvous_sent < count / 2);
  CHECK(sent_by_a.frames_sent < count / 2);
}

TEST_CASE("without gathering, each message has a frame of its own") {
  connection_options apart;
  apart.gather = false;
  talk t(apart);
  flow f(t);
  f.count = 500;
  f.run(16);
  CHECK(t.a.statistics().frames_sent >= f.count);
}

TEST_CASE("a few bytes in a large receive do not keep its memory") {
  talk t;
  flow f(t);
  f.size_of = [](std::uint32_t) {
    return std::size_t(60'000);
  };
  f.count = 60;
  f.run(4);
  f.kept.clear();
  const auto before = t.pool.statistics().bytes_in_use;
  std::vector<message> small;
  const std::vector<std::uint8_t> bytes = pattern(100, 3);
  for (int i = 0; i < 64; ++i) {
    outcome<message> r;
    sent s;
    t.b.async_receive(r.handler());
    t.a.async_send(asio::buffer(bytes), s.handler());
    t.until([&] { return r.done() && s.done(); });
    REQUIRE(r.succeeded());
    CHECK(is_pattern(r.value.payload.data(), 100, 3));
    small.push_back(std::move(r.value));
  }
  CHECK(t.pool.statistics().bytes_in_use < before + 64 * 1024);
}

TEST_CASE("a message that is cancelled while it waits for a frame is not sent") {
  talk t;
  const std::vector<std::uint8_t> bytes = pattern(10, 1);
  sent first, last;
  error_code cancelled;
  bool done = false;
  asio::cancellation_signal stop;
  t.a.async_send(asio::buffer(bytes), 1, first.handler());
  t.a.async_send(asio::buffer(bytes), 2,
                 asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, std::size_t) {
                   cancelled = ec;
                   done = true;
                 }));
  t.a.async_send(asio::buffer(bytes), 3, last.handler());
  stop.emit(asio::cancellation_type::total);
  std::vector<std::uint32_t> arrived;
  for (int i = 0; i < 2; ++i) {
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
    arrived.push_back(r.value.immediate.value_or(0));
  }
  t.until([&] { return first.done() && last.done() && done; });
  CHECK(cancelled == asio::error::operation_aborted);
  CHECK(arrived == std::vector<std::uint32_t>{1, 3});
}

} // namespace test::connection_small_tests
