// SPDX-License-Identifier: BSL-1.0
//
// The properties of a handler: its executor, its allocator, its cancellation slot.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <future>
#include <thread>
#include <vector>

namespace test::asio_associated_tests {
namespace {

using io_executor = asio::io_context::executor_type;
using strand_type = asio::strand<io_executor>;

/// Starts one operation of each kind from a, with handlers that `make(name)` returns. One of them
/// is a receive at b, which others need.
template <class QueuePair, class Make>
int start_each_kind(QueuePair& a, QueuePair& b, const ground& g, Make make) {
  int n = 5;
  b.async_receive(g.part(1), make("receive"));
  a.async_send(g.part(0), make("send"));
  a.async_write(g.part(0), g.remote_part(2), make("write"));
  a.async_read(g.part(3), g.remote_part(2), make("read"));
  a.async_wait_disconnect(make("wait_disconnect"));
  if (g.dev.has_atomics()) {
    a.async_fetch_add(g.remote_part(4, 8), 1, make("fetch_add"));
    a.async_compare_and_swap(g.remote_part(4, 8), 1, 2, make("compare_and_swap"));
    n += 2;
  }
  return n;
}

} // namespace

TEST_CASE("every operation's handler runs on its associated executor, a custom one") {
  ground g;
  asio::io_context io(1);
  recording_executor::record record;
  const recording_executor ex(io, record);
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  const int started = start_each_kind(q.a, q.b, g, [&](const char* name) {
    return asio::bind_executor(ex, [&, name](error_code, auto&&...) {
      INFO(name);
      CHECK(record.running == 1);
      if (++done == 4 + (g.dev.has_atomics() ? 2 : 0))
        q.a.close(); // ends the wait
    });
  });
  io.run();
  CHECK(done == started);
  CHECK(record.executed == started);
}

TEST_CASE("handlers run in their strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  linked<asio::any_io_executor> q(io, g);
  int done = 0;
  const int started = start_each_kind(q.a, q.b, g, [&](const char* name) {
    return asio::bind_executor(strand, [&, name](error_code, auto&&...) {
      INFO(name);
      CHECK(strand.running_in_this_thread());
      if (++done == 4 + (g.dev.has_atomics() ? 2 : 0))
        q.a.close();
    });
  });
  io.run();
  CHECK(done == started);
}

TEST_CASE(
    "handlers run on a thread pool, and not on the thread that runs the queue pair's context") {
  ground g;
  asio::io_context io(1);
  asio::thread_pool pool(1);
  linked<io_executor> q(io, g);
  std::promise<std::thread::id> ran;
  q.a.async_write(g.part(0), g.remote_part(1),
                  asio::bind_executor(pool, [&](error_code ec, std::size_t) {
                    ran.set_value(ec ? std::thread::id() : std::this_thread::get_id());
                  }));
  io.run();
  const std::thread::id id = ran.get_future().get();
  CHECK(id != std::thread::id());
  CHECK(id != std::this_thread::get_id());
  pool.join();
}

TEST_CASE("a handler without an executor runs on the executor of its queue pair: a strand") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  linked<strand_type> q(strand, g);
  CHECK(q.a.get_executor() == strand);
  int done = 0;
  const int started = start_each_kind(q.a, q.b, g, [&](const char* name) {
    return [&, name](error_code, auto&&...) {
      INFO(name);
      CHECK(strand.running_in_this_thread());
      if (++done == 4 + (g.dev.has_atomics() ? 2 : 0))
        q.a.close();
    };
  });
  io.run();
  CHECK(done == started);
}

TEST_CASE("a handler without an executor runs on the executor of its queue pair: a custom one") {
  ground g;
  asio::io_context io(1);
  recording_executor::record record;
  linked<recording_executor> q(recording_executor(io, record), g);
  bool called = false;
  q.a.async_write(g.part(0), g.remote_part(1), [&](error_code ec, std::size_t n) {
    CHECK_FALSE(ec);
    CHECK(n == 64);
    CHECK(record.running == 1);
    called = true;
  });
  io.run();
  CHECK(called);
  CHECK(record.executed == 1);
}

TEST_CASE("a strand in any_io_executor is respected") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  linked<asio::any_io_executor> q(asio::any_io_executor(strand), g);
  bool called = false;
  q.a.async_write(g.part(0), g.remote_part(1), [&](error_code, std::size_t) {
    called = true;
    CHECK(strand.running_in_this_thread());
  });
  io.run();
  CHECK(called);
}

TEST_CASE("a thread pool is an execution context like another") {
  ground g;
  asio::thread_pool pool(2);
  linked<asio::thread_pool::executor_type> q(pool, g);
  std::future<received> got_it = q.b.async_receive(g.part(1), asio::use_future);
  std::future<std::size_t> sent_it = q.a.async_send(g.part(0), asio::use_future);
  CHECK(sent_it.get() == 64);
  CHECK(got_it.get().bytes == 64);

  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i)
    q.a.async_write(g.part(0), g.remote_part(2), [&](error_code ec, std::size_t) {
      if (!ec)
        ++done;
    });
  pool.join(); // waits for what is outstanding, and for nothing else
  CHECK(done == 100);
}

TEST_CASE(
    "the handler's allocator gives the operation's memory, which is free when the handler runs") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  allocation_count count;
  int done = 0;
  const int started = start_each_kind(q.a, q.b, g, [&](const char* name) {
    const std::size_t before = count.allocations;
    return asio::bind_allocator(counting_allocator<void>(count),
                                [&, before, name](error_code, auto&&...) {
                                  INFO(name);
                                  CHECK(count.allocations > before);
                                  if (++done == 4 + (g.dev.has_atomics() ? 2 : 0))
                                    q.a.close();
                                });
  });
  CHECK(count.allocations == static_cast<std::size_t>(started)); // one for each operation
  CHECK(count.outstanding != 0);
  io.run();
  CHECK(done == started);
  CHECK(count.allocations == static_cast<std::size_t>(started)); // none for running the handler
  CHECK(count.outstanding == 0);

  bool called = false;
  linked<asio::any_io_executor> r(io, g);
  io.restart();
  r.a.async_write(
      g.part(0), g.remote_part(1),
      asio::bind_allocator(counting_allocator<void>(count), [&](error_code, std::size_t) {
        called = true;
        CHECK(count.outstanding == 0);
      }));
  CHECK(count.outstanding != 0);
  io.run();
  CHECK(called);
}

TEST_CASE("the handler's allocator is used, and its memory returned, on the way through other "
          "executors and after errors") {
  ground g;
  asio::io_context io(1);
  const strand_type strand(io.get_executor());
  allocation_count count;
  int done = 0;
  {
    linked<asio::any_io_executor> q(io, g);
    const auto handler = [&] {
      return asio::bind_allocator(counting_allocator<void>(count),
                                  asio::bind_executor(strand, [&](error_code, std::size_t) {
                                    ++done;
                                    CHECK(count.outstanding == 0);
                                  }));
    };
    q.a.async_write(g.part(0), g.remote_part(1), handler());
    io.run();
    CHECK(done == 1);
    q.a.close();
    q.a.async_write(g.part(0), g.remote_part(1), handler()); // bad_descriptor
    io.restart();
    io.run();
    CHECK(done == 2);
    // Never run: the handler is destroyed with the context.
    q.b.async_receive(g.part(1), asio::bind_allocator(counting_allocator<void>(count),
                                                      [](error_code, received) {}));
    CHECK(count.outstanding != 0);
    q.b.close();
  }
  io.restart();
  io.run();
  CHECK(count.outstanding == 0);
}

namespace {

/// A cancellable operation and its result.
template <class T>
struct cancellable : outcome<T> {
  asio::cancellation_signal signal;
  auto handler() { return asio::bind_cancellation_slot(signal.slot(), outcome<T>::handler()); }
};

constexpr asio::cancellation_type each_type[] = {asio::cancellation_type::terminal,
                                                 asio::cancellation_type::partial,
                                                 asio::cancellation_type::total};

} // namespace

TEST_CASE(
    "an operation that is cancelled while it waits for room is removed, and the others continue") {
  const auto type = GENERATE(from_range(std::begin(each_type), std::end(each_type)));
  ground g;
  asio::io_context io(1);
  queue_pair_options options;
  options.send_depth = 1;
  options.receive_depth = 1;
  linked<asio::any_io_executor> q(io, g, options);
  got first_got, second_got;
  q.b.async_receive(g.part(1), first_got.handler());
  cancellable<received> waiting_receive;
  q.b.async_receive(g.part(2), waiting_receive.handler());
  q.b.async_receive(g.part(3), second_got.handler());
  waiting_receive.signal.emit(type);

  sent first, message;
  cancellable<std::size_t> middle, last;
  q.a.async_send(g.part(0), first.handler());
  q.a.async_write(g.part(0), g.remote_part(4), middle.handler());
  q.a.async_write(g.part(0), g.remote_part(4), last.handler());
  middle.signal.emit(type);
  last.signal.emit(asio::cancellation_type::none); // cancels nothing
  CHECK(middle.calls == 0);                        // not from inside emit
  // The second message is sent when its receive is posted, which is after the first receive has
  // completed: iWARP does not wait for a posted receive.
  while (!(first_got.done() && last.done()) && io.run_one() != 0) {
  }
  q.a.async_send(g.part(5, 32), message.handler());
  io.run();
  CHECK(first.succeeded());
  CHECK(last.succeeded());
  CHECK(message.succeeded());
  CHECK(middle.calls == 1);
  CHECK(middle.ec == asio::error::operation_aborted);
  CHECK(waiting_receive.calls == 1);
  CHECK(waiting_receive.ec == asio::error::operation_aborted);
  // A cancelled receive does not swallow the next message.
  CHECK(first_got.succeeded());
  CHECK(second_got.succeeded());
  CHECK(second_got.value.bytes == 32);
  CHECK(q.a.state() == queue_pair_state::connected);
}

TEST_CASE(
    "a posted operation ignores partial and total cancellation, and terminal ends the queue pair") {
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  cancellable<received> posted;
  got other;
  q.b.async_receive(g.part(1), posted.handler());
  q.b.async_receive(g.part(2), other.handler());
  posted.signal.emit(asio::cancellation_type::partial);
  posted.signal.emit(asio::cancellation_type::total);
  io.poll();
  CHECK(posted.calls == 0);
  CHECK(q.b.state() == queue_pair_state::connected);
  posted.signal.emit(asio::cancellation_type::terminal);
  CHECK(posted.calls == 0);
  io.run();
  CHECK(posted.calls == 1);
  CHECK(posted.ec == asio::error::operation_aborted);
  CHECK(other.calls == 1);
  CHECK(other.ec == asio::error::operation_aborted);
  CHECK(q.b.state() == queue_pair_state::failed);
}

TEST_CASE("a cancellation signal that is emitted after the operation has completed has no effect") {
  ground g;
  asio::io_context io(1);
  auto q = std::make_unique<linked<asio::any_io_executor>>(io, g);
  cancellable<std::size_t> w;
  q->a.async_write(g.part(0), g.remote_part(1), w.handler());
  io.run();
  CHECK(w.succeeded());
  // The memory of the first operation is likely that of the second.
  sent second;
  q->a.async_write(g.part(0), g.remote_part(1), second.handler());
  w.signal.emit(asio::cancellation_type::terminal);
  CHECK(q->a.state() == queue_pair_state::connected);
  io.restart();
  io.run();
  CHECK(second.succeeded());
  q.reset();
  w.signal.emit(asio::cancellation_type::terminal); // nor after the queue pair has been closed
  CHECK(w.calls == 1);
}

TEST_CASE("a wait for the disconnect is cancelled alone, by any type") {
  const auto type = GENERATE(from_range(std::begin(each_type), std::end(each_type)));
  ground g;
  asio::io_context io(1);
  linked<asio::any_io_executor> q(io, g);
  cancellable<void> first;
  outcome<void> second;
  q.a.async_wait_disconnect(first.handler());
  q.a.async_wait_disconnect(second.handler());
  first.signal.emit(type);
  CHECK(first.calls == 0);
  io.poll();
  CHECK(first.calls == 1);
  CHECK(first.ec == asio::error::operation_aborted);
  CHECK(second.calls == 0);
  CHECK(q.a.state() == queue_pair_state::connected);
  q.a.close();
  io.run();
  CHECK(second.calls == 1);
}

} // namespace test::asio_associated_tests
