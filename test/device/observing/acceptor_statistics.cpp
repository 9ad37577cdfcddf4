// SPDX-License-Identifier: BSL-1.0
// The counters of acceptors.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <algorithm>
#include <deque>

namespace test::acceptor_statistics_tests {
namespace {

std::uint64_t ended(const acceptor_statistics& s) {
  return s.accepted + s.refused_backlog + s.refused_incompatible + s.refused_admission +
         s.rejected + s.aborted + s.failed + s.gave_way;
}

} // namespace

TEST_CASE("an acceptor counts requests, connections and waiting accepts") {
  meeting m;
  CHECK(m.listener->statistics().requests == 0);
  m.accept();
  CHECK(m.listener->statistics().pending_accepts == 1);
  m.connect();
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  const acceptor_statistics s = m.listener->statistics();
  CHECK(s.requests == 1);
  CHECK(s.accepted == 1);
  CHECK(ended(s) == 1);
  CHECK(s.waiting == 0);
  CHECK(s.pending_accepts == 0);
  m.listener->close();
  CHECK(m.listener->statistics().requests == 0); // not open
}

TEST_CASE("an acceptor counts what it refuses, by the reason") {
  meeting m({}, {}, 1);
  std::deque<queue_pair> others;
  std::deque<connection> ends;
  const auto ask = [&] {
    others.emplace_back(m.io, m.pd);
    m.initiator->async_connect(others.back(), m.where(), ends.emplace_back().handler());
  };
  ask();
  m.until([&] { return m.listener->statistics().waiting == 1; });
  ask();
  m.until([&] { return ends[1].done(); });
  CHECK(m.listener->statistics().refused_backlog == 1);

  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.until([&] { return request.done(); });
  CHECK(m.listener->statistics().waiting == 0);
  CHECK(m.listener->statistics().rejected == 0); // the program has not decided
  request.value.reject();
  m.until([&] { return ends[0].done(); });
  CHECK(m.listener->statistics().rejected == 1);

  ask();
  outcome<connection_request> dropped;
  m.listener->async_wait_request(dropped.handler());
  m.until([&] { return dropped.done(); });
  dropped.value = {};
  m.until([&] { return ends[2].done(); });
  const acceptor_statistics s = m.listener->statistics();
  CHECK(s.rejected == 2);
  CHECK(s.requests == 3);
  CHECK(ended(s) == 3);
}

TEST_CASE("an acceptor counts requests of another protocol") {
  meeting m;
  const memory_pool pool(m.pd);
  asio_rdma::stream s(m.io);
  s.open(pool);
  m.listener->async_accept(s, m.accepted.handler());
  m.connect(); // a bare queue pair, which has no hello
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec);
  const acceptor_statistics counted = m.listener->statistics();
  CHECK(counted.refused_incompatible == 1);
  CHECK(counted.pending_accepts == 1); // the operation waits for the next request
  CHECK(ended(counted) == counted.requests);
}

TEST_CASE("a connector that gives up in the handshake is counted as aborted") {
  meeting m;
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.connect();
  m.until([&] { return request.done(); });
  m.initiator->cancel();
  m.until([&] { return m.connected.done(); });
  accept_options options;
  options.timeout = std::chrono::milliseconds(300);
  m.listener->async_accept(std::move(request.value), m.b, options, m.accepted.handler());
  m.until([&] { return m.accepted.done(); });
  const acceptor_statistics s = m.listener->statistics();
  CHECK(s.requests == 1);
  if (!m.accepted.ec) // siw: the connector's end had not arrived
    CHECK(s.accepted == 1);
  else
    CHECK(s.aborted == 1);
  CHECK(ended(s) == 1);
}

} // namespace test::acceptor_statistics_tests
