// SPDX-License-Identifier: BSL-1.0
// Queue pairs with shared receives end on a device that drops the completions of a queue pair that
// is destroyed, as mlx5 does. rxe keeps them, so the fault injector drops them.
#include "catch.hpp"

#include "device/connection/connection_support.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/detached.hpp>

#include <vector>

namespace test::shared_receive_queue_ends_tests {
namespace {

/// Reports and returns true if the device need not announce that a queue pair has taken its last
/// receive.
bool never_tells(const device& dev) {
  if (dev.type() != transport::iwarp)
    return false;
  not_on_this_device("the event that the last receive is reached");
  return true;
}

constexpr std::uint32_t depth = 4;
constexpr std::size_t size = 8;

shared_receive_queue_options of_depth() {
  shared_receive_queue_options o;
  o.depth = depth;
  return o;
}

/// Receives of a shared queue. Each is started again when it completes.
class receives {
public:
  receives(asio::io_context& io, const protection_domain& pd)
      : m_(pd, depth * size, access::local_write), queue(io, pd, of_depth()) {
    for (std::size_t i = 0; i < depth; ++i)
      start(i);
  }

  std::size_t filled = 0, not_filled = 0;

private:
  void start(std::size_t i) {
    queue.async_receive(m_.buffer(i * size, size), [this, i](error_code ec, const received&) {
      if (ec == asio::error::operation_aborted) // the context or the queue ends
        return;
      ++(ec ? not_filled : filled);
      start(i);
    });
  }

  memory m_;

public:
  shared_receive_queue queue;
};

/// A device whose faults the test injects, and a shared queue on it.
struct scene {
  device dev = open_device();
  faults::injector faults{dev.native_handle()};
  protection_domain pd{dev};
  memory m{pd, size, most_rights(dev)};
  asio::io_context io{1};
  receives r{io, pd};
};

/// A queue pair that receives from a shared queue, and its peer.
struct end_pair {
  explicit end_pair(scene& s) : end_pair(s.io, s.pd, s.r.queue) {}
  end_pair(asio::io_context& c, const protection_domain& pd, shared_receive_queue& queue)
      : io(c), from(c), to(c) {
    from.open(pd, impatient());
    to.open(pd, queue, impatient());
  }
  void connect() { test::connect(io, from, to); }
  /// Sends a message whose completion the device keeps until the last receive is reached.
  void receive_unseen(faults::injector& device, const memory& m) {
    connect();
    device.hold_completions({nullptr, to.native_handle()->qp_num});
    sent s;
    from.async_send(m.buffer(0, size), s.handler());
    until(io, [&] { return s.done(); });
    REQUIRE(s.succeeded());
  }

  asio::io_context& io;
  queue_pair from, to;
};

} // namespace

TEST_CASE("a shared queue has as many receives as before when 1000 of its queue pairs have ended",
          "[h1]") {
  scene t;
  if (never_tells(t.dev))
    return;
  t.faults.flush_late();
  constexpr std::size_t rounds = 1000;
  for (std::size_t i = 0; i < rounds; ++i) {
    end_pair q(t);
    q.receive_unseen(t.faults, t.m);
    if (i % 2 == 0)
      continue; // its destructor ends it
    q.to.close();
    until(t.io, [&] { return t.r.filled + t.r.not_filled == i + 1; });
  }
  until(t.io, [&] { return t.r.filled + t.r.not_filled == rounds; });
  CHECK(t.r.filled == rounds);
  CHECK(t.faults.counts().dropped_completions == 0);
  t.faults.clear();

  // Checks that each of the receives can be filled, twice. The sender does not wait long for one.
  end_pair q(t);
  q.connect();
  for (std::size_t filled = rounds; filled != rounds + 2 * depth;) {
    for (std::uint32_t i = 0; i < depth; ++i)
      q.from.async_send(t.m.buffer(0, size), asio::detached);
    filled += depth;
    until(t.io, [&] { return t.r.filled == filled; });
  }
}

TEST_CASE("a shared receive that a queue pair has taken completes though the queue pair fails",
          "[h1]") {
  scene t;
  if (never_tells(t.dev))
    return;
  t.faults.flush_late();
  end_pair q(t);
  q.receive_unseen(t.faults, t.m);
  SECTION("by an event") { t.faults.raise_qp_event(q.to.native_handle(), IBV_EVENT_QP_REQ_ERR); }
  SECTION("by the last receive's event") {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(q.to.native_handle(), &attr, IBV_QP_STATE) == 0);
  }
  until(t.io, [&] { return q.to.state() == queue_pair_state::failed && t.r.filled == 1; });
  q.to.close();
  CHECK(t.faults.counts().dropped_completions == 0);
}

TEST_CASE("a shared receive that a queue pair has taken is destroyed with its context") {
  const device dev = open_device();
  if (never_tells(dev))
    return;
  faults::injector faults(dev.native_handle());
  faults.flush_late();
  const protection_domain pd(dev);
  const memory m(pd, size, most_rights(dev));
  const auto lives = std::make_shared<int>();
  {
    asio::io_context io(1);
    shared_receive_queue queue(io, pd, of_depth());
    queue.async_receive(m.buffer(), [lives](error_code, const received&) {});
    end_pair q(io, pd, queue);
    q.receive_unseen(faults, m);
  }
  CHECK(lives.use_count() == 1);
  CHECK(faults.counts().dropped_completions == 0);
}

TEST_CASE("a device that does not report the last receive is waited for once", "[h1]") {
  scene t;
  if (never_tells(t.dev))
    return;
  const auto begin = std::chrono::steady_clock::now();
  constexpr int ends = 200;
  for (int i = 0; i < ends; ++i) {
    end_pair q(t);
    q.connect();
    q.to.close();
  }
  // Each wait would take 100 ms.
  CHECK(std::chrono::steady_clock::now() - begin < ends * std::chrono::milliseconds(80));
}

TEST_CASE("a device that has reported the last receive is waited for after an event that is late") {
  scene t;
  if (never_tells(t.dev))
    return;
  const auto end_one = [&] {
    t.faults.flush_late();
    end_pair q(t);
    q.receive_unseen(t.faults, t.m);
    q.to.close();
  };
  end_one();
  until(t.io, [&] { return t.r.filled == 1; });
  t.faults.clear(); // from here on rxe raises no such event
  {
    end_pair q(t);
    q.connect();
    q.to.close();
  }
  end_one();
  CHECK(t.faults.counts().dropped_completions == 0);
  until(t.io, [&] { return t.r.filled == 2; });
}

TEST_CASE("connections that end leave as many shared receives as there were", "[h1]") {
  talk t({}, shared_receives_options{});
  if (never_tells(t.dev))
    return;
  const shared_receives of_a(t.io, t.pool), of_b(t.io, t.pool);
  faults::injector faults(t.dev.native_handle());
  faults.flush_late();
  constexpr int rounds = 1000;
  for (int i = 0; i < rounds; ++i) {
    asio_rdma::connection a(t.io, of_a), b(t.io, of_b);
    test::connection accepted, connected;
    t.listener.async_accept(b, accepted.handler());
    t.initiator.async_connect(a, t.listener.local_endpoint(), connected.handler());
    t.until([&] { return accepted.done() && connected.done(); });
    REQUIRE(accepted.succeeded());
    REQUIRE(connected.succeeded());
    // A message is in its receives when it ends.
    faults.hold_completions({nullptr, b.native_handle()->qp_num});
    const std::uint64_t before = faults.held();
    a.async_send(asio::buffer("some", 4), asio::detached);
    t.until([&] { return faults.held() != before; });
    b.close();
    a.close();
    t.until([&] { return of_a.statistics().links == 0 && of_b.statistics().links == 0; });
    REQUIRE(of_b.statistics().posted == of_b.options().receives);
    REQUIRE(of_a.statistics().posted == of_a.options().receives);
    REQUIRE(faults.counts().dropped_completions == 0);
  }
}

} // namespace test::shared_receive_queue_ends_tests
