// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/failing_allocation.hpp"
#include "interposer/faults.hpp"
#include "queues/queue_pair_impl.hpp"

#include <algorithm>
#include <array>
#include <asio_rdma_soft.h>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <linux/capability.h>
#include <memory>
#include <new>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

// The function is there if the software device is.
#pragma weak soft_set

namespace test::device_events_tests {
namespace {

using event = outcome<device_event>;

// The name of the network interface of the device's first port.
std::string interface_of(const device& d) {
  std::ifstream file("/sys/class/infiniband/" + d.name() + "/ports/1/gid_attrs/ndevs/0");
  std::string name;
  file >> name;
  return name;
}

void change_link(const std::string& interface, const char* to) {
  const std::string command = "ip link set dev " + interface + " " + to;
  REQUIRE(std::system(command.c_str()) == 0);
}

// The software device limits the memory as the kernel does.
struct kernel_like {
  kernel_like() {
    if (soft_set != nullptr)
      REQUIRE(soft_set("locks_memory=1") == 0);
  }
  kernel_like(const kernel_like&) = delete;
  ~kernel_like() {
    if (soft_set != nullptr)
      soft_set(nullptr);
  }
};

// Removes this thread's right to lock memory beyond the limit.
class limited_memory {
public:
  explicit limited_memory(rlim_t bytes) {
    getrlimit(RLIMIT_MEMLOCK, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    syscall(SYS_capget, &header_, data_);
    __user_cap_data_struct less[2] = {data_[0], data_[1]};
    less[0].effective &= ~(1u << CAP_IPC_LOCK);
    done_ = syscall(SYS_capset, &header_, less) == 0;
  }
  limited_memory(const limited_memory&) = delete;
  ~limited_memory() {
    syscall(SYS_capset, &header_, data_);
    setrlimit(RLIMIT_MEMLOCK, &before_);
  }
  bool done() const { return done_; }

private:
  rlimit before_{};
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data_[2]{};
  bool done_ = false;
};

/// Calls a function on an event.
class at_event final : public detail::context_member {
public:
  at_event(const device& d, std::function<void()> f) : device_(d), do_(std::move(f)) {}
  void on_context_shutdown() override {}
  void on_device_event(const ibv_async_event&) noexcept override { do_(); }
  const device& member_device() const noexcept override { return device_; }

private:
  device device_;
  std::function<void()> do_;
};

} // namespace

TEST_CASE("the list of devices has the one that is opened") {
  const device dev = open_device();
  const auto list = device::list();
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const auto& d) { return d.name == dev.name(); });
  REQUIRE(found != list.end());
  CHECK(found->type == dev.type());
  CHECK(found->guid != 0);
  CHECK(found->port_active);
  CHECK_FALSE(found->open_error);
  CHECK(dev.type() != transport::other);

  error_code ec;
  const device first = device::open_first(ec);
  CHECK_FALSE(ec);
  CHECK(first.is_open());
  CHECK(first != dev); // opened twice
  const device copy = dev;
  CHECK(copy == dev);
  CHECK_FALSE(device().is_open());
}

TEST_CASE("access rights imply the rights that verbs require") {
  using detail::verbs_access;
  CHECK(verbs_access(access::local_read) == 0);
  CHECK(verbs_access(access::local_write) == IBV_ACCESS_LOCAL_WRITE);
  CHECK(verbs_access(access::remote_read) == IBV_ACCESS_REMOTE_READ);
  CHECK(verbs_access(access::remote_write) == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  CHECK(verbs_access(access::remote_atomic) == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  CHECK(detail::window_access(access::remote_write) == IBV_ACCESS_REMOTE_WRITE);
  const device dev = open_device();
  const protection_domain pd(dev);
  for (const access rights :
       {access::local_read, access::local_write, access::remote_read, access::remote_write,
        access::local_write | access::relaxed_ordering, most_rights(dev)}) {
    memory m(pd, 100, rights);
    CHECK(m.region.is_open());
    CHECK(m.region.size() == 100);
    CHECK(m.remote(40).size == 60);
    CHECK(m.remote(40, 7).size == 7);
    CHECK(m.remote(101).size == 0);
    CHECK(m.buffer(90, 20).size() == 10);
  }
}

TEST_CASE("nothing is made in a protection domain that is not open") {
  asio::io_context io(1);
  const protection_domain none;
  CHECK_FALSE(none.is_open());
  CHECK(none.native_handle() == nullptr);
  CHECK_FALSE(protection_domain(open_device(), nullptr, ownership::take).is_open());
  error_code ec;
  queue_pair qp(io);
  qp.open(none, {}, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_FALSE(qp.is_open());
  shared_receive_queue srq(io);
  srq.open(none, {}, {}, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_FALSE(srq.is_open());
  std::array<char, 100> bytes{};
  const memory_region region(none, asio::buffer(bytes), access::local_write, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_FALSE(region.is_open());
  const auto dmabuf =
      memory_region::from_dmabuf(none, -1, 0, bytes.size(), 0, access::local_write, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_FALSE(dmabuf.is_open());
  const memory_window window(none, ec);
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_FALSE(window.is_open());
  CHECK(memory_pool(none).allocate(100, ec).empty());
  CHECK(ec == asio::error::bad_descriptor);
  CHECK_THROWS_AS(queue_pair(io, none), system_error);
  CHECK_THROWS_AS(memory_region(none, asio::buffer(bytes)), system_error);
}

TEST_CASE("registering beyond the limit on locked memory reports how to raise the limit") {
  const kernel_like memory;
  const device dev = open_device();
  const protection_domain pd(dev);
  std::vector<char> bytes(1 << 20);
  error_code ec;
  {
    const limited_memory limit(64 * 1024);
    if (!limit.done())
      return;
    const memory_region region(pd, bytes.data(), bytes.size(), access::local_write, ec);
    CHECK_FALSE(region.is_open());
  }
  CHECK(ec == error::memory_limit);
  CHECK(ec == errc::not_enough_memory);
  CHECK(ec.message().find("ulimit -l") != std::string::npos);
  const memory_region region(pd, bytes.data(), bytes.size(), access::local_write, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("events of a device are reported to each waiting object, and kept for an object that "
          "does not wait yet") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  device_events events(p.io, p.dev), others(p.io, p.dev);
  event first, second, third, of_others;
  events.async_wait_event(first.handler());
  CHECK(first.calls == 0);
  faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
  p.until([&] { return first.done(); });
  CHECK(first.value.type == IBV_EVENT_PORT_ERR);
  CHECK(first.value.port == 1);
  CHECK(first.value.queue_pair_number == 0);
  faults.raise_qp_event(p.a.native_handle(), IBV_EVENT_COMM_EST);
  faults.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
  others.async_wait_event(of_others.handler());
  p.until([&] { return of_others.done(); });
  CHECK(of_others.value.type == IBV_EVENT_PORT_ERR);
  events.async_wait_event(second.handler());
  p.until([&] { return second.done(); });
  CHECK(second.value.type == IBV_EVENT_COMM_EST);
  CHECK(second.value.queue_pair_number == p.a.native_handle()->qp_num);
  events.async_wait_event(third.handler());
  p.until([&] { return third.done(); });
  CHECK(third.value.type == IBV_EVENT_PORT_ACTIVE);
  CHECK(p.carries("an event is nothing to a queue pair that it does not concern"));
}

TEST_CASE("the last user of a completion queue may close while an error of the queue is reported") {
  asio::io_context io(1);
  const device dev = open_device();
  const protection_domain pd(dev);
  faults::injector faults(dev.native_handle());
  faults.set_patience(std::chrono::milliseconds(100));
  queue_pair qp(io);
  const auto first =
      std::make_shared<at_event>(dev, [&qp] { std::thread([&qp] { qp.close(); }).join(); });
  auto& service = detail::completion_service::of(io);
  error_code ec;
  REQUIRE(service.add(*first, ec));
  qp.open(pd);
  outcome<void> ended;
  qp.async_wait_disconnect(ended.handler());
  faults.raise_cq_error(qp.impl()->completion_queue()->native_handle());
  until(io, [&] { return ended.done() && faults.counts().async_events_acked == 1; });
  drain(io);
  CHECK(ended.ec == asio::error::operation_aborted);
  CHECK(faults.counts()[faults::call::destroy_cq] == 1);
  CHECK(faults.counts().unacknowledged_at_destroy == 0);
  service.remove(*first);
}

TEST_CASE("events are reported from the opening on") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  device_events events(p.io);
  CHECK_FALSE(events.is_open());
  event none, first;
  events.async_wait_event(none.handler());
  p.until([&] { return none.done(); });
  CHECK(none.ec == asio::error::bad_descriptor);
  error_code ec;
  events.open(p.dev, ec);
  CHECK_FALSE(ec);
  CHECK(events.is_open());
  events.open(p.dev, ec);
  CHECK(ec == asio::error::already_open);
  CHECK_THROWS_AS(events.open(p.dev), system_error);
  events.async_wait_event(first.handler());
  faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
  p.until([&] { return first.done(); });
  CHECK(first.succeeded());
  events.close();
  events.open(p.dev, ec);
  CHECK_FALSE(ec);
}

TEST_CASE("memory of an Asio buffer is registered, or the error is reported") {
  const device dev = open_device();
  const protection_domain pd(dev);
  std::array<char, 100> bytes{};
  error_code ec;
  const memory_region region(pd, asio::buffer(bytes), access::local_write, ec);
  CHECK_FALSE(ec);
  CHECK(region.data() == bytes.data());
  CHECK(region.size() == bytes.size());
  if (dev.has_on_demand_paging())
    return;
  const memory_region refused(pd, asio::buffer(bytes), access::on_demand, ec);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK_FALSE(refused.is_open());
}

TEST_CASE("waiting for a device's event is cancelled, and no event is lost") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  device_events events(p.io, p.dev);
  asio::cancellation_signal signal;
  event slot, all, closed, after;
  events.async_wait_event(asio::bind_cancellation_slot(signal.slot(), slot.handler()));
  signal.emit(asio::cancellation_type::total);
  p.until([&] { return slot.done(); });
  CHECK(slot.ec == asio::error::operation_aborted);
  events.async_wait_event(all.handler());
  events.cancel();
  p.until([&] { return all.done(); });
  CHECK(all.ec == asio::error::operation_aborted);
  faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
  events.async_wait_event(after.handler());
  p.until([&] { return after.done(); });
  CHECK(after.succeeded());
  events.async_wait_event(closed.handler());
  events.close();
  p.until([&] { return closed.done(); });
  CHECK(closed.ec == asio::error::operation_aborted);
  CHECK_FALSE(events.is_open());
}

TEST_CASE("an event of a queue pair is reported to it and to waiting objects alone") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  int reports = 0;
  const auto other = std::make_shared<at_event>(p.dev, [&reports] { ++reports; });
  auto& service = detail::completion_service::of(p.io);
  error_code ec;
  REQUIRE(service.add(*other, ec));
  device_events events(p.io, p.dev);
  event of_port, of_queue_pair;
  outcome<void> ended;
  p.a.async_wait_disconnect(ended.handler());
  events.async_wait_event(of_queue_pair.handler());
  faults.raise_qp_event(p.a.native_handle(), IBV_EVENT_QP_FATAL);
  p.until([&] { return of_queue_pair.done() && ended.done(); });
  CHECK(reports == 0);
  events.async_wait_event(of_port.handler());
  faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
  p.until([&] { return of_port.done(); });
  CHECK(reports == 1);
  service.remove(*other);
}

TEST_CASE("a fatal event of the device ends everything") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  device_events events(p.io, p.dev);
  event told;
  outcome<void> of_a, of_b;
  events.async_wait_event(told.handler());
  p.a.async_wait_disconnect(of_a.handler());
  p.b.async_wait_disconnect(of_b.handler());
  faults.raise_device_fatal();
  p.until([&] { return told.done() && of_a.done() && of_b.done(); });
  CHECK(told.value.type == IBV_EVENT_DEVICE_FATAL);
  CHECK(of_a.ec == error::device_fatal);
  CHECK(of_b.ec == error::device_fatal);
  CHECK(of_a.ec == errc::io_error);
  sent late;
  p.a.async_send(p.ma.buffer(0, 8), late.handler());
  p.until([&] { return late.done(); });
  CHECK(late.ec == error::device_fatal);
}

TEST_CASE("no event of a device is lost though memory fails") {
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    CAPTURE(n);
    pair p;
    faults::injector faults(p.dev.native_handle());
    device_events events(p.io, p.dev);
    outcome<void> of_a, of_b;
    p.a.async_wait_disconnect(of_a.handler());
    p.b.async_wait_disconnect(of_b.handler());
    faults.raise_port_event(IBV_EVENT_PORT_ERR, 1);
    faults.raise_qp_event(p.a.native_handle(), IBV_EVENT_QP_FATAL);
    faults.raise_device_fatal();
    p.io.restart();
    bool thrown = false;
    {
      const failing_allocation failing(n);
      try {
        p.io.poll();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      failed = failing.failed();
    }
    CHECK_FALSE(thrown);
    p.until([&] { return of_a.done() && of_b.done(); });
    CHECK(p.a.state() == queue_pair_state::failed);
    CHECK(p.b.state() == queue_pair_state::failed);
    for (const ibv_event_type type :
         {IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_DEVICE_FATAL}) {
      event told;
      events.async_wait_event(told.handler());
      p.until([&] { return told.done(); });
      CHECK(told.value.type == type);
    }
  }
}

TEST_CASE("only the last events are kept while no operation waits for them") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  device_events events(p.io, p.dev);
  constexpr int kept = 64, more = 3;
  for (int i = 0; i < kept + more; ++i)
    faults.raise_port_event(IBV_EVENT_PORT_ERR, i);
  outcome<void> work;
  p.a.async_wait_disconnect(work.handler());
  p.io.restart();
  p.io.poll();
  for (int i = more; i < kept + more; ++i) {
    event told;
    events.async_wait_event(told.handler());
    p.until([&] { return told.done(); });
    REQUIRE(told.value.port == i);
  }
  event none;
  events.async_wait_event(none.handler());
  p.io.poll();
  CHECK_FALSE(none.done());
}

TEST_CASE("an overrun of the completion queue, which must not happen, ends its queue pairs") {
  pair p(completion_queue_options{});
  faults::injector faults(p.dev.native_handle());
  outcome<void> of_a;
  p.a.async_wait_disconnect(of_a.handler());
  faults.raise_cq_error(p.cq.native_handle());
  p.until([&] { return of_a.done(); });
  CHECK(of_a.ec == error::queue_pair_fatal);
}

// The last test: the interface loses its IPv6 addresses when it goes down.
TEST_CASE("a port that becomes inactive and active again reports both events") {
  const device dev = open_device();
  const std::string interface = interface_of(dev);
  if (std::getenv("ASIO_RDMA_IN_LAB") == nullptr || interface.empty())
    return not_on_this_device("an interface that the test may set down");
  asio::io_context io(1);
  device_events events(io, dev);
  bool down = false, up = false;
  const std::function<void()> wait = [&] {
    events.async_wait_event([&](error_code ec, device_event e) {
      if (ec)
        return;
      down = down || (e.type == IBV_EVENT_PORT_ERR && e.port == 1);
      up = up || (down && e.type == IBV_EVENT_PORT_ACTIVE && e.port == 1);
      wait();
    });
  };
  wait();
  change_link(interface, "down");
  until(io, [&] { return down; });
  CHECK(dev.port(1).state != IBV_PORT_ACTIVE);
  change_link(interface, "up");
  until(io, [&] { return up; });
  CHECK(dev.port(1).state == IBV_PORT_ACTIVE);
}

} // namespace test::device_events_tests
