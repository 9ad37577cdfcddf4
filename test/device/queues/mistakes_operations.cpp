// SPDX-License-Identifier: BSL-1.0
// Mistakes of other libraries with the start, the cancellation and the failure of operations, one
// test for each.
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/detached.hpp>

#include <algorithm>
#include <cerrno>

namespace test::mistakes_operations_tests {

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
    else if (waits || fenced.ec)
      CHECK(fenced.ec == asio::error::operation_aborted);
    else
      CHECK(fenced.succeeded()); // it was posted, and the device completed it before
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

} // namespace test::mistakes_operations_tests
