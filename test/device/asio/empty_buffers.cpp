// SPDX-License-Identifier: BSL-1.0
// Every operation on buffers without bytes.
#include <catch.hpp>

#include "device/connection/connection_support.hpp"
#include "device/global/global_support.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace test::empty_buffers_tests {
namespace {

constexpr std::size_t bytes = 4096;

bool is_all(const void* data, char c) {
  const auto* p = static_cast<const char*>(data);
  return std::all_of(p, p + bytes, [c](char x) { return x == c; });
}

/// Calls `f` with each kind of empty buffers, some of which are a part of `memory`.
template <class Function>
void each_empty(const mutable_buffer& memory, Function&& f) {
  f("no memory", mutable_buffer());
  f("none of registered memory", mutable_buffer(memory.data(), 0, memory.lkey()));
  f("an empty sequence", std::vector<mutable_buffer>());
  f("several empty buffers", std::array{mutable_buffer(), memory.first(0)});
  f("a sequence of one", std::vector{memory.first(0)});
}

/// The number of writes by which each place in the device's queue is used for a whole buffer.
constexpr std::uint32_t places = 8, enough_writes = 40;
constexpr int enough_for_any_queue = 1000;

} // namespace

TEST_CASE("a queue pair's operations without bytes touch no memory") {
  queue_pair_options options;
  options.send_depth = places;
  pair p(options);
  std::memset(p.ma.data(), 'a', bytes);
  sent writes[enough_writes];
  for (sent& w : writes)
    p.a.async_write(p.ma.buffer(0, bytes), p.mb.remote(8192), w.handler());
  p.drain();
  std::memset(p.mb.data(), 'b', 2 * bytes);
  const bool immediate = p.dev.has_immediate(), windows = p.dev.has_memory_windows();
  memory_window window;
  if (windows)
    window = memory_window(p.pd);
  using flags = queue_pair::flags;
  for (const auto how : {flags::none, flags::solicited, flags::fenced, flags::unsignaled})
    each_empty(p.ma.buffer(0, bytes), [&](const char* kind, const auto& buffers) {
      INFO(kind << ", flags " << static_cast<unsigned>(how));
      if (windows) { // rxe binds a window again only after its key has been invalidated
        outcome<void> bound;
        p.b.async_bind(window, p.mb.region, 0, 64, access::remote_write, bound.handler());
        p.drain();
        REQUIRE(bound.succeeded());
      }
      sent send, send_immediate, send_invalidate, write, write_immediate, read, nothing, last;
      got receives[5];
      for (got& r : receives)
        p.b.async_receive(buffers, r.handler());
      p.a.async_send(buffers, how, send.handler());
      p.a.async_write(buffers, p.mb.remote(0, 16), how, write.handler());
      p.a.async_read(buffers, p.mb.remote(0, bytes), how, read.handler());
      p.a.async_read(buffers, p.mb.remote(0, 0), how, nothing.handler());
      if (immediate) {
        p.a.async_send_immediate(buffers, 1, how, send_immediate.handler());
        p.a.async_write_immediate(buffers, p.mb.remote(0, 16), 2, how, write_immediate.handler());
      } else {
        p.a.async_send(buffers, how, send_immediate.handler());
        p.a.async_send(buffers, how, write_immediate.handler());
      }
      if (windows)
        p.a.async_send_invalidate(buffers, window.rkey(), how, send_invalidate.handler());
      else
        p.a.async_send(buffers, how, send_invalidate.handler());
      p.a.async_send(buffers, last.handler()); // reports the unsignaled ones
      p.drain();
      for (const sent* s : {&send, &send_immediate, &send_invalidate, &write, &write_immediate,
                            &read, &nothing, &last}) {
        CHECK(s->succeeded());
        CHECK(s->value == 0);
      }
      for (const got& r : receives) {
        CHECK(r.succeeded());
        CHECK(r.value.bytes == 0);
      }
      CHECK(is_all(p.ma.data(), 'a'));
      CHECK(is_all(p.mb.data(), 'b'));
    });
  CHECK(p.carries("still connected"));
}

TEST_CASE("a shared receive queue's receives without bytes touch no memory") {
  const device dev = open_device();
  const protection_domain pd(dev);
  memory m(pd, 2 * bytes, all_rights);
  asio::io_context io(1);
  shared_receive_queue_options options;
  options.depth = places;
  shared_receive_queue queue(io, pd, options);
  queue_pair from(io, pd), to(io);
  to.open(pd, queue);
  connect(io, from, to);
  const mutable_buffer used = m.buffer(0, bytes);
  std::memset(m.data() + bytes, 'a', bytes);
  // Sends one message to each receive.
  const auto pass = [&](const auto& receives, const auto& message) {
    got all[places];
    sent sends[places];
    for (got& r : all)
      queue.async_receive(receives, r.handler());
    for (sent& s : sends)
      from.async_send(message, s.handler());
    until(io, [&] {
      return std::ranges::all_of(all, [](const got& r) { return r.done(); }) &&
             std::ranges::all_of(sends, [](const sent& s) { return s.done(); });
    });
    for (const got& r : all) {
      CHECK(r.succeeded());
      CHECK(r.value.bytes == message.size());
    }
    for (const sent& s : sends)
      CHECK(s.succeeded());
  };
  for (std::uint32_t i = 0; i < enough_writes / places; ++i) // each place has been used for `used`
    pass(used, m.buffer(bytes, bytes));
  CHECK(is_all(m.data(), 'a'));
  std::memset(m.data(), 'b', bytes);
  each_empty(used, [&](const char* kind, const auto& buffers) {
    INFO(kind);
    pass(buffers, m.buffer(bytes, 0));
    CHECK(is_all(m.data(), 'b'));
  });
  // A message finds no room in a receive without bytes.
  got refused;
  sent s;
  queue.async_receive(mutable_buffer(), refused.handler());
  from.async_send(m.buffer(bytes, 16), s.handler());
  until(io, [&] { return s.done() && refused.done(); });
  CHECK(refused.calls == 1);
  CHECK(refused.ec);
  CHECK(is_all(m.data(), 'b'));
}

TEST_CASE("a connection's operations without bytes touch no memory") {
  connection_options options;
  options.queue_pair.send_depth = places;
  talk t(options);
  CHECK(t.lives());
  memory target(t.pd, 2 * bytes, most_rights(t.dev));
  registered_buffer source = t.pool.allocate(bytes);
  std::memset(source.data(), 'a', bytes);
  sent writes[enough_writes];
  for (sent& w : writes)
    t.a.async_write(const_buffer(source), target.remote(bytes), w.handler());
  t.until([&] {
    return std::all_of(writes, writes + enough_writes, [](auto& w) { return w.done(); });
  });
  std::memset(target.data(), 'b', bytes);
  const auto check = [&](const char* kind, const auto& buffers) {
    INFO(kind);
    sent send, with_immediate, write, told, read, nothing, taken;
    outcome<message> got;
    outcome<std::uint32_t> immediate;
    t.b.async_receive(got.handler());
    t.b.async_receive(buffers, taken.handler());
    t.b.async_receive_immediate(immediate.handler());
    t.a.async_send(buffers, send.handler());
    t.a.async_send(buffers, 1, with_immediate.handler());
    t.a.async_write(buffers, target.remote(0, 16), write.handler());
    t.a.async_write(buffers, target.remote(0, 16), 2, told.handler());
    t.a.async_read(buffers, target.remote(0, bytes), read.handler());
    t.a.async_read(buffers, target.remote(0, 0), nothing.handler());
    const std::array<const sent*, 7> all{&send, &with_immediate, &write, &told,
                                         &read, &nothing,        &taken};
    t.until([&] {
      return got.done() && immediate.done() &&
             std::all_of(all.begin(), all.end(), [](const sent* s) { return s->done(); });
    });
    for (const sent* s : all) {
      CHECK(s->succeeded());
      CHECK(s->value == 0);
    }
    CHECK(got.succeeded());
    CHECK(got.value.size() == 0);
    CHECK(immediate.value == 2);
    CHECK(is_all(source.data(), 'a'));
    CHECK(is_all(target.data(), 'b'));
  };
  each_empty(source, check);
  check("an empty registered buffer", t.pool.allocate(0));
  check("no bytes of a registered buffer", source.slice(0, 0));
  check("no buffer at all", registered_buffer());
  check("unregistered memory", asio::mutable_buffer());
  check("a sequence of unregistered memory", std::vector<asio::mutable_buffer>(3));
  CHECK(t.lives());
}

TEST_CASE("a global memory's operations without bytes touch no memory") {
  world w;
  const auto p = w.make<std::array<char, bytes>>();
  registered_buffer source = w.pool.allocate(bytes);
  std::memset(source.data(), 'a', bytes);
  for (int i = 0; i < enough_for_any_queue; ++i)
    REQUIRE(w.ask<std::size_t>([&](auto h) {
               w.guest.async_write(p, const_buffer(source), h);
             }).succeeded());
  const auto check = [&](const char* kind, const auto& buffers) {
    INFO(kind);
    for (const auto until : {visibility::completed, visibility::flushed})
      CHECK(w.ask<std::size_t>([&](auto h) {
               w.guest.async_write(p, buffers, until, h);
             }).succeeded());
    CHECK(w.ask<std::size_t>([&](auto h) { w.guest.async_read(p, buffers, h); }).succeeded());
    CHECK(is_all(source.data(), 'a'));
  };
  each_empty(source, check);
  check("an empty registered buffer", w.pool.allocate(0));
  check("unregistered memory", asio::mutable_buffer());
  const auto back = w.read(p);
  CHECK(back.succeeded());
  CHECK(is_all(back.value.data(), 'a'));
}

TEST_CASE("a stream's operations without bytes complete at once, and nothing is lost") {
  stream_pair s;
  registered_buffer source = s.pool.allocate(bytes);
  const auto check = [&](const char* kind, const auto& buffers) {
    INFO(kind);
    sent write, read, send, receive;
    s.a.async_write_some(buffers, write.handler());
    s.b.async_read_some(buffers, read.handler());
    s.until([&] { return write.done() && read.done(); });
    s.a.async_send(buffers, send.handler());
    s.b.async_receive(buffers, receive.handler());
    s.until([&] { return send.done() && receive.done(); });
    for (const sent* o : {&write, &read, &send, &receive}) {
      CHECK(o->succeeded());
      CHECK(o->value == 0);
    }
    CHECK(s.a.write_some(buffers) == 0);
    CHECK(s.a.send(buffers) == 0);
    CHECK(s.b.read_some(buffers) == 0);
    CHECK(s.b.receive(buffers) == 0);
  };
  each_empty(source, check);
  check("an empty registered buffer", s.pool.allocate(0));
  check("unregistered memory", asio::mutable_buffer());
  sent write, read;
  std::string into(5, ' ');
  s.a.async_write_some(asio::buffer("after", 5), write.handler());
  s.b.async_read_some(asio::buffer(into), read.handler());
  s.until([&] { return write.done() && read.done(); });
  CHECK(into == "after");
}

} // namespace test::empty_buffers_tests
