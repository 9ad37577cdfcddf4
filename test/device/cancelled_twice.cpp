// SPDX-License-Identifier: BSL-1.0
// Every operation of a queue pair and of a connection, cancelled twice by each pair of types.
#include <catch.hpp>

#include "connection_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <array>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace {

using namespace test;
using asio::cancellation_type;

constexpr std::array types{cancellation_type::terminal, cancellation_type::partial,
                           cancellation_type::total};
constexpr std::size_t lengthy = 100'000;

/// The effect of a cancellation on an operation.
enum class fate {
  taken_back,     ///< Not begun: any type ends it at once.
  let_go,         ///< It may happen. It ends at once, except by `total`.
  left_alone,     ///< It continues after any type.
  ends_connection ///< It continues, but `terminal` ends all operations.
};

/// Two cancellations of one operation.
struct twice {
  cancellation_type first, second;
  asio::cancellation_signal signal = {};
  int calls = 0;
  error_code ec = {};

  bool has(cancellation_type t) const { return first == t || second == t; }
  bool only(cancellation_type t) const { return first == t && second == t; }
  bool ends(fate f) const {
    return f == fate::taken_back || (f == fate::let_go && !only(cancellation_type::total));
  }
  bool breaks(fate f) const {
    return f == fate::ends_connection && has(cancellation_type::terminal);
  }
  auto handler() {
    return asio::bind_cancellation_slot(signal.slot(), [this](error_code e, auto&&...) {
      ++calls;
      ec = e;
    });
  }
  void cancel() {
    signal.emit(first);
    signal.emit(second);
  }
};

template <class Function>
void each_pair(Function&& f) {
  for (const auto first : types)
    for (const auto second : types) {
      INFO("first " << static_cast<unsigned>(first) << ", second "
                    << static_cast<unsigned>(second));
      twice c{first, second};
      f(c);
    }
}

// --- Queue pairs -----------------------------------------------------------------------------

using start_on_pair = std::function<void(pair&, twice&)>;

/// Operations of a's send queue, which has one place.
std::vector<std::pair<const char*, start_on_pair>> sends_of_pair(const device& d) {
  std::vector<std::pair<const char*, start_on_pair>> all{
      {"send",
       [](pair& p, twice& c) {
         p.a.async_send(p.ma.buffer(100, 10), c.handler());
       }},
      {"write",
       [](pair& p, twice& c) {
         p.a.async_write(p.ma.buffer(100, 10), p.mb.remote(3000), c.handler());
       }},
      {"read", [](pair& p, twice& c) {
         p.a.async_read(p.ma.buffer(100, 10), p.mb.remote(3000), c.handler());
       }}};
  if (d.has_atomics())
    all.emplace_back("fetch and add", [](pair& p, twice& c) {
      p.a.async_fetch_add(p.mb.remote(4096), 1, c.handler());
    });
  return all;
}

} // namespace

TEST_CASE("a queue pair's operation that waits is taken back, however often it is cancelled") {
  queue_pair_options options;
  options.send_depth = options.receive_depth = 1;
  pair p(options);
  auto operations = sends_of_pair(p.dev);
  operations.emplace_back(
      "receive", [](pair& q, twice& c) { q.a.async_receive(q.ma.buffer(200, 10), c.handler()); });
  for (const auto& [name, start] : operations)
    each_pair([&, name = name, start = start](twice& c) {
      INFO(name);
      got before, answer;
      sent first, last;
      p.b.async_receive(p.mb.buffer(0, 10), answer.handler());
      p.a.async_receive(p.ma.buffer(0, 10), before.handler()); // has the only place
      p.a.async_send(p.ma.buffer(10, 10), first.handler());    // has the only place
      start(p, c);
      c.cancel();
      p.until([&] { return c.calls != 0 && first.done() && answer.done(); });
      CHECK(c.calls == 1);
      CHECK(c.ec == asio::error::operation_aborted);
      p.b.async_send(p.mb.buffer(0, 10), last.handler());
      p.until([&] { return before.done() && last.done(); });
      CHECK(first.succeeded());
      CHECK(last.succeeded());
      CHECK(p.a.state() == queue_pair_state::connected);
    });
}

TEST_CASE("a queue pair's operation that is posted goes on, or ends with the queue pair") {
  const device d = open_device();
  for (const auto& [name, start] : sends_of_pair(d))
    each_pair([&, name = name, start = start](twice& c) {
      INFO(name);
      pair p;
      got r;
      p.b.async_receive(p.mb.buffer(0, 10), r.handler());
      start(p, c);
      c.cancel();
      p.until([&] { return c.calls != 0; });
      CHECK(c.calls == 1);
      CHECK((!c.ec || c.ec == asio::error::operation_aborted));
      const bool broken = c.breaks(fate::ends_connection);
      CHECK(p.a.state() == (broken ? queue_pair_state::failed : queue_pair_state::connected));
      CHECK((broken || !c.ec));
    });
}

TEST_CASE("a queue pair's posted receive goes on, or ends with the queue pair; waiting for the end "
          "is taken back") {
  each_pair([](twice& c) {
    pair p;
    got other;
    p.a.async_receive(p.ma.buffer(0, 10), c.handler());
    c.cancel();
    twice end{c.first, c.second};
    p.a.async_wait_disconnect(end.handler());
    end.cancel();
    sent s;
    if (!c.breaks(fate::ends_connection))
      p.b.async_send(p.mb.buffer(0, 10), s.handler());
    p.until([&] { return c.calls != 0 && end.calls != 0; });
    CHECK(c.calls == 1);
    CHECK(end.calls == 1);
    CHECK(end.ec == asio::error::operation_aborted);
    CHECK(c.ec == (c.breaks(fate::ends_connection) ? error_code(asio::error::operation_aborted)
                                                   : error_code()));
  });
}

// --- Connections -----------------------------------------------------------------------------

namespace {

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

using start_on_talk = std::function<void(narrow&, twice&)>;

/// An operation, and the effect of two cancellations.
struct subject {
  const char* name;
  fate becomes;
  start_on_talk start;
};

/// Starts the operation behind `before`, cancels it twice, and checks the effect on it and on the
/// connection.
void check(const subject& s, const std::function<void(narrow&)>& before,
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
    CHECK(c.ec == (c.ends(s.becomes) ? error_code(asio::error::operation_aborted) : error_code()));
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
void receive(narrow& t, twice& c) { t.a.async_receive(c.handler()); }
void receive_buffer(narrow& t, twice& c) { t.a.async_receive(t.own, c.handler()); }
void receive_view(narrow& t, twice& c) { t.a.async_receive(mutable_buffer(t.own), c.handler()); }

} // namespace

TEST_CASE("an operation that waits for room on a connection is taken back, however often it is "
          "cancelled") {
  const std::vector<subject> waiting{
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
  for (const subject& s : waiting)
    check(s, occupy);
  if (open_device().has_atomics())
    check({"fetch and add", fate::taken_back, fetch_and_add}, occupy);
}

TEST_CASE("a begun operation ends at once, except by total, or ends the connection if the caller "
          "keeps the memory") {
  const std::vector<subject> begun{
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
  for (const subject& s : begun)
    check(s, nothing);
  if (open_device().has_atomics())
    check({"fetch and add", fate::let_go, fetch_and_add}, nothing);
  const std::vector<subject> sends{
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
  for (const subject& s : sends)
    check(s, nothing, receive_one);
}

TEST_CASE("a wait on a connection takes nothing when it is cancelled twice") {
  const std::vector<subject> waits{
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
  for (const subject& s : waits)
    check(s, nothing);
}

TEST_CASE("a receive whose memory is being written takes nothing when it is cancelled twice") {
  const auto long_message = [](narrow& t) {
    t.b.async_send(t.pool.allocate(lengthy), [](error_code, std::size_t) {});
    t.settle(); // the offer has arrived
  };
  const std::vector<subject> receives{
      {"receive to a buffer", fate::taken_back, receive_buffer},
      {"receive to a view", fate::taken_back, receive_view},
      {"receive of the message", fate::taken_back, receive},
  };
  for (const subject& s : receives) {
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

TEST_CASE("a region that is requested, renewed, lent or handed back is left to itself by total") {
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
}

TEST_CASE("total does not end the wait for the peer's goodbye, as this side's is said") {
  each_pair([](twice& c) {
    narrow t;
    outcome<void> peer, ended;
    t.a.async_wait_disconnect(ended.handler());
    t.a.async_close(c.handler());
    c.cancel();
    t.b.async_close(peer.handler());
    t.until([&] { return c.calls != 0 && peer.done() && ended.done(); });
    CHECK(c.calls == 1);
    CHECK(c.ec ==
          (c.ends(fate::let_go) ? error_code(asio::error::operation_aborted) : error_code()));
    CHECK(peer.succeeded());
  });
}
