// SPDX-License-Identifier: BSL-1.0
// Attempts at a limit: a full backlog, many events, no descriptor left.
#include "catch.hpp"
#include "connecting/acceptor_impl.hpp"
#include "connecting/cm_service.hpp"
#include "connecting/pending_handshakes.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/connecting/silent_connector.hpp"

#include <asio_rdma/connection.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace test::cm_limits_tests {
namespace {

/// Two ids bound to one port, so that rdma_listen(3) fails for either.
struct rivals {
  rivals(const device& dev, void* context) {
    endpoint at(device_address(dev), 0);
    for (rdma_cm_id*& i : ids) {
      REQUIRE(rdma_create_id(channel, &i, context, RDMA_PS_TCP) == 0);
      int yes = 1;
      rdma_set_option(i, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes);
      REQUIRE(rdma_bind_addr(i, static_cast<sockaddr*>(at.data())) == 0);
      at.port(ntohs(rdma_get_src_port(i)));
    }
  }
  rivals(const rivals&) = delete;
  ~rivals() {
    for (rdma_cm_id* i : ids)
      rdma_destroy_id(i);
    rdma_destroy_event_channel(channel);
  }

  rdma_event_channel* const channel = rdma_create_event_channel();
  std::array<rdma_cm_id*, 2> ids{};
};

/// While it exists, the process can open no descriptor.
struct no_descriptors {
  no_descriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit none = before;
    const int next = dup(0);
    close(next);
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  no_descriptors(const no_descriptors&) = delete;
  ~no_descriptors() { setrlimit(RLIMIT_NOFILE, &before); }

  rlimit before{};
};

endpoint unused(meeting& m) { return acceptor(m.io, {device_address(m.dev), 0}).local_endpoint(); }

/// Gives each request that arrives the address that `source` has then.
void requests_come_from(const std::uint32_t& source) {
  edit_event = [&source](rdma_cm_event& e) {
    if (e.event == RDMA_CM_EVENT_CONNECT_REQUEST)
      reinterpret_cast<sockaddr_in*>(rdma_get_peer_addr(e.id))->sin_addr.s_addr = htonl(source);
  };
}

/// While it exists, or until `release`, other threads wait in rdma_destroy_id(3): for ids of
/// requests that come from a source less than `fast`, given by `requests_come_from`.
struct slow_destructions {
  explicit slow_destructions(std::uint32_t fast) {
    before_destruction = [this, fast, here = std::this_thread::get_id()](const rdma_cm_id* id) {
      if (std::this_thread::get_id() == here)
        return;
      const auto* const from = reinterpret_cast<const sockaddr_in*>(&id->route.addr.dst_addr);
      std::unique_lock lock(mutex);
      if (ntohl(from->sin_addr.s_addr) >= fast) {
        ++others;
        return;
      }
      ++blocked;
      changed.notify_all();
      changed.wait(lock, [this] { return released; });
    };
  }
  slow_destructions(const slow_destructions&) = delete;
  ~slow_destructions() { release(); }
  void release() {
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
  /// Whether so many threads wait, after some patience.
  bool block(std::size_t threads) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return blocked == threads; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
  std::size_t blocked = 0;
  std::atomic<std::size_t> others = 0;
  const hooks h; // destroyed first
};

/// Makes an accept that refuses requests without the handshake of a connection, and keeps waiting.
struct refusing {
  refusing(meeting& of, asio::io_context& context, acceptor& by) : pool(of.pd), object(context) {
    object.open(pool);
    by.async_accept(object, accepted.handler());
  }

  memory_pool pool;
  asio_rdma::connection object;
  connection accepted;
};

} // namespace

TEST_CASE("requests beyond the backlog cost a few system calls each") {
  constexpr int backlog = 20, more = 5;
  meeting m({}, {}, backlog);
  std::list<queue_pair> callers;
  int ended = 0, asked = 0;
  const auto connect = [&] {
    m.initiator->async_connect(callers.emplace_back(m.io, m.pd), m.where(),
                               [&](error_code, const connection_info&) { ++ended; });
  };
  for (int i = 0; i < backlog; ++i)
    connect();
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    asked += call == cm_call::init_queue_pair ? 1 : 0;
    return 0;
  };
  for (int i = 0; i < more; ++i)
    connect();
  m.until([&] { return ended == more; });
  // Each connector calls once, to prepare its own queue pair.
  CHECK(asked - backlog - more <= 8 * more);
}

TEST_CASE("a full backlog has room for a connector of another source") {
  const connections_check nothing_left;
  meeting m({}, {}, 2);
  std::list<queue_pair> callers;
  std::vector<int> ended;
  std::uint32_t source = 1;
  const hooks h;
  requests_come_from(source);
  const auto connect_from = [&](std::uint32_t address) {
    source = address;
    const auto before = m.listener->statistics();
    callers.emplace_back(m.io, m.pd);
    m.initiator->async_connect(callers.back(), m.where(),
                               [&, n = int(callers.size())](error_code ec, connection_info) {
                                 CHECK(ec == error::rejected);
                                 ended.push_back(n);
                               });
    m.until([&] {
      const auto now = m.listener->statistics();
      return now.waiting + now.refused_backlog > before.waiting + before.refused_backlog;
    });
  };
  connect_from(1);
  connect_from(1);
  connect_from(2);
  m.until([&] { return ended.size() == 1; });
  CHECK(ended == std::vector{2});
  connect_from(1);
  m.until([&] { return ended.size() == 2; });
  CHECK(ended == std::vector{2, 4});
  CHECK(m.listener->statistics().waiting == 2);
  CHECK(m.listener->statistics().refused_backlog == 2);
  m.listener->close();
  m.until([&] { return ended.size() == 4; });
}

TEST_CASE("a source with many requests delays a connector of another source by one handshake") {
  const connections_check nothing_left;
  meeting m({}, {}, 10);
  std::list<queue_pair> callers, accepting;
  std::uint32_t source = 1;
  const hooks h;
  requests_come_from(source);
  std::size_t waiting = 0, ended = 0;
  for (const std::uint32_t address : {1U, 1U, 1U, 1U, 2U}) {
    source = address;
    m.initiator->async_connect(callers.emplace_back(m.io, m.pd), m.where(),
                               [&](error_code, const connection_info&) { ++ended; });
    ++waiting;
    m.until([&] { return m.listener->statistics().waiting == waiting; });
  }
  // Both are answered before any connector confirms.
  std::vector<asio::ip::address> accepted;
  for (int i = 0; i < 2; ++i)
    m.listener->async_accept(accepting.emplace_back(m.io, m.pd),
                             [&](error_code ec, const connection_info& info) {
                               CHECK_FALSE(ec);
                               accepted.push_back(info.remote.address());
                             });
  m.until([&] { return accepted.size() == 2; });
  std::sort(accepted.begin(), accepted.end());
  CHECK(accepted ==
        std::vector{asio::ip::make_address("0.0.0.1"), asio::ip::make_address("0.0.0.2")});
  m.listener->close();
  m.until([&] { return ended == callers.size(); });
}

TEST_CASE("while many ids wait to be destroyed, requests wait, too") {
  constexpr std::size_t most = detail::ending_ids::most_ends, more = 3;
  std::uint32_t source = 1;
  meeting m;
  slow_destructions slow(1000);
  requests_come_from(source);
  const auto waiting = [&] {
    return m.listener->statistics().waiting;
  };
  const auto refused = [&] {
    return m.listener->statistics().refused_incompatible;
  };
  const refusing accept(m, m.io, *m.listener);
  std::size_t ended = 0;
  for (; waiting() == 0 && ended < 2 * most; ended = refused()) {
    source = static_cast<std::uint32_t>(1 + ended / detail::ending_ids::most_ends_of_source);
    const silent_connector c(m.where(), *m.a.native_handle());
    m.until([&] { return refused() == ended + 1 || waiting() == 1; });
  }
  CHECK(ended == most);
  // InfiniBand's connection manager rejects a second request of one queue pair.
  std::list<queue_pair> callers;
  std::list<silent_connector> others;
  for (std::size_t i = 0; i < more; ++i)
    others.emplace_back(m.where(), *callers.emplace_back(m.io, m.pd).native_handle());
  m.until([&] { return waiting() == more + 1; });
  CHECK(refused() == ended);
  slow.release();
  m.until([&] { return waiting() == 0; });
  CHECK(m.listener->statistics().requests == ended + more + 1);
  m.listener->cancel();
  m.until([&] { return accept.accepted.done(); });
}

TEST_CASE("ids of one source that wait to be destroyed keep no other source waiting") {
  constexpr std::size_t most = detail::ending_ids::most_ends_of_source, backlog = 2, many = 20;
  constexpr std::uint32_t crowded = 1, other = 2;
  std::uint32_t source = crowded;
  meeting m({}, {}, backlog);
  slow_destructions slow(other);
  requests_come_from(source);
  const auto now = [&] {
    return m.listener->statistics();
  };
  refusing accept(m, m.io, *m.listener);
  std::size_t ended = 0;
  std::list<queue_pair> callers;
  std::list<silent_connector> kept;
  const auto request = [&] {
    kept.emplace_back(m.where(), *callers.emplace_back(m.io, m.pd).native_handle());
  };
  for (; now().waiting == 0 && ended < 2 * most; ended = now().refused_incompatible) {
    kept.clear();
    callers.clear();
    request();
    m.until([&] { return now().refused_incompatible == ended + 1 || now().waiting == 1; });
  }
  CHECK(ended == most);
  // Further requests of the source fill the backlog.
  for (std::size_t waiting = 2; waiting <= backlog; ++waiting) {
    request();
    m.until([&] { return now().waiting == waiting; });
  }
  request();
  m.until([&] { return now().refused_backlog == 1; });
  // Another source is answered meanwhile, and its ids are destroyed.
  source = other;
  for (std::size_t i = 1; i <= many; ++i) {
    request();
    m.until([&] { return now().refused_incompatible == ended + i; });
  }
  m.until([&] { return slow.others == many; });
  CHECK(slow.block(detail::cm_service::most_ends_of_source_at_a_time));
  asio_rdma::connection good(m.io, accept.pool);
  m.initiator->async_connect(good, m.where(), m.connected.handler());
  m.until([&] { return m.connected.done() && accept.accepted.done(); });
  CHECK(m.connected.succeeded());
  CHECK(accept.accepted.succeeded());
  CHECK(now().waiting == backlog);
  // The source is answered when its ids have been destroyed.
  slow.release();
  const refusing next(m, m.io, *m.listener);
  m.until([&] { return now().waiting == 0; });
  CHECK(now().refused_incompatible == ended + many + backlog);
  m.listener->cancel();
  m.until([&] { return next.accepted.done(); });
}

TEST_CASE("a context that is destroyed destroys many ids at a time") {
  constexpr std::size_t many = 3 * detail::cm_service::most_ends_of_source_at_a_time;
  meeting m;
  auto io = std::make_unique<asio::io_context>(1);
  std::optional<acceptor> listener(std::in_place, *io, endpoint(device_address(m.dev), 0));
  slow_destructions slow(1000);
  std::uint32_t source = 1;
  requests_come_from(source);
  std::optional<refusing> accept(std::in_place, m, *io, *listener);
  for (std::size_t i = 1; i <= many; ++i) {
    const silent_connector c(listener->local_endpoint(), *m.a.native_handle());
    until(*io, [&] { return listener->statistics().refused_incompatible == i; });
  }
  CHECK(slow.block(detail::cm_service::most_ends_of_source_at_a_time));
  listener->cancel();
  until(*io, [&] { return accept->accepted.done(); });
  accept.reset();
  listener.reset();
  std::thread destroying([&] { io.reset(); });
  CHECK(slow.block(many));
  slow.release();
  destroying.join();
}

TEST_CASE("an accept refuses a few requests at a time while others arrive") {
  const connections_check nothing_left;
  constexpr std::size_t bad = 100, arriving = 32;
  meeting m({}, {}, 2 * bad);
  std::list<queue_pair> callers;
  std::size_t ended = 0;
  for (std::size_t i = 0; i != bad; ++i)
    m.initiator->async_connect(callers.emplace_back(m.io, m.pd), m.where(),
                               [&](error_code, const connection_info&) { ++ended; });
  m.until([&] { return m.listener->statistics().waiting == bad; });
  std::list<silent_connector> silent; // whose requests are not read yet
  for (std::size_t i = 0; i != arriving; ++i)
    silent.emplace_back(m.where(), *callers.emplace_back(m.io, m.pd).native_handle());
  const auto refused = [&] {
    return m.listener->statistics().refused_incompatible;
  };
  std::uint64_t before = 0, most = 0;
  const auto look = [&] {
    most = std::max(most, refused() - before);
    before = refused();
  };
  const refusing accept(m, m.io, *m.listener);
  m.until([&] { // which runs a turn itself
    look();
    m.io.poll_one();
    look();
    return refused() == bad + arriving;
  });
  CHECK(most == detail::acceptor_impl::most_a_turn);
  m.listener->cancel();
  m.until([&] { return accept.accepted.done() && ended == bad; });
}

TEST_CASE("events of many attempts leave turns to the context's other work") {
  constexpr int many = 200;
  meeting m({}, {}, many);
  asio::io_context other(1);
  connector initiator(other);
  std::list<queue_pair> callers;
  std::atomic<int> connecting = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    connecting += call == cm_call::connect ? 1 : 0;
    return 0;
  };
  for (int i = 0; i < many; ++i)
    initiator.async_connect(callers.emplace_back(other, m.pd), m.where(),
                            [](error_code, const connection_info&) {});
  until({&other}, [&] { return connecting == many; });
  const int before = events_read;
  int turns = 0;
  std::vector<outcome<connection_request>> requests(many);
  for (auto& r : requests)
    m.listener->async_wait_request(r.handler());
  std::function<void()> turn = [&] {
    ++turns;
    if (events_read - before < many)
      asio::post(m.io, turn);
  };
  asio::post(m.io, turn);
  m.until([&] { return events_read - before >= many; });
  CHECK(turns >= 4);
}

TEST_CASE("a port of one's own serves for each endpoint of a range") {
  meeting m;
  connect_options c;
  c.local = unused(m);
  m.accept();
  m.initiator->async_connect(m.a, std::array{unused(m), m.where()}, c, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  CHECK(m.connected.value.local == *c.local);
}

TEST_CASE("an id that cannot be listened with is given back though no descriptor is left") {
  meeting m; // its context has its event channel
  const rivals r(m.dev, &m);
  rdma_cm_id* const id = r.ids[0];
  rdma_event_channel* const contexts = m.listener->native_handle()->channel;
  std::optional<no_descriptors> none(std::in_place);
  acceptor other(m.io);
  error_code ec;
  other.assign(id, 1, ec);
  none.reset();
  CHECK(ec);
  CHECK_FALSE(other.is_open());
  CHECK(id->channel != contexts);
  CHECK(id->context == &m);
}

TEST_CASE("an accept that no descriptor is left for costs no connector its connection") {
  meeting m;
  asio::io_context other(1); // its event channel is made for the first connection there
  queue_pair qp(other, m.pd);
  connection first;
  m.connect();
  {
    const no_descriptors none;
    m.listener->async_accept(qp, first.handler());
    m.until([&] { return first.done(); });
  }
  CHECK(first.ec == errc::too_many_files_open);
  m.accept();
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
}

TEST_CASE("a connection that no descriptor is left for is not begun") {
  const bool requested = GENERATE(false, true); // UBSan checks it by a pipe, so it comes first
  meeting m;
  asio::io_context other(1);
  queue_pair qp(other, m.pd);
  connection first;
  std::optional<no_descriptors> none(std::in_place);
  if (requested) {
    none.reset();
    outcome<connection_request> request;
    m.listener->async_wait_request(request.handler());
    m.connect();
    m.until([&] { return request.done(); });
    none.emplace();
    m.listener->async_accept(std::move(request.value), qp, first.handler());
  } else {
    m.initiator->async_connect(qp, m.where(), first.handler());
  }
  m.until([&] { return first.done(); });
  none.reset();
  CHECK(first.ec == errc::too_many_files_open);
  CHECK(qp.state() == queue_pair_state::open);
}

TEST_CASE("the events of an id that cannot be given back are passed over") {
  meeting m;
  std::array<std::uintptr_t, 8> of_caller{};
  of_caller.fill(1); // an address that cannot be read
  const rivals r(m.dev, &of_caller);
  rdma_cm_id* const id = r.ids[0];
  int moves = 0;
  const hooks h;
  before_cm_call = [&](cm_call call, const rdma_cm_id*) {
    return call == cm_call::migrate && moves++ > 0 ? ENOMEM : 0;
  };
  acceptor other(m.io);
  error_code ec;
  other.assign(id, 1, ec);
  CHECK(ec);
  CHECK(moves == 3); // to the context, and twice back
  CHECK_FALSE(other.is_open());
  CHECK(id->context == nullptr);
  const int before = events_read;
  endpoint to = m.where();
  REQUIRE(rdma_resolve_addr(id, nullptr, static_cast<sockaddr*>(to.data()), 5000) == 0);
  m.accept();
  m.until([&] { return events_read != before; });
  m.connect(); // the channel serves other ids
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.accepted.succeeded());
}

} // namespace test::cm_limits_tests
