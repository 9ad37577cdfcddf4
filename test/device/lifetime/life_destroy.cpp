// SPDX-License-Identifier: BSL-1.0
//
// Handlers that destroy the object of their operation, and objects destroyed in many orders.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"
#include "device/lifetime/life_resources.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

namespace test::life_destroy_tests {
TEST_CASE("objects that are left open are noticed") {
  { const ground first_use; } // some descriptors stay from then on
  const std::string before = device_resources();
  const std::size_t descriptors = open_descriptors();
  {
    const ground g;
    if (is_software(g.dev)) // of other devices the kernel may report nothing
      CHECK(device_resources() != before);
    CHECK(open_descriptors() > descriptors);
  }
  CHECK(device_resources() == before);
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a handler destroys its queue pair, and every other operation ends once") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  const bool destroys_peer_too = GENERATE(false, true);
  const int nth = GENERATE(1, 7, 64, 200);
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  completion_queue::set_default_options(io, in_mode(mode));
  auto q = std::make_unique<joined>(io, g);
  int completed = 0, aborted = 0;
  const auto handler = [&](error_code ec, auto&&...) {
    if (!ec)
      ++completed;
    else if (ec == asio::error::operation_aborted ||
             // Reported if the connection manager notices that the peer ends first.
             (destroys_peer_too && ec == asio::error::connection_reset))
      ++aborted;
    if (completed == nth && q) {
      if (destroys_peer_too)
        q.reset();
      else
        q->a.close();
    }
  };
  for (int i = 0; i < 300; ++i) { // posted and waiting
    q->a.async_write(g.part(0), g.remote_part(1), handler);
    q->a.async_receive(g.part(2), handler);
  }
  q->a.async_wait_disconnect(handler);
  io.run();
  CHECK(completed >= nth);
  CHECK(completed + aborted == 601);
}

TEST_CASE("a receive's handler destroys the queue pair that it received on") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  auto q = std::make_unique<joined>(io, g);
  int calls = 0;
  q->b.async_receive(g.part(1), [&](error_code ec, received r) {
    CHECK_FALSE(ec);
    CHECK(r.bytes == 64);
    ++calls;
    q.reset();
  });
  q->b.async_receive(g.part(2), [&](error_code ec, received) {
    CHECK(ec == asio::error::operation_aborted);
    ++calls;
  });
  q->a.async_send(g.part(0), [&](error_code, std::size_t) { ++calls; });
  io.run();
  CHECK(calls == 3);
}

TEST_CASE("a handler owns its queue pair and is its last owner") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  int calls = 0;
  {
    auto q = std::make_shared<joined>(io, g);
    q->a.async_write(g.part(0), g.remote_part(1), [q, &calls](error_code ec, std::size_t) {
      CHECK_FALSE(ec);
      ++calls;
    });
  }
  io.run();
  CHECK(calls == 1);
}

TEST_CASE("a handler destroys its completion queue with its queue pairs") {
  const auto mode = GENERATE(from_range(std::begin(running_modes), std::end(running_modes)));
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  auto cq = std::make_unique<completion_queue>(io, g.dev, in_mode(mode));
  auto q = std::make_unique<joined>(io, g, *cq);
  int calls = 0;
  for (int i = 0; i < 200; ++i)
    q->a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t) {
      ++calls;
      // Reset, if the connection manager reports that the other end has ended first.
      if (ec)
        CHECK((ec == asio::error::operation_aborted || ec == asio::error::connection_reset));
      cq.reset();
      q.reset();
    });
  io.run();
  CHECK(calls == 200);
}

TEST_CASE("a handler that poll runs destroys everything") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  std::optional<completion_queue> cq(std::in_place, io, g.dev, in_mode(completion_mode::manual));
  queue_pair a(io), b(io);
  a.open(g.pd, *cq);
  b.open(g.pd, *cq);
  connect(io, a, b);
  io.restart();
  int calls = 0;
  for (int i = 0; i < 200; ++i)
    a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t) {
      ++calls;
      if (ec)
        CHECK(ec == asio::error::operation_aborted);
      a.close();
      b.close();
      cq.reset();
    });
  // In the context, so that poll calls handlers at once.
  std::function<void()> look = [&] {
    if (cq) {
      cq->poll();
      asio::post(io, look);
    }
  };
  asio::post(io, look);
  io.run();
  CHECK(calls == 200);
}

TEST_CASE("a handler in another context destroys the queue pair's") {
  const resource_check nothing_left;
  ground g;
  asio::io_context other(1);
  auto io = std::make_unique<asio::io_context>(1);
  auto q = std::make_unique<joined>(*io, g);
  bool called = false;
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> alive = token;
  q->b.async_receive(g.part(2), [token](error_code, received) {});
  token.reset();
  q->a.async_write(g.part(0), g.remote_part(1),
                   asio::bind_executor(other, [&](error_code ec, std::size_t) {
                     CHECK_FALSE(ec);
                     called = true;
                     io.reset();
                     q.reset();
                   }));
  while (other.poll() == 0) {
    other.restart();
    io->run_one();
  }
  CHECK(called);
  CHECK(alive.expired());
}

TEST_CASE("a handler of a wait destroys everything") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  auto q = std::make_unique<joined>(io, g);
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    q->a.async_wait_disconnect([&](error_code ec) {
      CHECK(ec == asio::error::operation_aborted);
      ++calls;
      q.reset();
    });
    q->a.async_receive(g.part(1), [&](error_code ec, received) {
      CHECK(ec == asio::error::operation_aborted);
      ++calls;
      q.reset();
    });
  }
  q->a.cancel();
  io.run();
  CHECK(calls == 6);
}

// --- Every order
// -----------------------------------------------------------------------------------

namespace {

/// One handle of each kind, with operations outstanding. Each can be destroyed by its number.
struct everything {
  enum { handles = 7 };

  explicit everything(std::vector<char>& bytes) {
    io = std::make_unique<asio::io_context>(1);
    dev = open_device();
    pd = protection_domain(dev);
    mr = memory_region(pd, bytes.data(), bytes.size());
    cq = completion_queue(*io, dev);
    if (dev.attributes().max_srq != 0) {
      srq.emplace(*io);
      srq->open(pd, cq, {});
    }
    qp.emplace(*io);
    if (srq)
      qp->open(pd, *srq);
    else
      qp->open(pd, cq);
    for (int i = 0; i < 3; ++i) {
      if (srq)
        srq->async_receive(mr.buffer(), [this](error_code, received) { ++called; });
      else
        qp->async_receive(mr.buffer(), [this](error_code, received) { ++called; });
      qp->async_wait_disconnect([this](error_code) { ++called; });
    }
  }

  void drop(int which) {
    switch (which) {
    case 0:
      io.reset();
      break;
    case 1:
      dev = {};
      break;
    case 2:
      pd = {};
      break;
    case 3:
      mr = {};
      break;
    case 4:
      cq = {};
      break;
    case 5:
      srq.reset();
      break;
    case 6:
      qp.reset();
      break;
    }
  }

  int called = 0;
  std::unique_ptr<asio::io_context> io;
  device dev;
  protection_domain pd;
  memory_region mr;
  completion_queue cq;
  std::optional<shared_receive_queue> srq;
  std::optional<queue_pair> qp;
};

} // namespace

TEST_CASE("handles are dropped in many orders, the context among them") {
  const resource_check nothing_left;
  std::vector<char> bytes(4096);
  std::array<int, everything::handles> order;
  std::iota(order.begin(), order.end(), 0);
  // Every eleventh order: all of them take a minute.
  int tried = 0;
  do {
    if (tried++ % 11 != 0)
      continue;
    everything e(bytes);
    for (const int which : order)
      e.drop(which);
    REQUIRE(e.called == 0);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(tried == 5040);
}

TEST_CASE("handles are dropped in every order, and the context runs when it alone is left") {
  const resource_check nothing_left;
  std::vector<char> bytes(4096);
  std::array<int, everything::handles - 1> order;
  std::iota(order.begin(), order.end(), 1);
  int tried = 0;
  do {
    ++tried;
    everything e(bytes);
    for (const int which : order)
      e.drop(which);
    e.io->run();
    REQUIRE(e.called == 6);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(tried == 720);
}

TEST_CASE("opening and closing leaves nothing, with any failure on the way") {
  const resource_check nothing_left;
  ground g;
  asio::io_context io(1);
  for (int i = 0; i < 50; ++i) {
    joined q(io, g);
    q.b.async_receive(g.part(1), [](error_code, received) {});
    q.a.async_write(g.part(0), remote_buffer{1, 64, 12345}, [](error_code, std::size_t) {});
    if (i % 2 == 0)
      io.poll();
    completion_queue small(io, g.dev, {completion_mode::event, 16, {}, 0});
    error_code ec;
    queue_pair refused(io);
    refused.open(g.pd, small, {}, ec);
    CHECK(ec == error::completion_queue_full);
    CHECK_FALSE(refused.is_open());
  }
  io.run();
}

} // namespace test::life_destroy_tests
