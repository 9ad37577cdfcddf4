// SPDX-License-Identifier: BSL-1.0
// Two hosts: attempts to connect to an unused address, or to a host that does not answer.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/two_hosts/hosts_support.hpp"

#include <atomic>
#include <chrono>
#include <optional>

namespace test::hosts_connect_tests {
namespace {

struct caller {
  const on_host here{2};
  device dev = device_of(2);
  protection_domain pd{dev};
  memory m{pd, 4096, all_rights};
  asio::io_context io{1};
  connector initiator{io};
  queue_pair qp{io};

  caller() { qp.open(pd); }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
};

// An unused address of the network of both hosts.
const endpoint nowhere(asio::ip::make_address("10.0.0.9"), 7471);

// An acceptor that the caller can reach.
struct listening {
  explicit listening(caller& c) : listener(c.io), qp(c.io) {
    const on_host there(1);
    listener.open({address_of(1), 0});
    qp.open(pd);
    listener.async_accept(qp, accepted.handler());
  }
  device dev = device_of(1);
  protection_domain pd{dev};
  connection accepted;
  acceptor listener;
  queue_pair qp;
};

void connects_after_all(caller& c) {
  listening there(c);
  connection connected;
  c.initiator.async_connect(c.qp, there.listener.local_endpoint(), connected.handler());
  c.until([&] { return connected.done() && (connected.ec || there.accepted.done()); });
  INFO(describe(connected.ec) << ", " << describe(there.accepted.ec));
  CHECK(connected.succeeded());
  CHECK(there.accepted.succeeded());
}

} // namespace

TEST_CASE("an unused address: the attempt times out and the queue pair stays usable") {
  caller c;
  connection connected;
  connect_options options;
  options.timeout = std::chrono::milliseconds(GENERATE(1, 300, 1500));
  c.initiator.async_connect(c.qp, nowhere, options, connected.handler());
  c.until([&] { return connected.done(); });
  INFO(describe(connected.ec));
  CHECK(connected.calls == 1);
  CHECK(connected.ec == errc::timed_out);
  CHECK(c.qp.state() == queue_pair_state::open);
  connects_after_all(c);
}

TEST_CASE("an unused address: the attempt can be cancelled, and the next succeeds") {
  caller c;
  connection connected;
  asio::cancellation_signal signal;
  c.initiator.async_connect(c.qp, nowhere,
                            asio::bind_cancellation_slot(signal.slot(), connected.handler()));
  SECTION("by its slot") {
    asio::post(c.io, [&] { signal.emit(asio::cancellation_type::total); });
  }
  SECTION("by the connector") {
    asio::post(c.io, [&] { c.initiator.cancel(); });
  }
  c.until([&] { return connected.done(); });
  CHECK(connected.calls == 1);
  CHECK(connected.ec == asio::error::operation_aborted);
  CHECK(c.qp.state() == queue_pair_state::open);
  connects_after_all(c);
}

TEST_CASE("an unused address is tried before an address that answers") {
  caller c;
  listening there(c);
  connection connected;
  connect_options options;
  options.timeout = std::chrono::milliseconds(500);
  const std::vector<endpoint> both{nowhere, there.listener.local_endpoint()};
  c.initiator.async_connect(c.qp, both, options, connected.handler());
  c.until([&] { return connected.done() && (connected.ec || there.accepted.done()); });
  INFO(describe(connected.ec));
  REQUIRE(connected.succeeded());
  CHECK(connected.value.remote == both[1]);
}

TEST_CASE("a loopback address of a family that the device has no address of") {
  run("ip -n h2 -6 addr flush dev v2"); // a RoCE device keeps a GID without an address
  caller c;
  connection connected;
  c.initiator.async_connect(c.qp, endpoint(asio::ip::address_v6::loopback(), 7471),
                            connected.handler());
  c.until([&] { return connected.done(); });
  INFO(describe(connected.ec));
  CHECK(connected.ec == error::loopback_address);
  CHECK(connected.ec.message().find(c.dev.addresses().front().to_string()) != std::string::npos);
  connects_after_all(c);
}

// siw makes its TCP connection inside rdma_connect(3), on a thread of the library. In this test the
// call returns only when packets arrive again, or after two minutes. If the attempt ends during the
// call, its queue pair has failed. If the call itself fails, the queue pair stays open.
TEST_CASE("a host that is there and does not answer: the attempt times out or is cancelled",
          "[h17]") {
  caller c;
  const bool iwarp = c.dev.type() == transport::iwarp;
  connects_after_all(c); // from here on the network address is known
  const auto reopen = [&] {
    c.qp.close();
    c.qp.open(c.pd);
  };
  reopen();
  std::optional<listening> there(c);
  connection connected;
  connect_options options;
  std::atomic<bool> called = false; // rdma_connect
  const hooks functions{};
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    called = called || call == cm_call::connect;
    return 0;
  };
  const auto connect = [&] {
    connected = {};
    c.initiator.async_connect(c.qp, there->listener.local_endpoint(), options, connected.handler());
  };
  {
    const loss silent(1, 100);
    SECTION("times out") {
      options.timeout = std::chrono::milliseconds(500);
      while (!called) { // more than once if the machine is so slow that no call begins
        connect();
        c.until([&] { return connected.done(); });
        REQUIRE(connected.ec == errc::timed_out);
        options.timeout *= 2;
      }
    }
    SECTION("is cancelled") {
      connect();
      // On rxe the answer to the request is lost.
      test::until({&c.io}, [&] { return called && (iwarp || silent.packets() != 0); });
      c.initiator.cancel();
      c.until([&] { return connected.done(); });
      CHECK(connected.ec == asio::error::operation_aborted);
    }
    CHECK(connected.calls == 1);
    CHECK(c.qp.state() == (iwarp ? queue_pair_state::failed : queue_pair_state::open));
  }
  there->listener.close(); // siw: TCP then refuses the next SYN, and the call returns
  there->qp.close();
  c.until([&] { return there->accepted.done(); });
  there.reset();
  if (iwarp)
    reopen();
  connects_after_all(c);
}

} // namespace test::hosts_connect_tests
