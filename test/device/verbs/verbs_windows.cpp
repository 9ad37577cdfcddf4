// SPDX-License-Identifier: BSL-1.0
// Memory windows, and the end of their keys.
#include "catch.hpp"
#include "device/support/pair.hpp"

namespace test::verbs_windows_tests {

TEST_CASE("a memory window gives the peer a part of a region, until it is invalidated") {
  pair p;
  if (!p.dev.has_memory_windows()) {
    error_code ec;
    const memory_window none(p.pd, ec);
    CHECK(ec == asio::error::operation_not_supported);
    CHECK_FALSE(none.is_open());
    memory_window closed;
    outcome<void> bound;
    p.b.async_bind(closed, p.mb.region, 0, 100, access::remote_write, bound.handler());
    p.drain();
    CHECK(bound.ec == asio::error::bad_descriptor);
    CHECK(p.carries("still connected"));
    return;
  }
  memory_window window(p.pd);
  outcome<void> bound;
  p.b.async_bind(window, p.mb.region, 1000, 100, access::remote_write, bound.handler());
  p.drain();
  REQUIRE(bound.succeeded());
  const auto address = p.mb.remote(1000).address;
  const remote_buffer inside{address, 100, window.rkey()};
  sent s;
  p.ma.put(0, "through the window");
  p.a.async_write(p.ma.buffer(0, 18), inside + 82, s.handler());
  p.drain();
  REQUIRE(s.succeeded());
  CHECK(p.placed());
  CHECK(p.mb.text(1082, 18) == "through the window");

  SECTION("invalidated by its owner") {
    outcome<void> ended;
    p.b.async_invalidate(window.rkey(), ended.handler());
    p.drain();
    REQUIRE(ended.succeeded());
    sent late;
    p.a.async_write(p.ma.buffer(0, 4), inside, late.handler());
    p.drain();
    CHECK(late.ec == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("invalidated by the peer's send") {
    got r;
    p.b.async_receive(p.mb.buffer(0, 10), r.handler());
    p.a.async_send_invalidate(p.ma.buffer(0, 3), window.rkey(), s.handler());
    p.drain();
    REQUIRE(s.ec == error_code());
    REQUIRE(r.succeeded());
    CHECK(r.value.bytes == 3);
    // rxe of Linux 6.1 reports the key without IBV_WC_WITH_INV.
    CHECK(r.value.invalidated_key.value_or(window.rkey()) == window.rkey());
    sent late;
    p.a.async_write(p.ma.buffer(0, 4), inside, late.handler());
    p.drain();
    CHECK(late.ec == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("of these rights only") {
    sent read;
    p.a.async_read(p.ma.buffer(0, 4), inside, read.handler());
    p.drain();
    CHECK(read.ec == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("bound again: the old key has ended") {
    outcome<void> again;
    const auto old = window.rkey();
    p.b.async_bind(window, p.mb.region, 0, 64, access::remote_read, again.handler());
    p.drain();
    // A device may require an invalidation first; rxe of later kernels then flushes the refused
    // request.
    if (again.ec == IBV_WC_MW_BIND_ERR || again.ec == asio::error::connection_reset)
      return;
    REQUIRE(again.succeeded());
    CHECK(window.rkey() != old);
    sent late;
    p.a.async_write(p.ma.buffer(0, 4), inside, late.handler());
    p.drain();
    CHECK(late.ec == IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_CASE("a memory window's range holds") {
  pair p;
  CHECK(p.dev.confines_windows() == (p.dev.has_memory_windows() && !is_software(p.dev)));
  if (!p.dev.confines_windows())
    return not_on_this_device("memory windows, or rxe checks the range of the region only");
  memory_window window(p.pd);
  outcome<void> bound;
  p.b.async_bind(window, p.mb.region, 1000, 100, access::remote_write, bound.handler());
  p.drain();
  REQUIRE(bound.succeeded());
  sent beyond;
  p.a.async_write(p.ma.buffer(0, 4), {p.mb.remote(1097).address, 4, window.rkey()},
                  beyond.handler());
  p.drain();
  CHECK(beyond.ec == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("binding a window beyond the region is refused locally") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  outcome<void> bound;
  p.b.async_bind(window, p.mb.region, pair::memory_size - 10, 11, access::remote_read,
                 bound.handler());
  p.drain();
  CHECK(bound.ec == error::remote_range);
  CHECK(p.carries("still connected"));
}

TEST_CASE(
    "a bind and an invalidation take flags, and the next completion reports an unsignaled one") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  outcome<void> bound, ended;
  sent told, read;
  p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write,
                 queue_pair::flags::unsignaled | queue_pair::flags::fenced, bound.handler());
  p.io.poll();
  CHECK_FALSE(bound.done());
  p.b.async_write(p.mb.buffer(0, 1), p.ma.remote(), told.handler());
  p.drain();
  REQUIRE(bound.succeeded());
  CHECK(told.succeeded());
  const std::uint32_t key = window.rkey();
  sent written;
  p.a.async_write(p.ma.buffer(0, 4), {p.mb.remote(0).address, 4, key}, written.handler());
  p.drain();
  REQUIRE(written.succeeded());
  p.b.async_read(p.mb.buffer(100, 1000), p.ma.remote(), read.handler());
  p.b.async_invalidate(key, queue_pair::flags::fenced, ended.handler());
  p.drain();
  CHECK(read.succeeded());
  CHECK(ended.succeeded());
  sent refused;
  p.a.async_write(p.ma.buffer(0, 4), {p.mb.remote(0).address, 4, key}, refused.handler());
  p.drain();
  CHECK(refused.ec == IBV_WC_REM_ACCESS_ERR);
}

// If rxe retransmits a send, it processes the later requests of the send queue again.
TEST_CASE("a bind behind a send that is repeated") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd), another(p.pd);
  sent first, written;
  got r;
  outcome<void> bound, bound_too;
  const auto before = p.dev.counters(1).rnr;
  p.b.async_send(p.mb.buffer(0, 4), first.handler()); // there is no receive for it
  p.b.async_bind(window, p.mb.region, 1000, 100, access::remote_write, bound.handler());
  p.b.async_bind(another, p.mb.region, 1000, 100, access::remote_write, bound_too.handler());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (before && *p.dev.counters(1).rnr < *before + 3) {
    p.io.poll();
    REQUIRE(std::chrono::steady_clock::now() < limit);
  }
  p.a.async_receive(p.ma.buffer(0, 10), r.handler());
  p.drain();
  CHECK(first.succeeded());
  CHECK(r.succeeded());
  REQUIRE(bound.succeeded());
  REQUIRE(bound_too.succeeded());
  p.a.async_write(p.ma.buffer(0, 4), {p.mb.remote(1000).address, 4, another.rkey()},
                  written.handler());
  p.drain();
  CHECK(written.succeeded());
}

TEST_CASE("a bind behind an unsignaled write") {
  pair p;
  if (!p.dev.has_memory_windows())
    return not_on_this_device("memory windows");
  memory_window window(p.pd);
  sent silent;
  outcome<void> bound;
  p.b.async_write(p.mb.buffer(0, 4), p.ma.remote(), queue_pair::flags::unsignaled,
                  silent.handler());
  p.b.async_bind(window, p.mb.region, 1000, 100, access::remote_write, bound.handler());
  p.drain();
  CHECK(silent.succeeded());
  CHECK(bound.succeeded());
}

TEST_CASE("a send that invalidates a region that is not there") {
  pair p(impatient());
  sent s;
  got r;
  const bool able = (p.dev.attributes().device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
  p.b.async_receive(p.mb.buffer(0, 10), r.handler());
  p.a.async_send_invalidate(p.ma.buffer(0, 3), 0xdeadbe, s.handler());
  if (!able) {
    p.until([&] { return s.done(); });
    CHECK(s.ec == asio::error::operation_not_supported);
    p.b.close();
    p.drain();
    return;
  }
  p.until([&] { return s.done() || r.done(); });
  CHECK((!s.done() || s.ec || r.ec || !r.value.invalidated_key)); // an error at one side or both
  p.a.close();
  p.b.close();
  p.drain();
  CHECK(s.calls == 1);
  CHECK(r.calls == 1);
}

} // namespace test::verbs_windows_tests
