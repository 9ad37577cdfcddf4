// SPDX-License-Identifier: BSL-1.0
// Access to a registered buffer that is granted, or given up, while there is no memory.
#include <catch.hpp>

#include "plain_arenas.hpp"

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <faults/failing_allocation.hpp>

#include <memory>
#include <new>
#include <utility>

using namespace asio_rdma;
using test::failing_allocation;

namespace {

struct ground {
  /// A handler that nobody keeps memory for.
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

} // namespace

TEST_CASE_METHOD(ground, "access that becomes free is granted although there is no memory") {
  SECTION("to an executor of the context") {
    buffer.async_write_access(io.get_executor(), handler());
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

TEST_CASE_METHOD(ground, "a wait for access is cancelled although there is no memory") {
  asio::cancellation_signal cancel;
  buffer.async_write_access(any, asio::bind_cancellation_slot(cancel.slot(), handler()));
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
