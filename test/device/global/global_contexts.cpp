// SPDX-License-Identifier: BSL-1.0
// Contexts that are destroyed while operations on a global memory are pending.
#include "catch.hpp"
#include "device/global/global_support.hpp"
#include "device/lifetime/context_property.hpp"

#include <asio_rdma/global_counter.hpp>
#include <asio_rdma/single_writer.hpp>

#include <array>
#include <functional>
#include <memory>
#include <optional>

namespace test::global_contexts_tests {
namespace {

using word = std::uint64_t;

global_memory_options one_place() {
  global_memory_options o;
  o.in_flight = 1;
  return o;
}

/// A node on its own context, with one operation in flight at a time.
struct abroad {
  explicit abroad(world& where) : w(where), memory(std::in_place, *io, w.pool, 77, one_place()) {
    outcome<node_id> joined;
    memory->async_join(w.host.local_endpoint(), joined.handler());
    until({&w.io, io.get()}, [&] { return joined.done(); });
    if (joined.ec)
      throw system_error(joined.ec, "join");
  }
  ~abroad() { io.reset(); }

  /// A completion handler; its destruction and its call are counted.
  auto handler() {
    return [this, p = context_property(*io, owned)](auto&&...) mutable {
      ++calls;
    };
  }

  world& w;
  context_property::count owned;
  int calls = 0;
  std::unique_ptr<asio::io_context> io = std::make_unique<asio::io_context>(1);
  std::optional<global_memory> memory;
};

} // namespace

TEST_CASE("handlers of a global memory are destroyed before their context's services") {
  world w;
  const bool object_first = GENERATE(true, false);
  CAPTURE(object_first);
  const auto at = w.make<nic_atomic<word>>(8);
  abroad a(w);
  std::array<char, 1000> bytes{};
  std::optional<global_memory::batch> b(std::in_place, *a.memory, host_id);
  b->write(at.cast<word>(), 1);
  // The first operation is in flight; the others wait for its place.
  a.memory->async_read(at.cast<word>(), asio::buffer(bytes, 8), a.handler());
  a.memory->async_read(at.cast<word>(), a.handler());
  a.memory->async_write(at.cast<word>(), 5, visibility::flushed, a.handler());
  a.memory->async_write(at.cast<word>(), asio::buffer(bytes, 8), a.handler());
  b->async_post(a.handler());
  // These operations wait for the other node.
  asio::cancellation_signal signal;
  a.memory->async_allocate<word>(host_id, 0,
                                 asio::bind_cancellation_slot(signal.slot(), a.handler()));
  a.memory->async_free(at, a.handler());
  a.memory->async_join(w.host.local_endpoint(), a.handler());
  // This operation has completed.
  a.memory->async_allocate<word>(99, 0, a.handler());
  if (w.dev.has_atomics()) {
    a.memory->async_fetch_add(at, 1, a.handler());
    a.memory->async_compare_exchange(at, 0, 1, a.handler());
    counter<asio::any_io_executor>(*a.memory, at).async_add(1, a.handler());
  }
  CHECK(a.owned.alive == (w.dev.has_atomics() ? 12 : 9));
  b.reset();
  if (object_first)
    a.memory.reset();
  a.io.reset();
  signal.emit(asio::cancellation_type::terminal); // an operation that has ended
  CHECK(a.owned.alive == 0);
  CHECK(a.owned.late == 0);
  CHECK(a.calls == 0);
}

TEST_CASE("handlers of composed operations are destroyed before their context's services") {
  world w;
  if (!w.dev.has_atomics()) {
    not_on_this_device("atomic operations");
    return;
  }
  const auto at = w.make<nic_atomic<word>>(2);
  const auto value = w.make<single_writer<word>>();
  const int turns = GENERATE(0, 1, 1000); // turns of the context before its destruction
  CAPTURE(turns);
  abroad a(w);
  barrier<asio::any_io_executor> gathers(*a.memory, at, 2); // the second party never arrives
  gathers.async_arrive_and_wait(a.handler());
  a.memory->async_exchange(at + 1, 7, a.handler());
  async_load(*a.memory, value, a.handler());
  for (int i = 0; i < turns; ++i) {
    a.io->restart();
    a.io->poll_one();
  }
  CHECK(a.owned.alive == 3 - a.calls);
  const int calls = a.calls;
  a.io.reset();
  CHECK(a.owned.alive == 0);
  CHECK(a.owned.late == 0);
  CHECK(a.calls == calls);
}

TEST_CASE("a global memory outlives its context, which outlives a lane") {
  world w;
  const auto at = w.make<word>();
  abroad a(w);
  w.host.close();
  outcome<word> last;
  while (!last.ec) {
    last = {};
    a.memory->async_read(at, last.handler());
    until({&w.io, a.io.get()}, [&] { return last.done(); });
  }
  CHECK(a.memory->knows(host_id));
  a.io.reset();
  a.memory.reset(); // also destroys the lane
}

} // namespace test::global_contexts_tests
