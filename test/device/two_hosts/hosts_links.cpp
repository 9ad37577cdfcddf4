// SPDX-License-Identifier: BSL-1.0
// Two hosts, connections and streams between them, and a network that stops to carry packets.
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"
#include "device/two_hosts/hosts_support.hpp"
#include "streams/stream_impl.hpp"

#include <catch.hpp>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <variant>

namespace test::hosts_links_tests {
namespace {

using namespace std::chrono_literals;

/// Operations of one side: chains, which restart themselves, and operations that wait for ever.
class load {
public:
  load() = default;
  load(const load&) = delete;
  load& operator=(const load&) = delete;

  /// Starts an operation again and again, until it fails.
  void repeat(std::function<void(load&)> start) {
    chains_.push_back(std::move(start));
    restart(chains_.size() - 1);
  }
  auto again(std::size_t chain) {
    return [this, chain](error_code ec, auto&&...) {
      --under_way_;
      ++ended;
      if (ec)
        note(ec);
      else
        restart(chain);
    };
  }
  /// The handler of an operation that nothing completes.
  auto once() {
    ++under_way_;
    return [this](error_code ec, auto&&...) {
      --under_way_;
      note(ec);
    };
  }
  /// The chain that is being started.
  std::size_t current() const { return current_; }
  bool over() const { return under_way_ == 0; }

  std::size_t ended = 0;
  std::set<std::string> reasons; ///< Other than `timed_out` and `connection_reset`.
  int failed = 0;
  bool found = false; ///< The device had retried an operation in vain.

private:
  void restart(std::size_t chain) {
    ++under_way_;
    current_ = chain;
    chains_[chain](*this);
  }
  void note(const error_code& ec) {
    ++failed;
    if (ec == errc::timed_out)
      found = true;
    else if (ec != asio::error::connection_reset)
      reasons.insert(describe(ec));
  }

  std::deque<std::function<void(load&)>> chains_;
  std::size_t current_ = 0;
  int under_way_ = 0;
};

/// A link from the second host to the first.
template <class Link, class Options>
struct link_of_hosts {
  explicit link_of_hosts(const Options& options) {
    a.open(pool1, options);
    b.open(pool2, options);
  }
  bool iwarp() const { return d1.type() == transport::iwarp; }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  void connect() {
    connection accepted, connected;
    {
      const on_host here(1);
      listener.open({address_of(1), 0});
    }
    listener.async_accept(a, accepted.handler());
    // siw creates its socket in the network of the thread that requests a connection; that is a
    // later step of this thread.
    const on_host here(2);
    initiator.async_connect(b, listener.local_endpoint(), connected.handler());
    until([&] { return connected.done() && (connected.ec || accepted.done()); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }

  /// Connects without the connection manager, which on rxe does not survive a link that goes down.
  void connect_by_hand() {
    queue_pair_address of_a, of_b;
    const auto check = [](const error_code& ec) {
      if (ec)
        throw system_error(ec, "connect");
    };
    auto &x = *a.impl(), &y = *b.impl();
    check(x.target_queue_pair()->local_address(of_a));
    check(y.target_queue_pair()->local_address(of_b));
    check(x.target_queue_pair()->connect(of_b));
    check(y.target_queue_pair()->connect(of_a));
    check(x.on_hello(y.hello(), true));
    check(y.on_hello(x.hello(), false));
    x.on_connected({});
    y.on_connected({});
  }

  device d1 = device_of(1), d2 = device_of(2);
  memory_pool pool1{protection_domain(d1)}, pool2{protection_domain(d2)};
  load load1, load2;
  asio::io_context io{1};
  acceptor listener{io};
  connector initiator{io};
  Link a{io}, b{io};
};

/// Connections with operations of every kind pending.
struct connections : link_of_hosts<asio_rdma::connection, connection_options> {
  static connection_options options() {
    connection_options o;
    o.queue_pair = impatient();
    o.keep_alive = 20ms;
    o.remote_memory.bytes = 1 << 20;
    o.remote_memory.rights = access::remote_read | access::remote_write | access::remote_atomic;
    return o;
  }
  connections() : link_of_hosts(options()) {}

  void burden() {
    const remote_region of_2 = ask(a), of_1 = ask(b);
    load_with(a, load1, pool1, of_2);
    load_with(b, load2, pool2, of_1);
  }
  void idle() {
    a.async_receive(load1.once());
    b.async_receive(load2.once());
  }

private:
  remote_region ask(asio_rdma::connection& c) {
    outcome<remote_region> r;
    const access usual = access::remote_read | access::remote_write;
    c.async_request_memory(4096, iwarp() ? usual : usual | access::remote_atomic, r.handler());
    until([&] { return r.done(); });
    REQUIRE(r.ec == error_code());
    return r.value;
  }
  void load_with(asio_rdma::connection& c, load& l, const memory_pool& pool,
                 const remote_region& there) {
    // As many of each kind are sent as received; otherwise the traffic would stop at some time.
    for (int i = 0; i < 2; ++i) {
      l.repeat([&c](load& x) { c.async_receive(x.again(x.current())); });
      l.repeat(
          [&c, pool](load& x) { c.async_receive(pool.allocate(1 << 17), x.again(x.current())); });
      l.repeat([&](load& x) { c.async_send(asio::buffer(large_), x.again(x.current())); });
      l.repeat([&c, pool](load& x) { c.async_send(pool.allocate(1 << 17), x.again(x.current())); });
      l.repeat([&](load& x) { c.async_send(asio::buffer(large_, 100), x.again(x.current())); });
      l.repeat([&c](load& x) { c.async_receive_immediate(x.again(x.current())); });
      l.repeat([&, there](load& x) {
        c.async_write(asio::buffer(large_, 100), there, 1, x.again(x.current()));
      });
      l.repeat([&c](load& x) { c.async_receive_region(x.again(x.current())); });
      l.repeat(
          [&c, pool](load& x) { c.async_send_region(pool.allocate(64), x.again(x.current())); });
      l.repeat([&c, there](load& x) {
        c.async_renew(there, std::chrono::minutes(1), x.again(x.current()));
      });
      if (!iwarp())
        l.repeat([&c, there](load& x) { c.async_fetch_add(there, 1, x.again(x.current())); });
    }
    for (int i = 0; i < 4; ++i) {
      l.repeat([&c, pool, there](load& x) {
        c.async_write(pool.allocate(4096), there, x.again(x.current()));
      });
      l.repeat([&c, pool, there](load& x) {
        c.async_read(pool.allocate(4096), there, x.again(x.current()));
      });
      l.repeat([&c](load& x) { c.async_request_memory(64, x.again(x.current())); });
    }
  }

  const std::vector<std::uint8_t> large_ = pattern(1 << 17, 1);
};

struct streams : link_of_hosts<asio_rdma::stream, stream_options> {
  static stream_options options() {
    stream_options o;
    o.queue_pair = impatient();
    o.keep_alive = 20ms;
    return o;
  }
  streams() : link_of_hosts(options()) {}

  void burden() {
    load_with(a, load1, pool1);
    load_with(b, load2, pool2);
  }
  void idle() {
    a.async_read_some(asio::buffer(&byte_, 1), load1.once());
    b.async_read_some(asio::buffer(&byte_, 1), load2.once());
  }

private:
  void load_with(asio_rdma::stream& s, load& l, const memory_pool& pool) {
    l.repeat([&](load& x) { s.async_write_some(asio::buffer(plain_), x.again(x.current())); });
    l.repeat(
        [&s, pool](load& x) { s.async_write_some(pool.allocate(4096), x.again(x.current())); });
    l.repeat([&](load& x) { s.async_receive(x.again(x.current())); });
    l.repeat([&](load& x) { s.async_receive(x.again(x.current())); });
  }

  char byte_ = 0;
  const std::vector<std::uint8_t> plain_ = pattern(100000, 1);
};

// The limit that the documentation of `keep_alive` gives: its interval, 20 ms here, and the queue
// pair's retries, 12 ms at most, or those of TCP, which gives up after some 1.4 s. If the kernel no
// longer knows the neighbour, rxe's packets wait for ARP first: three probes of a second each
// (mcast_solicit). The rest allows for a busy machine.
constexpr auto documented = 8s;

// Checks that every operation ends once, in time and with an error, and that the pools get all
// memory back.
template <class Links>
void check_ends(Links& links) {
  const auto cut = std::chrono::steady_clock::now();
  links.until([&] { return links.load1.over() && links.load2.over(); });
  CHECK(std::chrono::steady_clock::now() - cut < documented);
  for (const load* l : {&links.load1, &links.load2}) {
    CHECK(l->failed != 0);
    for (const std::string& other : l->reasons)
      FAIL_CHECK(other);
  }
  links.a.close();
  links.b.close();
  drain(links.io);
  CHECK(links.pool1.statistics().blocks_in_use == 0);
  CHECK(links.pool2.statistics().blocks_in_use == 0);
}

template <class Links>
void until_busy(Links& links) {
  links.burden();
  links.until([&] { return links.load1.ended > 100 && links.load2.ended > 100; });
}

} // namespace

TEMPLATE_TEST_CASE("a black hole ends all outstanding operations", "", connections, streams) {
  const short_tcp short_retries;
  TestType links;
  links.connect();
  until_busy(links);
  const loss of1(1, 100), of2(2, 100);
  check_ends(links);
  if (!links.iwarp()) {
    CHECK(links.load1.found);
    CHECK(links.load2.found);
  }
}

TEMPLATE_TEST_CASE("a black hole is detected by both sides without outstanding operations", "",
                   connections, streams) {
  const short_tcp short_retries;
  TestType links;
  links.connect();
  links.idle();
  const loss of1(1, 100), of2(2, 100);
  check_ends(links);
}

// rxe fails a queue pair at the first packet that it cannot transmit.
TEMPLATE_TEST_CASE("a link that stays down ends all outstanding operations", "", connections,
                   streams) {
  const short_tcp short_retries;
  TestType links;
  if (links.iwarp())
    links.connect();
  else
    links.connect_by_hand();
  until_busy(links);
  const link_down cut(1);
  check_ends(links);
}

} // namespace test::hosts_links_tests
