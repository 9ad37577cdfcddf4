// SPDX-License-Identifier: BSL-1.0
// Links and queue pairs that share receives end on an adapter that drops the completions of a
// destroyed queue pair. Each has taken receives that it has not filled.
#include "device/adapters/adapter.hpp"
#include "device/adapters/every_receive.hpp"
#include "device/link/shared_crowd.hpp"
#include "link/shared_receives_impl.hpp"

#include <boost/asio/executor_work_guard.hpp>

#include <deque>
#include <functional>

namespace test::shared_ends_tests {
namespace {

constexpr std::uint32_t receives = 96;

std::uint32_t count(talks& c, const shared_receives& r) {
  return count_receives(c.io, c.pd, c.dev, r.impl()->queue(), receives + 1);
}

/// Checks the receives of each side when the ends of links are over.
void all_are_there(talks& c) {
  const auto work = asio::make_work_guard(c.io);
  for (const auto* r : {&c.of_a, &c.of_b}) {
    c.until([&] { return r->statistics().links == 0; });
    CHECK(r->statistics().posted == receives);
    CHECK(count(c, *r) == receives);
  }
}

/// Messages are in receives, unpolled, when the links end.
void fill_some(talks& c) {
  for (asio_rdma::connection& a : c.a)
    for (int n = 0; n < 3; ++n)
      a.async_send(asio::buffer("some", 4), asio::detached);
}

void close(std::deque<asio_rdma::connection>& links) {
  for (asio_rdma::connection& link : links)
    link.close();
}

} // namespace

TEST_CASE("links that end on an adapter leave each shared receive", "[h1]") {
  const adapter a("mlx5,create=0,destroy=0,taken_receives=2,late_last_wqe=1ms");
  talks c(0, few(receives));
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 8; ++i)
      c.connect(c.a.emplace_back(c.io, c.of_a), c.b.emplace_back(c.io, c.of_b));
    fill_some(c);
    close(c.b);
    close(c.a);
    c.a.clear();
    c.b.clear();
    all_are_there(c);
  }
}

TEST_CASE("queue pairs that end leave each receive of a shared receive queue", "[h1]") {
  const adapter a("mlx5,taken_receives=2,late_last_wqe=1ms");
  constexpr std::uint32_t depth = 8;
  asio::io_context io(1);
  const auto work = asio::make_work_guard(io);
  const device dev = open_device();
  const protection_domain pd(dev);
  const memory m(pd, depth * 8, most_rights(dev));
  shared_receive_queue_options options;
  options.depth = depth;
  shared_receive_queue queue(io, pd, options);
  std::function<void(std::uint32_t)> receive = [&](std::uint32_t i) {
    queue.async_receive(m.buffer(i * 8, 8), [&, i](error_code ec, const received&) {
      if (ec != asio::error::operation_aborted)
        receive(i);
    });
  };
  for (std::uint32_t i = 0; i < depth; ++i)
    receive(i);
  for (int round = 0; round < 3; ++round) {
    io.poll(); // posts the receives that were counted
    std::deque<queue_pair> from, to;
    for (int i = 0; i < 3; ++i) {
      from.emplace_back(io).open(pd);
      to.emplace_back(io).open(pd, queue);
      test::connect(io, from.back(), to.back());
    }
    for (queue_pair& qp : to)
      qp.close();
    io.poll();
    CHECK(count_receives(io, pd, dev, queue.impl(), depth + 1) == depth);
  }
}

} // namespace test::shared_ends_tests
