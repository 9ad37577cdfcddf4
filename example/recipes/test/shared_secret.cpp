// SPDX-License-Identifier: BSL-1.0
#include "../shared_secret.hpp"

#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <asio_rdma/global_memory.hpp>

#include <deque>
#include <functional>

namespace {

using namespace std::chrono_literals;
using namespace test;
using clock_type = shared_secret::clock;

const shared_secret::key right{"0123456789abcdef", "10.0.0.1:7000"};
const shared_secret::key other_secret{"0123456789abcdeg", "10.0.0.1:7000"};
const shared_secret::key other_acceptor{"0123456789abcdef", "10.0.0.2:7000"};

/// An acceptor behind a gate. A connection waits for a connector that is admitted.
struct scene {
  scene() {
    listener.async_accept(accepting, accept_options().set_admit(std::ref(gate)),
                          accepted.handler());
  }

  error_code connect(const private_data& data) {
    auto& c = objects.emplace_back(io, pool);
    test::connection connected;
    initiator.async_connect(c, listener.local_endpoint(), connect_options().set_data(data),
                            connected.handler());
    until(io, [&] { return connected.done(); });
    return connected.ec;
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  shared_secret::gate gate{right, 30s, clock_type::now() - 1h};
  test::connection accepted;
  asio::io_context io{1};
  acceptor listener{io, endpoint(device_address(dev), 0)};
  connector initiator{io};
  asio_rdma::connection accepting{io, pool};
  std::deque<asio_rdma::connection> objects;
};

} // namespace

TEST_CASE("a connector that knows the secret is admitted, and no other") {
  scene s;
  CHECK(s.connect({}) == error::rejected);
  CHECK(s.connect(private_data(32)) == error::rejected);
  CHECK(s.connect(shared_secret::prove(other_secret)) == error::rejected);
  CHECK(s.connect(shared_secret::prove(other_acceptor)) == error::rejected);
  CHECK(s.gate.remembered() == 0);
  CHECK_FALSE(s.accepted.done());
  CHECK_FALSE(s.connect(shared_secret::prove(right)));
  until(s.io, [&] { return s.accepted.done(); });
  CHECK(s.accepted.succeeded());
  CHECK(s.listener.statistics().refused_admission == 4);
}

TEST_CASE("a proof that was used is refused to a second connector") {
  scene s;
  const private_data proof = shared_secret::prove(right);
  CHECK_FALSE(s.connect(proof));
  until(s.io, [&] { return s.accepted.done(); });
  asio_rdma::connection second(s.io, s.pool);
  test::connection again;
  s.listener.async_accept(second, accept_options().set_admit(std::ref(s.gate)), again.handler());
  CHECK(s.connect(proof) == error::rejected);
  CHECK_FALSE(again.done());
  CHECK_FALSE(s.connect(shared_secret::prove(right)));
}

TEST_CASE("each changed byte of a proof makes it invalid") {
  const auto now = clock_type::now();
  shared_secret::gate g(right, 30s, now - 1h);
  const private_data good = shared_secret::prove(right, now);
  for (std::size_t i = 0; i != good.size(); ++i) {
    private_data bad = good;
    bad[i] ^= std::byte(1);
    CHECK_FALSE(g.admits(bad, now));
  }
  CHECK_FALSE(g.admits(std::span(good).first(good.size() - 1), now));
  CHECK(g.admits(good, now));
}

TEST_CASE("a proof is good once, within the window, and not from before the start") {
  const auto start = clock_type::now();
  shared_secret::gate g(right, 30s, start);
  const auto of = [&](auto time) {
    return shared_secret::prove(right, start + time);
  };
  CHECK_FALSE(g.admits(of(-2ms), start));
  CHECK(g.admits(of(0s), start));
  CHECK_FALSE(g.admits(of(31s), start));
  const private_data ahead = of(29s);
  CHECK(g.admits(ahead, start));
  CHECK(g.remembered() == 2);
  CHECK_FALSE(g.admits(ahead, start + 58s)); // remembered as long as it would be admitted
  CHECK(g.remembered() == 1);
  CHECK_FALSE(g.admits(ahead, start + 60s));
  CHECK(g.remembered() == 0);
  CHECK_FALSE(g.admits(ahead, start + 10s)); // the clock was set back
  CHECK(g.admits(of(40s), start + 60s));
}

TEST_CASE("a secret that is too short is an error") {
  const shared_secret::key k{"password", "10.0.0.1:7000"};
  CHECK_THROWS_AS(shared_secret::gate(k), std::invalid_argument);
  CHECK_THROWS_AS(shared_secret::prove(k), std::invalid_argument);
}

TEST_CASE("a node of a global memory is admitted by the secret") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  shared_secret::gate gate(right, 30s, clock_type::now() - 1h);
  asio::io_context io{1};
  global_memory host(io, pool, 1), guest(io, pool, 2);
  host.host(4096);
  host.listen(endpoint(device_address(dev), 0), accept_options().set_admit(std::ref(gate)));
  const auto join = [&](const private_data& data) {
    outcome<node_id> joined;
    guest.async_join(host.local_endpoint(), connect_options().set_data(data), joined.handler());
    until(io, [&] { return joined.done(); });
    return joined.ec;
  };
  CHECK(join(shared_secret::prove(other_secret)) == error::rejected);
  CHECK_FALSE(host.knows(2));
  CHECK_FALSE(join(shared_secret::prove(right)));
  CHECK(host.knows(2));
}
