// SPDX-License-Identifier: BSL-1.0
// Every object of devices, queue pairs, connections and streams, with each of its operations
// outstanding when the execution context is destroyed. The handlers are destroyed, uncalled, while
// Asio objects that they own can still be destroyed, in every order of destruction of the library's
// objects.
#include "catch.hpp"

#include "device/asio/asio_support.hpp"
#include "device/connection/connection_support.hpp"
#include "device/lifetime/context_property.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

namespace test::outlived_contexts_tests {
namespace {

enum class fate {
  before_context, ///< The objects are destroyed before the context.
  after_context,
  moved,   ///< After the context; moved to other objects first.
  handlers ///< The handler owns them.
};

struct world {
  auto handler(std::shared_ptr<void> kept) {
    return [this, p = context_property(*io, owned), k = std::move(kept)](auto&&...) mutable {
      ++calls;
    };
  }

  context_property::count owned;
  int calls = 0;
  std::unique_ptr<asio::io_context> io = std::make_unique<asio::io_context>(1);
};

// Objects. Each scene can move its own objects to others.

struct accesses {
  explicit accesses(asio::io_context& c) : io(c) {}
  void cancel() { writer.reset(); }
  void move() { moved = std::move(buffer); }

  asio::io_context& io;
  memory_pool pool{protection_domain(open_device())};
  registered_buffer buffer = pool.allocate(64), moved;
  buffer_access writer = buffer.try_write_access();
};

struct queue_pairs {
  explicit queue_pairs(asio::io_context& io) : q(io, g) {
    if (g.dev.has_memory_windows())
      window = memory_window(g.pd);
  }
  void cancel() {
    q.a.cancel();
    q.b.cancel();
  }
  void move() { moved.emplace(std::move(q.a)); }

  ground g;
  joined q;
  std::optional<queue_pair> moved;
  memory_window window; // not open if the device has none
};

struct polled_queue_pairs {
  explicit polled_queue_pairs(asio::io_context& io)
      : cq(io, g.dev, in_mode(completion_mode::manual)), q(io, g, cq) {}
  void cancel() { q.a.cancel(); }
  void move() {
    moved_cq = std::move(cq);
    moved.emplace(std::move(q.a));
  }

  ground g;
  completion_queue cq, moved_cq;
  joined q;
  std::optional<queue_pair> moved;
};

struct shared_queues {
  explicit shared_queues(asio::io_context& io) : queue(io, g.pd), a(io), b(io) {
    a.open(g.pd);
    b.open(g.pd, queue);
    connect(io, a, b);
    queue.async_receive(g.part(2), [](error_code, const received&) {});
  }
  void cancel() {
    queue.cancel();
    b.cancel();
  }
  void move() { moved.emplace(std::move(queue)); }

  ground g;
  shared_receive_queue queue;
  std::optional<shared_receive_queue> moved;
  queue_pair a, b;
};

struct events {
  explicit events(asio::io_context& io) : of_device(io, open_device()) {}
  void cancel() { of_device.cancel(); }
  void move() { moved.emplace(std::move(of_device)); }

  device_events of_device;
  std::optional<device_events> moved;
};

struct exchanges {
  explicit exchanges(asio::io_context& io) : a(io, g.pd) {
    asio::ip::tcp::acceptor listener(io, {asio::ip::address_v4::loopback(), 0});
    sockets = std::make_shared<both>(io);
    sockets->a.connect(listener.local_endpoint());
    listener.accept(sockets->b);
  }
  void cancel() { a.cancel(); }
  void move() { moved.emplace(std::move(a)); }

  struct both {
    explicit both(asio::io_context& io) : a(io), b(io) {}
    asio::ip::tcp::socket a, b;
  };
  ground g;
  queue_pair a;
  std::optional<queue_pair> moved;
  std::shared_ptr<both> sockets; // Asio objects, destroyed with the handler
};

struct meetings {
  explicit meetings(asio::io_context& c)
      : io(c),
        listener(io, own_endpoint()),
        initiator(io),
        a(io, g.pd),
        b(io, g.pd),
        early(io, g.pd) {}
  void cancel() {
    listener.cancel();
    initiator.cancel();
    a.cancel();
  }
  void move() {
    moved_listener.emplace(std::move(listener));
    moved_initiator.emplace(std::move(initiator));
    moved_request = std::move(request);
  }
  /// Waits until a request has arrived and has been taken.
  void take_request() {
    bool here = false;
    listener.async_wait_request([&](error_code ec, connection_request r) {
      here = !ec;
      request = std::move(r);
    });
    initiator.async_connect(early, listener.local_endpoint(),
                            [](error_code, const connection_info&) {});
    until(io, [&] { return here; });
  }

  asio::io_context& io;
  ground g;
  memory_pool pool{g.pd};
  acceptor listener;
  connector initiator;
  queue_pair a, b, early;
  connection_request request, moved_request;
  std::optional<acceptor> moved_listener;
  std::optional<connector> moved_initiator;
};

connection_options with_memory() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.grants = 4;
  o.remote_memory.rights = access::remote_read | access::remote_write | access::remote_atomic;
  return o;
}

/// Two connections. The source opens each.
template <bool Shares>
struct talks {
  explicit talks(asio::io_context& io) : a(io), b(io) {
    if constexpr (Shares) {
      shared = shared_receives(io, pool);
      a.open(shared, with_memory());
      b.open(shared, with_memory());
    } else {
      a.open(pool, with_memory());
      b.open(pool, with_memory());
    }
    acceptor listener(io, own_endpoint());
    connector initiator(io);
    test::connection accepted, connected;
    listener.async_accept(b, accepted.handler());
    initiator.async_connect(a, listener.local_endpoint(), connected.handler());
    until(io, [&] { return accepted.done() && connected.done(); });
    outcome<remote_region> granted;
    a.async_request_memory(1000, access::remote_read | access::remote_write,
                           std::chrono::minutes(1), granted.handler());
    until(io, [&] { return granted.done(); });
    if (granted.ec)
      throw system_error(granted.ec, "request memory");
    region = granted.value;
  }
  void cancel() { a.cancel(); }
  void move() {
    moved.emplace(std::move(a));
    moved_region = std::move(region);
    moved_shared = std::move(shared);
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  registered_buffer own = pool.allocate(64), lent = pool.allocate(64),
                    lengthy = pool.allocate(1 << 20);
  shared_receives shared, moved_shared;
  asio_rdma::connection a, b;
  std::optional<asio_rdma::connection> moved;
  remote_region region, moved_region;
};

/// The state of a stream at the destruction of its context.
enum class left { open, reset, ended };

/// Two streams. The source opens each. With `ended` the peer has closed.
template <left Left, bool Shares = false>
struct streams {
  explicit streams(asio::io_context& io) : a(io), b(io) {
    if constexpr (Shares) {
      shared = shared_receives(io, pool);
      a.open(shared);
      b.open(shared);
    } else {
      a.open(pool);
      b.open(pool);
    }
    acceptor listener(io, own_endpoint());
    connector initiator(io);
    test::connection accepted, connected;
    listener.async_accept(b, accepted.handler());
    initiator.async_connect(a, listener.local_endpoint(), connected.handler());
    until(io, [&] { return accepted.done() && connected.done(); });
    if (Left == left::reset)
      a.set_option(asio::socket_base::linger(true, 0));
    if (Left != left::ended)
      return;
    b.close();
    sent end;
    a.async_read_some(asio::buffer(place), end.handler());
    until(io, [&] { return end.done(); });
    if (end.ec != asio::error::eof)
      throw system_error(end.ec, "read to the end");
  }
  void cancel() {
    error_code closed;
    a.cancel(closed);
  }
  void move() {
    moved.emplace(std::move(a));
    moved_shared = std::move(shared);
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  shared_receives shared, moved_shared;
  registered_buffer lent = pool.allocate(1 << 20);
  std::vector<char> place = std::vector<char>(8 << 20);
  asio_rdma::stream a, b;
  std::optional<asio_rdma::stream> moved;
};

// Operations.

struct kind {
  const char* name;
  /// Starts the operation; returns the objects, unless the handler owns them.
  std::function<std::shared_ptr<void>(world&, fate)> start;
};

template <class Scene, class Start>
kind of(const char* name, Start start) {
  return {name, [start](world& w, fate f) -> std::shared_ptr<void> {
            auto scene = std::make_shared<Scene>(*w.io);
            start(*scene, w.handler(f == fate::handlers ? scene : nullptr));
            if (f == fate::moved)
              scene->move();
            if (f == fate::handlers)
              return nullptr;
            // The operations are cancelled before the objects are destroyed, unless they have
            // moved.
            return {scene.get(), [scene, f](void*) {
                      if (f != fate::moved)
                        scene->cancel();
                    }};
          }};
}

using plain = talks<false>;
using sharing = talks<true>;
using open_streams = streams<left::open>;
using reset_streams = streams<left::reset>;
using ended_streams = streams<left::ended>;
using sharing_streams = streams<left::open, true>;

#define ON(scene, ...) of<scene>(#scene ": " #__VA_ARGS__, [](auto& s, auto h) { s.__VA_ARGS__; })

constexpr auto write_and_close = [](auto& s, auto h) {
  s.a.async_write_some(s.lent, std::move(h));
  s.a.close();
};

const kind kinds[] = {
    ON(accesses, buffer.async_read_access(s.io.get_executor(), std::move(h))),
    ON(accesses, buffer.async_write_access(s.io.get_executor(), std::move(h))),
    ON(queue_pairs, q.b.async_receive(s.g.part(1), std::move(h))),
    ON(queue_pairs, q.a.async_send(s.g.part(0), std::move(h))),
    ON(queue_pairs, q.a.async_send_immediate(s.g.part(0), 1, std::move(h))),
    ON(queue_pairs, q.a.async_send_invalidate(s.g.part(0), 1, std::move(h))),
    ON(queue_pairs, q.a.async_write(s.g.part(0), s.g.remote_part(1), std::move(h))),
    ON(queue_pairs, q.a.async_write_immediate(s.g.part(0), s.g.remote_part(1), 1, std::move(h))),
    ON(queue_pairs, q.a.async_read(s.g.part(0), s.g.remote_part(1), std::move(h))),
    ON(queue_pairs, q.a.async_compare_and_swap(s.g.remote_part(1, 8), 0, 1, std::move(h))),
    ON(queue_pairs, q.a.async_fetch_add(s.g.remote_part(1, 8), 1, std::move(h))),
    ON(queue_pairs,
       q.a.async_bind(s.window, s.g.mem.region, 0, 64, access::remote_write, std::move(h))),
    ON(queue_pairs, q.a.async_invalidate(s.g.remote_part(1).rkey, std::move(h))),
    ON(queue_pairs, q.a.async_wait_disconnect(std::move(h))),
    ON(polled_queue_pairs, q.a.async_receive(s.g.part(1), std::move(h))),
    ON(polled_queue_pairs, q.a.async_write(s.g.part(0), s.g.remote_part(1), std::move(h))),
    ON(shared_queues, queue.async_receive(s.g.part(1), std::move(h))),
    ON(shared_queues, queue.async_wait_limit(1, std::move(h))),
    ON(events, of_device.async_wait_event(std::move(h))),
    of<exchanges>("an exchange",
                  [](auto& s, auto h) {
                    auto& socket = s.sockets->a;
                    async_exchange(socket, s.a,
                                   [h = std::move(h),
                                    kept = std::move(s.sockets)](error_code ec) mutable { h(ec); });
                  }),
    ON(meetings, listener.async_accept(s.b, std::move(h))),
    of<meetings>("meetings: accept a connection that is opened",
                 [](auto& s, auto h) {
                   s.listener.template async_accept<asio_rdma::connection>(s.pool, {},
                                                                           std::move(h));
                 }),
    ON(meetings, listener.async_wait_request(std::move(h))),
    of<meetings>("meetings: a request is kept",
                 [](auto& s, auto h) {
                   s.take_request();
                   s.listener.async_wait_request(std::move(h));
                 }),
    of<meetings>("meetings: accept a request",
                 [](auto& s, auto h) {
                   s.take_request();
                   s.listener.async_accept(std::move(s.request), s.b, std::move(h));
                 }),
    ON(meetings, initiator.async_connect(s.a, s.listener.local_endpoint(), std::move(h))),
    ON(plain, a.async_send(asio::buffer("x", 1), std::move(h))),
    ON(plain, a.async_send(s.lengthy, 1, std::move(h))),
    ON(plain, a.async_receive(std::move(h))),
    ON(plain, a.async_write(s.own, s.region, std::move(h))),
    ON(plain, a.async_write(s.own, s.region, 1, std::move(h))),
    ON(plain, a.async_receive_immediate(std::move(h))),
    ON(plain, a.async_read(s.own, s.region.slice(0, 64), std::move(h))),
    ON(plain, a.async_compare_and_swap(s.region.slice(0, 8), 0, 1, std::move(h))),
    ON(plain, a.async_fetch_add(s.region.slice(0, 8), 1, std::move(h))),
    ON(plain, a.async_request_memory(100, std::move(h))),
    ON(plain, a.async_renew(s.region, std::chrono::minutes(2), std::move(h))),
    ON(plain,
       a.async_send_region(s.lent, access::remote_read, std::chrono::minutes(1), std::move(h))),
    ON(plain, a.async_send_region(s.region, std::move(h))),
    ON(plain, a.async_receive_region(std::move(h))),
    ON(plain, a.async_wait_disconnect(std::move(h))),
    ON(plain, a.async_close(std::move(h))),
    ON(sharing, a.async_send(s.lengthy, std::move(h))),
    ON(sharing, a.async_receive(std::move(h))),
    ON(sharing, a.async_close(std::move(h))),
    ON(open_streams, a.async_read_some(asio::buffer(s.place), std::move(h))),
    ON(open_streams, a.async_receive(std::move(h))),
    ON(open_streams, a.async_wait(asio::socket_base::wait_read, std::move(h))),
    ON(open_streams, a.async_wait(asio::socket_base::wait_error, std::move(h))),
    ON(open_streams, a.async_wait(asio::socket_base::wait_write, std::move(h))),
    ON(open_streams, a.async_write_some(asio::buffer("x", 1), std::move(h))),
    of<open_streams>("open_streams: a lent write, and a stream that is closed", write_and_close),
    ON(reset_streams, a.async_read_some(asio::buffer(s.place), std::move(h))),
    ON(reset_streams, a.async_write_some(s.lent, std::move(h))),
    of<reset_streams>("reset_streams: wait for room",
                      [](auto& s, auto h) {
                        s.a.non_blocking(true);
                        for (error_code ec; !ec;)
                          s.a.write_some(asio::buffer(s.place), ec);
                        s.a.async_wait(asio::socket_base::wait_write, std::move(h));
                      }),
    of<reset_streams>(
        "reset_streams: write all",
        [](auto& s, auto h) { asio::async_write(s.a, asio::buffer(s.place), std::move(h)); }),
    ON(ended_streams, a.async_read_some(asio::buffer(s.place), std::move(h))),
    ON(ended_streams, a.async_write_some(s.lent, std::move(h))),
    ON(sharing_streams, a.async_read_some(asio::buffer(s.place), std::move(h))),
    ON(sharing_streams, a.async_receive(std::move(h))),
    ON(sharing_streams, a.async_wait(asio::socket_base::wait_read, std::move(h))),
    ON(sharing_streams, a.async_write_some(asio::buffer("x", 1), std::move(h))),
    of<sharing_streams>("sharing_streams: a lent write, and a stream that is closed",
                        write_and_close),
};

} // namespace

TEST_CASE("a handler whose context is destroyed is destroyed before the context's services") {
  const kind k = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  const connections_check nothing_left;
  for (const fate f : {fate::before_context, fate::after_context, fate::moved, fate::handlers}) {
    INFO(k.name << ", fate " << static_cast<int>(f));
    world w;
    auto objects = k.start(w, f);
    CHECK(w.owned.alive == 1);
    if (f == fate::before_context)
      objects.reset();
    w.io.reset();
    CHECK(w.owned.alive == 0);
    CHECK(w.owned.late == 0);
    CHECK(w.calls == 0);
    objects.reset();
  }
}

#undef ON

} // namespace test::outlived_contexts_tests
