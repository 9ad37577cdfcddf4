// SPDX-License-Identifier: BSL-1.0
// Every operation of a connection, cancelled twice by each pair of types.
#include "device/asio/cancelled_twice.hpp"
#include "device/connection/connection_support.hpp"

#include <chrono>
#include <stdexcept>

namespace test::cancelled_twice_tests {
namespace {

constexpr std::size_t lengthy = 100'000;

/// A talk with one place in a's send queue and one frame at a time, and memory of b that a may
/// access.
struct narrow : talk {
  static connection_options one_place() {
    connection_options o;
    o.queue_pair.send_depth = 1;
    o.sends = 1;
    o.remote_memory.bytes = 1 << 20;
    o.remote_memory.grants = 8;
    o.remote_memory.rights = access::remote_read | access::remote_write;
    return o;
  }
  narrow() : talk(one_place(), one_place()) {
    if (!lives())
      throw std::runtime_error("not connected");
    settle();
  }
  /// Runs until the parties have no more work of their own.
  void settle() {
    while (io.poll() != 0)
      io.restart();
  }
  template <class Handler, class Start>
  void ask(Handler&& done, Start&& start) {
    start(done.handler());
    until([&] { return done.done(); });
    if (done.ec)
      throw system_error(done.ec, "prepare");
  }

  memory target{pd, 256 * 1024, most_rights(dev)};
  registered_buffer own = pool.allocate(lengthy);
  std::vector<char> plain = std::vector<char>(lengthy, 'p');
  remote_region region;
};

using attempt = subject<narrow>;

/// Starts the operation behind `before`, cancels it twice, and checks the effect on it and on the
/// connection.
void check(const attempt& s, const std::function<void(narrow&)>& before,
           const std::function<void(narrow&)>& behind = {}) {
  each_pair([&](twice& c) {
    INFO(s.name);
    narrow t;
    before(t);
    s.start(t, c);
    c.cancel();
    if (behind && !c.breaks(s.becomes))
      behind(t);
    outcome<void> ended;
    t.a.async_wait_disconnect(ended.handler());
    t.until([&] { return c.calls != 0; });
    CHECK(c.calls == 1);
    if (c.breaks(s.becomes)) {
      t.until([&] { return ended.done(); });
      CHECK(ended.ec == asio::error::operation_aborted);
      return;
    }
    CHECK(c.ec == c.expected(s.becomes));
    t.settle();
    CHECK_FALSE(ended.done());
    CHECK(c.calls == 1);
  });
}

void occupy(narrow& t) {
  t.b.async_receive([](error_code, const message&) {});
  t.a.async_send(asio::buffer("x", 1), [](error_code, std::size_t) {});
}

void nothing(narrow&) {}

void receive_one(narrow& t) {
  t.b.async_receive([](error_code, const message&) {});
}

// Operations that are cancelled in more than one state.
void write_buffer(narrow& t, twice& c) { t.a.async_write(t.own, t.target.remote(), c.handler()); }
void write_view(narrow& t, twice& c) {
  t.a.async_write(const_buffer(t.own), t.target.remote(), c.handler());
}
void write_plain_memory(narrow& t, twice& c) {
  t.a.async_write(asio::buffer(t.plain), t.target.remote(), c.handler());
}
void write_with_a_notice(narrow& t, twice& c) {
  t.a.async_write(const_buffer(t.own), t.target.remote(), 7, c.handler());
}
void read_view(narrow& t, twice& c) {
  t.a.async_read(mutable_buffer(t.own), t.target.remote(), c.handler());
}
void read_plain_memory(narrow& t, twice& c) {
  t.a.async_read(asio::buffer(t.plain), t.target.remote(), c.handler());
}
void send_buffer(narrow& t, twice& c) { t.a.async_send(t.own.first(1000), c.handler()); }
void send_view(narrow& t, twice& c) {
  t.a.async_send(const_buffer(t.own.first(1000)), c.handler());
}
void send_plain_memory(narrow& t, twice& c) {
  t.a.async_send(asio::buffer(t.plain, 1000), c.handler());
}
void send_long_view(narrow& t, twice& c) { t.a.async_send(const_buffer(t.own), c.handler()); }
void request(narrow& t, twice& c) { t.a.async_request_memory(100, c.handler()); }
void fetch_and_add(narrow& t, twice& c) { t.a.async_fetch_add(t.target.remote(), 1, c.handler()); }
void compare_and_swap(narrow& t, twice& c) {
  t.a.async_compare_and_swap(t.target.remote(), 0, 1, c.handler());
}
void receive(narrow& t, twice& c) { t.a.async_receive(c.handler()); }
void receive_buffer(narrow& t, twice& c) { t.a.async_receive(t.own, c.handler()); }
void receive_view(narrow& t, twice& c) { t.a.async_receive(mutable_buffer(t.own), c.handler()); }

} // namespace

TEST_CASE("an operation that waits for room on a connection is taken back, however often it is "
          "cancelled") {
  const std::vector<attempt> waiting{
      {"write from a buffer", fate::taken_back, write_buffer},
      {"write from a view", fate::taken_back, write_view},
      {"write from plain memory", fate::taken_back, write_plain_memory},
      {"write with a notice", fate::taken_back, write_with_a_notice},
      {"read to a buffer", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_read(t.own, t.target.remote(), c.handler());
       }},
      {"read to a view", fate::taken_back, read_view},
      {"read to plain memory", fate::taken_back, read_plain_memory},
      {"send of a buffer", fate::taken_back, send_buffer},
      {"send of a view", fate::taken_back, send_view},
      {"send of plain memory", fate::taken_back, send_plain_memory},
      {"send of a long view", fate::taken_back, send_long_view},
      {"request", fate::taken_back, request},
  };
  for (const attempt& s : waiting)
    check(s, occupy);
  if (open_device().has_atomics()) {
    check({"fetch and add", fate::taken_back, fetch_and_add}, occupy);
    check({"compare and swap", fate::taken_back, compare_and_swap}, occupy);
  }
}

TEST_CASE("a begun operation ends at once, except by total, or ends the connection if the caller "
          "keeps the memory") {
  const std::vector<attempt> begun{
      {"write from a buffer", fate::let_go, write_buffer},
      {"write from a view", fate::ends_connection, write_view},
      {"write from plain memory", fate::let_go, write_plain_memory},
      {"write from a view with a notice", fate::ends_connection, write_with_a_notice},
      {"write from a buffer with a notice", fate::let_go,
       [](narrow& t, twice& c) {
         t.a.async_write(t.own, t.target.remote(), 7, c.handler());
       }},
      {"read to a buffer", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_read(t.own, t.target.remote(0, lengthy), c.handler());
       }},
      {"read to a view", fate::ends_connection, read_view},
      {"read to plain memory", fate::taken_back, read_plain_memory},
  };
  for (const attempt& s : begun)
    check(s, nothing);
  if (open_device().has_atomics()) {
    check({"fetch and add", fate::let_go, fetch_and_add}, nothing);
    check({"compare and swap", fate::let_go, compare_and_swap}, nothing);
  }
  const std::vector<attempt> sends{
      {"send of a buffer", fate::let_go, send_buffer},
      {"send of a view", fate::ends_connection, send_view},
      {"send of plain memory", fate::let_go, send_plain_memory},
      {"send of a long buffer", fate::let_go,
       [](narrow& t, twice& c) {
         t.a.async_send(t.own, c.handler());
       }},
      {"send of a long view", fate::ends_connection, send_long_view},
      {"send of long plain memory", fate::let_go,
       [](narrow& t, twice& c) {
         t.a.async_send(asio::buffer(t.plain), c.handler());
       }},
  };
  for (const attempt& s : sends)
    check(s, nothing, receive_one);
}

TEST_CASE("a wait on a connection takes nothing when it is cancelled twice") {
  const std::vector<attempt> waits{
      {"receive", fate::taken_back, receive},
      {"receive to a buffer", fate::taken_back, receive_buffer},
      {"receive to a view", fate::taken_back, receive_view},
      {"receive to plain memory", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_receive(asio::buffer(t.plain), c.handler());
       }},
      {"receive immediate", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_receive_immediate(c.handler());
       }},
      {"receive region", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_receive_region(c.handler());
       }},
      {"wait for the end", fate::taken_back,
       [](narrow& t, twice& c) {
         t.a.async_wait_disconnect(c.handler());
       }},
      {"request", fate::taken_back, request},
  };
  for (const attempt& s : waits)
    check(s, nothing);
}

TEST_CASE("a receive whose memory is being written takes nothing when it is cancelled twice") {
  const auto long_message = [](narrow& t) {
    t.b.async_send(t.pool.allocate(lengthy), [](error_code, std::size_t) {});
    t.settle(); // the offer has arrived
  };
  const std::vector<attempt> receives{
      {"receive to a buffer", fate::taken_back, receive_buffer},
      {"receive to a view", fate::taken_back, receive_view},
      {"receive of the message", fate::taken_back, receive},
  };
  for (const attempt& s : receives) {
    check(s, long_message);
    each_pair([&](twice& c) {
      INFO(s.name);
      narrow t;
      long_message(t);
      s.start(t, c);
      c.cancel();
      outcome<message> m;
      t.a.async_receive(m.handler());
      t.until([&] { return c.calls != 0 && m.done(); });
      CHECK(m.succeeded());
      CHECK(m.value.size() == lengthy);
    });
  }
}

TEST_CASE("total cancels the renewal of a region, and does not cancel a loan, a return or a "
          "revocation") {
  const auto lease = [](narrow& t) {
    outcome<remote_region> granted;
    t.ask(granted, [&](auto h) {
      t.a.async_request_memory(100, access::remote_read | access::remote_write,
                               std::chrono::minutes(1), h);
    });
    t.region = std::move(granted.value);
    t.settle();
  };
  check({"renew", fate::taken_back,
         [](narrow& t, twice& c) {
           t.a.async_renew(t.region, std::chrono::minutes(2), c.handler());
         }},
        lease);
  check({"hand back", fate::let_go,
         [](narrow& t, twice& c) {
           t.a.async_send_region(t.region, c.handler());
         }},
        lease);
  check({"lend", fate::let_go,
         [](narrow& t, twice& c) {
           t.a.async_send_region(t.own, c.handler());
         }},
        nothing);
  check({"revoke", fate::let_go,
         [](narrow& t, twice& c) {
           t.b.async_revoke(std::chrono::minutes(1), c.handler());
         }},
        lease);
  check({"revoke at all connections", fate::let_go,
         [](narrow& t, twice& c) {
           async_revoke(t.io.get_executor(), t.own, std::chrono::minutes(1), c.handler());
         }},
        [](narrow& t) {
          outcome<void> lent;
          t.ask(lent, [&](auto h) { t.b.async_send_region(t.own, h); });
          t.settle();
        });
}

TEST_CASE("total does not end the wait for the peer's goodbye once this side's goodbye is sent") {
  each_pair([](twice& c) {
    narrow t;
    outcome<void> peer, ended;
    t.a.async_wait_disconnect(ended.handler());
    t.a.async_close(c.handler());
    c.cancel();
    t.b.async_close(peer.handler());
    t.until([&] { return c.calls != 0 && peer.done() && ended.done(); });
    CHECK(c.calls == 1);
    CHECK(c.ec == c.expected(fate::let_go));
    CHECK(peer.succeeded());
  });
}

} // namespace test::cancelled_twice_tests
