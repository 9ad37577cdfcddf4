// SPDX-License-Identifier: BSL-1.0
//
// Handles that other code made. Each works for an operation, and is destroyed once, by its declared
// owner. The queue pairs are in adoption_queue_pairs.cpp.
#include "catch.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/queues/adoption_site.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/strand.hpp>
#include <fcntl.h>
#include <poll.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace test::adoption_tests {
namespace {

#define EITHER_OWNERSHIP GENERATE(ownership::take, ownership::borrow)

bool is_descriptor(int fd) { return fcntl(fd, F_GETFD) != -1; }

/// Whether a message arrives. `to` is the receiver at b: b itself or its shared receive queue.
template <class Receiver>
bool carries(asio::io_context& io, queue_pair& a, Receiver& to, const memory_region& region) {
  auto* const bytes = static_cast<char*>(region.data());
  std::memcpy(bytes + 100, "adopted", 7);
  std::memset(bytes, 0, 7);
  sent s;
  got r;
  to.async_receive(region.buffer(0, 50), r.handler());
  a.async_send(region.buffer(100, 7), s.handler());
  until(io, [&] { return s.done() && r.done(); });
  return s.succeeded() && r.succeeded() && r.value.bytes == 7 &&
         std::string_view(bytes, 7) == "adopted";
}

/// Sends a message between two new queue pairs, like the function above.
bool carries(const protection_domain& pd, const memory_region& region) {
  asio::io_context io(1);
  queue_pair a(io, pd), b(io, pd);
  connect(io, a, b);
  return carries(io, a, b, region);
}

} // namespace

TEST_CASE("a device that other code opened is adopted") {
  const auto owns = EITHER_OWNERSHIP;
  const resource_check nothing_left;
  ibv_context* const context = ibv_open_device(open_device().native_handle()->device);
  REQUIRE(context != nullptr);
  const int descriptor = context->async_fd;
  {
    const device dev(context, owns);
    CHECK(dev.native_handle() == context);
    CHECK(dev.name() == open_device().name());
    const protection_domain pd(dev);
    std::array<char, 256> bytes{};
    CHECK(carries(pd, memory_region(pd, bytes.data(), bytes.size())));
  }
  CHECK(is_descriptor(descriptor) == (owns == ownership::borrow));
  if (owns == ownership::borrow)
    CHECK(ibv_close_device(context) == 0);

  error_code ec;
  CHECK_FALSE(device(nullptr, owns, ec).is_open());
  CHECK(ec == asio::error::invalid_argument);
  CHECK_THROWS_AS(device(nullptr, owns), system_error);
}

TEST_CASE("all handles of an opened device are the same device") {
  const resource_check nothing_left;
  ibv_context* const context = ibv_open_device(open_device().native_handle()->device);
  REQUIRE(context != nullptr);
  const int descriptor = context->async_fd;
  const bool taken = GENERATE(false, true);
  {
    std::optional<device> first(std::in_place, context, ownership::borrow);
    const device second(context, taken ? ownership::take : ownership::borrow);
    CHECK(*first == second);
    CHECK(second != open_device());
    asio::io_context io(1);
    const completion_queue cq(io, *first);
    const protection_domain pd(second);
    error_code ec;
    queue_pair a(io), b(io);
    a.open(pd, cq, {}, ec);
    CHECK_FALSE(ec); // no `error::wrong_device`
    first.reset();
    b.open(pd, cq);
    connect(io, a, b);
    std::array<char, 256> bytes{};
    CHECK(carries(io, a, b, memory_region(pd, bytes.data(), bytes.size(), access::local_write)));
  }
  CHECK(is_descriptor(descriptor) != taken);
  if (!taken)
    CHECK(ibv_close_device(context) == 0);
}

TEST_CASE("a protection domain that other code created is adopted") {
  const auto owns = EITHER_OWNERSHIP;
  const resource_check nothing_left;
  const device dev = open_device();
  ibv_pd* const raw = ibv_alloc_pd(dev.native_handle());
  REQUIRE(raw != nullptr);
  {
    const protection_domain pd(dev, raw, owns);
    CHECK(pd.native_handle() == raw);
    std::array<char, 256> bytes{};
    CHECK(carries(pd, memory_region(pd, bytes.data(), bytes.size())));
  }
  if (owns == ownership::borrow)
    CHECK(ibv_dealloc_pd(raw) == 0); // would be refused if the protection domain contained anything
}

TEST_CASE("memory that other code registered is adopted") {
  const auto owns = EITHER_OWNERSHIP;
  const resource_check nothing_left;
  const site s;
  std::array<char, 256> bytes{};
  ibv_mr* const raw = ibv_reg_mr(
      s.pd.native_handle(), bytes.data(), bytes.size(),
      static_cast<unsigned>(detail::verbs_access(access::local_write | access::remote_write)));
  REQUIRE(raw != nullptr);
  {
    memory_region first(s.pd, raw, owns);
    const memory_region region = std::move(first);
    CHECK_FALSE(first.is_open());
    CHECK(region.native_handle() == raw);
    CHECK(region.lkey() == raw->lkey);
    CHECK(region.data() == bytes.data());
    CHECK(carries(s.pd, region));
  }
  if (owns == ownership::borrow)
    CHECK(ibv_dereg_mr(raw) == 0);
}

TEST_CASE("a memory window that other code allocated is adopted") {
  const auto owns = EITHER_OWNERSHIP;
  const resource_check nothing_left;
  site s;
  if (!s.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  ibv_mw* const raw = ibv_alloc_mw(s.pd.native_handle(), IBV_MW_TYPE_2);
  REQUIRE(raw != nullptr);
  {
    memory_window first(s.pd, raw, owns);
    memory_window window(s.pd);
    window = std::move(first);
    CHECK(window.native_handle() == raw);
    asio::io_context io(1);
    queue_pair a(io, s.pd), b(io, s.pd);
    connect(io, a, b);
    outcome<void> bound, ended;
    b.async_bind(window, s.region, 100, 8, access::remote_write, bound.handler());
    until(io, [&] { return bound.done(); });
    REQUIRE(bound.succeeded());
    std::memcpy(s.bytes.data(), "a window", 8);
    sent w;
    const remote_buffer target{reinterpret_cast<std::uintptr_t>(s.bytes.data() + 100), 8,
                               window.rkey()};
    a.async_write(s.region.buffer(0, 8), target, w.handler());
    until(io, [&] { return w.done(); });
    CHECK(w.succeeded());
    sent behind; // is delivered after the placement of the write
    got delivered;
    b.async_receive(s.region.buffer(200, 8), delivered.handler());
    a.async_send(s.region.buffer(0, 8), behind.handler());
    until(io, [&] { return behind.done() && delivered.done(); });
    CHECK(delivered.succeeded());
    CHECK(std::string_view(s.bytes.data() + 100, 8) == "a window");
    b.async_invalidate(window.rkey(), ended.handler());
    until(io, [&] { return ended.done(); });
    CHECK(ended.succeeded());
  }
  if (owns == ownership::borrow)
    CHECK(ibv_dealloc_mw(raw) == 0);
}

TEST_CASE("a completion queue that other code created is adopted") {
  const auto owns = EITHER_OWNERSHIP;
  const auto mode =
      GENERATE(completion_mode::event, completion_mode::adaptive, completion_mode::busy);
  const resource_check nothing_left;
  const site s;
  ibv_comp_channel* channel = nullptr;
  if (mode != completion_mode::busy)
    REQUIRE((channel = ibv_create_comp_channel(s.dev.native_handle())) != nullptr);
  const int descriptor = channel != nullptr ? channel->fd : -1;
  ibv_cq* const raw = s.make_cq(channel);
  REQUIRE(raw != nullptr);
  {
    asio::io_context io(1);
    completion_queue_options options;
    options.mode = mode;
    const completion_queue cq(io, s.dev, raw, owns, options);
    CHECK(cq.native_handle() == raw);
    CHECK(cq.mode() == mode);
    queue_pair_options shallow;
    shallow.send_depth = shallow.receive_depth = 16;
    queue_pair a(io), b(io);
    a.open(s.pd, cq, shallow);
    b.open(s.pd, cq, shallow);
    connect(io, a, b);
    CHECK(carries(io, a, b, s.region));
  }
  if (channel != nullptr)
    CHECK(is_descriptor(descriptor) == (owns == ownership::borrow));
  if (owns == ownership::borrow) {
    CHECK(ibv_destroy_cq(raw) == 0); // waits for events that were not acknowledged
    if (channel != nullptr)
      CHECK(ibv_destroy_comp_channel(channel) == 0);
  }
}

// By the scheduler, after the library's services have shut down, or before, by a service that was
// made between them. ibv_destroy_cq(3) waits until all events are acknowledged.
TEST_CASE("an adopted completion queue and its device end in a handler that its context destroys") {
  const bool before = GENERATE(true, false);
  const resource_check nothing_left;
  const site s;
  ibv_context* const opened = ibv_open_device(s.dev.native_handle()->device);
  REQUIRE(opened != nullptr);
  auto dev = std::make_unique<device>(opened, ownership::borrow);
  auto pd = std::make_unique<protection_domain>(*dev);
  const faults::injector observer(opened);
  ibv_comp_channel* const channel = ibv_create_comp_channel(opened);
  REQUIRE(channel != nullptr);
  ibv_cq* const raw = ibv_create_cq(opened, 128, nullptr, channel, 0);
  REQUIRE(raw != nullptr);
  std::vector<int> ended;
  {
    asio::io_context io(1);
    auto cq = std::make_unique<completion_queue>(io, *dev, raw, ownership::borrow);
    const auto strand = asio::make_strand(io); // its service shuts down before that of `cq`
    const acceptor listener(io, {device_address(s.dev), 0}); // and this one before
    std::array<char, 128> bytes{};
    {
      const memory_region region(*pd, bytes.data(), bytes.size());
      queue_pair_options shallow;
      shallow.send_depth = shallow.receive_depth = 16;
      queue_pair a(io), b(io, *pd);
      a.open(*pd, *cq, shallow);
      connect(io, a, b);
      got r;
      sent w;
      a.async_receive(region.buffer(0, 50), r.handler());
      io.restart();
      io.poll(); // arms
      b.async_send(region.buffer(100, 7), w.handler());
      pollfd event{channel->fd, POLLIN, 0};
      REQUIRE(::poll(&event, 1, 10'000) == 1);
      until(io, [&] { return r.done() && w.done(); });
    }
    CHECK(cq->counters().events != 0);
    const auto destroy = [&](completion_queue* last) {
      delete last;
      ended.push_back(ibv_destroy_cq(raw));
      ended.push_back(ibv_destroy_comp_channel(channel));
      pd.reset();
      dev.reset();
      ended.push_back(ibv_close_device(opened));
    };
    const auto handler = [owned = std::shared_ptr<completion_queue>(cq.release(), destroy)] {
    };
    before ? asio::post(strand, handler) : asio::post(io, handler);
  }
  CHECK(ended == std::vector<int>(3, 0));
  CHECK(observer.counts().unacknowledged_at_destroy == 0);
}

TEST_CASE("a completion queue that cannot be adopted stays its owner's") {
  const resource_check nothing_left;
  const site s;
  const device other(open_device());
  asio::io_context io(1);
  ibv_cq* const raw = s.make_cq();
  REQUIRE(raw != nullptr);
  error_code ec;
  CHECK_FALSE(completion_queue(io, other, raw, ownership::take, {}, ec).is_open());
  CHECK(ec == error::wrong_device);
  CHECK_FALSE(completion_queue(io, s.dev, nullptr, ownership::take, {}, ec).is_open());
  CHECK(ec == asio::error::invalid_argument);
  CHECK_THROWS_AS(completion_queue(io, other, raw, ownership::take), system_error);
  CHECK(ibv_destroy_cq(raw) == 0);
}

TEST_CASE("a second adoption of a completion queue is refused, and takes none of its events") {
  const site s;
  asio::io_context io(1);
  ibv_comp_channel* const channel = ibv_create_comp_channel(s.dev.native_handle());
  REQUIRE(channel != nullptr);
  ibv_cq* const raw = s.make_cq(channel);
  REQUIRE(raw != nullptr);
  const completion_queue cq(io, s.dev, raw, ownership::take);
  queue_pair_options shallow;
  shallow.send_depth = shallow.receive_depth = 16;
  queue_pair a(io), b(io, s.pd); // b's completions are in another queue
  a.open(s.pd, cq, shallow);
  connect(io, a, b);
  got r;
  sent w;
  a.async_receive(s.region.buffer(0, 50), r.handler());
  io.restart();
  io.poll(); // arms
  b.async_send(s.region.buffer(100, 7), w.handler());
  pollfd event{channel->fd, POLLIN, 0};
  REQUIRE(::poll(&event, 1, 10'000) == 1);
  error_code ec;
  CHECK_FALSE(completion_queue(io, s.dev, raw, ownership::take, {}, ec).is_open());
  CHECK(ec);
  until(io, [&] { return r.done(); });
  CHECK(r.succeeded());
  CHECK(cq.counters().events == 1);
}

TEST_CASE(
    "a shared receive queue that other code created is adopted, with queue pairs that use it") {
  const bool own_queue_pair = GENERATE(true, false);
  const resource_check nothing_left;
  const site s;
  if (s.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  ibv_srq_init_attr init{};
  init.attr = {16, 1, 0};
  ibv_srq* const raw = ibv_create_srq(s.pd.native_handle(), &init);
  REQUIRE(raw != nullptr);
  asio::io_context io(1);
  const completion_queue cq(io, s.dev);
  shared_receive_queue srq(io);
  srq.assign(s.pd, cq, raw, {16, 1});
  CHECK(srq.native_handle() == raw);
  queue_pair a(io, s.pd), b(io);
  if (own_queue_pair) {
    b.open(s.pd, srq);
  } else {
    ibv_qp* const raw_qp = s.make_qp(cq.native_handle(), raw);
    error_code ec;
    b.assign(s.pd, cq, raw_qp, ec); // it has no receive queue of its own
    CHECK(ec == asio::error::invalid_argument);
    b.assign(s.pd, srq, raw_qp);
    CHECK(b.native_handle() == raw_qp);
  }
  connect(io, a, b);
  CHECK(carries(io, a, srq, s.region));
  // The shared receive queue is closed before the queue pair that uses it.
  got left;
  srq.async_receive(s.region.buffer(), left.handler());
  srq.close();
  b.close();
  drain(io);
  CHECK(left.calls == 1);
  CHECK(left.ec == asio::error::operation_aborted);
}

TEST_CASE("a shared receive queue that cannot be adopted stays its owner's") {
  const resource_check nothing_left;
  const site s;
  if (s.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  ibv_srq_init_attr init{};
  init.attr = {64, 1, 0};
  ibv_srq* const raw = ibv_create_srq(s.pd.native_handle(), &init);
  REQUIRE(raw != nullptr);
  asio::io_context io(1);
  const protection_domain stranger(s.dev);
  shared_receive_queue srq(io);
  error_code ec;
  srq.assign(stranger, {}, raw, {64, 1}, ec);
  CHECK(ec == asio::error::invalid_argument);
  srq.assign(s.pd, {}, nullptr, {64, 1}, ec);
  CHECK(ec == asio::error::invalid_argument);
  completion_queue_options small;
  small.entries = 16;
  srq.assign(s.pd, completion_queue(io, s.dev, small), raw, {64, 1}, ec);
  CHECK(ec == error::completion_queue_full);
  CHECK_THROWS_AS(srq.assign(stranger, {}, raw, {64, 1}), system_error);
  CHECK_FALSE(srq.is_open());
  CHECK(ibv_destroy_srq(raw) == 0);
}

TEST_CASE("a bound rdma_cm_id is adopted by an acceptor") {
  const bool synchronous = GENERATE(false, true);
  const resource_check nothing_left;
  const site s;
  rdma_event_channel* const channel = synchronous ? nullptr : rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
  auto where = own_endpoint();
  REQUIRE(rdma_bind_addr(id, static_cast<sockaddr*>(where.data())) == 0);
  {
    asio::io_context io(1);
    acceptor listener(io);
    listener.assign(id);
    CHECK(listener.native_handle() == id);
    CHECK(listener.local_endpoint().address() == where.address());
    queue_pair a(io, s.pd), b(io, s.pd);
    connector initiator(io);
    outcome<connection_request> asked;
    outcome<connection_info> connected, accepted;
    listener.async_wait_request(asked.handler());
    initiator.async_connect(a, listener.local_endpoint(), connected.handler());
    until(io, [&] { return asked.done(); });
    REQUIRE(asked.succeeded());
    REQUIRE(asked.value.native_handle() != nullptr);
    CHECK(asked.value.native_handle()->verbs->device == s.dev.native_handle()->device);
    listener.async_accept(std::move(asked.value), b, accepted.handler());
    CHECK(asked.value.native_handle() == nullptr);
    until(io, [&] { return connected.done() && accepted.done(); });
    CHECK(connected.succeeded());
    CHECK(accepted.succeeded());
    CHECK(carries(io, a, b, s.region));
    listener.close();
    CHECK(listener.native_handle() == nullptr);
  }
  if (channel != nullptr)
    rdma_destroy_event_channel(channel);
}

TEST_CASE("an rdma_cm_id that cannot be adopted stays its owner's") {
  const resource_check nothing_left;
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(channel, &id, &id, RDMA_PS_TCP) == 0);
  auto where = own_endpoint();
  REQUIRE(rdma_bind_addr(id, static_cast<sockaddr*>(where.data())) == 0);
  REQUIRE(rdma_listen(id, 1) == 0); // the owner has already called it
  {
    asio::io_context io(1);
    acceptor listener(io);
    error_code ec;
    listener.assign(nullptr, 1, ec);
    CHECK(ec == asio::error::invalid_argument);
    listener.assign(id, 1, ec);
    CHECK(ec);
    CHECK_THROWS_AS(listener.assign(id), system_error);
    CHECK_FALSE(listener.is_open());
    listener.open(own_endpoint());
    listener.assign(id, 1, ec);
    CHECK(ec == asio::error::already_open);
  }
  CHECK(id->context == &id);
  CHECK(rdma_destroy_id(id) == 0);
  rdma_destroy_event_channel(channel);
}

TEST_CASE("each object returns the verbs handle that it uses") {
  const site s;
  asio::io_context io(1);
  const memory_pool pool(s.pd);
  connection c(io);
  stream byte_stream(io);
  acceptor listener(io);
  device_events events(io);
  queue_pair qp(io);
  CHECK(c.native_handle() == nullptr);
  CHECK(byte_stream.native_handle() == nullptr);
  CHECK(listener.native_handle() == nullptr);
  CHECK(events.native_handle() == nullptr);
  CHECK(qp.native_handle() == nullptr);
  CHECK(connection_request().native_handle() == nullptr);
  CHECK(device().native_handle() == nullptr);
  CHECK(protection_domain().native_handle() == nullptr);
  CHECK(memory_region().native_handle() == nullptr);
  CHECK(memory_window().native_handle() == nullptr);
  CHECK(completion_queue().native_handle() == nullptr);
  c.open(pool);
  byte_stream.open(pool);
  listener.open(own_endpoint());
  events.open(s.dev);
  REQUIRE(c.native_handle() != nullptr);
  CHECK(c.native_handle()->pd == s.pd.native_handle());
  REQUIRE(byte_stream.native_handle() != nullptr);
  CHECK(byte_stream.native_handle()->qp_num != c.native_handle()->qp_num);
  REQUIRE(listener.native_handle() != nullptr);
  CHECK(ntohs(rdma_get_src_port(listener.native_handle())) == listener.local_endpoint().port());
  CHECK(events.native_handle() == s.dev.native_handle());
  c.close();
  CHECK(c.native_handle() == nullptr);
}

} // namespace test::adoption_tests
