// SPDX-License-Identifier: BSL-1.0
// Peers whose connections have protection domains of their own: on any device, a key is of use to
// the peer that it was made for only.
#include "catch.hpp"
#include "device/leases/lender.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace test::domains_tests {
namespace {

/// A server with two clients. It accepts both with the same options.
struct server_of_two {
  explicit server_of_two(bool own_domains) {
    const connection_options o =
        connection_options().set_own_domain(own_domains).set_remote_memory(megabyte());
    connect(first, to_first, o);
    connect(second, to_second, o);
  }

  void connect(asio_rdma::connection& client, asio_rdma::connection& server,
               const connection_options& options) {
    test::connection connected;
    error_code failed;
    client.open(pool);
    listener.async_accept<asio_rdma::connection>(pool, options,
                                                 [&](error_code ec, asio_rdma::connection made) {
                                                   failed = ec;
                                                   server = std::move(made);
                                                 });
    initiator.async_connect(client, listener.local_endpoint(), connected.handler());
    until([&] { return connected.done() && (failed || server.is_open()); });
    REQUIRE(connected.succeeded());
    REQUIRE(failed == error_code());
    REQUIRE(carries(client, server)); // on iWARP the client sends first
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }

  bool carries(asio_rdma::connection& from, asio_rdma::connection& to) {
    sent s;
    outcome<message> r;
    from.async_send(asio::buffer("word", 4), s.handler());
    to.async_receive(r.handler());
    until([&] { return s.done() && r.done(); });
    return s.succeeded() && r.succeeded() && r.value.text() == "word";
  }
  /// The bytes of the region, which the first client reads.
  std::string content(const remote_region& region) {
    std::string text(word.size(), '?');
    sent s;
    first.async_read(asio::buffer(text), region, s.handler());
    until([&] { return s.done(); });
    return s.ec ? s.ec.message() : text;
  }
  /// The second client writes by the key of the first one. Returns when the bytes are placed, or
  /// when the connection has ended.
  void write_by_second(const remote_buffer& to) {
    second.async_wait_disconnect(ended.handler());
    second.async_write(asio::buffer(word), to, used.handler());
    second.async_send(asio::buffer("behind", 6), behind.handler());
    to_second.async_receive(arrived.handler());
    until([&] { return (used.done() && arrived.done()) || ended.done(); });
  }
  /// It reads by that key.
  void read_by_second(const remote_buffer& from) {
    second.async_wait_disconnect(ended.handler());
    second.async_read(asio::buffer(learned), from, used.handler());
    until([&] { return used.done(); });
  }

  const std::string word = "by a key";
  std::string learned = std::string(word.size(), '?');
  outcome<void> ended;
  sent used, behind;
  outcome<message> arrived;

  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  asio::io_context io{1};
  acceptor listener{io, own_endpoint()};
  connector initiator{io};
  asio_rdma::connection first{io}, to_first{io}, second{io}, to_second{io};
};

} // namespace

TEST_CASE("a key of a grant is of use to one peer if connections have protection domains of their "
          "own") {
  const bool own = GENERATE(false, true), lent = GENERATE(false, true),
             writes = GENERATE(false, true);
  CAPTURE(own, lent, writes);
  server_of_two t(own);
  const registered_buffer memory = t.pool.allocate(4096); // of one domain, for both peers
  remote_region region;
  if (lent) {
    region = lend(t.to_first, t.first, memory, read_write, [&](auto done) { t.until(done); });
  } else {
    region_outcome r;
    t.first.async_request_memory(4096, r.handler());
    t.until([&] { return r.done(); });
    REQUIRE(r.succeeded());
    region = r.value;
  }
  std::string before = "nobodys!";
  sent s;
  t.first.async_write(asio::buffer(before), region, s.handler());
  t.until([&] { return s.done(); });
  REQUIRE(t.carries(t.first, t.to_first)); // the bytes are placed
  REQUIRE(t.content(region) == before);

  const bool reached = !own && !t.dev.has_memory_windows();
  if (writes)
    t.write_by_second(region.buffer());
  else
    t.read_by_second(region.buffer());
  CHECK(t.content(region) == (reached && writes ? t.word : before));
  CHECK((t.learned == before) == (reached && !writes));
  if (!reached)
    t.until([&] { return t.ended.done(); });
  else
    CHECK(t.used.succeeded());

  // The first client and its grant continue.
  sent again;
  t.first.async_write(asio::buffer(before), region, again.handler());
  t.until([&] { return again.done(); });
  CHECK(again.succeeded());
  CHECK(t.carries(t.to_first, t.first));
  CHECK(t.content(region) == before);
  CHECK(t.to_first.revoke() == 1);
  CHECK(t.carries(t.first, t.to_first));
  t.second.close(); // it may still wait for its end
  t.to_second.close();
  drain(t.io);
}

TEST_CASE("memory of one pool is lent to peers with protection domains of their own") {
  server_of_two t(true);
  const registered_buffer memory = filled(t.pool, 4096, 1);
  const auto wait = [&](auto done) {
    t.until(done);
  };
  const remote_region regions[] = {lend(t.to_first, t.first, memory, access::remote_read, wait),
                                   lend(t.to_second, t.second, memory, access::remote_read, wait)};
  asio_rdma::connection* const peers[] = {&t.first, &t.second};
  for (std::size_t i = 0; i != 2; ++i) {
    std::vector<char> to(memory.size());
    sent s;
    peers[i]->async_read(asio::buffer(to), regions[i], s.handler());
    t.until([&] { return s.done(); });
    CHECK(s.succeeded());
    CHECK(is_pattern(to.data(), to.size(), 1));
  }
  CHECK(t.to_first.revoke(memory) == 1);
  CHECK(in_use(memory));
  CHECK(t.to_second.revoke(memory) == 1);
  CHECK_FALSE(in_use(memory));
}

TEST_CASE("memory is granted, renewed, handed back and revoked in protection domains of their "
          "own") {
  lender t(megabyte(), true);
  remote_region r = t.request(10'000);
  CHECK(t.write("there", r) == error_code());
  REQUIRE(t.placed());
  CHECK(t.read(5, r) == "there");
  outcome<void> renewed, given;
  t.a.async_renew(r, 1min, renewed.handler());
  t.until([&] { return renewed.done(); });
  CHECK(renewed.succeeded());
  t.a.async_send_region(r, given.handler());
  const registered_buffer back = t.take_back();
  t.until([&] { return given.done(); });
  CHECK(text_of(back, 0, 5) == "there");
  CHECK(t.b.pool().find(back.data(), back.size()));

  r = t.request(5000);
  outcome<revocation> revoked;
  t.b.async_revoke(1min, revoked.handler());
  t.until([&] { return revoked.done(); });
  CHECK(revoked.ec == error_code());
  CHECK(revoked.value.grants == 1);
  CHECK(t.write("x", r) == error::lease_revoked);
  CHECK(t.lives());

  // Registered memory of each side's own pool is used in place.
  r = t.request(100'000);
  const registered_buffer from = filled(t.a.pool(), 100'000, 5), to = t.a.pool().allocate(100'000);
  sent written, read;
  t.a.async_write(from, r, 7, written.handler());
  t.until([&] { return written.done() && t.idle.done(); });
  t.a.async_read(to, r, read.handler());
  t.until([&] { return read.done(); });
  CHECK(written.succeeded());
  CHECK(read.succeeded());
  CHECK(is_pattern(to.data(), to.size(), 5));
}

} // namespace test::domains_tests
