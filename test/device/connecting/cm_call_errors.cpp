// SPDX-License-Identifier: BSL-1.0
// Calls of the connection manager that fail outside an attempt's own steps, and events that come
// late.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"

#include <atomic>
#include <cerrno>
#include <thread>

namespace test::cm_call_errors_tests {
namespace {

using std::chrono::milliseconds;

std::function<int(cm_call, const rdma_cm_id*)> fails(cm_call failing, int error) {
  return [=](cm_call call, const rdma_cm_id*) {
    return call == failing ? error : 0;
  };
}

} // namespace

TEST_CASE("an event that cannot be read is read later") {
  bool failed = true;
  for (int nth = 0; failed; ++nth) {
    INFO("read " << nth);
    meeting m;
    int reads = 0;
    const hooks h;
    before_reading = [&] {
      return reads++ == nth ? ENOMEM : 0;
    };
    m.meet();
    failed = reads > nth;
    CHECK((failed || nth >= 4)); // two resolved, a request, a response
  }
}

// The kernel refuses to read if the credentials of the process have changed.
TEST_CASE("an event that may not be read is not read again before the next event") {
  meeting m;
  constexpr int too_often = 1000;
  int reads = 0;
  const hooks h;
  before_reading = [&] {
    return ++reads < too_often ? EACCES : 0;
  };
  m.accept();
  m.connect();
  m.until([&] { return reads != 0; });
  m.io.poll();
  CHECK(reads < too_often);
  CHECK_FALSE(m.connected.done());
  before_reading = nullptr;
  queue_pair another(m.io, m.pd);
  connection unwanted;
  m.initiator->async_connect(another, m.where(), unwanted.handler()); // brings the next event
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded() != unwanted.succeeded());
  CHECK(m.accepted.succeeded());
  m.listener->close();
  m.until([&] { return unwanted.done(); });
}

TEST_CASE("an acceptor whose address cannot be bound or listened at can be opened again") {
  const auto failing = GENERATE(cm_call::bind_address, cm_call::listen);
  asio::io_context io;
  acceptor a(io);
  const endpoint at(device_address(open_device()), 0);
  const hooks h;
  before_cm_call = fails(failing, ENOMEM);
  error_code ec;
  a.open(at, 8, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK_FALSE(a.is_open());
  before_cm_call = nullptr;
  a.open(at, 8, ec);
  CHECK_FALSE(ec);
  CHECK(a.local_endpoint().port() != 0);
}

TEST_CASE("an acceptor at a used port fails though it cannot make the id that asks for the cause") {
  asio::io_context io;
  acceptor first(io, endpoint(device_address(open_device()), 0));
  const endpoint at(asio::ip::address_v4::any(), first.local_endpoint().port());
  int ids = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    return call == cm_call::create_id && ids++ == 1 ? EMFILE : 0;
  };
  acceptor second(io);
  error_code ec;
  second.open(at, 8, ec);
  INFO(describe(ec));
  CHECK(ec);
  CHECK_FALSE(second.is_open());
}

TEST_CASE("a request whose rejection fails is rejected when it is destroyed") {
  meeting m;
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.connect();
  m.until([&] { return request.done(); });
  const hooks h;
  before_cm_call = fails(cm_call::reject, ENOMEM);
  error_code ec;
  request.value.reject({}, ec);
  CHECK(ec == errc::not_enough_memory);
  CHECK_FALSE(m.connected.done());
  request.value = {};
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected);
}

TEST_CASE("the peer learns of a close though the disconnect fails") {
  const bool of_connector = GENERATE(true, false);
  meeting m;
  m.meet();
  outcome<void> ended;
  (of_connector ? m.b : m.a).async_wait_disconnect(ended.handler());
  const hooks h;
  before_cm_call = fails(cm_call::disconnect, ENOMEM);
  (of_connector ? m.a : m.b).close();
  m.until([&] { return ended.done(); });
  CHECK(ended.ec == asio::error::connection_reset);
}

TEST_CASE("an accept ends by its timeout if it can neither be confirmed nor notified") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  got arrived;
  m.b.async_receive(m.mb.buffer(0, 64), arrived.handler());
  accept_options o;
  o.timeout = milliseconds(500);
  m.listener->async_accept(m.b, o, m.accepted.handler());
  unconfirmed connector(m);
  int notified = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    notified += call == cm_call::notify ? 1 : 0;
    return call == cm_call::notify ? ENOMEM : 0;
  };
  connector.send();
  m.until([&] { return m.accepted.done(); });
  CHECK(notified == 1);
  CHECK(m.accepted.calls == 1);
  CHECK(m.accepted.ec == asio::error::timed_out);
  m.until([&] { return arrived.done(); });
  CHECK_FALSE(arrived.ec); // it came before
}

TEST_CASE("a connect reports the errno of a failure inside librdmacm") {
  meeting m;
  const hooks h;
  edit_event = [](rdma_cm_event& event) { // as if it could not open the device (ucma_get_device)
    if (event.event != RDMA_CM_EVENT_ADDR_RESOLVED)
      return;
    event.event = RDMA_CM_EVENT_ADDR_ERROR;
    event.status = -1;
    errno = EMFILE;
  };
  m.connect();
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == errc::too_many_files_open);
}

// The second id often gets the address of the first, and has no device yet.
TEST_CASE("an event that arrives after its id was destroyed concerns no later id") {
  const device dev = open_device();
  const protection_domain pd(dev);
  connection accepted, connected;
  asio::io_context io; // for two threads
  acceptor listener(io, endpoint(device_address(dev), 0));
  connector initiator(io);
  queue_pair a(io, pd), b(io, pd);
  std::atomic<int> resolving{0};
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    if (call == cm_call::resolve_address) {
      ++resolving;
      resolving.notify_all();
    }
    return 0;
  };
  after_acknowledgement = [&](rdma_cm_event_type type) {
    if (type == RDMA_CM_EVENT_ADDR_RESOLVED)
      resolving.wait(1); // until the other thread has handled the timeout
  };
  listener.async_accept(b, accepted.handler());
  connect_options o;
  o.timeout = milliseconds(1000); // for each of the two
  initiator.async_connect(a, std::vector(2, listener.local_endpoint()), o, connected.handler());
  const auto run = [&] {
    while (resolving < 2)
      io.run_one_for(milliseconds(10));
  };
  std::thread other(run);
  run();
  other.join();
  until(io, [&] { return connected.done() && accepted.done(); });
  CHECK(connected.succeeded());
  CHECK(accepted.succeeded());
}

} // namespace test::cm_call_errors_tests
