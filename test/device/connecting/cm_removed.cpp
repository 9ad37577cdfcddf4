// SPDX-License-Identifier: BSL-1.0
// The removal of the device of an acceptor that is being opened.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"

#include <boost/asio/executor_work_guard.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace test::cm_removed_tests {
namespace {

using std::chrono::milliseconds;

/// A context that another thread runs. The next event of that context is changed to the removal of
/// the device of any id.
struct removal {
  removal() {
    other = std::thread([this] { io.run(); });
  }
  ~removal() {
    initiator.cancel();
    work.reset();
    other.join();
  }

  /// Returns when the event has been read and acknowledged. Its handler may still be running.
  void of(rdma_cm_id* removed) {
    edit_event = [this, removed](rdma_cm_event& event) {
      if (!acknowledged) {
        event.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
        event.id = removed;
      }
    };
    after_acknowledgement = [this](rdma_cm_event_type) {
      acknowledged = true;
      acknowledged.notify_all();
    };
    initiator.async_connect(a, endpoint(at.address(), 1), connected.handler()); // has events
    acknowledged.wait(false);
  }

  device dev = open_device();
  protection_domain pd{dev};
  endpoint at{device_address(dev), 0};
  connection connected;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  acceptor first{io, at}; // makes the event channel, which binds ids as well
  connector initiator{io};
  queue_pair a{io, pd};
  std::atomic<bool> acknowledged{false};
  std::thread other;
};

} // namespace

// If the thread that reads the removal does not wait, it destroys the id within the time for which
// the opening thread waits.
TEST_CASE("the removal of an acceptor's device waits until the acceptor has been opened") {
  const auto before = GENERATE(cm_call::bind_address, cm_call::listen);
  removal r;
  acceptor listener(r.io);
  std::atomic<const rdma_cm_id*> removed{nullptr};
  std::atomic<bool> destroyed{false};
  const hooks h;
  before_destruction = [&](const rdma_cm_id* id) {
    if (id == removed) {
      destroyed = true;
      destroyed.notify_all();
    }
  };
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    if (call != before || removed != nullptr)
      return 0;
    removed = id;
    r.of(const_cast<rdma_cm_id*>(id));
    for (int left = 100; left != 0 && !destroyed; --left)
      std::this_thread::sleep_for(milliseconds(1));
    CHECK_FALSE(destroyed);
    return 0;
  };
  error_code ec;
  listener.open(r.at, 8, ec);
  REQUIRE_FALSE(ec);
  destroyed.wait(false);
  queue_pair b(r.io, r.pd);
  std::atomic<bool> done{false};
  listener.async_accept(b, [&](error_code e, const connection_info&) {
    ec = e;
    done = true;
    done.notify_all();
  });
  done.wait(false);
  CHECK(ec == error::device_removed);
}

TEST_CASE("an event of the id that asks why an address is refused finds the acceptor") {
  removal r;
  acceptor second(r.io);
  int bound = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id* id) {
    if (call == cm_call::bind_address && ++bound == 2) { // the first one is the acceptor's own
      CHECK(id->context != nullptr);
      r.of(const_cast<rdma_cm_id*>(id));
    }
    return 0;
  };
  error_code ec;
  second.open(endpoint(asio::ip::address_v4::any(), r.first.local_endpoint().port()), 8, ec);
  CHECK(bound >= 2);
  CHECK(ec == asio::error::address_in_use);
  CHECK_FALSE(second.is_open());
}

} // namespace test::cm_removed_tests
