// SPDX-License-Identifier: BSL-1.0
#include "catch.hpp"
#include "device/support/pair.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <tuple>

namespace test::shared_receive_queue_tests {
namespace {

// Two queue pairs that receive from one shared queue, and a peer of each.
struct shared {
  explicit shared(const shared_receive_queue_options& options = {}, bool by_manager = false)
      : srq(io, pd, options) {
    for (int i = 0; i < 2; ++i) {
      from[i].open(pd, impatient());
      to[i].open(pd, srq, impatient());
      by_manager ? connect_by_manager(io, from[i], to[i]) : connect(io, from[i], to[i]);
    }
  }
  void send(int i, std::size_t offset, std::size_t bytes) {
    from[i].async_send(m.buffer(offset, bytes), [](error_code ec, std::size_t) { CHECK(!ec); });
  }

  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  memory m{pd, 65536, most_rights(dev)};
  shared_receive_queue srq;
  queue_pair from[2] = {queue_pair(io), queue_pair(io)};
  queue_pair to[2] = {queue_pair(io), queue_pair(io)};
};

} // namespace

TEST_CASE("no queue pair is opened on a shared receive queue that is not open") {
  const bool was_open = GENERATE(false, true);
  asio::io_context io(1);
  const device dev = open_device();
  const protection_domain pd(dev);
  shared_receive_queue srq(io);
  if (was_open) {
    srq.open(pd);
    srq.close();
  }
  queue_pair qp(io);
  error_code ec;
  qp.open(pd, srq, {}, ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK_FALSE(qp.is_open());
  CHECK_THROWS_AS(qp.open(pd, srq), system_error);
}

TEST_CASE("a receive reports the queue pair that it arrived by") {
  shared s;
  got first, second;
  s.m.put(0, "onetwo!");
  s.srq.async_receive(s.m.buffer(100, 50), first.handler());
  s.send(1, 0, 3);
  until(s.io, [&] { return first.done(); });
  s.srq.async_receive(s.m.buffer(200, 50), second.handler());
  s.send(0, 3, 4);
  until(s.io, [&] { return second.done(); });
  CHECK(first.succeeded());
  CHECK(first.value.bytes == 3);
  CHECK(first.value.queue_pair_number == s.to[1].native_handle()->qp_num);
  CHECK(second.value.bytes == 4);
  CHECK(second.value.queue_pair_number == s.to[0].native_handle()->qp_num);
  CHECK(s.m.text(100, 3) == "one");
  CHECK(s.m.text(200, 4) == "two!");
}

TEST_CASE("a shared receive with each kind of completion token") {
  shared s;
  s.m.put(0, "token");
  const auto receive = [&](auto&& token) {
    return s.srq.async_receive(s.m.buffer(100, 8), std::forward<decltype(token)>(token));
  };
  const auto send = [&] {
    s.send(0, 0, 5);
  };
  SECTION("a callback") {
    got result;
    receive(result.handler());
    send();
    CHECK_FALSE(result.done());
    drain(s.io);
    CHECK(result.succeeded());
    CHECK(result.value.bytes == 5);
  }
  SECTION("use_future") {
    auto result = receive(asio::use_future);
    send();
    drain(s.io);
    CHECK(result.get().bytes == 5);
  }
  SECTION("use_awaitable") {
    received result;
    asio::co_spawn(
        s.io,
        [&]() -> asio::awaitable<void> {
          asio::post(s.io, send); // on iWARP the receive must be posted first
          result = co_await receive(asio::use_awaitable);
        },
        asio::detached);
    drain(s.io);
    CHECK(result.bytes == 5);
  }
  SECTION("as_tuple") {
    error_code ec = asio::error::fault;
    received result;
    asio::co_spawn(
        s.io,
        [&]() -> asio::awaitable<void> {
          asio::post(s.io, send);
          std::tie(ec, result) = co_await receive(asio::as_tuple(asio::use_awaitable));
        },
        asio::detached);
    drain(s.io);
    CHECK(ec == error_code());
    CHECK(result.bytes == 5);
  }
  SECTION("deferred: it is started when it is launched") {
    got before, result;
    auto operation = receive(asio::deferred);
    s.srq.async_receive(s.m.buffer(200, 8), before.handler());
    std::move(operation)(result.handler());
    s.send(0, 1, 4);
    send();
    drain(s.io);
    CHECK(before.succeeded());
    CHECK(before.value.bytes == 4);
    CHECK(result.succeeded());
    CHECK(result.value.bytes == 5);
  }
  SECTION("detached") {
    receive(asio::detached);
    send();
    drain(s.io);
  }
  CHECK(s.m.text(100, 5) == "token");
}

TEST_CASE("ten times as many receives as a shared queue is deep") {
  shared_receive_queue_options options;
  options.depth = 4;
  shared s(options);
  constexpr unsigned count = 40;
  std::vector<got> receives(count);
  for (unsigned i = 0; i < count; ++i)
    s.srq.async_receive(s.m.buffer(8 * i, 8), receives[i].handler());
  for (unsigned i = 0; i < count; ++i) {
    s.send(int(i % 2), 8 * i, 8);
    until(s.io, [&] { return receives[i].done(); });
    REQUIRE(receives[i].succeeded());
    REQUIRE(receives[i].value.queue_pair_number == s.to[i % 2].native_handle()->qp_num);
  }
}

TEST_CASE("shared receives whose post fails without naming a request: only the first fails") {
  shared s;
  faults::injector injector(s.dev.native_handle());
  injector.fail_post_unnamed(faults::call::post_srq_recv, EINVAL);
  got refused, taken;
  s.srq.async_receive(s.m.buffer(100, 50), refused.handler());
  s.srq.async_receive(s.m.buffer(200, 50), taken.handler());
  s.m.put(0, "message");
  s.send(0, 0, 7);
  until(s.io, [&] { return refused.done() && taken.done(); });
  CHECK(refused.ec == errc::invalid_argument);
  CHECK(taken.succeeded());
  CHECK(s.m.text(200, 7) == "message");
}

TEST_CASE("a message larger than a shared receive fails its queue pair") {
  const bool by_manager = GENERATE(false, true);
  shared s({}, by_manager);
  got too_small, next;
  outcome<void> ended;
  s.srq.async_receive(s.m.buffer(100, 8), too_small.handler());
  s.to[0].async_wait_disconnect(ended.handler());
  s.from[0].async_send(s.m.buffer(0, 64), asio::detached);
  until(s.io, [&] { return too_small.done() && ended.done(); });
  INFO(describe(too_small.ec));
  CHECK(too_small.ec);
  // siw also raises an event, which may come first.
  CHECK((ended.ec == asio::error::connection_reset || ended.ec == error::queue_pair_fatal));
  CHECK(s.to[0].state() == queue_pair_state::failed);

  CHECK(s.to[1].state() == queue_pair_state::connected);
  s.srq.async_receive(s.m.buffer(200, 8), next.handler());
  s.send(1, 0, 8);
  until(s.io, [&] { return next.done(); });
  CHECK(next.succeeded());
  CHECK(next.value.queue_pair_number == s.to[1].native_handle()->qp_num);
}

TEST_CASE("a queue pair with a shared receive queue has no receives of its own") {
  shared s;
  got r;
  s.to[0].async_receive(s.m.buffer(0, 8), r.handler());
  until(s.io, [&] { return r.done(); });
  CHECK(r.ec == asio::error::operation_not_supported);
}

TEST_CASE("the limit is reported when fewer receives are posted") {
  shared s;
  std::vector<got> receives(4);
  for (unsigned i = 0; i < 4; ++i)
    s.srq.async_receive(s.m.buffer(8 * i, 8), receives[i].handler());
  outcome<void> limit;
  s.srq.async_wait_limit(3, limit.handler());
  s.send(0, 100, 8);
  until(s.io, [&] { return receives[0].done(); });
  s.send(1, 100, 8);
  until(s.io, [&] { return receives[1].done() && limit.done(); });
  CHECK(limit.succeeded());
}

TEST_CASE("waiting for the limit is cancelled") {
  shared s;
  asio::cancellation_signal signal;
  outcome<void> one, all;
  s.srq.async_receive(s.m.buffer(0, 8), asio::detached);
  s.srq.async_receive(s.m.buffer(8, 8), asio::detached);
  s.srq.async_wait_limit(1, asio::bind_cancellation_slot(signal.slot(), one.handler()));
  s.srq.async_wait_limit(1, all.handler());
  signal.emit(asio::cancellation_type::total);
  until(s.io, [&] { return one.done(); });
  CHECK(one.ec == asio::error::operation_aborted);
  CHECK(all.calls == 0);
  s.srq.cancel();
  until(s.io, [&] { return all.done(); });
  CHECK(all.ec == asio::error::operation_aborted);
}

TEST_CASE("the end of one queue pair leaves the others' receives as they are") {
  shared s;
  std::vector<got> receives(3);
  for (unsigned i = 0; i < 3; ++i)
    s.srq.async_receive(s.m.buffer(8 * i, 8), receives[i].handler());
  SECTION("closed") { s.to[0].close(); }
  SECTION("cancelled") { s.to[0].cancel(); }
  SECTION("its peer closed") { s.from[0].close(); }
  s.send(1, 100, 8);
  until(s.io, [&] { return receives[0].done(); });
  CHECK(receives[0].succeeded());
  CHECK(receives[0].value.queue_pair_number == s.to[1].native_handle()->qp_num);
  CHECK(receives[1].calls + receives[2].calls == 0);
}

TEST_CASE("cancelling removes the waiting receives, and leaves the posted ones") {
  shared_receive_queue_options options;
  options.depth = 1;
  shared s(options);
  asio::cancellation_signal of_posted, of_waiting;
  got posted, waiting, waiting2;
  const auto on = [](auto& signal, auto handler) {
    return asio::bind_cancellation_slot(signal.slot(), handler);
  };
  s.srq.async_receive(s.m.buffer(0, 8), on(of_posted, posted.handler()));
  s.srq.async_receive(s.m.buffer(8, 8), on(of_waiting, waiting.handler()));
  s.srq.async_receive(s.m.buffer(16, 8), waiting2.handler());
  of_posted.emit(asio::cancellation_type::terminal); // another queue pair may be filling it
  of_waiting.emit(asio::cancellation_type::total);
  until(s.io, [&] { return waiting.done(); });
  CHECK(waiting.ec == asio::error::operation_aborted);
  s.srq.cancel();
  until(s.io, [&] { return waiting2.done(); });
  CHECK(waiting2.ec == asio::error::operation_aborted);
  CHECK(posted.calls == 0);
  s.send(0, 100, 8);
  until(s.io, [&] { return posted.done(); });
  CHECK(posted.succeeded());
}

TEST_CASE("closing with queue pairs attached") {
  shared_receive_queue_options options;
  options.depth = 1;
  shared s(options);
  got posted, waiting, late;
  outcome<void> limit;
  s.srq.async_receive(s.m.buffer(0, 8), posted.handler());
  s.srq.async_receive(s.m.buffer(8, 8), waiting.handler());
  s.srq.async_wait_limit(1, limit.handler());
  s.srq.close();
  CHECK_FALSE(s.srq.is_open());
  s.srq.async_receive(s.m.buffer(0, 8), late.handler());
  until(s.io, [&] { return waiting.done() && limit.done() && late.done(); });
  CHECK(waiting.ec == asio::error::operation_aborted);
  CHECK(limit.ec == asio::error::operation_aborted);
  CHECK(late.ec == asio::error::bad_descriptor);
  CHECK(posted.calls == 0);
  s.to[0].close();
  s.io.restart();
  s.io.poll();
  CHECK(posted.calls == 0);
  s.to[1].close();
  s.from[0].close();
  s.from[1].close();
  drain(s.io);
  CHECK(posted.calls == 1);
  CHECK(posted.ec == asio::error::operation_aborted);
}

TEST_CASE("an error of the shared queue ends the waits for its limit") {
  shared s;
  faults::injector faults(s.dev.native_handle());
  outcome<void> limit;
  s.srq.async_receive(s.m.buffer(0, 8), asio::detached);
  s.srq.async_receive(s.m.buffer(8, 8), asio::detached);
  s.srq.async_wait_limit(1, limit.handler());
  faults.raise_srq_event(s.srq.native_handle(), IBV_EVENT_SRQ_ERR);
  until(s.io, [&] { return limit.done(); });
  CHECK(limit.ec == error::queue_pair_fatal);
}

TEST_CASE("opening a shared receive queue") {
  asio::io_context io(1);
  const device dev = open_device();
  const protection_domain pd(dev);
  completion_queue_options few;
  few.entries = 8;
  const completion_queue cq(io, dev, few);
  shared_receive_queue srq(io);
  CHECK_FALSE(srq.is_open());
  error_code ec;
  shared_receive_queue_options options;
  options.depth = std::uint32_t(cq.entries()) + 1;
  srq.open(pd, cq, options, ec);
  CHECK(ec == error::completion_queue_full);
  options.depth = 4;
  srq.open(pd, cq, options, ec);
  CHECK_FALSE(ec);
  srq.open(pd, cq, options, ec);
  CHECK(ec == asio::error::already_open);
  got r;
  memory m(pd, 64, access::local_write);
  srq.async_receive(m.buffer(), r.handler());
  srq.close();
  drain(io);
  CHECK(r.calls == 1);
  CHECK(r.ec == asio::error::operation_aborted);
}

} // namespace test::shared_receive_queue_tests
