// SPDX-License-Identifier: BSL-1.0
// All operations of a connection, with each allocation failing once.
#include <catch.hpp>

#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/support/allocation_scene.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace test::connection_scarce_memory_tests {
namespace {

constexpr std::size_t lengthy = 50'000;

connection_options generous() {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.grants = 8;
  o.remote_memory.rights = access::remote_read | access::remote_write;
  return o;
}

/// Two connections that have exchanged a message.
struct parties : talk {
  parties() : talk(generous(), generous()) { greet(); }
  explicit parties(const shared_receives_options& options) : talk(generous(), options) { greet(); }

  bool broken() const { return a.native_handle() == nullptr || b.native_handle() == nullptr; }
  void close() {
    region = {};
    a.close();
    b.close();
  }

  void send(handler_accounts& accounts, const char* name, const auto& buffers) {
    accounts.start(name, [&](auto h) { a.async_send(buffers, std::move(h)); });
  }
  void receive(handler_accounts& accounts) {
    accounts.start("receive", [&](auto h) { b.async_receive(std::move(h)); });
  }
  void receive(handler_accounts& accounts, const auto& buffers) {
    accounts.start("receive to memory", [&](auto h) { b.async_receive(buffers, std::move(h)); });
  }
  /// Both sides say goodbye.
  void part(handler_accounts& accounts) {
    accounts.start("a's close", [&](auto h) { a.async_close(std::move(h)); });
    accounts.start("b's close", [&](auto h) { b.async_close(std::move(h)); });
  }

  std::string text = std::string(100, 't');
  std::vector<char> plain = std::vector<char>(lengthy, 'p');
  std::vector<char> into = std::vector<char>(lengthy);
  registered_buffer own = pool.allocate(lengthy), other = pool.allocate(lengthy);
  memory target{pd, lengthy, most_rights(dev)};
  remote_region region;

private:
  void greet() {
    if (!lives())
      throw std::runtime_error("not connected");
    while (io.poll() != 0)
      io.restart();
  }
};

struct messages : parties {
  using parties::parties;

  void play(handler_accounts& accounts) {
    for (int i = 0; i < 3; ++i)
      receive(accounts);
    send(accounts, "short", asio::buffer(text));
    send(accounts, "copied", asio::buffer(plain, 1000));
    send(accounts, "view", const_buffer(own.first(1000)));
    if (!accounts.run(io))
      return;
    for (int i = 0; i < 2; ++i)
      receive(accounts);
    send(accounts, "long", own);
    send(accounts, "long copied", asio::buffer(plain));
    if (!accounts.run(io))
      return;
    send(accounts, "long to a buffer", const_buffer(own));
    send(accounts, "long to plain memory", own);
    receive(accounts, other);
    receive(accounts, asio::buffer(into));
    if (!accounts.run(io))
      return;
    part(accounts);
  }
};

struct shared_messages : messages {
  shared_messages() : messages(shared_receives_options()) {}
};

struct remote_operations : parties {
  void play(handler_accounts& accounts) {
    accounts.start("write", [&](auto h) { a.async_write(own, target.remote(), std::move(h)); });
    accounts.start("write of plain memory", [&](auto h) {
      a.async_write(asio::buffer(plain), target.remote(), std::move(h));
    });
    accounts.start("read",
                   [&](auto h) { a.async_read(other, target.remote(0, lengthy), std::move(h)); });
    accounts.start("read to plain memory", [&](auto h) {
      a.async_read(asio::buffer(into), target.remote(), std::move(h));
    });
    accounts.start("immediate", [&](auto h) { b.async_receive_immediate(std::move(h)); });
    accounts.start("write with immediate", [&](auto h) {
      a.async_write(const_buffer(own), target.remote(), 5, std::move(h));
    });
    if (!accounts.run(io))
      return;
    part(accounts);
  }
};

struct leases : parties {
  void play(handler_accounts& accounts) {
    accounts.start(
        "request",
        [&](auto h) {
          a.async_request_memory(1000, access::remote_read | access::remote_write,
                                 std::chrono::minutes(1), std::move(h));
        },
        [this](error_code, remote_region r) { region = std::move(r); });
    accounts.start("second request", [&](auto h) { a.async_request_memory(100, std::move(h)); });
    if (!accounts.run(io))
      return;
    accounts.start("write to it",
                   [&](auto h) { a.async_write(own.first(1000), region, std::move(h)); });
    accounts.start("renew",
                   [&](auto h) { a.async_renew(region, std::chrono::minutes(2), std::move(h)); });
    if (!accounts.run(io))
      return;
    accounts.start("take back", [&](auto h) { b.async_receive_region(std::move(h)); });
    accounts.start("hand back", [&](auto h) { a.async_send_region(region, std::move(h)); });
    if (!accounts.run(io))
      return;
    region = {};
    part(accounts);
  }
};

struct loans : parties {
  void play(handler_accounts& accounts) {
    lend(accounts, std::chrono::microseconds::max());
    if (!accounts.run(io))
      return;
    accounts.start("take back", [&](auto h) { a.async_receive_region(std::move(h)); });
    accounts.start("hand back", [&](auto h) { b.async_send_region(region, std::move(h)); });
    if (!accounts.run(io))
      return;
    lend(accounts, std::chrono::minutes(1)); // the lease begins with a renewal
    if (!accounts.run(io))
      return;
    accounts.start("read it",
                   [&](auto h) { b.async_read(other.first(1000), region, std::move(h)); });
    if (!accounts.run(io))
      return;
    a.revoke();
    part(accounts);
  }

private:
  void lend(handler_accounts& accounts, std::chrono::microseconds lease) {
    accounts.start(
        "receive region", [&](auto h) { b.async_receive_region(std::move(h)); },
        [this](error_code, std::variant<registered_buffer, remote_region> r) {
          if (auto* const lent = std::get_if<remote_region>(&r))
            region = std::move(*lent);
        });
    accounts.start("lend", [&](auto h) {
      a.async_send_region(own, access::remote_read, lease, std::move(h));
    });
  }
};

/// A chain of work requests, started as the library itself starts one.
struct chain final : detail::remote_operation {
  chain() noexcept : remote_operation(&chain::done) {}
  static void done(detail::operation* base, detail::disposal) {
    ++static_cast<chain*>(base)->calls;
  }
  int calls = 0;
};

} // namespace

TEST_CASE("a chain that there is no memory for posts nothing, and is started again") {
  parties p;
  registered_buffer words = p.pool.allocate(3 * sizeof(std::uint64_t));
  std::array<detail::payload::part, 3> parts;
  std::array<detail::payload, 3> payloads;
  std::array<detail::remote_work, 3> works;
  auto* const word = static_cast<std::uint64_t*>(words.data());
  for (std::size_t i = 0; i < works.size(); ++i) {
    word[i] = i + 1;
    parts[i] = {word + i, sizeof *word, words.lkey()};
    payloads[i].parts = &parts[i];
    payloads[i].count = 1;
    payloads[i].bytes = sizeof *word;
    works[i] = {i == 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                p.target.remote(i % 2 * sizeof *word, sizeof *word), nullptr, &payloads[i]};
  }
  std::memset(p.target.data(), 0, 2 * sizeof *word);
  chain c;
  const auto written = [&] {
    std::array<std::uint64_t, 2> seen;
    std::memcpy(seen.data(), p.target.data(), sizeof seen);
    return seen;
  };
  std::size_t failures = 0;
  const auto start = [&] {
    const failing_allocation next(failures + 1);
    return detail::start(*p.a.impl(), c, works);
  };
  for (; !start(); ++failures) {
    REQUIRE(failures < 100);
    REQUIRE(c.ec == boost::system::errc::not_enough_memory);
    CHECK(p.lives());
    CHECK(p.a.statistics().remote_operations == 0);
    CHECK(written() == std::array<std::uint64_t, 2>{});
  }
  CHECK(failures > 0);
  p.until([&] { return c.calls != 0; });
  CHECK(c.calls == 1);
  CHECK(!c.ec);
  CHECK(written() == std::array<std::uint64_t, 2>{1, 2});
  CHECK(word[2] == 1);
  CHECK(p.lives());
}

TEST_CASE("messages, each allocation of which fails once, lose no handler") {
  fail_each_allocation<messages>();
}

TEST_CASE("messages by shared receives, each allocation of which fails once, lose no handler") {
  fail_each_allocation<shared_messages>();
}

TEST_CASE("operations on the peer's memory, each allocation of which fails once, lose no handler") {
  fail_each_allocation<remote_operations>();
}

TEST_CASE("requested memory, each allocation of which fails once, loses no handler") {
  fail_each_allocation<leases>();
}

TEST_CASE("lent memory, each allocation of which fails once, loses no handler") {
  fail_each_allocation<loans>();
}

TEST_CASE("a connection that there is no memory to open leaves no share of its receives behind") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  const shared_receives both(io, pool);
  const std::size_t blocks = pool.statistics().blocks_in_use;
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    asio_rdma::connection c(io);
    error_code ec;
    bool threw = false;
    {
      const failing_allocation failing(n);
      try {
        c.open(both, generous(), ec);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      failed = failing.failed();
    }
    CAPTURE(n, threw, ec);
    CHECK((failed || c.is_open()));
    c.close();
    drain(io);
    REQUIRE(both.statistics().links == 0);
    REQUIRE(pool.statistics().blocks_in_use == blocks);
  }
}

TEST_CASE("a connection that there was no memory to connect can be connected later") {
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1);
  asio_rdma::connection c(io), peer(io);
  c.open(pool, generous());
  peer.open(pool, generous());
  const private_data hello = peer.impl()->hello();
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    error_code ec;
    {
      const failing_allocation failing(n);
      ec = c.impl()->on_hello(hello, false);
      failed = failing.failed();
    }
    CAPTURE(n);
    CHECK(ec == (failed ? error_code(asio::error::no_memory) : error_code()));
  }
}

} // namespace test::connection_scarce_memory_tests
