// SPDX-License-Identifier: BSL-1.0
// Every operation of a queue pair and of a shared receive queue, cancelled twice by each pair of
// types.
#include "device/asio/cancelled_twice.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace test::cancelled_twice_pairs_tests {
namespace {

using start_on_pair = std::function<void(pair&, twice&)>;
using flags = queue_pair::flags;

/// Operations of a's send queue.
std::vector<std::pair<const char*, start_on_pair>> sends_of_pair(const device& d,
                                                                 flags how = flags::none) {
  std::vector<std::pair<const char*, start_on_pair>> all{
      {"send",
       [how](pair& p, twice& c) {
         p.a.async_send(p.ma.buffer(100, 10), how, c.handler());
       }},
      {"write",
       [how](pair& p, twice& c) {
         p.a.async_write(p.ma.buffer(100, 10), p.mb.remote(3000), how, c.handler());
       }},
      {"read", [how](pair& p, twice& c) {
         p.a.async_read(p.ma.buffer(100, 10), p.mb.remote(3000), how, c.handler());
       }}};
  if (d.has_atomics()) {
    all.emplace_back("fetch and add", [how](pair& p, twice& c) {
      p.a.async_fetch_add(p.mb.remote(4096), 1, how, c.handler());
    });
    all.emplace_back("compare and swap", [how](pair& p, twice& c) {
      p.a.async_compare_and_swap(p.mb.remote(4096), 0, 1, how, c.handler());
    });
  }
  if (d.type() != transport::iwarp) {
    all.emplace_back("send with immediate data", [how](pair& p, twice& c) {
      p.a.async_send_immediate(p.ma.buffer(100, 10), 7, how, c.handler());
    });
    all.emplace_back("write with immediate data", [how](pair& p, twice& c) {
      p.a.async_write_immediate(p.ma.buffer(100, 10), p.mb.remote(3000), 7, how, c.handler());
    });
  }
  if (d.has_flush(placement::visible))
    all.emplace_back("flush", [how](pair& p, twice& c) {
      p.a.async_flush(p.mb.remote(3000, 10), placement::visible, how, c.handler());
    });
  if (d.has_memory_windows())
    all.emplace_back("bind", [how](pair& p, twice& c) {
      c.window = memory_window(p.pd);
      p.a.async_bind(c.window, p.ma.region, 0, 64, access::remote_write, how, c.handler());
    });
  return all;
}

void invalidate(pair& p, std::uint32_t key, twice& c) { p.a.async_invalidate(key, c.handler()); }
void send_with_invalidation(pair& p, std::uint32_t key, twice& c) {
  p.a.async_send_invalidate(p.ma.buffer(100, 10), key, c.handler());
}

/// Makes a key for the memory of one side.
std::uint32_t bind(pair& p, queue_pair& side, const memory& m, twice& c) {
  c.window = memory_window(p.pd);
  outcome<void> bound;
  side.async_bind(c.window, m.region, 0, 64, access::remote_write, bound.handler());
  p.until([&] { return bound.done(); });
  if (bound.ec)
    throw system_error(bound.ec, "bind");
  return c.window.rkey();
}

} // namespace

TEST_CASE("a queue pair's operation that waits is taken back, however often it is cancelled") {
  queue_pair_options options;
  options.send_depth = options.receive_depth = 1;
  pair p(options);
  auto operations = sends_of_pair(p.dev);
  operations.emplace_back(
      "receive", [](pair& q, twice& c) { q.a.async_receive(q.ma.buffer(200, 10), c.handler()); });
  if (p.dev.has_memory_windows()) { // of no key, as they are not posted
    operations.emplace_back("invalidate", [](pair& q, twice& c) { invalidate(q, 1, c); });
    operations.emplace_back("send with invalidation",
                            [](pair& q, twice& c) { send_with_invalidation(q, 1, c); });
  }
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

TEST_CASE("a queue pair's posted operation continues, or ends with the queue pair") {
  const device d = open_device();
  auto operations = sends_of_pair(d);
  if (d.has_memory_windows()) {
    operations.emplace_back("invalidate",
                            [](pair& p, twice& c) { invalidate(p, bind(p, p.a, p.ma, c), c); });
    operations.emplace_back("send with invalidation", [](pair& p, twice& c) {
      send_with_invalidation(p, bind(p, p.b, p.mb, c), c);
    });
  }
  for (const auto& [name, start] : operations)
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

TEST_CASE("a queue pair's posted receive continues, or ends with the queue pair; a wait for the "
          "end is taken back") {
  each_pair([](twice& c) {
    pair p;
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

namespace {

/// The operations of `sends_of_pair` on a scene.
template <class Scene>
std::vector<subject<Scene>> on_scene(fate f, flags how = flags::none) {
  std::vector<subject<Scene>> all;
  for (const auto& [name, start] : sends_of_pair(open_device(), how))
    all.push_back({name, f, start});
  return all;
}

/// A write beside the operation. It completes, unless the cancellations fail the queue pair.
struct beside_write : pair {
  beside_write() { b.async_receive(mb.buffer(500, 10), for_a_send.handler()); }
  void write(flags how = flags::none) {
    a.async_write(ma.buffer(0, 10), mb.remote(0), how, before.handler());
  }
  void read() { a.async_read(ma.buffer(200, 10), mb.remote(200), earlier_read.handler()); }
  void proceed(bool broken) {
    until([&] { return before.done(); });
    CHECK(a.state() == (broken ? queue_pair_state::failed : queue_pair_state::connected));
    if (broken)
      return;
    CHECK(before.succeeded());
    sent after;
    a.async_write(ma.buffer(0, 10), mb.remote(0), after.handler());
    until([&] { return after.done(); });
    CHECK(after.succeeded());
    CHECK_FALSE(earlier_read.ec);
  }
  sent before, earlier_read;
  got for_a_send;
};

/// A batch holds the write and the operation.
template <flags OfWrite>
struct held_by_batch : beside_write {
  held_by_batch() { write(OfWrite); }
  void proceed(bool broken) {
    together.commit();
    beside_write::proceed(broken);
  }
  queue_pair::batch together{a};
};

/// The operation is fenced, and waits for a read.
struct behind_fence : beside_write {
  behind_fence() {
    write();
    read();
  }
};

/// Between the read and the fenced operation there is a write that only the operation reports.
struct behind_unsignaled : beside_write {
  behind_unsignaled() {
    read();
    write(flags::unsignaled);
  }
};

/// The operation is posted, and only a later write reports it.
struct unsignaled : beside_write {
  void proceed(bool broken) {
    write();
    beside_write::proceed(broken);
  }
};

/// As many reads are in flight as siw permits.
struct full_of_reads : beside_write {
  full_of_reads() {
    write();
    for (sent& r : reads)
      a.async_read(ma.buffer(200, 10), mb.remote(200), r.handler());
  }
  void proceed(bool broken) {
    beside_write::proceed(broken);
    until([&] { return std::ranges::all_of(reads, [](const sent& r) { return r.done(); }); });
    for (const sent& r : reads)
      CHECK(r.succeeded());
  }
  std::vector<sent> reads = std::vector<sent>(a.options().max_reads);
};

} // namespace

TEST_CASE("an operation that a batch holds is taken back, however often it is cancelled") {
  check_on(on_scene<held_by_batch<flags::none>>(fate::taken_back));
  check_on(on_scene<held_by_batch<flags::none>>(fate::taken_back, flags::unsignaled));
  check_on(on_scene<held_by_batch<flags::unsignaled>>(fate::taken_back));
}

TEST_CASE("an operation behind a fence is taken back, or ends with the queue pair if it alone "
          "reports an unsignaled one") {
  if (!is_software(open_device()))
    return not_on_this_device("fences that the library waits for");
  check_on(on_scene<behind_fence>(fate::taken_back, flags::fenced));
  check_on(on_scene<behind_unsignaled>(fate::ends_connection, flags::fenced));
}

TEST_CASE("an unsignaled operation that is posted continues, or ends with the queue pair") {
  check_on(on_scene<unsignaled>(fate::ends_connection, flags::unsignaled));
}

TEST_CASE("a read beyond those that siw permits is taken back, however often it is cancelled") {
  if (!is_siw(open_device()))
    return not_on_this_device("a limit of reads");
  check_on<full_of_reads>({{"read", fate::taken_back, [](full_of_reads& s, twice& c) {
                              s.a.async_read(s.ma.buffer(100, 10), s.mb.remote(3000), c.handler());
                            }}});
}

// --- Shared receive queues -------------------------------------------------------------------

namespace {

/// A queue pair that receives from a shared receive queue, and the peer. `before` is posted.
struct shared_scene {
  static shared_receive_queue_options of_depth(std::uint32_t depth) {
    shared_receive_queue_options o;
    o.depth = depth;
    return o;
  }
  explicit shared_scene(std::uint32_t depth) : queue(io, pd, of_depth(depth)) {
    from.open(pd);
    to.open(pd, queue);
    connect(io, from, to);
    queue.async_receive(m.buffer(0, 10), before.handler());
  }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  /// Sends `messages`, and waits for `before`.
  void proceed_with(std::size_t messages) {
    std::vector<sent> all(messages);
    for (sent& s : all)
      from.async_send(m.buffer(100, 10), s.handler());
    until([&] {
      return before.done() && std::ranges::all_of(all, [](const sent& s) { return s.done(); });
    });
    CHECK(before.succeeded());
    for (const sent& s : all)
      CHECK(s.succeeded());
    CHECK(from.state() == queue_pair_state::connected);
    CHECK(to.state() == queue_pair_state::connected);
  }

  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  memory m{pd, 4096, most_rights(dev)};
  got before;
  shared_receive_queue queue;
  queue_pair from{io}, to{io};
};

/// Another receive waits for room.
struct full_queue : shared_scene {
  full_queue() : shared_scene(1) {}
  void proceed(bool) { proceed_with(1); }
};

/// Another receive is posted.
struct roomy_queue : shared_scene {
  roomy_queue() : shared_scene(2) {}
  void proceed(bool) { proceed_with(2); }
};

/// Another wait for the limit is pending.
struct limited_queue : shared_scene {
  limited_queue() : shared_scene(2) { queue.async_wait_limit(1, other.handler()); }
  void proceed(bool) {
    CHECK(other.calls == 0);
    proceed_with(1);
    until([&] { return other.done(); });
    CHECK(other.succeeded());
  }
  outcome<void> other;
};

} // namespace

TEST_CASE("a shared receive that waits for room is taken back, and a posted one continues") {
  check_on<full_queue>({{"waiting receive", fate::taken_back, [](full_queue& s, twice& c) {
                           s.queue.async_receive(s.m.buffer(20, 10), c.handler());
                         }}});
  check_on<roomy_queue>({{"posted receive", fate::left_alone, [](roomy_queue& s, twice& c) {
                            s.queue.async_receive(s.m.buffer(20, 10), c.handler());
                          }}});
}

TEST_CASE("a wait for the limit of a shared receive queue is taken back, however often it is "
          "cancelled") {
  check_on<limited_queue>({{"wait for the limit", fate::taken_back, [](limited_queue& s, twice& c) {
                              s.queue.async_wait_limit(1, c.handler());
                            }}});
}

} // namespace test::cancelled_twice_pairs_tests
