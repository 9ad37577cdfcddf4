// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/asio/asio_support.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>

namespace test::asio_idle_objects {
namespace {

// Asio's own operations.

struct posted : started_late {
  explicit posted(asio::io_context& c) : io(c) {}
  void start_now(done d) override { asio::post(io, std::move(d)); }
  asio::io_context& io;
};

struct timer_waits : operations {
  explicit timer_waits(asio::io_context& io) : timer(io, std::chrono::hours(1)) {}
  void start(done d) override { timer.async_wait(upon_cancellation(std::move(d))); }
  void complete() override { timer.cancel(); }
  asio::steady_timer timer;
};

struct datagrams : operations {
  explicit datagrams(asio::io_context& io)
      : to(io, {asio::ip::address_v4::loopback(), 0}), from(io, asio::ip::udp::v4()) {}
  void start(done d) override { to.async_receive(asio::buffer(bytes), upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      from.send_to(asio::buffer("x", 1), to.local_endpoint());
  }
  asio::ip::udp::socket to, from;
  char bytes[8];
};

struct tcp_accepts : operations {
  explicit tcp_accepts(asio::io_context& io) : listener(io, {asio::ip::tcp::v4(), 0}) {}
  void start(done d) override { listener.async_accept(upon_cancellation(std::move(d))); }
  void complete() override { listener.cancel(); }
  asio::ip::tcp::acceptor listener;
};

// Operations of the library.

/// Two connected queue pairs that use completion queues of one mode.
struct two_queue_pairs {
  two_queue_pairs(asio::io_context& io, completion_mode m)
      : q(io, g, completion_queue(io, g.dev, in_mode(m))) {}
  ground g;
  joined q;
  std::deque<memory_window> windows;
  std::size_t next_window = 0;
};

struct receives : operations, two_queue_pairs {
  using two_queue_pairs::two_queue_pairs;
  void start(done d) override { q.b.async_receive(g.part(1), upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      q.a.async_send(g.part(0), asio::detached);
  }
};

/// Operations of a send queue, posted as one chain.
struct batched : started_late, two_queue_pairs {
  using starter = void (*)(two_queue_pairs&, done);

  batched(asio::io_context& io, completion_mode m, starter s)
      : two_queue_pairs(io, m), start_one(s) {}
  void complete() override {
    queue_pair::batch batch(q.a);
    started_late::complete();
  }
  void start_now(done d) override { start_one(*this, std::move(d)); }
  starter start_one;
};

void start_send(two_queue_pairs& p, done d) {
  p.q.b.async_receive(p.g.part(1), asio::detached);
  p.q.a.async_send(p.g.part(0), upon(std::move(d)));
}
void start_write(two_queue_pairs& p, done d) {
  p.q.a.async_write(p.g.part(0), p.g.remote_part(1), upon(std::move(d)));
}
void start_read(two_queue_pairs& p, done d) {
  p.q.a.async_read(p.g.part(0), p.g.remote_part(1), upon(std::move(d)));
}
void start_atomic(two_queue_pairs& p, done d) {
  p.q.a.async_fetch_add(p.g.remote_part(1), 1, upon(std::move(d)));
}

/// Binds a new window.
void start_bind(two_queue_pairs& p, done d) {
  memory_window& w = p.windows.emplace_back(p.g.pd);
  p.q.a.async_bind(w, p.g.mem.region, 0, 64, access::remote_write, upon(std::move(d)));
}

/// The keys are those of windows that are bound before.
struct invalidations : batched {
  explicit invalidations(asio::io_context& io)
      : batched(io, completion_mode::event, [](two_queue_pairs& p, done d) {
          p.q.a.async_invalidate(p.windows[p.next_window++].rkey(), upon(std::move(d)));
        }) {
    int bound = 0;
    for (int i = 0; i < started_count; ++i)
      start_bind(*this, [&] { ++bound; });
    until(io, [&] { return bound == started_count; });
    io.restart();
  }
};

/// A shared receive queue and a queue pair that sends to it.
struct shared_queue {
  explicit shared_queue(asio::io_context& io) : queue(io, g.pd), a(io, g.pd), b(io) {
    b.open(g.pd, queue);
    connect(io, a, b);
    io.restart();
  }
  ground g;
  shared_receive_queue queue;
  queue_pair a, b;
};

struct shared_receives_of_queue : operations, shared_queue {
  using shared_queue::shared_queue;
  void start(done d) override { queue.async_receive(g.part(1), upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      a.async_send(g.part(0), asio::detached);
  }
};

/// The only posted receive is filled.
struct limit_waits : operations, shared_queue {
  explicit limit_waits(asio::io_context& io) : shared_queue(io) {
    queue.async_receive(g.part(1), asio::detached);
  }
  void start(done d) override { queue.async_wait_limit(1, upon(std::move(d))); }
  void complete() override { a.async_send(g.part(0), asio::detached); }
};

struct closed_receives : operations, two_queue_pairs {
  using two_queue_pairs::two_queue_pairs;
  void start(done d) override { q.b.async_receive(g.part(1), upon_cancellation(std::move(d))); }
  void complete() override { q.b.close(); }
};

struct disconnect_waits : operations, two_queue_pairs {
  using two_queue_pairs::two_queue_pairs;
  void start(done d) override { q.a.async_wait_disconnect(upon_cancellation(std::move(d))); }
  void complete() override { q.a.cancel(); }
};

struct device_event_waits : operations {
  explicit device_event_waits(asio::io_context& io) : events(io, open_device()) {}
  void start(done d) override { events.async_wait_event(upon_cancellation(std::move(d))); }
  void complete() override { events.cancel(); }
  device_events events;
};

struct access_waits : operations {
  explicit access_waits(asio::io_context& c) : io(c), writer(buffer.try_write_access()) {}
  void start(done d) override { buffer.async_read_access(io.get_executor(), upon(std::move(d))); }
  void complete() override { writer.reset(); }
  asio::io_context& io;
  memory_pool pool{protection_domain(open_device())};
  registered_buffer buffer = pool.allocate(64);
  buffer_access writer;
};

} // namespace

std::vector<kind> kinds() {
  std::vector<kind> all{
      {"asio::post", make<posted>()},
      {"asio's timer", make<timer_waits>()},
      // Asio keeps them in a queue of the thread that polled the socket. If that thread throws,
      // they come behind those that other threads have found.
      {"asio's datagrams", make<datagrams>(), false},
      {"asio's acceptor", make<tcp_accepts>()},
      {"receives, mode event", make<receives>(completion_mode::event)},
      {"receives, mode adaptive", make<receives>(completion_mode::adaptive)},
      {"receives, mode busy", make<receives>(completion_mode::busy)},
      {"writes, mode event", make<batched>(completion_mode::event, &start_write)},
      {"writes, mode adaptive", make<batched>(completion_mode::adaptive, &start_write)},
      {"writes, mode busy", make<batched>(completion_mode::busy, &start_write)},
      {"sends", make<batched>(completion_mode::event, &start_send)},
      {"reads", make<batched>(completion_mode::event, &start_read)},
      {"receives of a queue pair that is closed", make<closed_receives>(completion_mode::event)},
      {"receives of a shared receive queue", make<shared_receives_of_queue>()},
      {"waits for the limit of a shared receive queue", make<limit_waits>()},
      {"waits for a disconnect", make<disconnect_waits>(completion_mode::event)},
      {"waits for a device's events", make<device_event_waits>()},
      {"waits for access", make<access_waits>()},
  };
  if (open_device().has_atomics())
    all.push_back({"atomic operations", make<batched>(completion_mode::event, &start_atomic)});
  if (open_device().has_memory_windows()) {
    all.push_back({"binds", make<batched>(completion_mode::event, &start_bind)});
    all.push_back({"invalidations", make<invalidations>()});
  }
  return all;
}

} // namespace test::asio_idle_objects
