// SPDX-License-Identifier: BSL-1.0
// Requests that an acceptor rejects or does not accept.
#include "catch.hpp"
#include "connecting/acceptor_impl.hpp"
#include "connection/connection_impl.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"

#include <asio_rdma/connection.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <memory>

namespace test::cm_refused_tests {
namespace {

using std::chrono::milliseconds;

// Makes the device flush the posted operations.
void to_error(queue_pair& qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  REQUIRE(ibv_modify_qp(qp.native_handle(), &attr, IBV_QP_STATE) == 0);
}

struct caller {
  caller(asio::io_context& io, const protection_domain& pd) : qp(io, pd) {}
  queue_pair qp;
  connection connected;
};

} // namespace

TEST_CASE("a rejection brings its data") {
  const connections_check nothing_left;
  meeting m;
  outcome<connection_request> request;
  connect_options c;
  c.data = bytes_of("may I?");
  m.listener->async_wait_request(request.handler());
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return request.done(); });
  CHECK(text_of(request.value.info().data) == "may I?");
  error_code ec;
  request.value.reject(bytes_of("no"), ec);
  CHECK_FALSE(ec);
  CHECK_FALSE(request.value.is_open());
  request.value.reject({}, ec);
  CHECK(ec == asio::error::bad_descriptor);
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected);
  CHECK(text_of(m.connected.value.data) == "no");
  m.check_next_attempt(meeting::peer::reached);
}

TEST_CASE("an accept refuses a few requests at a time, and others run in between") {
  const connections_check nothing_left;
  constexpr std::size_t bad = 60;
  meeting m;
  std::list<caller> callers;
  for (std::size_t i = 0; i != bad; ++i) {
    caller& c = callers.emplace_back(m.io, m.pd);
    m.initiator->async_connect(c.qp, m.where(), c.connected.handler());
  }
  m.until([&] { return m.listener->statistics().waiting == bad; });
  memory_pool pool(m.pd);
  asio_rdma::connection accepting(m.io, pool), good(m.io, pool);
  connection accepted, connected;
  m.listener->async_accept(accepting, accepted.handler());
  const auto refused = [&] {
    return m.listener->statistics().refused_incompatible;
  };
  std::uint64_t before = 0;
  bool few_at_a_time = true;
  const auto look = [&] {
    few_at_a_time = few_at_a_time && refused() - before <= detail::acceptor_impl::most_a_turn;
    before = refused();
  };
  look();
  m.until([&] {
    look();
    m.io.poll_one();
    return refused() == bad;
  });
  look();
  CHECK(few_at_a_time);
  CHECK_FALSE(accepted.done());
  m.initiator->async_connect(good, m.where(), connected.handler());
  m.until([&] {
    return accepted.done() && connected.done() &&
           std::all_of(callers.begin(), callers.end(),
                       [](const caller& c) { return c.connected.done(); });
  });
  CHECK(accepted.succeeded());
  CHECK(connected.succeeded());
}

TEST_CASE("a rejection after the receives were flushed is reported as a rejection") {
  const connections_check nothing_left;
  meeting m;
  completion_queue_options manual;
  manual.mode = completion_mode::manual;
  completion_queue queue(m.io, m.dev, manual);
  queue_pair qp(m.io);
  qp.open(m.pd, queue);
  got receiving;
  qp.async_receive(m.ma.buffer(0, 8), receiving.handler());
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.initiator->async_connect(qp, m.where(), m.connected.handler());
  m.until([&] { return request.done(); });
  request.value.reject(bytes_of("no"));
  if (m.dev.type() != transport::iwarp) // there the device enters the error state by itself
    to_error(qp);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (qp.state() != queue_pair_state::failed && std::chrono::steady_clock::now() < patience)
    queue.poll();
  CHECK(qp.state() == queue_pair_state::failed);
  m.until([&] { return m.connected.done() && receiving.done(); });
  CHECK(receiving.ec == asio::error::connection_reset);
  CHECK(m.connected.ec == error::rejected);
  CHECK(text_of(m.connected.value.data) == "no");
}

TEST_CASE("a queue pair that fails before the peer has answered does not keep the peer waiting") {
  const connections_check nothing_left;
  meeting m;
  got receiving;
  outcome<connection_request> request;
  m.a.async_receive(m.ma.buffer(0, 8), receiving.handler());
  m.listener->async_wait_request(request.handler());
  m.connect();
  m.until([&] { return request.done(); });
  to_error(m.a);
  m.until([&] { return receiving.done(); });
  CHECK(receiving.ec == asio::error::connection_reset);
  CHECK_FALSE(m.connected.done());
  request.value.reject(bytes_of("no"));
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected); // not timed_out
}

TEST_CASE("a shared receive queue is closed while the peer of its queue pair has not answered") {
  const connections_check nothing_left;
  meeting m;
  if (m.dev.attributes().max_srq == 0)
    return not_on_this_device("shared receive queues");
  shared_receive_queue shared(m.io, m.pd);
  queue_pair qp(m.io);
  qp.open(m.pd, shared);
  got receiving;
  outcome<connection_request> request;
  shared.async_receive(m.ma.buffer(0, 8), receiving.handler());
  m.listener->async_wait_request(request.handler());
  m.initiator->async_connect(qp, m.where(), m.connected.handler());
  m.until([&] { return request.done(); });
  qp.close();
  shared.close();
  m.until([&] { return receiving.done() && m.connected.done(); });
  CHECK(receiving.ec == asio::error::operation_aborted);
  CHECK(m.connected.ec == asio::error::operation_aborted);
}

TEST_CASE("a request that is dropped is rejected") {
  meeting m;
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.connect();
  m.until([&] { return request.done(); });
  SECTION("destroyed") { const connection_request gone = std::move(request.value); }
  SECTION("assigned to") { request.value = {}; }
  SECTION("rejected with more private data than fits") {
    error_code ec;
    request.value.reject(private_data(data_limits(m.dev).rejection + 1), ec);
    CHECK(ec == asio::error::message_size);
  }
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected);
  m.check_next_attempt(meeting::peer::reached);
}

TEST_CASE("more requests than the backlog are rejected") {
  const connections_check nothing_left;
  meeting m({}, {}, 1);
  std::list<caller> callers;
  int ended = 0;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back(m.io, m.pd);
  for (caller& c : callers)
    m.initiator->async_connect(c.qp, m.where(), [&](error_code ec, connection_info info) {
      ++ended;
      c.connected.handler()(ec, std::move(info));
    });
  m.until([&] { return ended >= 3; });
  CHECK(m.listener->statistics().refused_backlog == 3);
  CHECK(m.listener->statistics().waiting == 1);
  m.accept();
  m.until([&] { return ended == 4 && m.accepted.done(); });
  int succeeded = 0;
  for (const caller& c : callers) {
    succeeded += c.connected.succeeded() ? 1 : 0;
    if (!c.connected.succeeded())
      CHECK(c.connected.ec == error::rejected);
  }
  CHECK(succeeded == 1);
  CHECK(m.accepted.succeeded());
}

TEST_CASE("requests that were withdrawn leave the backlog") {
  const connections_check nothing_left;
  meeting m({}, {}, 2);
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("a connector that gives up still waits for the answer");
  connect_options impatient;
  impatient.timeout = milliseconds(50);
  std::list<caller> callers;
  int ended = 0;
  const auto connect = [&](connector& from, caller& c, const connect_options& o) {
    from.async_connect(c.qp, m.where(), o, [&](error_code ec, connection_info info) {
      ++ended;
      c.connected.handler()(ec, std::move(info));
    });
  };
  {
    asio::io_context theirs; // its end waits for that of the ids, which withdraws the requests
    connector from(theirs);
    std::list<caller> given_up;
    const auto takes_requests = asio::make_work_guard(m.io);
    for (int i = 0; i < 2; ++i)
      connect(from, given_up.emplace_back(theirs, m.pd), impatient);
    until({&m.io, &theirs}, [&] { return ended == 2; });
    for (const caller& c : given_up)
      CHECK(c.connected.ec == asio::error::timed_out);
  }
  // Of three requests two have room, and the accepting sides get these.
  for (int i = 0; i < 3; ++i)
    connect(*m.initiator, callers.emplace_back(m.io, m.pd), {});
  m.until([&] { return ended >= 3; });
  queue_pair second(m.io, m.pd);
  connection accepted;
  m.accept();
  m.listener->async_accept(second, accepted.handler());
  m.until([&] { return ended == 5 && m.accepted.done() && accepted.done(); });
  int succeeded = 0;
  for (const caller& c : callers)
    succeeded += c.connected.succeeded() ? 1 : 0;
  CHECK(succeeded == 2);
  INFO(describe(m.accepted.ec) << ", " << describe(accepted.ec));
  CHECK(m.accepted.succeeded());
  CHECK(accepted.succeeded());
}

TEST_CASE("an acceptor that closes rejects the waiting requests") {
  meeting m;
  queue_pair other(m.io, m.pd);
  connection connected;
  connect_options c;
  outcome<connection_request> first;
  m.connect();
  m.listener->async_wait_request(first.handler());
  m.until([&] { return first.done(); });
  m.initiator->async_connect(other, m.where(), connected.handler());
  m.listener->close();
  m.until([&] { return connected.done(); });
  INFO(describe(connected.ec));
  CHECK((connected.ec == error::rejected || connected.ec == error::peer_not_listening));
  // The request that was taken belongs to the program.
  CHECK_FALSE(m.connected.done());
  first.value = {};
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == error::rejected);
}

TEST_CASE("no acceptor accepts in time") {
  meeting m;
  connect_options c;
  c.timeout = milliseconds(50);
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  CHECK(m.connected.ec == asio::error::timed_out);
  CHECK(m.connected.ec == errc::timed_out);
  m.listener->close(); // with the request of the attempt that timed out
  m.listener->open({device_address(m.dev), 0});
  m.check_next_attempt(meeting::peer::reached);
}

TEST_CASE("each endpoint of a range has its own time") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("the first address that is reached is the last");
  acceptor sleeps(m.io, {device_address(m.dev), 0});
  connect_options c;
  c.timeout = milliseconds(200);
  m.accept();
  m.initiator->async_connect(m.a, std::array<endpoint, 2>{sleeps.local_endpoint(), m.where()}, c,
                             m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  CHECK(m.connected.value.remote == m.where());
  m.until([&] { return m.accepted.done(); });
  CHECK(m.carries("in time"));
}

TEST_CASE("a connector that does not continue after its request") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  accept_options o;
  o.timeout = milliseconds(50);
  m.listener->async_accept(m.b, o, m.accepted.handler());
  silent_connector silent(m.where(), *m.a.native_handle());
  m.until([&] { return m.accepted.done(); });
  INFO(describe(m.accepted.ec));
  CHECK(m.accepted.ec == asio::error::timed_out);
  CHECK(m.b.state() == queue_pair_state::failed);
  // The acceptor serves the next request.
  m.b.close();
  m.b.open(m.pd);
  m.accepted = {};
  m.meet();
  CHECK(m.carries("the next"));
}

TEST_CASE("silent connectors give way to others, and cost the memory of few connections") {
  const connections_check nothing_left;
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("accepting is the last step");
  constexpr std::size_t most = 4, accepts = 6;
  const memory_pool pool(m.pd);
  asio_rdma::connection good(m.io);
  good.open(pool);
  const std::size_t each = pool.statistics().bytes_in_use;
  acceptor listener(m.io, {device_address(m.dev), 0},
                    acceptor_options().set_handshakes(most).set_patience(milliseconds(1)));
  accept_options o;
  o.timeout = milliseconds(2000); // 100 ms for each of 20 competitors
  std::list<asio_rdma::connection> served;
  std::function<void()> accept = [&] {
    listener.async_accept<asio_rdma::connection>(pool, connection_options(), o,
                                                 [&](error_code ec, asio_rdma::connection c) {
                                                   if (ec == asio::error::operation_aborted)
                                                     return;
                                                   CHECK_FALSE(ec);
                                                   served.push_back(std::move(c));
                                                   accept();
                                                 });
  };
  for (std::size_t i = 0; i < accepts; ++i)
    accept();
  std::list<queue_pair> numbers; // the kernel refuses a second request of one queue pair as stale
  std::list<silent_connector> silent;
  for (int i = 0; i < 16; ++i)
    silent.emplace_back(listener.local_endpoint(),
                        *numbers.emplace_back(m.io, m.pd).native_handle(), good.impl()->hello());
  m.until([&] { return listener.statistics().requests == silent.size(); });
  CHECK(listener.statistics().handshakes == most);
  CHECK(listener.statistics().waiting + most == silent.size());
  m.initiator->async_connect(good, listener.local_endpoint(), m.connected.handler());
  m.until([&] {
    CHECK(listener.statistics().handshakes <= most);
    if (listener.statistics().accepted == 0)
      CHECK(pool.statistics().bytes_in_use <= (accepts + 1) * each);
    return m.connected.done();
  });
  INFO(describe(m.connected.ec));
  CHECK(m.connected.succeeded());
  m.until([&] { return served.size() == 1; });
  const acceptor_statistics s = listener.statistics();
  CHECK(s.accepted == 1);
  CHECK(s.gave_way != 0);
  CHECK(s.gave_way < silent.size()); // a new connector does not wait for all of them
  CHECK(s.aborted == 0);
  listener.close();
}

TEST_CASE("on iWARP, connectors that do not speak give way to others") {
  meeting m;
  if (m.dev.type() != transport::iwarp)
    return not_on_this_device("a handshake that ends with the first frame");
  constexpr std::size_t most = 2;
  const memory_pool pool(m.pd);
  asio_rdma::connection good(m.io);
  good.open(pool);
  acceptor listener(m.io, {device_address(m.dev), 0},
                    acceptor_options().set_handshakes(most).set_patience(milliseconds(1)));
  accept_options o;
  o.timeout = milliseconds(500);
  std::list<asio_rdma::connection> served;
  std::function<void()> accept = [&] {
    listener.async_accept<asio_rdma::connection>(pool, connection_options(), o,
                                                 [&](error_code ec, asio_rdma::connection c) {
                                                   if (ec == asio::error::operation_aborted)
                                                     return;
                                                   CHECK_FALSE(ec);
                                                   served.push_back(std::move(c));
                                                   accept();
                                                 });
  };
  accept();
  connect_options how;
  how.data = good.impl()->hello();
  std::list<caller> silent;
  for (std::size_t i = 0; i < 3 * most; ++i) {
    silent.emplace_back(m.io, m.pd);
    m.initiator->async_connect(silent.back().qp, listener.local_endpoint(), how,
                               silent.back().connected.handler());
  }
  m.until([&] { return served.size() == most; });
  outcome<void> ended;
  served.front().async_wait_disconnect(ended.handler());
  m.initiator->async_connect(good, listener.local_endpoint(), m.connected.handler());
  m.until([&] { return m.connected.done() && ended.done(); });
  CHECK(m.connected.succeeded());
  CHECK(ended.ec == asio::error::timed_out);
  m.until([&] { return listener.statistics().handshakes <= most; });
  listener.close();
}

TEST_CASE("a connector that gives up before it is accepted") {
  meeting m;
  if (m.dev.type() == transport::iwarp)
    return not_on_this_device("closing waits for the answer");
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  silent_connector silent(m.where(), *m.a.native_handle());
  m.until([&] { return request.done(); });
  silent.give_up();
  m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  m.until([&] { return m.accepted.done(); });
  INFO(describe(m.accepted.ec));
  CHECK(m.accepted.ec == asio::error::connection_aborted);
}

// The kernel notifies a listening id that its device is removed. Here the notice is imitated.
TEST_CASE("an acceptor whose device is removed") {
  meeting m;
  const auto impl =
      std::make_shared<detail::acceptor_impl>(detail::cm_service::of(m.io), m.io.get_executor());
  REQUIRE_FALSE(impl->open({device_address(m.dev), 0}, acceptor_options()));
  const detail::io_executor<asio::any_io_executor> io(m.io.get_executor());
  const auto accept = [&](connection& result) {
    auto handler = result.handler();
    detail::start_operation<detail::accept_operation, detail::info_result, 0>(
        impl, io, handler, [](auto&) { return true; },
        [](detail::acceptor_impl& i, auto& op) { return i.start(op); });
  };
  connection before, after;
  accept(before);
  detail::cm_event removal;
  removal.type = RDMA_CM_EVENT_DEVICE_REMOVAL;
  impl->on_cm_event(removal);
  accept(after);
  m.until([&] { return before.done() && after.done(); });
  CHECK(before.ec == error::device_removed);
  CHECK(after.ec == error::device_removed);
}

} // namespace test::cm_refused_tests
