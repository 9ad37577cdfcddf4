// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/detached.hpp>

namespace test::cancel_tests {
namespace {

using asio::cancellation_type;

queue_pair_options shallow() {
  queue_pair_options options = impatient();
  options.send_depth = options.receive_depth = 1;
  return options;
}

// A pair whose sends complete only when the test permits, so that posted operations stay posted.
struct held_pair {
  explicit held_pair(const queue_pair_options& options = impatient()) : p(options) {
    faults.hold_completions();
  }
  ~held_pair() { faults.clear(); }

  pair p;
  faults::injector faults{p.dev.native_handle()};
};

template <class Handler>
auto on(asio::cancellation_signal& signal, Handler&& handler) {
  return asio::bind_cancellation_slot(signal.slot(), std::forward<Handler>(handler));
}

} // namespace

TEST_CASE("closing ends every operation once, posted or not") {
  pair p(shallow());
  std::vector<got> receives(10);
  outcome<void> disconnect;
  for (auto& r : receives)
    p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.b.async_wait_disconnect(disconnect.handler());
  p.b.close();
  CHECK_FALSE(p.b.is_open());
  CHECK(p.b.state() == queue_pair_state::closed);
  for (const auto& r : receives)
    CHECK(r.calls == 0); // not from inside close()
  p.drain();
  for (const auto& r : receives) {
    CHECK(r.calls == 1);
    CHECK(r.ec == asio::error::operation_aborted);
    CHECK(r.value.bytes == 0);
  }
  CHECK(disconnect.calls == 1);
  CHECK(disconnect.ec == asio::error::operation_aborted);
}

TEST_CASE("an operation that had completed before the close keeps its result") {
  pair p;
  sent s;
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.a.async_send(p.ma.buffer(0, 8), s.handler());
  p.until([&] { return s.done(); }); // b's completion is in the queue, or its handler has run
  p.b.close();
  p.drain();
  CHECK(r.calls == 1);
  CHECK((r.succeeded() || p.dev.type() == transport::iwarp));
}

TEST_CASE("destroying is closing, and a closed queue pair may be closed again") {
  pair p;
  got r;
  {
    queue_pair gone(std::move(p.b));
    gone.async_receive(p.mb.buffer(0, 8), r.handler());
  }
  p.b.close();
  p.b.cancel();
  p.drain();
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

TEST_CASE("the close of a peer is detected by an operation to the peer") {
  pair p(impatient());
  sent s;
  got r;
  outcome<void> disconnect;
  p.a.async_receive(p.ma.buffer(0, 8), r.handler());
  p.a.async_wait_disconnect(disconnect.handler());
  p.b.close();
  if (p.dev.type() != transport::iwarp)
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(0, 8), s.handler());
  p.until([&] { return r.done() && disconnect.done(); });
  CHECK(r.ec == asio::error::connection_reset);
  CHECK(disconnect.ec == asio::error::connection_reset);
  CHECK(p.a.state() == queue_pair_state::failed);
  if (p.dev.type() != transport::iwarp) {
    CHECK(s.ec == IBV_WC_RETRY_EXC_ERR);
    CHECK(s.ec == errc::timed_out);
  }
}

TEST_CASE("an operation that is posted after the peer has closed, and before that is known, ends") {
  pair p(impatient());
  sent write;
  std::vector<got> receives(3);
  p.b.close();
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(0, 8), write.handler());
  for (auto& r : receives)
    p.a.async_receive(p.ma.buffer(100, 8), r.handler());
  p.until([&] {
    return write.done() && receives[0].done() && receives[1].done() && receives[2].done();
  });
  for (const auto& r : receives)
    CHECK(r.ec == asio::error::connection_reset);
}

TEST_CASE("cancelling when nothing is posted leaves the queue pair usable") {
  pair p;
  outcome<void> disconnect;
  p.a.async_wait_disconnect(disconnect.handler());
  p.a.cancel();
  p.drain();
  CHECK(disconnect.ec == asio::error::operation_aborted);
  CHECK(p.carries("still connected"));
}

TEST_CASE("cancelling the gathered operations of a batch leaves the queue pair usable") {
  pair p;
  sent s;
  {
    const queue_pair::batch batch(p.a);
    p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), s.handler());
    p.a.cancel();
  }
  p.drain();
  CHECK(s.calls == 1);
  CHECK(s.ec == asio::error::operation_aborted);
  CHECK(p.carries("still connected"));
}

TEST_CASE("cancelling posted operations ends everything by way of the error state") {
  pair p(shallow());
  std::vector<got> receives(5);
  for (auto& r : receives)
    p.b.async_receive(p.mb.buffer(0, 8), r.handler());
  p.b.cancel();
  p.until([&] { return receives[0].done() && receives[4].done(); });
  CHECK(p.b.is_open());
  CHECK(p.b.state() == queue_pair_state::failed);
  for (const auto& r : receives) {
    CHECK(r.calls == 1);
    CHECK(r.ec == asio::error::operation_aborted);
  }
  got late;
  p.b.async_receive(p.mb.buffer(0, 8), late.handler());
  p.until([&] { return late.done(); });
  CHECK(late.ec == asio::error::operation_aborted);
}

TEST_CASE("an operation that waits is removed by any kind of cancellation") {
  pair p(shallow());
  const auto type = GENERATE(cancellation_type::terminal, cancellation_type::partial,
                             cancellation_type::total, cancellation_type::all);
  asio::cancellation_signal signal;
  got first, second, third;
  p.b.async_receive(p.mb.buffer(0, 8), first.handler());
  p.b.async_receive(p.mb.buffer(8, 8), on(signal, second.handler()));
  p.b.async_receive(p.mb.buffer(16, 8), third.handler());
  signal.emit(type);
  CHECK(second.calls == 0); // not from inside emit()
  p.until([&] { return second.done(); });
  CHECK(second.ec == asio::error::operation_aborted);
  CHECK(first.calls + third.calls == 0);
  // No message is lost: the messages arrive at the remaining receives.
  p.ma.put(0, "message1message2");
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  p.until([&] { return first.done(); });
  p.a.async_send(p.ma.buffer(8, 8), asio::detached);
  p.until([&] { return third.done(); });
  CHECK(p.mb.text(0, 24) == std::string("message1\0\0\0\0\0\0\0\0message2", 24));
  signal.emit(type); // the operation has completed
  p.drain();
  CHECK(second.calls == 1);
}

TEST_CASE("a send that waits is removed, and those around it are sent") {
  held_pair h(shallow());
  pair& p = h.p;
  asio::cancellation_signal signal;
  sent first, second, third;
  p.ma.put(0, "abc");
  p.a.async_write(p.ma.buffer(0, 1), p.mb.remote(0, 1), first.handler());
  p.a.async_write(p.ma.buffer(1, 1), p.mb.remote(1, 1), on(signal, second.handler()));
  p.a.async_write(p.ma.buffer(2, 1), p.mb.remote(2, 1), third.handler());
  signal.emit(cancellation_type::total);
  p.until([&] { return second.done(); });
  CHECK(second.ec == asio::error::operation_aborted);
  CHECK(first.calls == 0);
  h.faults.release_completions();
  p.drain();
  CHECK(first.succeeded());
  CHECK(third.succeeded());
  CHECK(p.placed());
  CHECK(p.mb.text(0, 3) == std::string("a\0c", 3));
}

TEST_CASE("partial and total cancellation have no effect on a posted operation") {
  held_pair h;
  pair& p = h.p;
  const auto type = GENERATE(cancellation_type::partial, cancellation_type::total);
  asio::cancellation_signal of_write, of_receive;
  sent w;
  got r;
  p.a.async_write(p.ma.buffer(0, 8), p.mb.remote(), on(of_write, w.handler()));
  p.b.async_receive(p.mb.buffer(0, 8), on(of_receive, r.handler()));
  of_write.emit(type);
  of_receive.emit(type);
  p.io.restart();
  p.io.poll();
  CHECK(w.calls + r.calls == 0);
  CHECK(p.a.state() == queue_pair_state::connected);
  CHECK(p.b.state() == queue_pair_state::connected);
  p.a.async_send(p.ma.buffer(0, 8), asio::detached);
  h.faults.release_completions();
  p.drain();
  CHECK(w.succeeded());
  CHECK(r.succeeded());
}

TEST_CASE("terminal cancellation of a posted operation fails the queue pair") {
  pair p(impatient());
  asio::cancellation_signal signal;
  got r, other;
  outcome<void> disconnect;
  p.b.async_receive(p.mb.buffer(0, 8), on(signal, r.handler()));
  p.b.async_receive(p.mb.buffer(8, 8), other.handler());
  p.b.async_wait_disconnect(disconnect.handler());
  signal.emit(cancellation_type::terminal);
  CHECK(r.calls == 0);
  p.until([&] { return r.done() && other.done() && disconnect.done(); });
  CHECK(r.ec == asio::error::operation_aborted);
  CHECK(other.ec == asio::error::operation_aborted);
  CHECK(disconnect.ec == asio::error::operation_aborted);
  CHECK(p.b.state() == queue_pair_state::failed);
  signal.emit(cancellation_type::terminal);
  p.b.close();
  p.a.close();
  p.drain();
  CHECK(r.calls == 1);
}

TEST_CASE("waiting for the disconnection is cancelled alone") {
  pair p;
  asio::cancellation_signal signal;
  outcome<void> cancelled, kept;
  p.a.async_wait_disconnect(on(signal, cancelled.handler()));
  p.a.async_wait_disconnect(kept.handler());
  signal.emit(cancellation_type::total);
  p.until([&] { return cancelled.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(p.carries("still connected"));
  CHECK(kept.calls == 0);
  p.a.close();
  p.drain();
  CHECK(kept.ec == asio::error::operation_aborted);
}

TEST_CASE("a signal that is emitted after its queue pair was closed has no effect") {
  pair p;
  asio::cancellation_signal signal;
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), on(signal, r.handler()));
  p.b.close();
  signal.emit(cancellation_type::terminal);
  p.drain();
  CHECK(r.calls == 1);
}

TEST_CASE("a cancelled operation's handler runs when the device no longer uses the memory") {
  held_pair h;
  pair& p = h.p;
  asio::cancellation_signal signal;
  got r;
  p.b.async_receive(p.mb.buffer(0, 8), on(signal, r.handler()));
  signal.emit(cancellation_type::terminal);
  p.io.restart();
  p.io.poll();
  // No flush has been polled, but the device has destroyed the queue pair and its receives.
  CHECK(p.b.native_handle() == nullptr);
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

} // namespace test::cancel_tests
