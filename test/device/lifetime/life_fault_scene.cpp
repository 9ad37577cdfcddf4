// SPDX-License-Identifier: BSL-1.0
#include "device/lifetime/life_fault_scene.hpp"

#include <catch.hpp>

#include <boost/asio/detached.hpp>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace test {
namespace {

constexpr std::size_t size = 8; // bytes that an operation moves

bool always(const device&) { return true; }
bool with_immediate(const device& d) { return d.has_immediate(); }
bool with_atomics(const device& d) { return d.has_atomics(); }
bool with_windows(const device& d) { return d.has_memory_windows(); }
bool with_invalidation(const device& d) { return d.has_invalidation() && d.has_memory_windows(); }

mutable_buffer local(scene& s, unsigned i) { return s.here.buffer(64 * i, size); }
remote_buffer remote(scene& s, unsigned i) { return s.there.remote(64 * i, size); }

using keys = operation_kind::keys;
using faults::call;

const std::array kinds = {
    operation_kind{
        "send", always,
        [](scene& s, unsigned i, ending_handler h) { s.actor->async_send(local(s, i), h); },
        call::post_send, true},
    operation_kind{"send with immediate", with_immediate,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_send_immediate(local(s, i), i, h);
                   },
                   call::post_send, true},
    operation_kind{"send with invalidate", with_invalidation,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_send_invalidate(local(s, i), s.key(i), h);
                   },
                   call::post_send, true, keys::bound_at_peer},
    operation_kind{"write", always,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_write(local(s, i), remote(s, i), h);
                   }},
    operation_kind{"write with immediate", with_immediate,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_write_immediate(local(s, i), remote(s, i), i, h);
                   },
                   call::post_send, true},
    operation_kind{"read", always,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_read(local(s, i), remote(s, i), h);
                   }},
    operation_kind{"compare and swap", with_atomics,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_compare_and_swap(remote(s, i), 0, 1, h);
                   }},
    operation_kind{"fetch and add", with_atomics,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_fetch_add(remote(s, i), 1, h);
                   }},
    operation_kind{"bind", with_windows,
                   [](scene& s, unsigned i, ending_handler h) {
                     s.actor->async_bind(s.windows[i], s.here.region, 64 * i, size,
                                         access::remote_read, h);
                   },
                   call::post_send, false, keys::unbound_here},
    operation_kind{
        "invalidate", with_invalidation,
        [](scene& s, unsigned i, ending_handler h) { s.actor->async_invalidate(s.key(i), h); },
        call::post_send, false, keys::bound_here},
    operation_kind{
        "receive", always,
        [](scene& s, unsigned i, ending_handler h) { s.actor->async_receive(local(s, i), h); },
        call::post_recv},
    operation_kind{
        "shared receive", [](const device& d) { return d.attributes().max_srq != 0; },
        [](scene& s, unsigned i, ending_handler h) { s.srq->async_receive(local(s, i), h); },
        call::post_srq_recv},
};

} // namespace

void each_operation(const std::function<void(const operation_kind&)>& f) {
  const device dev = open_device();
  for (const operation_kind& kind : kinds) {
    if (!kind.offered(dev))
      continue;
    INFO("operation: " << kind.name);
    f(kind);
  }
}

scene::scene(const operation_kind& k) : kind(k) {
  if (kind.is_shared()) {
    srq.emplace(io);
    srq->open(pd, cq, {});
    actor->open(pd, *srq);
  } else {
    actor->open(pd, cq);
  }
  peer->open(pd, cq_of_peer);
  connect(io, *actor, *peer);
  number = actor->native_handle()->qp_num;
  prepare();
  actor->async_wait_disconnect(handler(disconnect));
}

void scene::prepare() {
  if (kind.takes_receive)
    for (unsigned i = 0; i < most; ++i)
      peer->async_receive(there.buffer(2048, size), asio::detached);
  if (kind.windows == keys::none)
    return;
  for (unsigned i = 0; i < most; ++i)
    windows.emplace_back(pd);
  if (kind.windows == keys::unbound_here)
    return;
  const bool at_peer = kind.windows == keys::bound_at_peer;
  for (unsigned i = 0; i < most; ++i) {
    outcome<void> bound;
    (at_peer ? *peer : *actor)
        .async_bind(windows[i], (at_peer ? there : here).region, 64 * i, size, access::remote_read,
                    bound.handler());
    until(io, [&] { return bound.done(); });
    REQUIRE(bound.succeeded());
  }
}

std::uint32_t scene::key(unsigned i) const { return windows[i].rkey(); }

void scene::start(unsigned i) {
  started_[i] = true;
  kind.start(*this, i, handler(ends[i]));
  CHECK(ends[i].calls == 0);
}

void scene::start_chain(unsigned n) {
  const queue_pair::batch batch(*actor);
  for (unsigned i = 0; i < n; ++i)
    start(i);
}

void scene::feed(unsigned n) {
  if (kind.receives())
    for (unsigned i = 0; i < n; ++i)
      peer->async_send(there.buffer(64 * i, size), asio::detached);
}

void scene::wait(unsigned first, unsigned n) {
  until(io, [&] {
    for (unsigned i = first; i < first + n; ++i)
      if (!ends[i].done())
        return false;
    return true;
  });
}

void scene::wait_held(unsigned n) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (faults.held() < n) {
    io.restart();
    if (io.poll() == 0)
      std::this_thread::yield();
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("too few completions are held back");
  }
  io.restart();
  io.poll(); // handles the visible completions, and arms the queue
}

void scene::start_held() {
  hold();
  start(0);
  feed(1);
  wait_held(1);
}

void scene::finish() {
  actor->close();
  peer->close();
  if (srq)
    srq->close();
  drain(io);
  for (unsigned i = 0; i < most; ++i)
    CHECK(ends[i].calls == (started_[i] ? 1 : 0));
  CHECK(disconnect.calls == 1);
  CHECK(count_.outstanding == 0);
  actor.reset();
  peer.reset();
  srq.reset();
  windows.clear();
  cq = cq_of_peer = {};
  const faults::counters c = faults.counts();
  CHECK(c.unacknowledged_at_destroy == 0);
  CHECK(c.channel_events == c.channel_events_acked);
  CHECK(c.async_events == c.async_events_acked);
}

} // namespace test
