// SPDX-License-Identifier: BSL-1.0
// Connections by rdma_cm that succeed.
#include "catch.hpp"
#include "connecting/cm_service.hpp"
#include "device/connecting/cm_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace test::cm_connect_tests {
namespace {

template <class T>
bool is_ready(const std::future<T>& f) {
  return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

class counting_resource final : public std::pmr::memory_resource {
public:
  int blocks = 0;

private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++blocks;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    --blocks;
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

} // namespace

TEST_CASE("private data is sent both ways, and each end has the other's endpoint") {
  const connections_check nothing_left;
  meeting m;
  connect_options c;
  c.data = bytes_of("from the connector");
  accept_options o;
  o.data = bytes_of("from the acceptor");
  m.listener->async_accept(m.b, o, m.accepted.handler());
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  REQUIRE(m.accepted.succeeded());
  REQUIRE(m.connected.succeeded());
  CHECK(text_of(m.accepted.value.data) == "from the connector");
  CHECK(text_of(m.connected.value.data) == "from the acceptor");
  CHECK(m.connected.value.remote == m.where());
  CHECK(m.accepted.value.local == m.where());
  CHECK(m.accepted.value.remote == m.connected.value.local);
  CHECK(m.connected.value.local.address() == m.where().address());
  CHECK(m.a.state() == queue_pair_state::connected);
  CHECK(m.b.state() == queue_pair_state::connected);
  CHECK(m.carries("and a message"));
}

TEST_CASE("private data of the largest size arrives") {
  meeting m;
  const data_limits most(m.dev);
  connect_options c;
  c.data = private_data(most.request, std::byte(1));
  accept_options o;
  o.data = private_data(most.acceptance, std::byte(2));
  m.listener->async_accept(m.b, o, m.accepted.handler());
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  REQUIRE(m.accepted.succeeded());
  REQUIRE(m.connected.succeeded());
  CHECK(m.accepted.value.data == c.data);
  CHECK(m.connected.value.data == o.data);
}

TEST_CASE("connecting with use_future") {
  meeting m;
  auto accepted = m.listener->async_accept(m.b, asio::use_future);
  auto connected = m.initiator->async_connect(m.a, m.where(), asio::use_future);
  m.until([&] { return is_ready(accepted) && is_ready(connected); });
  CHECK(connected.get().remote == m.where());
  CHECK(accepted.get().local == m.where());
  CHECK(m.carries("futures"));
}

TEST_CASE("connecting with coroutines") {
  meeting m;
  const auto serve = [&]() -> asio::awaitable<void> {
    connection_request request = co_await m.listener->async_wait_request(asio::use_awaitable);
    const connection_info info =
        co_await m.listener->async_accept(std::move(request), m.b, asio::use_awaitable);
    m.accepted.handler()(error_code(), info);
  };
  const auto call = [&]() -> asio::awaitable<void> {
    const auto [ec, info] =
        co_await m.initiator->async_connect(m.a, m.where(), asio::as_tuple(asio::use_awaitable));
    m.connected.handler()(ec, info);
  };
  const auto rethrow = [](std::exception_ptr e) {
    if (e)
      std::rethrow_exception(e);
  };
  asio::co_spawn(m.io, serve(), rethrow);
  asio::co_spawn(m.io, call(), rethrow);
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.carries("coroutines"));
}

TEST_CASE("a deferred connect starts no attempt before it is launched") {
  meeting m;
  auto accept = m.listener->async_accept(m.b, asio::deferred);
  auto connect = m.initiator->async_connect(m.a, m.where(), asio::deferred);
  m.io.restart();
  CHECK(m.io.poll() == 0);
  std::move(accept)(m.accepted.handler());
  std::move(connect)(m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.carries("deferred"));
}

TEST_CASE("requests wait until they are accepted") {
  meeting m;
  m.connect();
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.until([&] { return request.done(); });
  REQUIRE(request.succeeded());
  CHECK_FALSE(m.connected.done());
  CHECK(request.value.is_open());
  CHECK(request.value.device_name() == m.dev.name());
  CHECK(request.value.info().local == m.where());
  m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.accepted.succeeded());
  CHECK(m.carries("late"));
}

TEST_CASE("requests that arrived before the first accept are served in their order") {
  meeting m;
  queue_pair a2(m.io, m.pd), b2(m.io, m.pd);
  connection connected, accepted;
  connect_options first, second;
  first.data = bytes_of("first");
  second.data = bytes_of("second");
  outcome<connection_request> seen;
  m.initiator->async_connect(m.a, m.where(), first, m.connected.handler());
  m.listener->async_wait_request(seen.handler());
  m.until([&] { return seen.done(); });
  m.initiator->async_connect(a2, m.where(), second, connected.handler());
  CHECK(text_of(seen.value.info().data) == "first");
  m.listener->async_accept(std::move(seen.value), m.b, m.accepted.handler());
  m.listener->async_accept(b2, accepted.handler());
  m.until([&] {
    return m.accepted.done() && m.connected.done() && accepted.done() && connected.done();
  });
  CHECK(m.accepted.succeeded());
  CHECK(connected.succeeded());
  CHECK(text_of(accepted.value.data) == "second");
}

TEST_CASE("an acceptor may close while an accepted queue pair is being connected") {
  meeting m;
  outcome<connection_request> request;
  m.connect();
  m.listener->async_wait_request(request.handler());
  m.until([&] { return request.done(); });
  m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  m.listener->close();
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
  m.listener.reset();
  m.initiator.reset();
  CHECK(m.carries("without an acceptor, and without a connector"));
}

TEST_CASE("an acceptor on any address, and the device by a loopback address") {
  meeting m;
  m.listener->close();
  m.listener->open({asio::ip::address_v4::any(), 0});
  const auto port = m.where().port();
  CHECK(port != 0);
  const bool by_loopback = GENERATE(false, true);
  const endpoint to(by_loopback ? asio::ip::address(asio::ip::address_v4::loopback())
                                : device_address(m.dev),
                    port);
  m.accept();
  m.initiator->async_connect(m.a, to, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  CHECK(m.connected.value.remote == endpoint(device_address(m.dev), port));
  CHECK(m.carries("hello"));
}

TEST_CASE("link-local addresses are reported with their interface") {
  meeting m;
  const auto addresses = m.dev.addresses();
  const auto own = std::find_if(addresses.begin(), addresses.end(), [](const auto& a) {
    return a.is_v6() && a.to_v6().is_link_local();
  });
  if (own == addresses.end())
    return not_on_this_device("a link-local address");
  m.listener->close();
  error_code ec;
  m.listener->open({*own, 0}, 1, ec);
  if (ec)
    return not_on_this_device("a link-local address of its interface");
  m.accept();
  m.initiator->async_connect(m.a, endpoint(*own, m.where().port()), m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  REQUIRE(m.accepted.succeeded());
  for (const connection* c : {&m.connected, &m.accepted}) {
    CHECK(c->value.local.address() == *own);
    CHECK(c->value.remote.address() == *own);
  }
}

TEST_CASE("the device by its IPv6 address, or by the IPv6 loopback address") {
  meeting m;
  const auto addresses = m.dev.addresses();
  const auto own = std::find_if(addresses.begin(), addresses.end(), [](const auto& a) {
    return a.is_v6() && !a.to_v6().is_link_local();
  });
  if (own == addresses.end())
    return not_on_this_device("an IPv6 address that is not link-local");
  const bool by_loopback = GENERATE(false, true);
  m.listener->close();
  m.listener->open({by_loopback ? asio::ip::address(asio::ip::address_v6::any()) : *own, 0});
  const endpoint at(*own, m.where().port());
  const endpoint to(by_loopback ? asio::ip::address(asio::ip::address_v6::loopback()) : *own,
                    at.port());
  m.accept();
  m.initiator->async_connect(m.a, to, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  INFO(describe(m.connected.ec));
  REQUIRE(m.connected.succeeded());
  REQUIRE(m.accepted.succeeded());
  CHECK(m.connected.value.remote == at);
  CHECK(m.accepted.value.local == at);
  CHECK(m.accepted.value.remote == m.connected.value.local);
  CHECK(m.carries("by IPv6"));
}

TEST_CASE("connecting from a given address") {
  meeting m;
  connect_options c;
  c.local = endpoint(device_address(m.dev), 0);
  m.accept();
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.connected.succeeded());
  CHECK(m.connected.value.local.address() == device_address(m.dev));
}

TEST_CASE("a connector takes the first endpoint of a range that answers") {
  meeting m;
  endpoint nobody;
  {
    acceptor other(m.io, {device_address(m.dev), 0});
    nobody = other.local_endpoint();
  }
  const std::array<endpoint, 3> endpoints{nobody, m.where(), nobody};
  m.accept();
  m.initiator->async_connect(m.a, endpoints, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  REQUIRE(m.connected.succeeded());
  CHECK(m.connected.value.remote == m.where());
  CHECK(m.carries("second"));
}

TEST_CASE("receives that were started before connecting take the first messages") {
  meeting m;
  got heard;
  m.b.async_receive(m.mb.buffer(0, 64), heard.handler());
  m.meet();
  sent said;
  m.ma.put(0, "first");
  m.a.async_send(m.ma.buffer(0, 5), said.handler());
  m.until([&] { return heard.done() && said.done(); });
  CHECK(heard.succeeded());
  CHECK(m.mb.text(0, 5) == "first");
}

TEST_CASE("no limit to the time that connecting takes") {
  meeting m;
  connect_options c;
  accept_options o;
  c.timeout = o.timeout = std::chrono::milliseconds::max();
  m.listener->async_accept(m.b, o, m.accepted.handler());
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.accepted.done() && m.connected.done(); });
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
}

TEST_CASE("connections that have ended leave no memory behind with the context") {
  struct handler final : detail::cm_handler {
    void on_cm_event(const detail::cm_event&) override {}
    void close(const detail::cm_service&) override {}
  };
  counting_resource memory; // a weak pointer keeps the memory of allocate_shared
  asio::io_context io(1);
  for (int i = 0; i < 1000; ++i)
    detail::cm_service::of(io).remember(
        std::allocate_shared<handler>(std::pmr::polymorphic_allocator<handler>(&memory)));
  CHECK(memory.blocks <= 100);
}

TEST_CASE(
    "the attempts of a moved connector continue in the new object; the old one can be used again") {
  meeting m;
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  connection accepted, connected;
  m.connect();
  std::optional<connector> moved;
  if (GENERATE(false, true))
    moved.emplace(m.io) = std::move(*m.initiator);
  else
    moved.emplace(std::move(*m.initiator));
  CHECK(m.initiator->get_executor() == m.io.get_executor());
  m.initiator->cancel(); // no effect, as it has no attempt
  m.initiator->async_connect(c, m.where(), connected.handler());
  m.accept();
  m.listener->async_accept(d, accepted.handler());
  m.until([&] {
    return m.accepted.done() && m.connected.done() && accepted.done() && connected.done();
  });
  CHECK(m.accepted.succeeded());
  CHECK(m.connected.succeeded());
  CHECK(accepted.succeeded());
  CHECK(connected.succeeded());
}

TEST_CASE("connectors that connect at once are accepted one after the other") {
  const connections_check nothing_left;
  constexpr std::size_t count = 200;
  queue_pair_options small;
  small.send_depth = small.receive_depth = 4;
  meeting m;
  acceptor listener(m.io, {device_address(m.dev), 0}); // with the default backlog
  std::list<queue_pair> connecting, accepting;
  std::vector<error_code> connected, accepted;
  for (std::size_t i = 0; i < count; ++i) {
    accepting.emplace_back(m.io, m.pd, small);
    queue_pair& q = connecting.emplace_back(m.io, m.pd, small);
    m.initiator->async_connect(
        q, listener.local_endpoint(),
        [&](error_code ec, const connection_info&) { connected.push_back(ec); });
  }
  auto next = accepting.begin();
  const std::function<void()> accept = [&] {
    listener.async_accept(*next++, [&](error_code ec, const connection_info&) {
      accepted.push_back(ec);
      if (next != accepting.end())
        accept();
    });
  };
  accept();
  m.until([&] {
    return connected.size() == count &&
           (accepted.size() == count ||
            std::count(connected.begin(), connected.end(), error_code()) != std::ptrdiff_t(count));
  });
  CHECK(connected == std::vector<error_code>(count));
  CHECK(accepted == std::vector<error_code>(count));
}

TEST_CASE("an acceptor accepts many connections at once") {
  const connections_check nothing_left;
  const int count = 64;
  queue_pair_options small;
  small.send_depth = small.receive_depth = 4;
  meeting m;
  struct both {
    both(asio::io_context& io, const protection_domain& pd, const queue_pair_options& options)
        : a(io, pd, options), b(io, pd, options) {}
    queue_pair a, b;
    connection accepted, connected;
  };
  std::list<both> all;
  for (int i = 0; i < count; ++i) {
    both& one = all.emplace_back(m.io, m.pd, small);
    connect_options c;
    c.data = bytes_of("number " + std::to_string(i));
    m.listener->async_accept(one.b, one.accepted.handler());
    m.initiator->async_connect(one.a, m.where(), c, one.connected.handler());
  }
  m.until([&] {
    return std::all_of(all.begin(), all.end(),
                       [](const both& one) { return one.accepted.done() && one.connected.done(); });
  });
  std::set<std::string> names;
  std::set<std::uint16_t> ports;
  for (const both& one : all) {
    INFO(describe(one.connected.ec) << ", " << describe(one.accepted.ec));
    CHECK(one.connected.succeeded());
    CHECK(one.accepted.succeeded());
    names.insert(text_of(one.accepted.value.data));
    ports.insert(one.connected.value.local.port());
  }
  CHECK(names.size() == static_cast<std::size_t>(count));
  CHECK(ports.size() == static_cast<std::size_t>(count));
  // Each queue pair has its own peer: the message arrives at the side that was given its name.
  int arrived = 0;
  std::size_t index = 0;
  for (both& one : all)
    one.b.async_receive(m.mb.buffer(16 * index++, 16),
                        [&](error_code ec, received r) { arrived += !ec && r.bytes == 2 ? 1 : 0; });
  index = 0;
  for (both& one : all) {
    const char text[2] = {'#', static_cast<char>(index)};
    m.ma.put(16 * index, {text, 2});
    one.a.async_send(m.ma.buffer(16 * index++, 2), [](error_code, std::size_t) {});
  }
  m.until([&] { return arrived == count; });
  index = 0;
  for (const both& one : all) {
    const int number = m.mb.data()[16 * index++ + 1];
    CHECK(text_of(one.accepted.value.data) == "number " + std::to_string(number));
  }
}

} // namespace test::cm_connect_tests
