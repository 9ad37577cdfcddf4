// SPDX-License-Identifier: BSL-1.0
// Attempts with unusable addresses, objects or data.
#include "catch.hpp"
#include "device/connecting/cm_support.hpp"

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

namespace test::cm_unusable_tests {
namespace {

using std::chrono::milliseconds;

/// A port of the device without a listener, which no other program takes meanwhile: on soft and on
/// iWARP it is one of TCP.
class unused_port {
public:
  explicit unused_port(meeting& m) : held_(m.io, endpoint(device_address(m.dev), 0)) {}
  operator endpoint() const { return held_.local_endpoint(); }

private:
  asio::ip::tcp::socket held_;
};

/// Has TCP of the lab's kernel give up after three seconds rather than two minutes.
class short_tcp_patience {
public:
  explicit short_tcp_patience(bool of_iwarp) {
    if (!of_iwarp)
      return;
    std::ifstream(path) >> before_;
    std::ofstream(path) << 1;
  }
  short_tcp_patience(const short_tcp_patience&) = delete;
  ~short_tcp_patience() {
    if (before_ != 0)
      std::ofstream(path) << before_;
  }

private:
  static constexpr const char* path = "/proc/sys/net/ipv4/tcp_syn_retries";
  int before_ = 0;
};

} // namespace

TEST_CASE("no acceptor listens") {
  meeting m;
  const unused_port port(m);
  m.initiator->async_connect(m.a, endpoint(port), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.ec == error::peer_not_listening);
  m.check_next_attempt();
}

TEST_CASE("an address without a route is reported as unreachable") {
  meeting m;
  m.initiator->async_connect(m.a, endpoint(asio::ip::make_address("203.0.113.1"), 7),
                             m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  if (std::getenv("ASIO_RDMA_IN_LAB") != nullptr)
    CHECK(m.connected.ec == error::unreachable);
  else // the route may use a network interface that belongs to no RDMA device
    CHECK(m.connected.ec);
  m.check_next_attempt();
}

TEST_CASE("objects that are not open report that") {
  asio::io_context io;
  error_code ec;
  const acceptor listener(io);
  CHECK(listener.local_endpoint(ec) == endpoint());
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_THROWS_AS(listener.local_endpoint(), system_error);
  connection_request request;
  CHECK(request.info().data.empty());
  CHECK(request.device_name().empty());
  request.reject({}, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_THROWS_AS(request.reject(), system_error);
  CHECK_THROWS_AS(queue_pair(io).query(IBV_QP_STATE), system_error);
  CHECK(completion_queue().native_handle() == nullptr);
}

TEST_CASE("an address without a device is reported as unreachable") {
  meeting m;
  m.initiator->async_connect(m.a, endpoint(asio::ip::address_v4::any(), 7), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.ec != error::no_device);
  if (std::getenv("ASIO_RDMA_IN_LAB") != nullptr)
    CHECK(m.connected.ec == error::unreachable);
  m.check_next_attempt();
}

TEST_CASE("an address that does not answer") {
  const bool iwarp = open_device().type() == transport::iwarp;
  if (iwarp && std::getenv("ASIO_RDMA_IN_LAB") == nullptr)
    return not_on_this_device("the end of the context would wait for TCP, two minutes");
  const short_tcp_patience patience(iwarp);
  meeting m;
  if (device_address(m.dev).is_loopback())
    return not_on_this_device("each address of the loopback network answers");
  connect_options c;
  c.timeout = milliseconds(50);
  auto bytes = device_address(m.dev).to_v4().to_bytes();
  bytes[3] = static_cast<unsigned char>(bytes[3] ^ 0x40);
  const endpoint silent(asio::ip::address_v4(bytes), 7);
  queue_pair waiting(m.io, m.pd);
  connector other(m.io);
  connection earlier;
  other.async_connect(waiting, silent, earlier.handler());
  m.initiator->async_connect(m.a, silent, c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK_FALSE(earlier.done()); // siw connects TCP inside the system call, until it gives up
  other.cancel();
  m.until([&] { return earlier.done(); });
  if (iwarp)
    CHECK(m.connected.ec == asio::error::timed_out);
  else
    CHECK((m.connected.ec == asio::error::timed_out || m.connected.ec == error::unreachable));
  m.check_next_attempt(meeting::peer::reached);
}

TEST_CASE("no endpoint of a range answers") {
  meeting m;
  m.initiator->async_connect(m.a, std::vector<endpoint>(), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::not_found);
  m.connected = {};
  const unused_port first(m), second(m);
  m.initiator->async_connect(m.a, std::array<endpoint, 2>{first, second}, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.calls == 1);
  CHECK(m.connected.ec == error::peer_not_listening);
  std::ostringstream last;
  last << "nothing listens at " << endpoint(second);
  CHECK(m.connected.ec.message() == last.str());
  m.check_next_attempt();
}

TEST_CASE("private data too long") {
  meeting m;
  const data_limits most(m.dev);
  connect_options c;
  c.data = private_data(most.request + 1);
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::message_size);

  m.connected = {};
  accept_options o;
  o.data = private_data(most.acceptance + 1);
  m.listener->async_accept(m.b, o, m.accepted.handler());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == asio::error::message_size);
  CHECK(m.b.state() == queue_pair_state::open);

  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.connect();
  m.until([&] { return request.done(); });
  m.accepted = {};
  m.listener->async_accept(std::move(request.value), m.b, o, m.accepted.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.accepted.ec == asio::error::message_size);
  CHECK(m.connected.ec == error::rejected);
  CHECK(m.b.state() == queue_pair_state::open);
  m.check_next_attempt(meeting::peer::reached);
}

TEST_CASE("a queue pair that is connected, or being connected, is not connected again") {
  meeting m;
  connection second;
  m.connect();
  m.initiator->async_connect(m.a, m.where(), second.handler());
  CHECK_FALSE(second.done());
  m.until([&] { return second.done(); });
  CHECK(second.ec == asio::error::already_connected);
  m.accept();
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());

  second = {};
  m.initiator->async_connect(m.a, m.where(), second.handler());
  m.until([&] { return second.done(); });
  CHECK(second.ec == asio::error::already_connected);

  second = {};
  m.listener->async_accept(m.b, second.handler());
  CHECK_FALSE(second.done());
  m.until([&] { return second.done(); });
  CHECK(second.ec == asio::error::already_connected);
  CHECK(m.carries("undisturbed"));
}

TEST_CASE("closed and failed queue pairs, and a closed acceptor") {
  meeting m;
  m.meet();
  outcome<void> gone; // is work until the end is noticed
  m.b.async_wait_disconnect(gone.handler());
  m.a.close();
  m.connected = {};
  m.connect();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::bad_descriptor);

  m.accepted = {};
  queue_pair closed(m.io);
  m.listener->async_accept(closed, m.accepted.handler());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == asio::error::bad_descriptor);

  m.until([&] { return gone.done(); });
  CHECK(m.b.state() == queue_pair_state::failed);
  m.connected = {};
  m.initiator->async_connect(m.b, m.where(), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::connection_reset);

  m.accepted = {};
  m.listener->close();
  CHECK_FALSE(m.listener->is_open());
  m.accept();
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == asio::error::bad_descriptor);
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.until([&] { return request.done(); });
  CHECK(request.ec == asio::error::bad_descriptor);
  CHECK_FALSE(request.value.is_open());
}

TEST_CASE("addresses that cannot be listened at") {
  meeting m;
  error_code ec;
  m.listener->open({device_address(m.dev), 0}, 1, ec);
  CHECK(ec == asio::error::already_open);

  acceptor other(m.io);
  other.open(m.where(), 1, ec);
  CHECK(ec == asio::error::address_in_use);
  CHECK_FALSE(other.is_open());
  other.open({asio::ip::make_address("203.0.113.1"), 0}, 1, ec);
  CHECK(ec == error::no_gid);
  const std::string own = device_address(m.dev).to_string() + " (" + m.dev.name() + ")";
  CHECK(ec.message().find(own) != std::string::npos);
  try {
    other.open({asio::ip::make_address("203.0.113.1"), 0});
    FAIL("nothing was thrown");
  } catch (const system_error& e) { // names the address, and those that exist
    CHECK(std::string(e.what()).find("acceptor::open 203.0.113.1:0: ") == 0);
    CHECK(std::string(e.what()).find(own) != std::string::npos);
  }
  if (device_address(m.dev).is_loopback())
    return;
  other.open({asio::ip::address_v4::loopback(), 0}, 1, ec);
  INFO(describe(ec));
  CHECK(ec == error::loopback_address);
  // The message names the address to use.
  CHECK(ec.message().find(own) != std::string::npos);

  // If one of the two addresses is the wildcard, the kernel reports no address.
  {
    const auto all = device_address(m.dev).is_v6() ? asio::ip::address(asio::ip::address_v6::any())
                                                   : asio::ip::address(asio::ip::address_v4::any());
    acceptor everywhere(m.io, {all, 0});
    for (const auto& at : {all, device_address(m.dev)}) {
      other.open({at, everywhere.local_endpoint().port()}, 1, ec);
      CHECK(ec == asio::error::address_in_use);
    }
    other.open({all, m.where().port()}, 1, ec);
    CHECK(ec == asio::error::address_in_use);
  }

  // The port can be used again at once.
  const endpoint before = m.where();
  m.meet();
  m.listener->close();
  m.listener->open(before);
  CHECK(m.where() == before);
}

TEST_CASE("another device's queue pair") {
  const device own = open_device();
  device other;
  for (const auto& d : device::list())
    if (d.name != own.name() && d.port_active)
      other = device::open(d.name);
  if (!other.is_open()) {
    return not_on_this_device("needs two devices");
  }
  meeting m;
  const protection_domain pd(other);
  queue_pair wrong(m.io, pd);
  m.initiator->async_connect(wrong, m.where(), m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.ec == error::wrong_device);
  CHECK(m.connected.ec.message().find(own.name() + ", and the queue pair is of " + other.name()) !=
        std::string::npos);
  CHECK(wrong.state() == queue_pair_state::open);

  m.connected = {};
  m.listener->async_accept(wrong, m.accepted.handler());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.accepted.ec == error::wrong_device);
  CHECK(wrong.state() == queue_pair_state::open);
  m.check_next_attempt(meeting::peer::reached);

  // An acceptor at the addresses of all devices does not know before the request. Its log tells.
  std::vector<std::string> lines;
  set_log([&](const log_record& r) {
    if (r.event == log_event::refuse)
      lines.emplace_back(r.text);
  });
  acceptor everywhere(m.io, endpoint(asio::ip::address_v4::any(), 0));
  const endpoint there(device_address(m.dev), everywhere.local_endpoint().port());
  connection refused, rejected;
  queue_pair connecting(m.io, m.pd);
  everywhere.async_accept(wrong, refused.handler());
  m.initiator->async_connect(connecting, there, rejected.handler());
  m.until([&] { return refused.done() && rejected.done(); });
  set_log({});
  CHECK(refused.ec == error::wrong_device);
  CHECK(rejected.ec == error::rejected);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("cannot be accepted here: the address belongs to the RDMA device " +
                      own.name() + ", and the queue pair is of " + other.name()) !=
        std::string::npos);
  CHECK(wrong.state() == queue_pair_state::open);
}

} // namespace test::cm_unusable_tests
