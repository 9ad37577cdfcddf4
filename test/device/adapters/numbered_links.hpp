// SPDX-License-Identifier: BSL-1.0
// A connection or a stream between two ends in one process. Their messages and bytes are numbered,
// so that nothing can be lost, come twice or come late unnoticed.
#pragma once

#include "catch.hpp"
#include "device/adapters/load.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"

#include <asio_rdma/exchange.hpp>

#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test::numbered {

using asio::use_awaitable;

/// How long an end waits for its peer.
struct patience {
  std::uint8_t timeout = queue_pair_options().timeout;
  std::chrono::milliseconds keep_alive = connection_options().keep_alive;

  template <class Options>
  Options options() const {
    Options o;
    o.queue_pair.timeout = timeout;
    o.keep_alive = keep_alive;
    if constexpr (requires { o.remote_memory; }) {
      o.remote_memory.bytes = 1 << 20;
      o.remote_memory.default_lease = o.remote_memory.longest_lease; // no lease ends in a test
    }
    return o;
  }
  /// A silence of the network of less time ends nothing, by `queue_pair_options::timeout`.
  std::chrono::nanoseconds harmless() const {
    return transmission() * queue_pair_options().retry_count;
  }
  /// A longer silence ends everything.
  std::chrono::nanoseconds longest() const {
    return 4 * transmission() * (queue_pair_options().retry_count + 1) + keep_alive;
  }

private:
  std::chrono::nanoseconds transmission() const {
    return std::chrono::nanoseconds(4096ll << timeout);
  }
};

/// A device, and the context of the links on it.
class site {
public:
  /// Links are connected by rdma_cm, at this address of the device.
  site(asio::io_context& context, const device& d, const asio::ip::address& address)
      : io(context), dev(d) {
    listener.open({address, 0});
  }
  /// Between two devices: `other` listens, at this address.
  site(asio::io_context& context, const device& d, const device& other,
       const asio::ip::address& address)
      : io(context), dev(d), other_pool(protection_domain(other)) {
    listener.open({address, 0});
  }
  /// On the device of the tests.
  explicit site(asio::io_context& context, const device& d = open_device())
      : site(context, d, device_address(d)) {}
  struct by_exchange {};
  /// Links are connected without rdma_cm.
  site(asio::io_context& context, const device& d, by_exchange) : io(context), dev(d) {}

  template <class Object>
  void connect(Object& a, Object& b) {
    if (listener.is_open()) {
      test::connection connected, accepted;
      listener.async_accept(b, accepted.handler());
      initiator.async_connect(a, listener.local_endpoint(), connected.handler());
      wait(connected, accepted);
    } else {
      asio::local::stream_protocol::socket here(io), there(io);
      asio::local::connect_pair(here, there);
      outcome<void> connected, accepted;
      async_exchange(here, a, connected.handler());
      async_exchange(there, b, accepted.handler());
      wait(connected, accepted);
    }
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  asio::io_context& io;
  device dev;
  memory_pool pool{protection_domain(dev)};
  memory_pool other_pool{pool}; ///< Of the ends that have been connected to.
  acceptor listener{io};
  connector initiator{io};

private:
  template <class Outcome>
  void wait(const Outcome& connected, const Outcome& accepted) {
    until([&] { return accepted.done() && connected.done(); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }
};

/// Numbers that go one way.
struct flow {
  std::uint64_t begun = 0;     ///< passed to an operation
  std::uint64_t delivered = 0; ///< reported as received by the peer
  std::uint64_t arrived = 0;   ///< at the peer, each of them once and in order
  std::uint64_t marked = 0;    ///< begun when `mark` was called

  void arrive(std::uint64_t number) {
    if (number != arrived)
      throw std::logic_error("number " + std::to_string(number) + " arrived in place of " +
                             std::to_string(arrived));
    ++arrived;
  }
};

/// Two connected ends in one process, the operations of each, and flows between them.
template <class Object>
class link {
public:
  template <class Options>
  explicit link(site& s, const Options& o) : site_(s) {
    ends_[0].open(s.pool, o);
    ends_[1].open(s.other_pool, o);
    s.connect(ends_[0], ends_[1]);
  }

  std::uint64_t steps() const { return loads_[0].steps() + loads_[1].steps(); }
  /// Whether an operation of either end has failed.
  bool has_ended() const { return running() != started_; }
  /// Whether all operations of both ends have failed.
  bool is_over() const { return running() == 0; }
  void mark() {
    for (flow& f : flows_)
      f.marked = f.begun;
  }
  /// Whether all that had been begun before `mark` has arrived, and more: so many numbers.
  bool is_beyond_mark(std::uint64_t more = 1) const {
    return std::all_of(flows_.begin(), flows_.end(),
                       [=](const flow& f) { return f.arrived >= f.marked + more; });
  }

  /// The one error of all operations of an end.
  error_code reason(std::size_t end) const {
    const auto all = loads_[end].ends();
    REQUIRE_FALSE(all.empty());
    for (const load::end& e : all) {
      INFO(e.name << ": " << describe(e.ec) << ", " << all.front().name << ": "
                  << describe(all.front().ec));
      CHECK(e.ec == all.front().ec);
    }
    return all.front().ec;
  }
  /// After the end of the link.
  void check_nothing_lost() const {
    for (const flow& f : flows_) {
      CHECK(f.arrived >= f.delivered);
      CHECK(f.arrived <= f.begun);
    }
  }
  /// Begins nothing more, waits until everything has arrived, and closes the link.
  void finish() {
    stopping_ = true;
    site_.until([&] {
      return std::all_of(flows_.begin(), flows_.end(),
                         [](const flow& f) { return f.arrived == f.begun; });
    });
    for (const std::size_t i : {0u, 1u})
      for (const load::end& e : loads_[i].ends()) {
        INFO(e.name);
        CHECK(e.ec == stopped);
      }
    close();
  }
  void close() {
    for (Object& e : ends_)
      e.close();
    site_.until([&] { return is_over(); });
  }
  const std::vector<flow>& flows() const { return flows_; }

protected:
  static inline const error_code stopped = asio::error::operation_aborted;

  template <class Step>
  void start(std::size_t end, const char* name, Step step) {
    ++started_;
    loads_[end].start(site_.io, name, std::move(step));
  }
  void check_stop() const {
    if (stopping_)
      throw system_error(stopped);
  }

  site& site_;
  std::array<Object, 2> ends_{Object(site_.io), Object(site_.io)};
  std::array<load, 2> loads_;
  std::vector<flow> flows_;

private:
  int running() const { return loads_[0].running() + loads_[1].running(); }

  int started_ = 0;
  bool stopping_ = false;
};

/// A connection. Both ends send numbered messages, and use memory of each other.
class talk_link : public link<asio_rdma::connection> {
public:
  talk_link(site& s, const patience& p) : link(s, p.options<connection_options>()) {
    flows_.resize(4);
    for (const std::size_t i : {0u, 1u}) {
      start(i, "wait for the end", [&c = ends_[i]]() -> asio::awaitable<void> {
        co_await c.async_wait_disconnect(use_awaitable);
      });
      start(i, "receive", [&c = ends_[i], &f = flows_[1 - i]]() -> asio::awaitable<void> {
        const message m = co_await c.async_receive(use_awaitable);
        if (m.payload.size() != 8 * words(f.arrived))
          throw std::logic_error("a message has another size");
        std::vector<std::uint64_t> text(words(f.arrived));
        std::memcpy(text.data(), m.payload.data(), m.payload.size());
        for (const std::uint64_t w : text)
          if (w != f.arrived)
            throw std::logic_error("a message was lost, came twice or is damaged");
        ++f.arrived;
      });
    }
  }
  void begin() {
    for (const std::size_t i : {0u, 1u}) {
      send(i);
      use_memory(i);
    }
  }
  sent late[2];
  void begin_late() {
    for (const std::size_t i : {0u, 1u})
      ends_[i].async_send(asio::buffer("late"), late[i].handler());
  }

private:
  // Most messages are small, some are so long that the peer reads them.
  static std::size_t words(std::uint64_t number) { return number % 5 == 0 ? 5000 : 1; }

  void send(std::size_t i) {
    start(i, "send", [this, &c = ends_[i], &f = flows_[i]]() -> asio::awaitable<void> {
      check_stop();
      const std::vector<std::uint64_t> text(words(f.begun), f.begun);
      ++f.begun;
      co_await c.async_send(asio::buffer(text), use_awaitable);
      ++f.delivered;
    });
  }
  void use_memory(std::size_t i) {
    outcome<remote_region> r;
    ends_[i].async_request_memory(100'000, r.handler());
    site_.until([&] { return r.done(); });
    if (r.ec)
      throw system_error(r.ec, "request");
    start(i, "remote write and read",
          [this, &c = ends_[i], &f = flows_[2 + i], region = std::move(r.value),
           text = std::vector<std::uint64_t>(1000),
           back = std::vector<std::uint64_t>(1000)]() mutable -> asio::awaitable<void> {
            check_stop();
            std::fill(text.begin(), text.end(), f.begun++);
            co_await c.async_write(asio::buffer(text), region, use_awaitable);
            co_await c.async_read(asio::buffer(back), region, use_awaitable);
            if (back != text)
              throw std::logic_error("a remote write was lost");
            ++f.arrived;
          });
  }
};

/// A stream of numbers each way.
class stream_link : public link<asio_rdma::stream> {
public:
  stream_link(site& s, const patience& p) : link(s, p.options<stream_options>()) {
    flows_.resize(2);
    for (const std::size_t i : {0u, 1u})
      start(i, "read",
            [&e = ends_[i], &f = flows_[1 - i], number = std::uint64_t(0), have = std::size_t(0),
             into = std::vector<char>(30'000)]() mutable -> asio::awaitable<void> {
              const std::size_t n = co_await e.async_read_some(asio::buffer(into), use_awaitable);
              for (std::size_t at = 0; at != n;) {
                const std::size_t part = std::min(sizeof number - have, n - at);
                std::memcpy(reinterpret_cast<char*>(&number) + have, into.data() + at, part);
                at += part;
                have += part;
                if (have == sizeof number) {
                  f.arrive(number);
                  have = 0;
                }
              }
            });
  }
  void begin() {
    for (const std::size_t i : {0u, 1u})
      start(i, "write",
            [this, &e = ends_[i], &f = flows_[i], &pool = i == 0 ? site_.pool : site_.other_pool,
             turn = 0]() mutable -> asio::awaitable<void> {
              check_stop();
              if (++turn % 7 == 0) { // so many bytes that the peer reads them
                const registered_buffer memory = pool.allocate(160'000);
                fill(f, memory.data(), memory.size());
                const std::uint64_t all = f.begun;
                co_await e.async_write_some(memory, use_awaitable);
                f.delivered = all;
              } else {
                std::vector<char> copied(800);
                fill(f, copied.data(), copied.size());
                co_await asio::async_write(e, asio::buffer(copied), use_awaitable);
              }
            });
  }
  sent late[2];
  void begin_late() {
    for (const std::size_t i : {0u, 1u})
      ends_[i].async_write_some(asio::buffer("late"), late[i].handler());
  }

private:
  static void fill(flow& f, void* memory, std::size_t bytes) {
    for (std::size_t i = 0; i != bytes; i += sizeof f.begun, ++f.begun)
      std::memcpy(static_cast<char*>(memory) + i, &f.begun, sizeof f.begun);
  }
};

} // namespace test::numbered
