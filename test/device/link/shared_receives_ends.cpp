// SPDX-License-Identifier: BSL-1.0
// The ends of connections that share receives, and of the shared receives.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/link/shared_crowd.hpp"
#include "device/support/peer_process.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include <deque>

namespace test::shared_receives_ends_tests {
TEST_CASE("the end of one connection leaves the others as they are") {
  talks c(3, few(24));
  const auto text = pattern(3000, 1);
  for (const bool accepting : {true, false}) {
    CAPTURE(accepting);
    auto& ended = accepting ? c.b[0] : c.a[0];
    auto& left = accepting ? c.a[0] : c.b[0];
    // Some messages wait to be read, some to be sent.
    std::deque<outcome<std::size_t>> sent;
    for (int i = 0; i < 30; ++i) {
      left.async_send(asio::buffer(text), sent.emplace_back().handler());
      ended.async_send(asio::buffer(text), sent.emplace_back().handler());
    }
    c.until([&] { return sent[0].done() && sent[1].done(); });
    ended.close();
    c.until(
        [&] { return std::all_of(sent.begin(), sent.end(), [](auto& s) { return s.done(); }); });
    CHECK(sent.back().ec == asio::error::operation_aborted);
    INFO(describe(sent[58].ec));
    CHECK(sent[58].ec);
    CHECK(sent[58].ec != asio::error::operation_aborted);
    for (std::uint32_t i = 0; i < 30; ++i)
      for (std::size_t n = 1; n < 3; ++n) {
        c.carries(c.a[n], c.b[n], 100 * i, i);
        c.carries(c.b[n], c.a[n], 100 * i, i);
      }
    // Complete messages can still be received, and occupy their receives until then.
    std::size_t received = 0;
    for (outcome<message> r; !r.ec; ++received) {
      r = {};
      left.async_receive(r.handler());
      c.until([&] { return r.done(); });
    }
    CHECK(received > 1);
    c.until([&] { return c.of_a.statistics().links == 2 && c.of_b.statistics().links == 2; });
    CHECK(c.of_a.statistics().posted == 24);
    CHECK(c.of_b.statistics().posted == 24);
    left.close();
    c.a[0].open(c.of_a);
    c.b[0].open(c.of_b);
    c.connect(c.a[0], c.b[0]);
    c.carries(c.a[0], c.b[0], 5000, 7);
  }
  gives_everything_back(c);
}

TEST_CASE("a connection that says goodbye leaves the others as they are") {
  talks c(2, few(24));
  outcome<void> closed_a, closed_b;
  outcome<message> r;
  c.b[0].async_receive(r.handler());
  c.a[0].async_close(closed_a.handler());
  c.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::eof);
  c.b[0].async_close(closed_b.handler());
  c.until([&] { return closed_a.done() && closed_b.done(); });
  CHECK(closed_a.succeeded());
  CHECK(closed_b.succeeded());
  c.carries(c.a[1], c.b[1], 10000, 1);
  c.until([&] { return c.of_a.statistics().links == 1 && c.of_b.statistics().links == 1; });
  gives_everything_back(c);
}

TEST_CASE("closed receives end those that share them") {
  talks c(2, few(24));
  std::deque<outcome<message>> here, there;
  for (std::size_t n = 0; n < 2; ++n) {
    c.b[n].async_receive(here.emplace_back().handler());
    c.a[n].async_receive(there.emplace_back().handler());
  }
  c.of_b.close();
  CHECK(!c.of_b.is_open());
  c.until([&] { return here[0].done() && here[1].done() && there[0].done() && there[1].done(); });
  for (const auto& r : here)
    CHECK(r.ec == error::shared_receives_closed);
  for (const auto& r : there) {
    INFO(describe(r.ec));
    CHECK(r.ec == asio::error::connection_reset);
  }
  outcome<std::size_t> s;
  c.b[0].async_send(asio::buffer("x", 1), s.handler());
  c.until([&] { return s.done(); });
  CHECK(s.ec == error::shared_receives_closed);
  error_code ec;
  asio_rdma::connection more(c.io);
  more.open(c.of_b, connection_options(), ec);
  CHECK(ec == error::shared_receives_closed);
  gives_everything_back(c);
}

TEST_CASE("a connection whose queue pair fails ends with that queue pair's reason") {
  talks c(2, few(24));
  faults::injector faults(c.dev.native_handle());
  const auto text = pattern(100, 1);
  std::deque<outcome<message>> received;
  for (int i = 0; i < 3; ++i)
    c.b[0].async_receive(received.emplace_back().handler());
  ibv_qp* const qp = c.b[0].native_handle();
  bool iwarp = false;
  error_code why;
  SECTION("an event of the device") {
    faults.raise_qp_event(qp);
    why = error::queue_pair_fatal;
    iwarp = c.dev.type() == transport::iwarp;
  }
  SECTION("a receive that the device did not fill") {
    faults.fail_completion({.status = IBV_WC_LOC_PROT_ERR, .qp_num = qp->qp_num});
    c.a[0].async_send(asio::buffer(text), asio::detached);
    why = make_error_code(IBV_WC_LOC_PROT_ERR);
  }
  SECTION("a receive that was flushed") {
    faults.fail_completion({.status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->qp_num});
    c.a[0].async_send(asio::buffer(text), asio::detached);
    why = asio::error::connection_reset;
  }
  c.until([&] {
    return std::all_of(received.begin(), received.end(), [](auto& r) { return r.done(); });
  });
  for (const auto& r : received) {
    INFO(describe(r.ec));
    CHECK(r.calls == 1);
    // On iWARP the device may close the connection before it reports the reason.
    CHECK((r.ec == why || (iwarp && r.ec == asio::error::connection_reset)));
  }
  c.until([&] { return c.of_b.statistics().links == 1; });
  CHECK(c.of_b.statistics().posted == 24);
  c.carries(c.a[1], c.b[1], 10000, 1);
  faults.clear();
  gives_everything_back(c);
}

TEST_CASE("shared receives last as long as a link uses them") {
  talks c(2, few(24));
  c.of_a = c.of_b = {};
  c.carries(c.a[0], c.b[0], 10000, 1);
  c.a.pop_front();
  c.b.pop_front();
  c.carries(c.a[0], c.b[0], 10000, 2);
  message kept; // its memory belongs to the pool
  outcome<message> r;
  c.b[0].async_receive(r.handler());
  const auto text = pattern(1000, 3);
  outcome<std::size_t> s;
  c.a[0].async_send(asio::buffer(text), s.handler());
  c.until([&] { return r.done() && s.done(); });
  kept = std::move(r.value);
  c.a.clear();
  c.b.clear();
  drain(c.io);
  CHECK(is_pattern(kept.payload.data(), kept.size(), 3));
  CHECK(c.pool_b.statistics().blocks_in_use == 1);
  kept = {};
  gives_everything_back(c);
}

TEST_CASE("receives that no link has used are released") {
  talks c(0, few(24));
  drain(c.io); // they are no work
  CHECK(c.pool_a.statistics().blocks_in_use == 24);
  gives_everything_back(c);
}

TEST_CASE("a connection that fails while receives lack memory expects none of them any more") {
  memory_pool_options little;
  little.limit = little.first_arena;
  connection_options silent;
  silent.keep_alive = silent.keep_alive.zero();
  talks c(0, few(16), little);
  for (int i = 0; i < 2; ++i)
    c.connect(c.a.emplace_back(c.io, c.of_a, silent), c.b.emplace_back(c.io, c.of_b, silent));
  std::deque<outcome<void>> work; // work of the context, until the end
  for (int round = 0; round < 4; ++round) {
    std::deque<registered_buffer> hog;
    error_code ec;
    for (std::size_t bytes = little.limit; bytes >= 4096; bytes /= 2)
      for (ec.clear(); !ec;)
        hog.push_back(c.pool_b.allocate(bytes, ec));
    // b[0] keeps its messages, with their memory, until fewer receives are posted than it was
    // promised.
    const auto text = pattern(3000, 1);
    std::deque<outcome<message>> kept;
    while (c.of_b.statistics().missing < 6) {
      sent s;
      c.b[0].async_receive(kept.emplace_back().handler());
      c.a[0].async_send(asio::buffer(text), s.handler());
      c.until([&] { return kept.back().done() && s.done(); });
    }
    c.carries(c.a[1], c.b[1], 100, 1); // b[1] looks for memory from now on, too
    outcome<void> gone;
    c.b[0].async_wait_disconnect(gone.handler());
    c.b[1].async_wait_disconnect(work.emplace_back().handler());
    c.a[0].close();
    c.until([&] { return gone.done() && c.of_b.statistics().links == 1; });
    asio::steady_timer later(c.io, std::chrono::milliseconds(30)); // later than any look for memory
    bool is_later = false;
    later.async_wait([&](error_code) { is_later = true; });
    c.until([&] { return is_later; });
    c.b[0] = asio_rdma::connection(c.io);
    hog.clear();
    kept.clear();
    c.until([&] { return c.of_b.statistics().missing == 0; });
    for (std::uint32_t i = 0; i < 40; ++i)
      c.carries(c.a[1], c.b[1], 100 * i, i);
    CHECK(c.of_b.statistics().posted == 16);
    c.a[0].open(c.of_a);
    c.b[0].open(c.of_b);
    c.connect(c.a[0], c.b[0]);
    c.carries(c.a[0], c.b[0], 5000, 7);
  }
  gives_everything_back(c);
}

TEST_CASE("the peer of a link with shared receives that is killed", "[.peer]") {
  const auto port = port_of_tester();
  if (!port)
    return;
  const device dev = open_device();
  asio::io_context io(1);
  const memory_pool pool{protection_domain(dev)};
  asio_rdma::connection link(io, pool);
  connector initiator(io);
  const auto text = pattern(4000, 1);
  const std::function<void(error_code, std::size_t)> send = [&](error_code ec, std::size_t) {
    if (!ec)
      link.async_send(asio::buffer(text), send);
  };
  initiator.async_connect(link, endpoint(device_address(dev), *port),
                          [&](error_code ec, const connection_info&) {
                            for (int i = 0; i < 8; ++i)
                              send(ec, 0);
                          });
  io.run();
}

TEST_CASE("a killed process leaves those that share with it as they are") {
  talks c(2, few(24));
  for (int i = 0; i < 5; ++i) {
    asio_rdma::connection link(c.io, c.of_b);
    test::connection accepted;
    c.listener.async_accept(link, accepted.handler());
    peer_process peer(c.listener.local_endpoint());
    c.until([&] { return accepted.done(); });
    REQUIRE(accepted.succeeded());
    std::size_t received = 0;
    error_code end;
    const std::function<void(error_code, message)> receive = [&](error_code ec, const message&) {
      ++received;
      end = ec;
      if (!ec)
        link.async_receive(receive);
    };
    link.async_receive(receive);
    c.until([&] { return received > 100; });
    peer.kill();
    for (std::uint32_t n = 0; n < 30; ++n)
      c.carries(c.a[n % 2], c.b[n % 2], 100 * n, n);
    c.until([&] { return !!end; });
    INFO(describe(end));
    CHECK(end == asio::error::connection_reset);
    c.until([&] { return c.of_b.statistics().links == 2; });
    CHECK(c.of_b.statistics().posted == 24);
  }
  c.carries(c.a[0], c.b[0], 10000, 1);
  gives_everything_back(c);
}

} // namespace test::shared_receives_ends_tests
