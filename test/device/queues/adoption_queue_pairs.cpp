// SPDX-License-Identifier: BSL-1.0
// Queue pairs that other code made. Each is destroyed once, by its declared owner.
#include "catch.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/queues/adoption_site.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

namespace test::adoption_queue_pairs_tests {
namespace {

constexpr std::string_view text = "adopted";

/// Objects on the device that librdmacm has opened for an id, and the id's queue pair.
struct own_end {
  own_end(asio::io_context& io, rdma_cm_id* i)
      : id(i), dev(id->verbs, ownership::borrow), pd(dev), cq(io, dev) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq.native_handle();
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, 16, 1, 1, 0};
    REQUIRE(rdma_create_qp(id, pd.native_handle(), &init) == 0);
  }

  rdma_cm_id* id;
  device dev;
  protection_domain pd;
  completion_queue cq;
  std::array<char, 256> bytes{};
  memory_region region{pd, bytes.data(), bytes.size(), access::local_write};
};

/// An id that is connected without the library, to a queue pair of the library. If it is not
/// synchronous, its events come from `channel`.
struct connected_id {
  explicit connected_id(bool synchronous, bool accepts = false) {
    if (!synchronous)
      channel.reset(rdma_create_event_channel());
    accepts ? accept() : connect();
  }

  rdma_conn_param parameters() const {
    rdma_conn_param p{};
    p.retry_count = p.rnr_retry_count = 6;
    p.initiator_depth = p.responder_resources = 1;
    return p;
  }
  /// Reads the next event, and acknowledges it.
  rdma_cm_id* next(rdma_cm_event_type type) {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(channel.get(), &e) == 0);
    CHECK(e->event == type);
    rdma_cm_id* const of = e->id;
    rdma_ack_cm_event(e);
    return of;
  }
  void make_id() { REQUIRE(rdma_create_id(channel.get(), &id, &owner, RDMA_PS_TCP) == 0); }
  void connect() {
    acceptor listener(io, {device_address(s.dev), 0});
    outcome<connection_info> accepted;
    listener.async_accept(other, accepted.handler());
    make_id();
    const asio::ip::tcp::endpoint where = listener.local_endpoint();
    REQUIRE(rdma_resolve_addr(id, nullptr, const_cast<sockaddr*>(where.data()), 2000) == 0);
    if (channel)
      next(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id, 2000) == 0);
    if (channel)
      next(RDMA_CM_EVENT_ROUTE_RESOLVED);
    own.emplace(io, id);
    bool connected = false;
    std::jthread connecting([&] {
      rdma_conn_param p = parameters();
      connected = rdma_connect(id, &p) == 0;
      if (channel)
        next(RDMA_CM_EVENT_ESTABLISHED);
    });
    until(io, [&] { return accepted.done(); });
    connecting.join();
    REQUIRE(connected);
    REQUIRE(accepted.succeeded());
  }
  /// Leaves the event ESTABLISHED to the next owner.
  void accept() {
    make_id();
    rdma_cm_id* const listening = id;
    auto where = own_endpoint();
    REQUIRE(rdma_bind_addr(id, static_cast<sockaddr*>(where.data())) == 0);
    REQUIRE(rdma_listen(id, 1) == 0);
    where.port(ntohs(rdma_get_src_port(id)));
    connector initiator(io);
    outcome<connection_info> connected;
    initiator.async_connect(other, where, connected.handler());
    std::jthread accepting([&] {
      id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
      own.emplace(io, id);
      rdma_conn_param p = parameters();
      CHECK(rdma_accept(id, &p) == 0);
    });
    until(io, [&] { return connected.done(); });
    accepting.join();
    REQUIRE(connected.succeeded());
    id->context = &owner;
    CHECK(rdma_destroy_id(listening) == 0);
  }

  /// Whether a message arrives in each direction; that of `other` first if it has connected.
  bool carries(queue_pair& adopted, bool other_first) {
    const auto one_way = [&](queue_pair& from, const memory_region& out, queue_pair& to,
                             const memory_region& in) {
      auto* const bytes = static_cast<char*>(out.data());
      std::memcpy(bytes + 100, text.data(), text.size());
      sent send;
      got receive;
      to.async_receive(in.buffer(0, 50), receive.handler());
      from.async_send(out.buffer(100, text.size()), send.handler());
      until(io, [&] { return send.done() && receive.done(); });
      return send.succeeded() && receive.succeeded() &&
             std::string_view(static_cast<char*>(in.data()), text.size()) == text;
    };
    const bool good = other_first ? one_way(other, s.region, adopted, own->region)
                                  : one_way(adopted, own->region, other, s.region);
    return good && (other_first ? one_way(adopted, own->region, other, s.region)
                                : one_way(other, s.region, adopted, own->region));
  }

  struct destroy {
    void operator()(rdma_event_channel* c) const { rdma_destroy_event_channel(c); }
  };

  std::unique_ptr<rdma_event_channel, destroy> channel;
  int owner = 0; ///< Its address is the id's `context`.
  site s;
  asio::io_context io{1};
  queue_pair other{io, s.pd};
  rdma_cm_id* id = nullptr;
  std::optional<own_end> own;
};

} // namespace

TEST_CASE("a connected rdma_cm_id is adopted with its queue pair and its events") {
  const bool synchronous = GENERATE(false, true), accepts = GENERATE(false, true);
  if (synchronous && accepts)
    return; // needs rdma_get_request(3), and shows no more
  CAPTURE(synchronous, accepts);
  const resource_check nothing_left;
  {
    connected_id c(synchronous, accepts);
    queue_pair adopted(c.io);
    adopted.assign(c.id, c.own->pd, c.own->cq);
    CHECK(adopted.state() == queue_pair_state::connected);
    CHECK(c.id->qp == nullptr);
    CHECK(c.carries(adopted, accepts));
    outcome<void> end;
    if (GENERATE(true, false)) { // the peer's end arrives as an event of the id
      adopted.async_wait_disconnect(end.handler());
      c.other.close();
      until(c.io, [&] { return end.done(); });
      CHECK(end.ec == asio::error::connection_reset);
      CHECK(adopted.state() == queue_pair_state::failed);
    } else {
      c.other.async_wait_disconnect(end.handler());
      adopted.close();
      until(c.io, [&] { return end.done(); });
      CHECK(end.ec == asio::error::connection_reset);
    }
  }
}

TEST_CASE("an adopted id ends with its context, and with an event that came before the adoption") {
  const resource_check nothing_left;
  const bool before = GENERATE(false, true);
  connected_id c(false);
  std::optional<queue_pair> adopted(c.io);
  if (before) { // it waits in the channel of the caller
    c.other.close();
    drain(c.io);
    pollfd waiting{c.channel->fd, POLLIN, 0};
    REQUIRE(poll(&waiting, 1, 20'000) == 1);
    error_code ec;
    adopted->assign(c.id, c.own->pd, c.own->cq, ec);
    if (ec) { // the device has moved the queue pair to the error state
      CHECK(ec == asio::error::not_connected);
      CHECK(rdma_disconnect(c.id) == 0);
      rdma_destroy_qp(c.id);
      CHECK(rdma_destroy_id(c.id) == 0);
      return;
    }
    until(c.io, [&] { return adopted->state() == queue_pair_state::failed; });
    return;
  }
  adopted->assign(c.id, c.own->pd, c.own->cq);
  // The context destroys the handler, which owns the queue pair.
  const auto owned = std::make_shared<queue_pair>(std::move(*adopted));
  owned->async_receive(c.own->region.buffer(0, 50), [owned](const error_code&, const received&) {});
}

TEST_CASE("a connected id that cannot be adopted stays its owner's, with its queue pair") {
  const resource_check nothing_left;
  connected_id c(GENERATE(false, true));
  const completion_queue wrong(c.io, c.own->dev);
  const protection_domain stranger(c.own->dev);
  ibv_qp* const raw = c.id->qp;
  queue_pair adopted(c.io);
  error_code ec;
  adopted.assign(nullptr, c.own->pd, c.own->cq, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(c.id, c.own->pd, wrong, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(c.id, stranger, c.own->cq, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_THROWS_AS(adopted.assign(c.id, stranger, c.own->cq), system_error);
  CHECK_FALSE(adopted.is_open());
  CHECK(c.id->qp == raw);
  CHECK(c.id->context == &c.owner);
  rdma_cm_id* unconnected = nullptr;
  REQUIRE(rdma_create_id(nullptr, &unconnected, nullptr, RDMA_PS_TCP) == 0);
  adopted.assign(unconnected, c.own->pd, c.own->cq, ec);
  CHECK(ec == asio::error::invalid_argument); // no queue pair
  CHECK(rdma_destroy_id(unconnected) == 0);
  adopted.assign(c.id, c.own->pd, c.own->cq); // it is still connected
  CHECK(c.carries(adopted, false));
  adopted.assign(c.id, c.own->pd, c.own->cq, ec);
  CHECK(ec == asio::error::already_open);
}

TEST_CASE("an id that is not connected yet is not adopted, as far as the device reports that") {
  const resource_check nothing_left;
  const site s;
  if (s.dev.type() == transport::iwarp)
    return not_on_this_device("the state of a queue pair");
  asio::io_context io(1);
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
  auto where = own_endpoint();
  REQUIRE(rdma_resolve_addr(id, nullptr, static_cast<sockaddr*>(where.data()), 2000) == 0);
  {
    const own_end own(io, id);
    queue_pair adopted(io);
    error_code ec;
    adopted.assign(id, own.pd, own.cq, ec);
    CHECK(ec == asio::error::not_connected);
    rdma_destroy_qp(id);
  }
  CHECK(rdma_destroy_id(id) == 0);
}

TEST_CASE("a queue pair that other code created is adopted, and destroyed when it closes") {
  const resource_check nothing_left;
  const site s;
  asio::io_context io(1);
  const completion_queue cq(io, s.dev, s.make_cq(), ownership::take);
  ibv_qp* const raw = s.make_qp(cq.native_handle());
  queue_pair adopted(io), other(io, s.pd);
  adopted.assign(s.pd, cq, raw);
  CHECK(adopted.native_handle() == raw);
  CHECK(adopted.state() == queue_pair_state::open);
  CHECK(adopted.options().send_depth >= 16);
  connect(io, adopted, other);
  // The queue has no channel, so the library does not poll it.
  CHECK(cq.mode() == completion_mode::manual);
  sent to_other;
  got at_other;
  other.async_receive(s.region.buffer(0, 50), at_other.handler());
  adopted.async_send(s.region.buffer(100, 7), to_other.handler());
  until(io, [&] {
    completion_queue(cq).poll();
    asio::post(io, [] {});
    return to_other.done() && at_other.done();
  });
  CHECK(to_other.succeeded());
  CHECK(at_other.value.bytes == 7);
}

// By rdma_cm and without the library. siw of Linux 6.1 does not report the connection.
TEST_CASE("a queue pair that other code has connected is adopted") {
  const site s;
  asio::io_context io(1);
  queue_pair other(io, s.pd);
  acceptor listener(io, {device_address(s.dev), 0});
  outcome<connection_info> accepted;
  listener.async_accept(other, accepted.handler());

  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
  const asio::ip::tcp::endpoint where = listener.local_endpoint();
  REQUIRE(rdma_resolve_addr(id, nullptr, const_cast<sockaddr*>(where.data()), 2000) == 0);
  REQUIRE(rdma_resolve_route(id, 2000) == 0);
  {
    const device dev(id->verbs, ownership::borrow);
    const protection_domain pd(dev);
    std::array<char, 256> bytes{};
    const memory_region region(pd, bytes.data(), bytes.size());
    const completion_queue cq(io, dev);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq.native_handle();
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, 16, 1, 1, 0};
    REQUIRE(rdma_create_qp(id, pd.native_handle(), &init) == 0);
    rdma_conn_param param{};
    param.retry_count = param.rnr_retry_count = 6;
    int connected = -1;
    std::jthread connecting([&] { connected = rdma_connect(id, &param); });
    until(io, [&] { return accepted.done(); });
    connecting.join();
    REQUIRE(connected == 0);
    CHECK(accepted.succeeded());

    queue_pair adopted(io);
    adopted.assign(pd, cq, id->qp);
    id->qp = nullptr;
    if (s.dev.type() != transport::iwarp)
      CHECK(adopted.state() == queue_pair_state::connected);
    adopted.set_connected();
    CHECK(adopted.state() == queue_pair_state::connected);
    sent to_other;
    got at_other;
    std::memcpy(bytes.data(), "adopted", 7);
    other.async_receive(s.region.buffer(0, 50), at_other.handler());
    adopted.async_send(region.buffer(0, 7), to_other.handler());
    until(io, [&] { return to_other.done() && at_other.done(); });
    CHECK(to_other.succeeded());
    CHECK(at_other.succeeded());
    CHECK(std::string_view(s.bytes.data(), 7) == "adopted");
    if (s.dev.type() != transport::iwarp) { // `param` asks for no reads
      sent read;
      adopted.async_read(region.buffer(0, 8), s.region.remote(), read.handler());
      until(io, [&] { return read.done(); });
      CHECK(read.ec == asio::error::operation_not_supported);
    }
    adopted.close();
    drain(io);
  }
  CHECK(rdma_destroy_id(id) == 0);
}

TEST_CASE("a queue pair that cannot be adopted stays its owner's") {
  const resource_check nothing_left;
  const site s;
  asio::io_context io(1);
  const completion_queue cq(io, s.dev), wrong(io, s.dev);
  const protection_domain stranger(s.dev);
  ibv_qp* const raw = s.make_qp(cq.native_handle());
  shared_receive_queue none(io);
  queue_pair adopted(io);
  error_code ec;
  adopted.assign(s.pd, completion_queue(), raw, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(s.pd, wrong, raw, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(stranger, cq, raw, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(s.pd, none, raw, ec);
  CHECK(ec == asio::error::invalid_argument);
  adopted.assign(s.pd, cq, nullptr, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_THROWS_AS(adopted.assign(s.pd, wrong, raw), system_error);
  CHECK_FALSE(adopted.is_open());
  adopted.open(s.pd);
  adopted.assign(s.pd, cq, raw, ec);
  CHECK(ec == asio::error::already_open);
  CHECK(ibv_destroy_qp(raw) == 0);
}

TEST_CASE("a queue pair of a type without connection is neither adopted nor opened") {
  const resource_check nothing_left;
  const site s;
  asio::io_context io(1);
  queue_pair qp(io);
  error_code ec;
  queue_pair_options datagrams;
  datagrams.type = IBV_QPT_UD;
  qp.open(s.pd, datagrams, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(qp.is_open());
  const completion_queue cq(io, s.dev);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq.native_handle();
  init.qp_type = IBV_QPT_UD;
  init.cap = {16, 16, 1, 1, 0};
  ibv_qp* const raw = ibv_create_qp(s.pd.native_handle(), &init);
  if (raw == nullptr)
    return not_on_this_device("unreliable datagrams");
  qp.assign(s.pd, cq, raw, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(qp.is_open());
  CHECK(ibv_destroy_qp(raw) == 0);
}

TEST_CASE("an adopted queue pair answers no more reads than the device can") {
  const resource_check nothing_left;
  const site s;
  asio::io_context io(1);
  const completion_queue cq(io, s.dev);
  // Imitates a device with a limit below the default; rxe and siw have no such limit.
  const_cast<ibv_device_attr&>(s.dev.attributes()).max_qp_init_rd_atom = 3;
  queue_pair opened(io, s.pd), adopted(io);
  adopted.assign(s.pd, cq, s.make_qp(cq.native_handle()));
  CHECK(opened.options().max_reads == 3);
  CHECK(adopted.options().max_reads == 3);
}

// All that the event thread reads of an object must have been written before that thread can reach
// the object: ThreadSanitizer checks.
TEST_CASE("the device's events may come while an object is opened or adopted") {
  const resource_check nothing_left;
  const site s;
  faults::injector faults(s.dev.native_handle());
  asio::io_context io;
  const completion_queue cq(io, s.dev);
  ibv_qp* const other_qp = s.make_qp(cq.native_handle());
  ibv_srq_init_attr srq_init{};
  srq_init.attr = {16, 1, 0};
  ibv_srq* const other_srq = ibv_create_srq(s.pd.native_handle(), &srq_init);
  device_events events(io, s.dev);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> told{0};
  const std::function<void()> raise = [&] {
    if (stop)
      return;
    if (other_srq != nullptr && told.load(std::memory_order_relaxed) % 2 != 0)
      faults.raise_srq_event(other_srq, IBV_EVENT_SRQ_LIMIT_REACHED);
    else
      faults.raise_qp_event(other_qp, IBV_EVENT_QP_REQ_ERR);
    events.async_wait_event([&](error_code ec, device_event) {
      told.fetch_add(1, std::memory_order_relaxed);
      if (!ec)
        raise();
    });
  };
  asio::post(io, raise);
  std::thread runner([&] { io.run(); });
  // Takes no lock, as a lock would hide the missing synchronisation that this test looks for.
  const auto hear_some = [&] {
    const unsigned before = told.load(std::memory_order_relaxed);
    while (told.load(std::memory_order_relaxed) < before + 4)
      std::this_thread::yield();
  };
  for (int i = 0; i < 5; ++i) {
    const queue_pair opened(io, s.pd);
    hear_some();
    queue_pair adopted(io);
    adopted.assign(s.pd, cq, s.make_qp(cq.native_handle()));
    hear_some();
    shared_receive_queue receives(io);
    if (other_srq != nullptr)
      receives.assign(s.pd, cq, ibv_create_srq(s.pd.native_handle(), &srq_init), {16, 1});
    hear_some();
    const device_events more(io, s.dev);
    hear_some();
    CHECK(opened.state() == queue_pair_state::open);
    CHECK(adopted.state() == queue_pair_state::open);
  }
  stop = true;
  runner.join();
  if (other_srq != nullptr)
    CHECK(ibv_destroy_srq(other_srq) == 0);
  CHECK(ibv_destroy_qp(other_qp) == 0);
}

} // namespace test::adoption_queue_pairs_tests
