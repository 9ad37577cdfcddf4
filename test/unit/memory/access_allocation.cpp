// SPDX-License-Identifier: BSL-1.0
// Access to a registered buffer that is granted, or cancelled, while allocations fail.
#include <catch.hpp>

#include "unit/memory/plain_arenas.hpp"

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <interposer/failing_allocation.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

using namespace asio_rdma;
using test::failing_allocation;

namespace {

struct ground {
  /// A handler without recycled memory.
  auto handler() {
    return asio::bind_allocator(std::allocator<int>(), [this](error_code e, buffer_access a) {
      ++calls;
      ec = e;
      access = std::move(a);
    });
  }

  test::plain_arenas arenas;
  memory_pool pool = arenas.pool();
  registered_buffer buffer = pool.allocate(1000);
  asio::io_context io{1};
  asio::any_io_executor any = io.get_executor();
  buffer_access first = buffer.try_write_access();
  int calls = 0;
  error_code ec = asio::error::would_block;
  buffer_access access;
};

/// A context that is none of Asio's, with its own queue.
class foreign_context : public asio::execution_context {
public:
  ~foreign_context() { shutdown(); }

  struct executor_type {
    foreign_context* context;

    asio::execution_context& query(asio::execution::context_t) const noexcept { return *context; }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
      return asio::execution::blocking.never;
    }
    executor_type require(asio::execution::blocking_t::never_t) const noexcept { return *this; }
    template <class Function>
    void execute(Function&& f) const {
      if (context->full)
        throw std::bad_alloc();
      context->queue.push_back([g = std::make_shared<std::decay_t<Function>>(
                                    std::forward<Function>(f))] { std::move (*g)(); });
    }
    bool operator==(const executor_type&) const noexcept = default;
  };

  executor_type get_executor() noexcept { return {this}; }
  void run() {
    while (!queue.empty()) {
      const auto f = std::move(queue.front());
      queue.pop_front();
      f();
    }
  }

  std::deque<std::function<void()>> queue;
  bool full = false;
};

} // namespace

TEST_CASE_METHOD(ground, "access that becomes free is granted although there is no memory") {
  SECTION("to an executor of the context") {
    buffer.async_write_access(io.get_executor(), handler());
  }
  SECTION("to a strand as the I/O executor") {
    buffer.async_write_access(asio::make_strand(io), handler());
  }
  SECTION("to a strand of any executor") {
    buffer.async_write_access(asio::make_strand(any), handler());
  }
  SECTION("to any executor that is a strand") {
    buffer.async_write_access(asio::any_io_executor(asio::make_strand(io)), handler());
  }
  SECTION("to any executor") { buffer.async_write_access(any, handler()); }
  SECTION("to a strand") {
    buffer.async_write_access(any, asio::bind_executor(asio::make_strand(any), handler()));
  }
  {
    const failing_allocation none(1);
    first.reset();
  }
  CHECK(calls == 0);
  io.run();
  CHECK(calls == 1);
  CHECK(!ec);
  CHECK(access);
}

TEST_CASE_METHOD(ground, "access is granted on a strand that has other work") {
  const auto strand = asio::make_strand(io);
  int before = 0;
  buffer.async_write_access(strand, handler());
  asio::post(strand, [&] { before += calls == 0 ? 1 : 0; });
  first.reset();
  registered_buffer more = pool.allocate(1000);
  buffer_access held = more.try_write_access();
  more.async_write_access(strand, handler());
  asio::post(strand, [&] { held.reset(); });
  io.run();
  CHECK(before == 1);
  CHECK(calls == 2);
  CHECK(!ec);
}

TEST_CASE_METHOD(ground, "a handler for which its strand has no memory is destroyed") {
  const auto alive = std::make_shared<int>();
  const auto h = [&, alive](auto...) {
    ++calls;
  };
  buffer.async_write_access(
      asio::make_strand(io),
      asio::bind_executor(asio::make_strand(io), asio::bind_allocator(std::allocator<int>(), h)));
  first.reset();
  bool thrown = false;
  {
    const failing_allocation none(1);
    try {
      io.run();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
  }
  CHECK(thrown);
  CHECK(alive.use_count() == 2);
  CHECK(buffer.try_write_access());
  io.restart();
  io.run();
  CHECK(calls == 0);
}

TEST_CASE_METHOD(ground, "a wait for access is cancelled although there is no memory") {
  asio::cancellation_signal cancel;
  SECTION("with any executor") {
    buffer.async_write_access(any, asio::bind_cancellation_slot(cancel.slot(), handler()));
  }
  SECTION("with a strand") {
    buffer.async_write_access(asio::make_strand(any),
                              asio::bind_cancellation_slot(cancel.slot(), handler()));
  }
  {
    const failing_allocation none(1);
    cancel.emit(asio::cancellation_type::total);
  }
  CHECK(calls == 0);
  io.run();
  CHECK(calls == 1);
  CHECK(ec == asio::error::operation_aborted);
  CHECK(!access);
  CHECK(first);
}

TEST_CASE_METHOD(ground, "access that was granted is free again if the context ends before") {
  {
    asio::io_context other;
    buffer.async_write_access(other.get_executor(), handler());
    first.reset();
    CHECK(!buffer.try_write_access());
  }
  CHECK(calls == 0);
  CHECK(buffer.try_write_access());
}

TEST_CASE_METHOD(ground, "access is granted on a context that is none of Asio's") {
  foreign_context other;
  SECTION("which takes it") {
    buffer.async_write_access(other.get_executor(), handler());
    first.reset();
  }
  SECTION("which takes it at the next chance") {
    buffer.async_write_access(other.get_executor(), handler());
    other.full = true;
    first.reset();
    other.full = false;
    CHECK(other.queue.empty());
    registered_buffer more = pool.allocate(1000);
    buffer_access held = more.try_write_access();
    more.async_write_access(other.get_executor(), [](error_code, buffer_access) {});
    held.reset();
  }
  CHECK(calls == 0);
  other.run();
  CHECK(calls == 1);
  CHECK(!ec);
  CHECK(access);
}
