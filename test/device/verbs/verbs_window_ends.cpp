// SPDX-License-Identifier: BSL-1.0
// The owner of a memory window, and its lifetime. On rxe a window that is freed after its queue
// pair crashes the kernel.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/deferred.hpp>

#include <latch>
#include <optional>
#include <thread>

namespace test::verbs_window_ends_tests {
namespace {

void bind(pair& p, queue_pair& qp, memory_window& window) {
  outcome<void> bound;
  qp.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
  p.until([&] { return bound.done(); });
  REQUIRE(bound.succeeded());
}

error_code bind_error(pair& p, queue_pair& qp, memory_window& window) {
  outcome<void> bound;
  qp.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
  p.until([&] { return bound.done(); });
  return bound.ec;
}

error_code write_error(pair& p, std::uint32_t rkey) {
  sent s;
  p.a.async_write(p.ma.buffer(0, 4), {p.mb.remote().address, 4, rkey}, s.handler());
  p.until([&] { return s.done(); });
  return s.ec;
}

} // namespace

TEST_CASE("a queue pair that ends also ends the memory windows that it has bound") {
  memory_window window, invalidated, rebound; // destroyed last
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  for (memory_window* w : {&window, &invalidated, &rebound}) {
    *w = memory_window(p.pd);
    bind(p, p.b, *w);
  }
  for (memory_window* w : {&invalidated, &rebound}) {
    outcome<void> ended;
    p.b.async_invalidate(w->rkey(), ended.handler());
    p.until([&] { return ended.done(); });
    REQUIRE(ended.succeeded());
  }
  bind(p, p.b, rebound);

  SECTION("closed") { p.b.close(); }
  SECTION("destroyed") { p.b = queue_pair(p.io); }
  SECTION("failed by a cancellation") {
    got r;
    p.b.async_receive(p.mb.buffer(0, 8), r.handler());
    p.b.cancel();
    p.drain();
    CHECK(r.ec == asio::error::operation_aborted);
  }
  SECTION("failed by a completion") {
    sent s;
    p.b.async_write(p.mb.buffer(0, 4), {p.ma.remote().address, 4, 0xdeadbe}, s.handler());
    p.drain();
    CHECK(s.ec == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("with binds that have not ended") {
    outcome<void> posted, gathered;
    p.b.async_bind(invalidated, p.mb.region, 0, 8, access::remote_read, posted.handler());
    queue_pair::batch batch(p.b);
    p.b.async_bind(window, p.mb.region, 0, 8, access::remote_read, gathered.handler());
    p.b.close();
    batch.commit();
    p.drain();
    CHECK(posted.calls == 1);
    CHECK(gathered.ec == asio::error::operation_aborted);
  }
  queue_pair next(p.io, p.pd), its_peer(p.io, p.pd);
  connect(p.io, next, its_peer);
  for (memory_window* w : {&window, &invalidated, &rebound}) {
    CHECK_FALSE(w->is_open());
    CHECK(w->native_handle() == nullptr);
    CHECK(bind_error(p, next, *w) == asio::error::bad_descriptor);
    *w = memory_window(p.pd);
    bind(p, next, *w);
  }
}

TEST_CASE("a context that is destroyed ends the memory windows of its queue pairs") {
  const device dev = open_device();
  if (!dev.has_memory_windows())
    return not_on_this_device("memory windows");
  const protection_domain pd(dev);
  const memory m(pd, 64, most_rights(dev));
  memory_window window(pd);
  std::optional<asio::io_context> io(std::in_place, 1);
  queue_pair a(*io, pd), b(*io, pd);
  connect(*io, a, b);
  outcome<void> bound;
  b.async_bind(window, m.region, 0, 64, access::remote_write, bound.handler());
  until(*io, [&] { return bound.done(); });
  REQUIRE(bound.succeeded());
  io.reset();
  CHECK_FALSE(window.is_open());
}

TEST_CASE("a memory window that is dropped while it is bound ends its key") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  bind(p, p.b, window);
  const auto rkey = window.rkey();
  REQUIRE_FALSE(write_error(p, rkey));
  SECTION("destroyed") { const memory_window gone(std::move(window)); }
  SECTION("assigned to") { window = memory_window(p.pd); }
  CHECK(write_error(p, rkey) == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a bind keeps its memory window") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  outcome<void> bound;
  SECTION("while it waits") {
    queue_pair::batch batch(p.b);
    p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
    window = memory_window();
    batch.commit();
  }
  SECTION("while it is posted") {
    p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
    window = memory_window();
  }
  SECTION("before it is started") {
    auto later = p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, asio::deferred);
    window = memory_window();
    std::move(later)(bound.handler());
  }
  p.drain();
  CHECK(bound.succeeded());
  CHECK(p.carries("still connected"));
}

TEST_CASE("a memory window has the key of the last bind that was started") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  CHECK(window.rkey() == 0);
  auto later = p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, asio::deferred);
  CHECK(window.rkey() == 0);
  outcome<void> bound;
  std::move(later)(bound.handler());
  CHECK(window.rkey() != 0);
  p.drain();
  REQUIRE(bound.succeeded());
  CHECK_FALSE(write_error(p, window.rkey()));
}

TEST_CASE("a memory window belongs to the queue pair that binds it first") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  queue_pair unconnected(p.io, p.pd);
  CHECK(bind_error(p, unconnected, window) == asio::error::not_connected);
  CHECK(window.rkey() == 0);
  bind(p, p.b, window);
  const auto rkey = window.rkey();
  CHECK(bind_error(p, p.a, window) == asio::error::invalid_argument);
  CHECK(window.rkey() == rkey);
  CHECK(p.a.state() == queue_pair_state::connected);
  p.a.close();
  CHECK(window.is_open());
  outcome<void> ended;
  p.b.async_invalidate(window.rkey(), ended.handler());
  p.drain();
  REQUIRE(ended.succeeded());
  bind(p, p.b, window);
}

TEST_CASE("a memory window and its queue pair are destroyed at once in two threads") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  for (int i = 0; i < 20; ++i) {
    queue_pair a(p.io, p.pd), b(p.io, p.pd);
    connect(p.io, a, b);
    std::optional<memory_window> window(p.pd), other(p.pd);
    bind(p, b, *window);
    bind(p, b, *other);
    std::latch both(2);
    std::thread dropping([&] {
      both.arrive_and_wait();
      window.reset();
      other.reset();
    });
    both.arrive_and_wait();
    b.close();
    dropping.join();
    p.drain();
  }
}

} // namespace test::verbs_window_ends_tests
