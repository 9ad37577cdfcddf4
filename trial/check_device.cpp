// SPDX-License-Identifier: BSL-1.0
// The device and the operations of its queue pairs.
#include "check.hpp"
#include "memory.hpp"
#include "processes.hpp"
#include "report.hpp"

#include <asio_rdma/shared_receive_queue.hpp>

#include <cstring>

namespace trial {

namespace {

constexpr std::string_view end_of_facts = "all";

/// Each side describes its device, and the near side adds both descriptions to the report.
awaitable<void> describe_devices(session& s) {
  for (const auto& [name, value] : facts_of(s.dev)) {
    // The near side does not know the names of the far side's machine.
    const std::string line = name + '\t' + without_names(value, personal_names({}), false);
    if (s.is_near())
      s.fact(side::near, line);
    else
      co_await s.tell(line);
  }
  if (!s.is_near())
    co_return co_await s.tell(std::string(end_of_facts));
  for (std::string line; (line = co_await s.hear()) != end_of_facts;) {
    if (s.is_one_machine() && line.starts_with("device\t"))
      expect(line == "device\t" + s.dev.name(), "the sides have opened different devices");
    s.fact(side::far, line);
  }
}

awaitable<void> open(session& s) {
  co_await describe_devices(s);
  expect(device::explain().find(s.dev.name()) != std::string::npos,
         "device::explain does not name the device");
  co_await s.meet();
}

awaitable<void> send(session& s) {
  pair_end e(s);
  co_await e.link();
  unsigned seed = 0;
  for (const std::size_t bytes :
       {std::size_t(0), std::size_t(1), std::size_t(64), std::size_t(4096), std::size_t(65536)})
    co_await e.carry(bytes, seed++);
}

awaitable<void> write(session& s) {
  pair_end e(s);
  co_await e.link();
  if (s.is_near()) {
    fill(e.memory.data(), e.memory.size(), 5);
    const std::size_t n =
        co_await e.qp.async_write(e.region.buffer(1000, 60000), e.there + 1000, use_awaitable);
    expect(n == 60000, "a write reported another size");
  }
  // On iWARP the bytes are in place when a later message has arrived.
  co_await e.carry(8, 6);
  if (!s.is_near()) {
    compare(e.memory.data() + 1000, 60000, 5, 1000);
    expect(e.memory[61000] == 0, "a write has written behind its end");
  }
}

awaitable<void> read(session& s) {
  pair_end e(s);
  if (!s.is_near())
    fill(e.memory.data(), e.memory.size(), 7);
  co_await e.link();
  if (s.is_near()) {
    for (const std::size_t bytes : {std::size_t(1), std::size_t(64), std::size_t(65536)}) {
      std::fill(e.memory.begin(), e.memory.end(), '\0');
      const std::size_t n =
          co_await e.qp.async_read(e.region.buffer(0, bytes), e.there, use_awaitable);
      expect(n == bytes, "a read reported another size");
      compare(e.memory.data(), bytes, 7);
    }
  }
  co_await s.meet();
}

awaitable<void> flush(session& s) {
  co_await s.need(s.dev.has_flush(placement::visible), "the device or rdma-core has no FLUSH");
  pair_end e(s);
  co_await e.link();
  if (s.is_near()) {
    fill(e.memory.data(), 60000, 5);
    co_await e.qp.async_write(e.region.buffer(0, 60000), e.there, use_awaitable);
    co_await e.qp.async_flush(e.there.first(60000), placement::visible, use_awaitable);
  }
  co_await s.meet();
  if (!s.is_near())
    compare(e.memory.data(), 60000, 5);
  co_await s.meet();
}

awaitable<void> atomics(session& s) {
  co_await s.need(s.dev.has_atomics(), "the device has no atomic operations");
  pair_end e(s);
  std::memset(e.memory.data(), 0, 8);
  co_await e.link();
  if (s.is_near()) {
    const remote_buffer word = e.there.first(8);
    for (std::uint64_t i = 0; i < 10; ++i) {
      const std::uint64_t old = co_await e.qp.async_fetch_add(word, 3, use_awaitable);
      expect(old == 3 * i, "fetch-and-add reported another value");
    }
    std::uint64_t old = co_await e.qp.async_compare_and_swap(word, 30, 77, use_awaitable);
    expect(old == 30, "compare-and-swap reported another value");
    old = co_await e.qp.async_compare_and_swap(word, 30, 1, use_awaitable);
    expect(old == 77, "compare-and-swap has not swapped, or has swapped another value");
  }
  co_await s.meet();
}

awaitable<void> immediate(session& s) {
  co_await s.need(s.dev.has_immediate(), "the device carries no immediate data");
  pair_end e(s);
  co_await e.link();
  for (const bool written : {false, true}) {
    if (s.is_near()) {
      fill(e.memory.data(), 100, 8);
      co_await s.hear();
      const mutable_buffer from = e.region.buffer(0, 100);
      if (written)
        co_await e.qp.async_write_immediate(from, e.there + 200, 0x12345678, use_awaitable);
      else
        co_await e.qp.async_send_immediate(from, 0x12345678, use_awaitable);
    } else {
      const received r = co_await (e.qp.async_receive(e.region.buffer(0, 100), use_awaitable) &&
                                   s.tell(std::string("ready")));
      expect(r.immediate == 0x12345678u, "the immediate data is not what was sent");
      expect(r.written == written, "a receive reported another operation");
      compare(e.memory.data() + (written ? 200 : 0), 100, 8);
    }
  }
}

awaitable<void> windows(session& s) {
  co_await s.need(s.dev.has_memory_windows(), "the device has no memory windows of type 2");
  pair_end e(s);
  co_await e.link();
  if (s.is_near()) {
    const remote_buffer window = co_await s.hear_memory();
    fill(e.memory.data(), 500, 9);
    co_await e.qp.async_write(e.region.buffer(0, 500), window, use_awaitable);
    co_await e.carry(8, 1);
    co_await s.hear();
    error_code ec;
    try { // the key is invalid now
      co_await e.qp.async_read(e.region.buffer(0, 500), window, use_awaitable);
    } catch (const system_error& x) {
      ec = x.code();
    }
    expect(bool(ec), "a key that was invalidated still gives access");
  } else {
    memory_window w(s.pd);
    co_await e.qp.async_bind(w, e.region, 1000, 500, access::remote_write | access::remote_read,
                             use_awaitable);
    remote_buffer window = e.region.remote(1000, 500);
    window.rkey = w.rkey();
    co_await s.tell(window);
    co_await e.carry(8, 1);
    compare(e.memory.data() + 1000, 500, 9);
    co_await e.qp.async_invalidate(w.rkey(), use_awaitable);
    co_await s.tell(std::string("invalid"));
    try {
      co_await e.qp.async_wait_disconnect(use_awaitable);
    } catch (const system_error&) { // the near side's read has ended the link
    }
  }
}

awaitable<void> invalidation(session& s) {
  co_await s.need(s.dev.has_memory_windows() && s.dev.has_invalidation(),
                  "the device has no memory windows of type 2, or no invalidation");
  pair_end e(s);
  co_await e.link();
  if (s.is_near()) {
    const remote_buffer window = co_await s.hear_memory();
    co_await e.qp.async_send_invalidate(e.region.buffer(0, 8), window.rkey, use_awaitable);
  } else {
    memory_window w(s.pd);
    co_await e.qp.async_bind(w, e.region, 1000, 500, access::remote_write, use_awaitable);
    remote_buffer window = e.region.remote(1000, 500);
    window.rkey = w.rkey();
    const received r =
        co_await (e.qp.async_receive(e.region.buffer(0, 8), use_awaitable) && s.tell(window));
    // rxe of Linux 6.1 reports the key without IBV_WC_WITH_INV.
    expect(r.invalidated_key.value_or(window.rkey) == window.rkey,
           "a receive reported another key than the one that it ended");
    s.remark(r.invalidated_key ? "the receive reports the key" : "the receive reports no key");
  }
  co_await s.meet();
}

awaitable<void> shared_queue(session& s) {
  shared_receive_queue shared(s.io);
  error_code ec;
  shared.open(s.pd, completion_queue(), {}, ec);
  co_await s.need(ec != asio::error::operation_not_supported,
                  "the device has no shared receive queues");
  if (ec)
    throw system_error(ec);
  std::vector<char> memory(2 * 64);
  const memory_region region(s.pd, memory.data(), memory.size());
  queue_pair a(s.io), b(s.io);
  for (queue_pair* const q : {&a, &b}) {
    if (s.is_near())
      q->open(s.pd);
    else
      q->open(s.pd, shared);
    co_await s.link(*q);
  }
  for (queue_pair* const q : {&a, &b}) {
    if (s.is_near()) {
      fill(memory.data(), 64, 3);
      co_await s.hear();
      co_await q->async_send(region.buffer(0, 64), use_awaitable);
    } else {
      const received r = co_await (shared.async_receive(region.buffer(0, 64), use_awaitable) &&
                                   s.tell(std::string("ready")));
      compare(memory.data(), r.bytes, 3);
      expect(r.bytes == 64 && r.queue_pair_number == q->native_handle()->qp_num,
             "a shared receive reported another queue pair, or another size");
    }
  }
  co_await s.meet();
}

} // namespace

std::span<const check> device_checks() {
  static constexpr check checks[] = {
      {"open", "", "the device opens, and device::explain names it", open},
      {"send", "", "SEND of 0 bytes to 64 KiB", send},
      {"write", "", "RDMA WRITE", write},
      {"read", "", "RDMA READ", read},
      {"flush", "", "FLUSH of written memory", flush},
      {"atomics", "", "fetch-and-add, compare-and-swap", atomics},
      {"immediate", "", "SEND and RDMA WRITE with immediate data", immediate},
      {"windows", "", "a memory window gives access, and gives none after its invalidation",
       windows},
      {"invalidation", "", "SEND that invalidates a key", invalidation},
      {"shared_queue", "", "a shared receive queue of two queue pairs", shared_queue},
  };
  return checks;
}

} // namespace trial
