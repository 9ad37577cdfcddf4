// SPDX-License-Identifier: BSL-1.0
//
// The lifetime of a device: when its ibv_context is closed.
#include "catch.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"
#include "verbs/device_listeners.hpp"

#include <asio_rdma/device_events.hpp>
#include <boost/asio/executor_work_guard.hpp>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace test::device_close_tests {

TEST_CASE("a device is closed when the last copy and the last object made on it are destroyed") {
  constexpr int times = 200;
  asio::io_context io(1);
  using use = std::function<void(queue_pair&, faults::injector&)>;
  use f;
  SECTION("which has done nothing") {
    f = [](queue_pair&, faults::injector&) {
    };
  }
  SECTION("which has failed") {
    f = [&io](queue_pair& qp, faults::injector& faults) {
      outcome<void> ended;
      qp.async_wait_disconnect(ended.handler());
      faults.raise_qp_event(qp.native_handle());
      until(io, [&] { return ended.done(); });
      REQUIRE(ended.ec == error::queue_pair_fatal);
    };
  }
  SECTION("with an event that was not read") {
    f = [](queue_pair&, faults::injector& faults) {
      faults.raise_port_event();
    };
  }
  SECTION("with an event that is about to be read") {
    f = [&io](queue_pair& qp, faults::injector& faults) {
      qp.async_wait_disconnect([](error_code) {});
      faults.raise_port_event();
      io.restart();
      io.poll_one(); // the reactor handles the event
    };
  }
  const auto open_and_drop = [&] {
    {
      const device dev = open_device();
      faults::injector faults(dev.native_handle());
      const protection_domain pd(dev);
      queue_pair qp(io, pd), other(io, pd);
      f(qp, faults);
      qp.close();
      other.close();
    }
    drain(io);
  };
  open_and_drop();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < times; ++i)
    open_and_drop();
  CHECK(open_descriptors() == before);
}

namespace {

/// A listener that gets an event before the library's objects if it is added before them.
struct first_listener final : detail::device_listener {
  explicit first_listener(std::function<void()> f) : then(std::move(f)) {}
  void on_event(const ibv_async_event&, detail::notified_objects&) noexcept override { then(); }

  std::function<void()> then;
};

} // namespace

// While an event is being reported, the context's last object closes and another one opens. Then
// the device has two listeners of the same context for a moment.
TEST_CASE("an event is reported to an object once while another one closes") {
  asio::io_context io;
  auto work = asio::make_work_guard(io);
  const device dev = open_device();
  faults::injector faults(dev.native_handle());
  device_events closing(io), opening(io);
  outcome<device_event> first, second;
  std::thread closes;
  first_listener before([&] {
    closes = std::thread([&] { closing.close(); }); // waits until the event has been reported
    for (int left = 20000; left != 0; --left)
      std::this_thread::yield();
    std::thread([&] {
      opening.open(dev);
      opening.async_wait_event(first.handler());
      opening.async_wait_event(second.handler());
    }).join();
  });
  dev.listeners().add(before);
  closing.open(dev);
  faults.raise_port_event();
  until(io, [&] { return first.done(); });
  closes.join();
  dev.listeners().remove(before);
  CHECK(first.succeeded());
  work.reset();
  opening.close();
  drain(io);
  CHECK(second.ec == asio::error::operation_aborted);
}

TEST_CASE("queue pairs of a device are opened and closed on several threads during its events") {
  asio::io_context io;
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  auto work = asio::make_work_guard(io);
  std::vector<std::thread> runners, users;
  for (int i = 0; i < 2; ++i)
    runners.emplace_back([&io] { io.run(); });
  std::atomic<int> failed{0};
  for (int i = 0; i < 2; ++i)
    users.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        queue_pair qp(io);
        error_code ec;
        qp.open(pd, {}, ec);
        failed += ec ? 1 : 0;
        faults.raise_port_event();
      }
    });
  for (std::thread& t : users)
    t.join();
  work.reset();
  for (std::thread& t : runners)
    t.join();
  CHECK(failed == 0);
}

} // namespace test::device_close_tests
