// SPDX-License-Identifier: BSL-1.0
// Two hosts of the lab: a black hole and a cut cable between them.
#include "catch.hpp"
#include "cm_support.hpp"

#include <asio_rdma/device_events.hpp>

#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <list>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace {

using namespace test;

void run(const std::string& command) {
  INFO(command);
  REQUIRE(std::system(("PATH=$PATH:/usr/sbin:/sbin " + command).c_str()) == 0);
}

// This thread is on a host from now on: what it makes belongs to that network.
void enter_host(int number) {
  const int ns = ::open(("/run/netns/h" + std::to_string(number)).c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(ns >= 0);
  REQUIRE(::setns(ns, CLONE_NEWNET) == 0);
  ::close(ns);
}

// The kind of device that the lab has on each host.
device device_of(int number) {
  for (const auto& d : device::list())
    if (d.name.back() == '0' + number)
      return device::open(d.name);
  throw std::runtime_error("no device on the host");
}

// Connected from the second host to the first. Writes go both ways until they fail.
struct cable {
  explicit cable(const queue_pair_options& options) {
    enter_host(1);
    b.open(pd1, options);
    listener.open({asio::ip::make_address("10.0.0.1"), 0});
    const endpoint to = listener.local_endpoint();
    listener.async_accept(b, accepted.handler());
    enter_host(2);
    a.open(pd2, options);
    initiator.async_connect(a, to, connected.handler());
    until(io, [&] { return accepted.done() && connected.done(); });
    INFO(describe(accepted.ec) << ", " << describe(connected.ec));
    REQUIRE(accepted.succeeded());
    REQUIRE(connected.succeeded());
    got first;
    sent hello;
    b.async_receive(m1.buffer(0, 64), first.handler());
    a.async_send(m2.buffer(0, 64), hello.handler());
    until(io, [&] { return first.done() && hello.done(); });
    REQUIRE(first.succeeded());
  }

  void write(queue_pair& qp, memory& from, memory& to) {
    ++started;
    qp.async_write(from.buffer(), to.remote(), [&](error_code ec, std::size_t) {
      ++ended;
      if (!ec)
        return write(qp, from, to);
      ec == asio::error::connection_reset ? ++reset : 0;
      ec == errc::timed_out ? ++timed_out : 0;
    });
  }
  void write_both_ways() {
    for (int i = 0; i < 8; ++i) {
      write(a, m2, m1);
      write(b, m1, m2);
    }
    until(io, [&] { return ended > 100 || ended == started; });
  }

  device d1 = device_of(1), d2 = device_of(2);
  protection_domain pd1{d1}, pd2{d2};
  memory m1{pd1, 4096, all_rights}, m2{pd2, 4096, all_rights};
  int started = 0, ended = 0, reset = 0, timed_out = 0;
  connection accepted, connected;
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  queue_pair a{io}, b{io};
};

} // namespace

TEST_CASE("a black hole ends everything that is under way") {
  cable c(impatient());
  c.write_both_ways();
  got waiting;
  c.a.async_receive(c.m2.buffer(0, 64), waiting.handler());
  run("tc -n h1 qdisc add dev v1 root netem loss 100%");
  until(c.io, [&] { return c.ended == c.started && waiting.done(); });
  run("tc -n h1 qdisc del dev v1 root");
  CHECK(waiting.ec == asio::error::connection_reset);
  CHECK(c.timed_out + c.reset == 16);
  CHECK(c.timed_out > 0);
}

TEST_CASE("a cut cable ends everything that is under way, and the device tells") {
  cable c(impatient());
  device_events events(c.io, c.d2);
  outcome<device_event> event;
  events.async_wait_event(event.handler());
  c.write_both_ways();
  got waiting;
  c.a.async_receive(c.m2.buffer(0, 64), waiting.handler());
  run("ip -n h1 link set v1 down");
  until(c.io, [&] { return c.ended == c.started && waiting.done() && event.done(); });
  run("ip -n h1 link set v1 up");
  CHECK(event.value.type == IBV_EVENT_PORT_ERR);
  CHECK(waiting.ec == asio::error::connection_reset);
  CHECK(c.timed_out + c.reset == 16);
}
