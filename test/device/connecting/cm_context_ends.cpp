// SPDX-License-Identifier: BSL-1.0
// The end of a context during an attempt that connects a queue pair of another context.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_homes.hpp"
#include "device/connecting/cm_support.hpp"
#include "queues/queue_pair_impl.hpp"

#include <interposer/failing_allocation.hpp>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace test::cm_context_ends_tests {
namespace {

using asio::ip::tcp;

/// A context with a queue pair that another thread ends while this one connects the queue pair.
struct ending_home {
  explicit ending_home(const protection_domain& pd) : qp(std::in_place, *io, pd) {}
  ~ending_home() { join(); }

  /// Begins to close the queue pair, and to destroy the context if asked to. Returns when that is
  /// done, or has had every chance to be.
  void end(bool destroy) {
    const auto impl = qp->impl();
    thread = std::thread([this, destroy] {
      qp.reset();
      if (destroy)
        io.reset();
      ended = true;
    });
    while (impl->state() != queue_pair_state::closed)
      std::this_thread::yield();
    for (int left = 20000; left != 0 && !ended; --left)
      std::this_thread::yield();
  }
  void join() {
    if (thread.joinable())
      thread.join();
  }

  std::optional<asio::io_context> io{1};
  std::optional<queue_pair> qp;
  std::thread thread;
  std::atomic<bool> ended{false};
};

/// An attempt that has reached its peer, which does not answer: it speaks nothing but TCP.
struct unanswered {
  asio::io_context listening{1};
  device dev = open_device();
  protection_domain pd{dev};
  tcp::acceptor listener{listening, endpoint(device_address(dev), 0)};
  tcp::socket peer{listening};
  makers m;
  std::optional<asio::io_context> io{1};
  std::optional<queue_pair> a{std::in_place, *io, pd};
  std::atomic<const rdma_cm_id*> id = nullptr;

  void start() {
    before_cm_call = [this](cm_call call, const rdma_cm_id* of) {
      if (call == cm_call::connect)
        id = of;
      return 0;
    };
    outcome<void> reached;
    m.initiator->async_connect(*a, listener.local_endpoint(), m.connected.handler());
    listener.async_accept(peer, reached.handler());
    until_all({&listening, &*m.connecting},
              [&] { return reached.done() && peer.available() != 0; });
    before_cm_call = nullptr;
  }
  /// Whether the attempt still exists: the peer has not received its end.
  bool lasts() {
    std::array<char, 1024> request{};
    error_code ec;
    peer.non_blocking(true, ec);
    while (!ec)
      peer.read_some(asio::buffer(request), ec);
    return ec == asio::error::would_block;
  }
};

} // namespace

TEST_CASE("the context of an attempt is destroyed after each of its steps") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  bool connected = false;
  for (int step = 0; !connected; ++step) {
    INFO("after " << step << " steps");
    home h;
    auto handler_lives = std::make_shared<int>();
    const std::weak_ptr<int> lives = handler_lives;
    {
      makers m;
      const auto handler = [&connected, keep = std::exchange(handler_lives, nullptr)](
                               error_code ec, const connection_info&) {
        connected = !ec;
      };
      const endpoint where = m.listener->local_endpoint();
      if (connecting) {
        m.listener->async_accept(h.b, m.accepted.handler());
        m.initiator->async_connect(h.a, where, handler);
      } else {
        m.listener->async_accept(h.b, handler);
        m.initiator->async_connect(h.a, where, m.connected.handler());
      }
      asio::io_context& own = connecting ? *m.connecting : *m.accepting;
      asio::io_context& other = connecting ? *m.accepting : *m.connecting;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      for (int done = 0; done < step && std::chrono::steady_clock::now() < end;) {
        other.restart();
        other.poll();
        own.restart();
        done += static_cast<int>(own.poll_one());
        if (connected)
          break;
      }
      connecting ? m.destroy_connecting() : m.destroy_accepting();
    }
    CHECK(lives.expired());
    queue_pair& qp = connecting ? h.a : h.b;
    if (connected) {
      CHECK(qp.state() != queue_pair_state::open);
      continue;
    }
    // The queue pair can be connected, at once or after it has been opened again. It may already be
    // connected, with only its handler not yet called.
    if (qp.state() != queue_pair_state::open) {
      CHECK(qp.state() != queue_pair_state::closed);
      qp.close();
      qp.open(h.pd);
    }
    queue_pair& peer = connecting ? h.b : h.a;
    peer.close();
    peer.open(h.pd);
    connect_by_manager(h.io, h.a, h.b);
    CHECK(h.carries());
  }
}

TEST_CASE("a queue pair is closed while the context that connects it is destroyed") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  for (int round = 0; round < 20; ++round) {
    INFO("round " << round);
    home h;
    makers m;
    m.start(h.a, h.b);
    for (int i = 0; i < round; ++i)
      for (auto* io : {&*m.accepting, &*m.connecting}) {
        io->restart();
        io->poll_one();
      }
    std::thread closing([&] { (connecting ? h.a : h.b).close(); });
    connecting ? m.destroy_connecting() : m.destroy_accepting();
    closing.join();
    CHECK((connecting ? h.a : h.b).state() == queue_pair_state::closed);
  }
}

TEST_CASE("the queue pair's context is destroyed while another one connects it") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  for (int round = 0; round < 20; ++round) {
    INFO("round " << round);
    device dev = open_device();
    protection_domain pd(dev);
    makers m;
    std::optional<asio::io_context> of_a(1), of_b(1);
    std::optional<queue_pair> a(std::in_place, *of_a, pd), b(std::in_place, *of_b, pd);
    m.start(*a, *b);
    for (int i = 0; i < round; ++i)
      for (auto* io : {&*m.accepting, &*m.connecting}) {
        io->restart();
        io->poll_one();
      }
    auto& context = connecting ? of_a : of_b;
    auto& qp = connecting ? a : b;
    std::thread destroying([&] {
      qp.reset();
      context.reset();
    });
    const connection& result = connecting ? m.connected : m.accepted;
    // If no request has arrived, the acceptor waits for another one; a request is rejected.
    if (!connecting)
      destroying.join();
    m.listener.reset();
    until_all({&*m.accepting, &*m.connecting}, [&] { return result.done(); });
    if (connecting)
      destroying.join();
    CHECK(result.calls == 1);
  }
}

// On iWARP an attempt lasts until the peer answers, here after the queue pair's context has been
// destroyed. If the destruction waited, it would wait until the kernel ends the attempt, and the
// peer would notice that.
TEST_CASE("destroying the queue pair's context does not wait for the peer of an attempt") {
  const connections_check nothing_left;
  if (open_device().type() != transport::iwarp)
    return not_on_this_device("an attempt that lasts until the peer answers");
  const bool closed_before = GENERATE(false, true);
  INFO((closed_before ? "the queue pair was closed" : "the queue pair was open"));
  unanswered u;
  u.start();
  if (closed_before)
    u.a->close();
  u.a.reset();
  u.io.reset();
  CHECK(u.lasts());
  until_all({&*u.m.connecting}, [&] { return u.m.connected.done(); });
  CHECK(u.m.connected.ec);
  u.peer.close();
  const bool event_first = GENERATE(false, true);
  if (event_first) {
    const auto work = asio::make_work_guard(*u.m.connecting); // a lingering id is no work
    const int before = events_read;
    until_all({&*u.m.connecting}, [&] { return events_read != before; });
  }
  u.m.initiator.reset();
  u.m.connecting.reset();
}

TEST_CASE("destroying the queue pair's context allocates nothing that it cannot do without") {
  const connections_check nothing_left;
  if (open_device().type() != transport::iwarp)
    return not_on_this_device("an attempt that lasts until the peer answers");
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    INFO("allocation " << n);
    unanswered u;
    u.start();
    u.a->close();
    u.a.reset();
    {
      const failing_allocation failing(n);
      u.io.reset();
      failed = failing.failed();
    }
    CHECK(u.lasts());
    until_all({&*u.m.connecting}, [&] { return u.m.connected.done(); });
    CHECK(u.m.connected.calls == 1);
    u.peer.close();
    u.m.initiator.reset();
    u.m.connecting.reset();
  }
}

TEST_CASE("destroying the queue pair's context does not wait for the attempt's context") {
  const connections_check nothing_left;
  if (open_device().type() != transport::iwarp)
    return not_on_this_device("an attempt that lasts until the peer answers");
  unanswered u;
  u.start();
  const rdma_cm_id* const lingering = u.id;
  std::promise<void> destroying;
  before_destruction = [&](const rdma_cm_id* id) {
    if (id == lingering)
      destroying.set_value();
  };
  u.m.initiator.reset();
  std::thread waiting([&] { u.m.connecting.reset(); });
  destroying.get_future().wait();
  before_destruction = nullptr;
  // A handler owns the queue pair, so it closes when its context shuts down.
  asio::post(*u.io, [a = std::move(*u.a)] {});
  u.io.reset();
  CHECK(u.lasts());
  u.peer.close();
  waiting.join();
}

TEST_CASE("a queue pair is closed or its context destroyed while a request is given to it") {
  const connections_check nothing_left;
  const bool destroyed = GENERATE(false, true);
  INFO((destroyed ? "its context is destroyed" : "it is closed"));
  bool reached = true;
  for (int n = 0; reached; ++n) {
    INFO("at allocation " << n);
    makers m;
    home h; // of a connector, and of a queue pair that accepts the request otherwise
    ending_home e(h.pd);
    connection ended;
    m.listener->async_accept(*e.qp, ended.handler());
    m.start(h.a, h.b);
    int allocations = 0;
    until_all({&*m.connecting, &h.io}, [&] {
      const watched_allocations watched([&] {
        if (allocations++ == n)
          e.end(destroyed);
      });
      m.accepting->restart();
      m.accepting->poll();
      return ended.done() || m.accepted.done();
    });
    reached = allocations > n;
    e.join();
    until_all({&*m.connecting, &*m.accepting, &h.io}, [&] { return m.connected.done(); });
    m.listener.reset();
    until_all({&*m.accepting}, [&] { return ended.done() && m.accepted.done(); });
    INFO(describe(ended.ec) << ", the other one " << describe(m.accepted.ec) << ", the connector "
                            << describe(m.connected.ec));
    CHECK(ended.calls == 1);
    // It may have been accepted, and then closed.
    CHECK((!ended.ec || ended.ec == asio::error::operation_aborted || m.connected.succeeded()));
  }
}

TEST_CASE("the queue pair's context is not destroyed before a failed attempt has ended") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  makers m(BOOST_ASIO_CONCURRENCY_HINT_UNSAFE); // so that this thread destroys the id
  home h;
  ending_home e(h.pd);
  asio::cancellation_signal accepting;
  const rdma_cm_id* own = nullptr;
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    if (call == (connecting ? cm_call::resolve_address : cm_call::accept))
      own = id;
    // On iWARP it is accepted at once, so there is nothing to cancel.
    return call == cm_call::accept && h.dev.type() == transport::iwarp ? ENOMEM : 0;
  };
  queue_pair& a = connecting ? *e.qp : h.a;
  queue_pair& b = connecting ? h.a : *e.qp;
  m.listener->async_accept(b, asio::bind_cancellation_slot(accepting.slot(), m.accepted.handler()));
  m.initiator->async_connect(a, m.listener->local_endpoint(), m.connected.handler());
  int destroyed = 0;
  bool ended = false;
  before_destruction = [&](const rdma_cm_id* id) {
    if (id != own || destroyed++ != 0)
      return;
    e.end(true);
    ended = e.ended;
  };
  until_all({&*m.connecting, &*m.accepting}, [&] { return own != nullptr; });
  before_cm_call = nullptr;
  if (connecting)
    m.initiator->cancel();
  else
    accepting.emit(asio::cancellation_type::terminal);
  before_destruction = nullptr;
  e.join();
  CHECK(destroyed == 1);
  CHECK_FALSE(ended);
  m.listener.reset();
  until_all({&*m.connecting, &*m.accepting},
            [&] { return m.connected.done() && m.accepted.done(); });
}

} // namespace test::cm_context_ends_tests
