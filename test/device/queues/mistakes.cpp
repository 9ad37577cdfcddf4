// SPDX-License-Identifier: BSL-1.0
// Mistakes of other libraries, one test for each.
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <thread>

namespace test {
namespace {

completion_queue_options with_events() { return {}; }

bool readable(const completion_queue& cq) {
  pollfd p{cq.native_handle()->channel->fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

// Exchanges messages one after the other. A receive without a message keeps an operation
// outstanding, so the completion queue sleeps between the messages.
void exchange(pair& p, unsigned rounds) {
  p.a.async_receive(p.ma.buffer(8000, 8), asio::detached);
  for (unsigned i = 0; i < rounds; ++i)
    REQUIRE(p.carries("a message"));
}

ibv_qp_attr attributes(const queue_pair& q) {
  error_code ec;
  const ibv_qp_attr attr = q.query(
      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_PORT | IBV_QP_MIN_RNR_TIMER | IBV_QP_RNR_RETRY |
          IBV_QP_RETRY_CNT | IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC,
      ec);
  REQUIRE_FALSE(ec);
  return attr;
}

} // namespace

TEST_CASE("a completion queue polled and then armed without polling again", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  faults::plan plan;
  plan.seed = 1;
  plan.hold_completion = 1; // visible when the queue is armed, often without an event
  faults.run(plan);
  exchange(p, 100);
}

TEST_CASE("one event read per readiness", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  for (int i = 0; i < 3; ++i)
    faults.raise_channel_event(p.cq.native_handle());
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  p.until([&] { return r.done(); });
  CHECK(r.succeeded());
  exchange(p, 300);
  p.io.restart();
  p.io.poll();
  CHECK_FALSE(readable(p.cq));
}

TEST_CASE("channel events never read at all", "[mistake]") {
  pair p(with_events());
  faults::injector faults(p.dev.native_handle());
  exchange(p, 300);
  p.io.restart();
  p.io.poll();
  CHECK(p.cq.counters().events >= 100);
  CHECK(faults.counts().channel_events == p.cq.counters().events);
  CHECK_FALSE(readable(p.cq));
}

TEST_CASE("events acknowledged one by one, or by count of completions", "[mistake]") {
  const device keep = open_device(); // the injector outlives the pair
  std::optional<faults::injector> faults;
  {
    pair p(with_events());
    faults.emplace(p.dev.native_handle());
    exchange(p, 300);
    const auto counts = faults->counts();
    CHECK(counts.channel_events > 0);
    CHECK(counts.channel_ack_calls * 16 <= counts.channel_events);
  }
  const auto counts = faults->counts();
  CHECK(counts.channel_events_acked == counts.channel_events);
  CHECK(counts.unacknowledged_at_destroy == 0);
}

TEST_CASE("completions of a batch handled in reverse or dropped after the first match",
          "[mistake]") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  std::vector<unsigned> order;
  for (unsigned i = 0; i < 100; ++i)
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), [&order, i](error_code ec, std::size_t) {
      CHECK_FALSE(ec);
      order.push_back(i);
    });
  p.until([&] { return faults.held() == 100 || p.io.poll() == 0; });
  while (faults.held() < 100)
    std::this_thread::yield();
  faults.release_completions();
  p.drain();
  REQUIRE(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("a completion queue smaller than the queues that feed it", "[mistake]") {
  queue_pair_options options;
  options.send_depth = options.receive_depth = 32;
  completion_queue_options queues;
  queues.entries = 128; // exactly the need of two such queue pairs
  pair p(queues, options);
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  std::vector<sent> sends(64);
  std::vector<got> receives(64);
  for (unsigned i = 0; i < 32; ++i) {
    p.a.async_receive(p.ma.buffer(8 * i, 8), receives[i].handler());
    p.b.async_receive(p.mb.buffer(8 * i, 8), receives[32 + i].handler());
  }
  for (unsigned i = 0; i < 32; ++i) {
    p.a.async_send(p.ma.buffer(1000, 8), sends[i].handler());
    p.b.async_send(p.mb.buffer(1000, 8), sends[32 + i].handler());
  }
  while (faults.held() < 128)
    std::this_thread::yield();
  queue_pair more(p.io);
  error_code ec;
  more.open(p.pd, p.cq, options, ec);
  const bool has_room = p.cq.entries() >= 192; // the device may have made it larger
  CHECK(ec == (has_room ? error_code() : error_code(error::completion_queue_full)));
  faults.release_completions();
  p.until([&] {
    return sends[31].done() && sends[63].done() && receives[31].done() && receives[63].done();
  });
  for (const auto& s : sends)
    CHECK(s.succeeded());
  for (const auto& r : receives)
    CHECK(r.succeeded());
}

TEST_CASE("a full send queue reported as an error, or leaving its buffers locked for ever",
          "[mistake]") {
  queue_pair_options options;
  options.send_depth = 2;
  pair p(options);
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  std::vector<sent> writes(50);
  for (auto& w : writes)
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), w.handler());
  p.io.restart();
  p.io.poll();
  for (const auto& w : writes)
    CHECK(w.calls == 0);
  faults.release_completions();
  p.drain();
  for (const auto& w : writes)
    CHECK(w.succeeded());
}

TEST_CASE("success reported when a write is posted, not when it completed", "[mistake]") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  faults.hold_completions();
  sent w;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), w.handler());
  while (faults.held() == 0) {
    p.io.restart();
    p.io.poll();
  }
  CHECK(w.calls == 0);
  faults.release_completions();
  p.drain();
  CHECK(w.succeeded());
}

TEST_CASE("errno read after ibv_post_*, whose value is the error", "[mistake]") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  using faults::call;
  sent s;
  got r;
  faults.refuse_post(call::post_send, EAGAIN);
  errno = EPERM;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
  faults.refuse_post(call::post_recv, ENOMEM);
  errno = EPERM;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  CHECK(s.calls + r.calls == 0);
  p.drain();
  CHECK(s.ec == detail::system_error_code(EAGAIN));
  CHECK(r.ec == detail::system_error_code(ENOMEM));
  CHECK(s.calls == 1);
  CHECK(r.calls == 1);
  CHECK(p.carries("goes on"));

  // In the middle of a chain only the refused request fails.
  std::vector<sent> writes(5);
  faults.refuse_post(call::post_send, EAGAIN, {}, 2);
  {
    const queue_pair::batch batch(p.a);
    for (auto& w : writes)
      p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), w.handler());
  }
  p.drain();
  for (unsigned i = 0; i < 5; ++i) {
    CAPTURE(i);
    CHECK(writes[i].calls == 1);
    CHECK(writes[i].ec == (i == 2 ? detail::system_error_code(EAGAIN) : error_code()));
  }
}

TEST_CASE("flags compared with == instead of &", "[mistake]") {
  pair p;
  faults::injector faults(p.dev.native_handle());
  using flags = queue_pair::flags;
  const bool waits = is_software(p.dev); // there the library does the waiting
  for (unsigned combination = 0; combination < 8; ++combination) {
    const auto how = static_cast<flags>(combination);
    CAPTURE(combination);
    const auto are_posted = [&] {
      const unsigned posted = faults.counts().last_send_flags;
      return ((posted & IBV_SEND_SOLICITED) != 0) == (how & flags::solicited) &&
             ((posted & IBV_SEND_FENCE) != 0) == (!waits && (how & flags::fenced)) &&
             ((posted & IBV_SEND_SIGNALED) != 0) == !(how & flags::unsignaled);
    };
    const auto is_done = [&](const auto& o) { // for an unsignaled write, a later completion
      sent write;
      p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), write.handler());
      p.drain();
      return o.succeeded() && write.succeeded();
    };
    sent s;
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), how, s.handler());
    CHECK(are_posted());
    CHECK(is_done(s));
    if (!p.dev.has_memory_windows())
      continue;
    memory_window window(p.pd);
    outcome<void> bound, ended;
    p.a.async_bind(window, p.ma.region, 0, 64, access::remote_write, how, bound.handler());
    CHECK(are_posted());
    REQUIRE(is_done(bound));
    p.a.async_invalidate(window.rkey(), how, ended.handler());
    CHECK(are_posted());
    CHECK(is_done(ended));
  }
}

// While an operation of siw waits for READs, siw answers no READs of the peer. If both sides wait
// so, they wait for ever. A fenced operation that rxe repeats also waits for the READs behind it.
TEST_CASE("an operation posted to siw or rxe that has to wait for reads", "[mistake]") {
  pair p;
  const bool siw = is_siw(p.dev), waits = is_software(p.dev);
  faults::injector faults(p.dev.native_handle());
  using flags = queue_pair::flags;
  SECTION("behind a fence") {
    sent read, fenced, last;
    p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), read.handler());
    p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::fenced, fenced.handler());
    p.a.async_write(p.ma.buffer(16, 8), p.mb.remote(16, 8), last.handler());
    CHECK(faults.counts().send_requests == (waits ? 1 : 3));
    p.drain();
    CHECK(faults.counts().send_requests == 3);
    CHECK(read.succeeded());
    CHECK(fenced.succeeded());
    CHECK(last.succeeded());
  }
  SECTION("a fenced read, which siw refuses") {
    sent first, second;
    p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), first.handler());
    p.a.async_read(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::fenced, second.handler());
    CHECK(faults.counts().send_requests == (waits ? 1 : 2));
    p.drain();
    CHECK(first.succeeded());
    CHECK(second.succeeded());
  }
  SECTION("an atomic operation, which a fence waits for as well") {
    if (!p.dev.has_atomics())
      return not_on_this_device("atomic operations");
    outcome<std::uint64_t> added;
    sent fenced;
    p.a.async_fetch_add(p.mb.remote(0, 8), 1, added.handler());
    p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::fenced, fenced.handler());
    CHECK(faults.counts().send_requests == (waits ? 1 : 2));
    p.drain();
    CHECK(added.succeeded());
    CHECK(fenced.succeeded());
  }
  SECTION("an unsignaled read, which a fence waits for as well") {
    sent read, fenced;
    p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), flags::unsignaled, read.handler());
    p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::fenced, fenced.handler());
    CHECK(faults.counts().send_requests == (waits ? 1 : 2));
    p.drain();
    CHECK(read.succeeded());
    CHECK(fenced.succeeded());
  }
  SECTION("an unsignaled operation before it, which only it reports, when it is cancelled") {
    const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::terminal);
    asio::cancellation_signal stop;
    sent read, write, fenced;
    p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), read.handler());
    p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::unsignaled, write.handler());
    p.a.async_write(p.ma.buffer(16, 8), p.mb.remote(16, 8), flags::fenced,
                    asio::bind_cancellation_slot(stop.slot(), fenced.handler()));
    stop.emit(type);
    p.drain();
    CHECK(read.calls == 1);
    CHECK(write.calls == 1);
    CHECK(fenced.calls == 1);
    if (type == asio::cancellation_type::total)
      CHECK(fenced.succeeded()); // as if it had been posted
    else
      CHECK(fenced.ec == asio::error::operation_aborted);
  }
  SECTION("an unsignaled operation before it, which waits too, when it is cancelled") {
    const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::terminal);
    const bool behind_read = GENERATE(true, false); // or held by the batch only
    asio::cancellation_signal stop;
    sent read, write, last;
    {
      const queue_pair::batch together(p.a);
      if (behind_read)
        p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), read.handler());
      p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::unsignaled, write.handler());
      p.a.async_write(p.ma.buffer(16, 8), p.mb.remote(16, 8),
                      asio::bind_cancellation_slot(stop.slot(), last.handler()));
      stop.emit(type);
    }
    p.drain();
    CHECK(read.calls == int(behind_read));
    CHECK(write.succeeded());
    CHECK(last.ec == asio::error::operation_aborted);
  }
  SECTION("an unsignaled operation before it, when it is cancelled") {
    asio::cancellation_signal stop;
    sent read, write, fenced;
    {
      const queue_pair::batch together(p.a);
      p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), read.handler());
      p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), flags::unsignaled, write.handler());
      p.a.async_write(p.ma.buffer(16, 8), p.mb.remote(16, 8), flags::fenced,
                      asio::bind_cancellation_slot(stop.slot(), fenced.handler()));
    }
    stop.emit(asio::cancellation_type::total);
    p.drain();
    CHECK(read.succeeded());
    CHECK(write.succeeded());
    CHECK(fenced.ec == (waits ? error_code(asio::error::operation_aborted) : error_code()));
  }
  SECTION("reads, more than may be in flight") {
    const unsigned most = p.a.options().max_reads;
    std::vector<sent> reads(2 * most + 1);
    for (sent& r : reads)
      p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), r.handler());
    CHECK(faults.counts().send_requests == (siw ? most : reads.size()));
    p.drain();
    CHECK(faults.counts().send_requests == reads.size());
    CHECK(std::all_of(reads.begin(), reads.end(), [](const sent& r) { return r.succeeded(); }));
  }
}

// siw does so with a READ that it was about to send when its queue was flushed.
TEST_CASE("a flushed read that completes twice", "[mistake]") {
  pair p;
  if (!is_siw(p.dev))
    return not_on_this_device("reads that complete twice");
  faults::injector faults(p.dev.native_handle());
  sent read, behind;
  const auto [status, expected] = GENERATE(table<ibv_wc_status, error_code>(
      {{IBV_WC_WR_FLUSH_ERR, asio::error::connection_reset},
       {IBV_WC_GENERAL_ERR, detail::completion_error(IBV_WC_GENERAL_ERR)}}));
  faults.fail_completion({.status = status, .repeated = true});
  p.a.async_read(p.ma.buffer(0, 8), p.mb.remote(0, 8), read.handler());
  p.a.async_write(p.ma.buffer(8, 8), p.mb.remote(8, 8), queue_pair::flags::fenced,
                  behind.handler()); // fenced, so that the read completes first
  p.drain();
  CHECK(faults.counts().failed_completions == 1);
  CHECK(read.calls == 1);
  CHECK(read.ec == expected);
  CHECK(behind.calls == 1);
}

TEST_CASE("a completion's flags compared with == instead of &", "[mistake]") {
  pair p;
  if (!p.dev.has_immediate())
    return not_on_this_device("immediate data");
  using flags = queue_pair::flags;
  got r;
  sent s;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.a.async_send_immediate(p.ma.buffer(0, 8), 77,
                           flags::solicited | flags::fenced | flags::unsignaled, s.handler());
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), asio::detached);
  p.drain();
  CHECK(s.succeeded());
  CHECK(r.value.immediate == 77u);
}

TEST_CASE("a received length thrown away", "[mistake]") {
  pair p;
  for (const std::size_t n : {1u, 63u, 64u, 65u, 1000u}) {
    got r;
    p.b.async_receive(p.mb.buffer(0, 2000), r.handler());
    p.a.async_send(p.ma.buffer(0, n), asio::detached);
    p.drain();
    CHECK(r.value.bytes == n);
  }
}

TEST_CASE("a handler run on the poller's thread instead of its executor", "[mistake]") {
  pair p;
  asio::thread_pool pool(1);
  auto strand = asio::make_strand(p.io);
  const auto work = asio::make_work_guard(p.io);
  int done = 0; // used on the context only
  std::atomic<int> on_pool{0}, on_strand{0};
  auto of_pool = asio::bind_executor(pool, [&](error_code, received) {
    on_pool += pool.get_executor().running_in_this_thread() ? 1 : 0;
    asio::post(p.io, [&] { ++done; });
  });
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.a.async_send(p.ma.buffer(0, 8), asio::bind_executor(strand, [&](error_code, std::size_t) {
                   on_strand += strand.running_in_this_thread() ? 1 : 0;
                   ++done;
                 }));
  p.until([&] { return done == 2; });
  p.b.close(); // aborted and immediately failing operations use the executor too
  p.b.async_receive(p.mb.buffer(0, 8), of_pool);
  p.until([&] { return done == 4; });
  pool.join();
  CHECK(done == 4);
  CHECK(on_pool == 3);
  CHECK(on_strand == 1);
}

TEST_CASE("a failed completion that terminates the process or escapes from io_context::run",
          "[mistake]") {
  pair p(impatient());
  faults::injector faults(p.dev.native_handle());
  faults.fail_completion({.status = IBV_WC_GENERAL_ERR, .qp_num = p.a.native_handle()->qp_num});
  sent s;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
  CHECK_NOTHROW(p.until([&] { return s.done(); }));
  CHECK(s.ec == IBV_WC_GENERAL_ERR);
  CHECK(s.ec == errc::io_error);
}

TEST_CASE("a cancelled receive that swallows the next message", "[mistake]") {
  queue_pair_options options;
  options.receive_depth = 1;
  pair p(options);
  asio::cancellation_signal signal;
  got first, cancelled, next;
  p.b.async_receive(p.mb.buffer(0, 8), first.handler());
  p.b.async_receive(p.mb.buffer(8, 8),
                    asio::bind_cancellation_slot(signal.slot(), cancelled.handler()));
  p.b.async_receive(p.mb.buffer(16, 8), next.handler());
  signal.emit(asio::cancellation_type::total);
  p.ma.put(0, "message1message2");
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  p.until([&] { return first.done() && cancelled.done(); });
  p.a.async_send(p.ma.buffer(8, 8), asio::detached);
  p.until([&] { return next.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(p.mb.text(0, 8) == "message1");
  CHECK(p.mb.text(16, 8) == "message2");
}

TEST_CASE("a cancelled operation whose buffer the device still writes", "[mistake]") {
  pair p(impatient());
  asio::cancellation_signal signal;
  got r;
  sent s;
  p.b.async_receive(p.mb.buffer(0, 8), asio::bind_cancellation_slot(signal.slot(), r.handler()));
  signal.emit(asio::cancellation_type::terminal);
  p.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::operation_aborted);
  p.mb.put(0, "reused!!");
  p.ma.put(0, "intruder");
  p.a.async_send(p.ma.buffer(0, 8), s.handler());
  p.until([&] { return s.done(); });
  CHECK(p.mb.text(0, 8) == "reused!!");
}

TEST_CASE("a peer's death that leaves a receive waiting for ever", "[mistake]") {
  pair p(impatient());
  got r;
  p.a.async_receive(p.ma.buffer(0, 8), r.handler());
  p.b.close();
  if (p.dev.type() != transport::iwarp) // only a send makes the death visible
    p.a.async_write(const_buffer(), remote_buffer(), asio::detached);
  p.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::connection_reset);
}

TEST_CASE("min_rnr_timer left at 0 (655 ms) with infinite rnr_retry", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  CHECK(attr.min_rnr_timer == 12);
  CHECK(attr.rnr_retry == 6);
}

TEST_CASE("retry_cnt 7, which rxe takes as for ever", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(attributes(p.a).retry_cnt == 6);
  CHECK(attributes(p.a).timeout == 14);
}

TEST_CASE("hop limit 1", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(attributes(p.a).ah_attr.grh.hop_limit == 64);
}

TEST_CASE("a partition other than the first can be asked for") {
  queue_pair_options o;
  o.pkey_index = 3;
  const device d = open_device();
  if (d.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  asio::io_context io(1);
  queue_pair qp(io);
  error_code ec;
  qp.open(protection_domain(d), o, ec);
  REQUIRE_FALSE(ec); // rxe takes any index, though its table has one
  CHECK(attributes(qp).pkey_index == 3);
}

TEST_CASE("GID index, port or path MTU hard-coded", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  const auto port = p.dev.first_port();
  CHECK(attr.port_num == port);
  CHECK(attr.path_mtu == p.dev.port(port).active_mtu);
  REQUIRE(p.dev.best_gid(port));
  CHECK(attr.ah_attr.grh.sgid_index == p.dev.best_gid(port)->index);
  queue_pair_options options;
  options.path_mtu = IBV_MTU_512;
  pair narrow(options, {});
  CHECK(attributes(narrow.a).path_mtu == IBV_MTU_512);
  CHECK(attributes(narrow.b).path_mtu == IBV_MTU_512);
  CHECK(narrow.carries(std::string(5000, 'x')));
}

TEST_CASE("depth of reads left at 1", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  const auto most =
      std::min({16, p.dev.attributes().max_qp_rd_atom, p.dev.attributes().max_qp_init_rd_atom});
  CHECK(attr.max_rd_atomic == most);
  CHECK(attr.max_dest_rd_atomic == most);
  queue_pair_options few;
  few.max_reads = 2;
  pair uneven(few, {});
  CHECK(attributes(uneven.b).max_rd_atomic == 2); // the other side's limit
  CHECK(attributes(uneven.a).max_dest_rd_atomic == 2);
}

TEST_CASE("an event queue handled by a blocking call inside the event loop", "[mistake]") {
  pair p(with_events());
  const auto blocks = [](int fd) {
    return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
  };
  CHECK_FALSE(blocks(p.dev.native_handle()->async_fd));
  CHECK_FALSE(blocks(p.cq.native_handle()->channel->fd));
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.io.restart();
  p.io.poll(); // armed, with no completion to come
  int turns = 0;
  const std::function<void()> turn = [&] {
    if (++turns < 10)
      asio::post(p.io, turn);
  };
  asio::post(p.io, turn);
  p.until([&] { return turns == 10; });
  CHECK(r.calls == 0);
}

} // namespace test
