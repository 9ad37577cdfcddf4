// SPDX-License-Identifier: BSL-1.0
// Connections and streams that share their receives.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/peer_process.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <deque>
#include <map>

namespace {

using namespace test;

shared_receives_options few(std::uint32_t receives) {
  shared_receives_options o;
  o.receives = receives;
  return o;
}

/// Pairs of links in one process. The accepting sides share receives, and the connecting sides
/// share others.
template <class Link>
struct crowd {
  explicit crowd(std::size_t pairs, const shared_receives_options& options = {},
                 const memory_pool_options& memory_of_b = {})
      : pool_b(pd, memory_of_b), of_a(io, pool_a, options), of_b(io, pool_b, options) {
    listener.open({device_address(dev), 0});
    for (std::size_t i = 0; i < pairs; ++i)
      connect(a.emplace_back(io, of_a), b.emplace_back(io, of_b));
  }

  void connect(Link& from, Link& to) {
    test::connection accepted, connected;
    listener.async_accept(to, accepted.handler());
    initiator.async_connect(from, listener.local_endpoint(), connected.handler());
    until([&] { return accepted.done() && connected.done(); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  /// Sends one message and checks its bytes.
  void carries(Link& from, Link& to, std::size_t bytes, std::uint32_t seed) {
    const auto text = pattern(bytes, seed);
    outcome<std::size_t> s;
    outcome<message> r;
    from.async_send(asio::buffer(text), seed, s.handler());
    to.async_receive(r.handler());
    until([&] { return s.done() && r.done(); });
    REQUIRE(s.ec == error_code());
    REQUIRE(r.ec == error_code());
    REQUIRE(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, seed));
    CHECK(r.value.immediate == std::optional(seed));
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool_a{pd}, pool_b;
  asio::io_context io{1};
  shared_receives of_a, of_b;
  acceptor listener{io};
  connector initiator{io};
  std::deque<Link> a, b; ///< a[i] has connected to b[i].
};

using talks = crowd<asio_rdma::connection>;
using streams = crowd<asio_rdma::stream>;

/// Closes everything and checks that nothing of the pools is in use.
template <class Crowd>
void gives_everything_back(Crowd& c) {
  c.a.clear();
  c.b.clear();
  c.of_a = c.of_b = {};
  c.listener.close();
  drain(c.io);
  CHECK(c.pool_a.statistics().blocks_in_use == 0);
  CHECK(c.pool_b.statistics().blocks_in_use == 0);
}

/// Messages of all sizes in one direction, `window` at a time.
struct traffic {
  static constexpr std::uint32_t count = 150, window = 4;

  static std::size_t size_of(std::uint32_t n) {
    std::mt19937 random(n);
    const auto kind = static_cast<std::uint32_t>(random() % 100);
    return random() % (kind < 2 ? 1u << 20 : kind < 10 ? 65536u : kind < 50 ? 4097u : 257u);
  }
  asio::awaitable<void> send() {
    while (sent < count) {
      const std::uint32_t n = sent++;
      const auto bytes = pattern(size_of(n), n + seed);
      co_await from.async_send(asio::buffer(bytes), n, asio::use_awaitable);
    }
  }
  asio::awaitable<void> receive() {
    while (begun < count) {
      const std::uint32_t n = begun++;
      const message m = co_await to.async_receive(asio::use_awaitable);
      right += m.size() == size_of(n) && is_pattern(m.payload.data(), m.size(), n + seed) &&
                       m.immediate == std::optional(n)
                   ? 1u
                   : 0u;
      ++received;
    }
  }
  void start(asio::io_context& io) {
    for (std::uint32_t i = 0; i < window; ++i) {
      asio::co_spawn(io, send(), asio::detached);
      asio::co_spawn(io, receive(), asio::detached);
    }
  }

  asio_rdma::connection& from;
  asio_rdma::connection& to;
  std::uint32_t seed;
  std::uint32_t sent = 0, begun = 0, received = 0, right = 0;
};

} // namespace

TEST_CASE("two connections share their receives") {
  talks c(2);
  for (std::uint32_t i = 0; i < 100; ++i)
    for (std::size_t n = 0; n < 2; ++n) {
      c.carries(c.a[n], c.b[n], i * 100, i);
      c.carries(c.b[n], c.a[n], i * 100, i);
    }
  CHECK(c.of_b.statistics().links == 2);
  CHECK(c.of_b.statistics().posted == c.of_b.options().receives);
  gives_everything_back(c);
}

TEST_CASE("messages of all sizes among connections that share arrive whole and in order") {
  talks c(6, few(40));
  std::deque<traffic> all;
  for (std::uint32_t i = 0; i < 6; ++i) {
    all.push_back({c.a[i], c.b[i], 1000 * i});
    all.push_back({c.b[i], c.a[i], 1000 * i + 500});
  }
  for (traffic& t : all)
    t.start(c.io);
  c.until([&] {
    return std::all_of(all.begin(), all.end(),
                       [](const traffic& t) { return t.received == traffic::count; });
  });
  for (const traffic& t : all)
    CHECK(t.right == traffic::count);
  gives_everything_back(c);
}

TEST_CASE("a link that does not read holds up no other link") {
  // So few receives that the link that does not read would occupy all of them.
  talks c(3, few(20));
  constexpr std::uint32_t count = 100;
  std::deque<outcome<std::size_t>> sent;
  const auto text = pattern(100, 1);
  for (std::uint32_t i = 0; i < count; ++i)
    c.a[0].async_send(asio::buffer(text), i, sent.emplace_back().handler());
  for (std::uint32_t i = 0; i < 50; ++i)
    for (std::size_t n = 1; n < 3; ++n) {
      c.carries(c.a[n], c.b[n], 100 * i, i);
      c.carries(c.b[n], c.a[n], 100 * i, i);
    }
  CHECK(!sent.back().done());
  CHECK(c.of_b.statistics().room == 0); // some messages occupy receives beyond the link's own
  for (std::uint32_t i = 0; i < count; ++i) {
    outcome<message> r;
    c.b[0].async_receive(r.handler());
    c.until([&] { return r.done(); });
    REQUIRE(r.succeeded());
    REQUIRE(r.value.immediate == std::optional(i));
  }
  c.until([&] { return sent.back().done(); });
  for (const auto& s : sent)
    CHECK(s.succeeded());
  CHECK(c.of_b.statistics().posted == 20);
  gives_everything_back(c);
}

TEST_CASE("more connections than there are receives for are refused") {
  talks c(2, few(12));
  CHECK(c.of_a.statistics().room == 0);
  error_code ec;
  asio_rdma::connection more(c.io);
  more.open(c.of_a, connection_options(), ec);
  CHECK(ec == error::shared_receives_full);
  CHECK(!more.is_open());
  CHECK(c.of_a.statistics().links == 2);
  c.carries(c.a[1], c.b[1], 10000, 1);

  c.a[0].close();
  c.b[0].close();
  c.until([&] { return c.of_a.statistics().room == 1 && c.of_b.statistics().room == 1; });
  more.open(c.of_a, connection_options(), ec);
  REQUIRE(ec == error_code());
  c.b[0].open(c.of_b);
  c.connect(more, c.b[0]);
  c.carries(more, c.b[0], 10000, 2);
  c.carries(c.b[1], c.a[1], 10000, 3);
  more.close();
  gives_everything_back(c);
}

TEST_CASE("shared receives, and links on them, that cannot be opened are refused") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io, other;
  error_code ec;
  const auto refuses = [&](auto change) {
    shared_receives_options o;
    change(o);
    const shared_receives r(io, pool, o, ec);
    return ec == asio::error::invalid_argument && !r.is_open();
  };
  CHECK(refuses([](auto& o) { o.per_link = 4; }));
  CHECK(refuses([](auto& o) { o.receives = o.per_link - 1; }));
  CHECK(refuses([](auto& o) { o.per_link = o.receives = 1 << 16; }));
  CHECK(refuses([](auto& o) { o.receive_size = 40; }));
  asio_rdma::connection link(io);
  link.open(shared_receives(), connection_options(), ec);
  CHECK(ec == asio::error::bad_descriptor);
  const shared_receives of_another(other, pool);
  link.open(of_another, connection_options(), ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK(of_another.statistics().links == 0);
  memory_pool_options little;
  little.limit = 1 << 20;
  const shared_receives too_many(io, memory_pool(pool.get_protection_domain(), little), {}, ec);
  CHECK(ec == error::pool_limit);
}

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

TEST_CASE("messages for which memory was lacking are received when there is some again") {
  memory_pool_options little;
  little.limit = little.first_arena;
  connection_options silent;
  silent.keep_alive = silent.keep_alive.zero(); // keep-alive would look for memory too
  talks c(0, few(16), little);
  for (int i = 0; i < 2; ++i)
    c.connect(c.a.emplace_back(c.io, c.of_a, silent), c.b.emplace_back(c.io, c.of_b, silent));
  const registered_buffer text = filled(c.pool_a, 4000, 5);
  constexpr std::uint32_t count = 1500;
  std::uint32_t sent = 0, received = 0, right = 0, emptied = 0;
  std::deque<message> kept;
  const std::function<void(std::size_t)> send = [&](std::size_t n) {
    if (sent++ < count)
      c.a[n].async_send(text, [&, n](error_code ec, std::size_t) {
        if (!ec)
          send(n);
      });
  };
  outcome<message> r[2];
  const auto take = [&](std::size_t n) {
    REQUIRE(r[n].ec == error_code());
    right += is_pattern(r[n].value.payload.data(), r[n].value.size(), 5) ? 1u : 0u;
    kept.push_back(std::move(r[n].value));
    ++received;
    r[n] = {};
    c.b[n].async_receive(r[n].handler());
  };
  for (std::size_t n = 0; n < 2; ++n) {
    c.b[n].async_receive(r[n].handler());
    for (int i = 0; i < 8; ++i)
      send(n);
  }
  while (received < count) {
    // Data stops at the latest when so many receives are missing that only those reserved for
    // control frames are left.
    c.until([&] { return r[0].done() || r[1].done() || c.of_b.statistics().missing >= 8; });
    for (std::size_t n = 0; n < 2; ++n)
      if (r[n].done())
        take(n);
    if (c.of_b.statistics().missing >= 8 && !r[0].done() && !r[1].done()) {
      ++emptied;
      kept.clear();
      c.until([&] { return c.of_b.statistics().missing < 8; });
    }
  }
  CHECK(right == received);
  CHECK(emptied > 1);
  kept.clear();
  r[0] = r[1] = {};
  c.b[0].cancel();
  c.b[1].cancel();
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

TEST_CASE("streams share their receives") {
  streams c(4, few(30));
  std::size_t over = 0, right = 0;
  const auto write = [&](asio_rdma::stream& to, std::uint32_t seed) -> asio::awaitable<void> {
    for (std::uint32_t i = 0; i < 60; ++i) {
      const auto bytes = pattern(i % 20 == 19 ? 300'000 : 1 + i * 97, seed + i);
      co_await asio::async_write(to, asio::buffer(bytes), asio::use_awaitable);
    }
  };
  const auto read = [&](asio_rdma::stream& from, std::uint32_t seed) -> asio::awaitable<void> {
    for (std::uint32_t i = 0; i < 60; ++i) {
      std::vector<std::uint8_t> bytes(i % 20 == 19 ? 300'000 : 1 + i * 97);
      co_await asio::async_read(from, asio::buffer(bytes), asio::use_awaitable);
      right += is_pattern(bytes.data(), bytes.size(), seed + i) ? 1u : 0u;
    }
    ++over;
  };
  for (std::uint32_t n = 0; n < 4; ++n) {
    asio::co_spawn(c.io, write(c.a[n], n), asio::detached);
    asio::co_spawn(c.io, read(c.b[n], n), asio::detached);
    asio::co_spawn(c.io, write(c.b[n], n + 7), asio::detached);
    asio::co_spawn(c.io, read(c.a[n], n + 7), asio::detached);
  }
  c.until([&] { return over == 8; });
  CHECK(right == 8 * 60);
  gives_everything_back(c);
}

TEST_CASE("the peer that is killed", "[.peer]") {
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
