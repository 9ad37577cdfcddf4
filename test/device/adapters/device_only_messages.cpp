// SPDX-License-Identifier: BSL-1.0
// Memory of a dma-buf, which only devices access: connections. An access of the CPU is a fault.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/device_memory.hpp"
#include "device/connection/connection_support.hpp"
#include "device/global/global_support.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <variant>
#include <vector>

namespace test::device_only_messages_tests {
namespace {

constexpr std::size_t frame = 8192 - 16; // the longest message that is sent whole

/// Receives that do not grow.
connection_options fixed() {
  connection_options o;
  o.max_receive_size = 0;
  return o;
}

struct scene : talk {
  explicit scene(const connection_options& o = fixed()) : talk(o, o) {}

  registered_device_memory memory{pd, all_rights};
};

/// Sends a message of device memory from a, and returns it as b gets it.
template <class Buffers>
std::string carried(scene& t, const Buffers& buffers) {
  sent s;
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.a.async_send(buffers, s.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(r.succeeded());
  CHECK(s.value == r.value.size());
  const registered_buffer& p = r.value.payload;
  return p.empty() ? std::string() : std::string(static_cast<const char*>(p.data()), p.size());
}

registered_buffer owned(scene& t) {
  return registered_buffer(std::move(t.memory.region)); // the scene keeps the memory
}

} // namespace

TEST_CASE("messages of any length leave device memory", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes : {std::size_t(1), std::size_t(240), std::size_t(241), frame,
                                  frame + 1, std::size_t(100'000), std::size_t(3) << 20}) {
    CAPTURE(bytes);
    const std::string text = letters(bytes, static_cast<unsigned>(bytes));
    t.memory.put(5000, text);
    CHECK((carried(t, t.memory.view(5000, bytes)) == text));
  }
  const std::string text = letters(200'000, 3);
  t.memory.put(1, text);
  const registered_buffer all = owned(t);
  CHECK(carried(t, all.slice(1, 8)) == text.substr(0, 8));
  CHECK(carried(t, all.slice(1, 5000)) == text.substr(0, 5000));
  CHECK((carried(t, all.slice(1, text.size())) == text));
  CHECK(carried(t, all.slice(1, 0)).empty());
  CHECK(all.try_write_access()); // no operation uses it
}

TEST_CASE("small messages of device memory keep their place among those of the program", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  t.memory.put(0, "device");
  std::vector<sent> sends(30);
  std::string expected, got;
  for (std::size_t i = 0; i < sends.size(); ++i)
    if (i % 3 == 1)
      t.a.async_send(t.memory.view(0, 6), sends[i].handler());
    else
      t.a.async_send(asio::buffer("host", 4), sends[i].handler());
  for (std::size_t i = 0; i < sends.size(); ++i) {
    expected += i % 3 == 1 ? "device" : "host";
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.until([&] { return r.done(); });
    REQUIRE(r.succeeded());
    got.append(static_cast<const char*>(r.value.payload.data()), r.value.size());
  }
  t.until(
      [&] { return std::all_of(sends.begin(), sends.end(), [](auto& s) { return s.done(); }); });
  CHECK(got == expected);
}

TEST_CASE("a message gathers memory of both kinds, or is refused before anything is sent", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  const registered_buffer host = filled(t.pool, 10, 1);
  std::memcpy(host.data(), "host", 4);
  t.memory.put(0, "device");
  const auto both = [&](std::size_t bytes) {
    return std::array<const_buffer, 2>{const_buffer(host).first(4), t.memory.view(0, bytes)};
  };
  CHECK(carried(t, both(6)) == "hostdevice");
  const mutable_buffer one = t.memory.view(0, 1);
  CHECK(carried(t, std::array{one, one, one}) == "ddd");
  sent s;
  SECTION("longer than a frame, and not contiguous") { t.a.async_send(both(frame), s.handler()); }
  SECTION("of more pieces than a frame has") {
    t.a.async_send(std::array{one, one, one, one}, s.handler());
  }
  t.until([&] { return s.done(); });
  CHECK(s.ec == asio::error::operation_not_supported);
  CHECK(t.lives());
}

TEST_CASE("a long message is read into device memory", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  const std::size_t bytes = GENERATE(frame + 1, std::size_t(1 << 20) + 3);
  CAPTURE(bytes);
  const std::string text = letters(bytes, 4);
  t.memory.put(7, text);
  sent send, receive;
  const std::size_t there = std::size_t(2) << 20;
  const mutable_buffer from = t.memory.view(7, bytes);
  SECTION("to a view") { t.b.async_receive(t.memory.view(there, bytes), receive.handler()); }
  SECTION("to a buffer, which the operation keeps") {
    const registered_buffer all = owned(t);
    t.b.async_receive(all.slice(there, bytes), receive.handler());
  }
  t.a.async_send(from, send.handler());
  t.until([&] { return send.done() && receive.done(); });
  CHECK(send.succeeded());
  CHECK(receive.succeeded());
  CHECK(receive.value == bytes);
  CHECK((t.memory.text(there, bytes) == text));
}

TEST_CASE("receives of device memory do not make the receives grow", "[h4]") {
  scene t{connection_options()};
  if (!t.memory.exists())
    return;
  const std::string text = letters(20'000, 5);
  t.memory.put(0, text);
  for (int i = 0; i < 40; ++i) { // more than there are receives
    sent send, receive;
    t.b.async_receive(t.memory.view(1'000'000, text.size()), receive.handler());
    t.a.async_send(t.memory.view(0, text.size()), send.handler());
    t.until([&] { return send.done() && receive.done(); });
    REQUIRE(send.succeeded());
    REQUIRE(receive.succeeded());
  }
  CHECK((t.memory.text(1'000'000, text.size()) == text));
  CHECK(t.b.statistics().rendezvous_received == 40);
}

TEST_CASE("a message that was sent whole is not copied into device memory, and is not lost",
          "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  sent first, second, refused;
  t.a.async_send(asio::buffer("host", 4), first.handler());
  if (GENERATE(false, true))
    t.until([&] { return first.done(); });
  t.b.async_receive(t.memory.view(0, 100), refused.handler());
  t.until([&] { return refused.done(); });
  CHECK(refused.ec == asio::error::operation_not_supported);
  CHECK(refused.value == 4);
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.until([&] { return r.done() && first.done(); });
  CHECK(r.succeeded());
  CHECK(r.value.size() == 4);
  sent empty; // has nothing to copy
  t.a.async_send(asio::const_buffer(), second.handler());
  t.b.async_receive(t.memory.view(0, 100), empty.handler());
  t.until([&] { return second.done() && empty.done(); });
  CHECK(empty.succeeded());
  CHECK(empty.value == 0);
}

TEST_CASE("a receive into device memory that is refused leaves later receives their messages",
          "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  const std::string text = letters(50'000, 6);
  t.memory.put(0, text);
  sent a, b, refused, direct;
  outcome<message> whole;
  t.b.async_receive(t.memory.view(100'000, 60'000), refused.handler());
  t.b.async_receive(whole.handler());
  t.b.async_receive(t.memory.view(200'000, 60'000), direct.handler());
  t.a.async_send(asio::buffer("host", 4), a.handler());
  t.until([&] { return a.done() && refused.done() && whole.done(); });
  t.a.async_send(t.memory.view(0, text.size()), b.handler());
  t.until([&] { return b.done() && direct.done(); });
  CHECK(refused.ec == asio::error::operation_not_supported);
  CHECK(whole.value.size() == 4);
  CHECK(direct.succeeded());
  CHECK((t.memory.text(200'000, text.size()) == text));
}

TEST_CASE("a receive into several pieces of device memory is refused", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  sent s;
  t.b.async_receive(std::array{t.memory.view(0, 8), t.memory.view(100, 8)}, s.handler());
  t.until([&] { return s.done(); });
  CHECK(s.ec == asio::error::operation_not_supported);
  CHECK(t.lives());
}

TEST_CASE("device memory is lent to the peer, and is the local side of accesses", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  const registered_buffer all = owned(t);
  outcome<void> lent;
  outcome<std::variant<registered_buffer, remote_region>> arrived;
  t.b.async_receive_region(arrived.handler());
  const registered_buffer part = all.slice(1 << 20, 1 << 20);
  t.a.async_send_region(part, access::remote_read | access::remote_write, lent.handler());
  t.until([&] { return lent.done() && arrived.done(); });
  REQUIRE(lent.succeeded());
  REQUIRE(arrived.succeeded());
  const auto& region = std::get<remote_region>(arrived.value);
  REQUIRE(region.size() == std::size_t(1) << 20);
  for (const std::size_t bytes : {std::size_t(8), std::size_t(300), std::size_t(1) << 20}) {
    CAPTURE(bytes);
    const std::string text = letters(bytes, 8);
    t.memory.put(0, text);
    sent write, read;
    t.b.async_write(all.slice(0, bytes), region, write.handler());
    t.until([&] { return write.done(); });
    CHECK(write.succeeded());
    CHECK(t.lives()); // the bytes have arrived
    CHECK((t.memory.text(1 << 20, bytes) == text));
    t.b.async_read(all.slice(2 << 20, bytes), region, read.handler());
    t.until([&] { return read.done(); });
    CHECK(read.succeeded());
    CHECK((t.memory.text(2 << 20, bytes) == text));
  }
  CHECK(t.a.revoke(part) == 1);
  sent late;
  t.b.async_read(all.slice(0, 8), region, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec);
}

TEST_CASE("device memory in several pieces is written and read by one work request, or refused",
          "[h4]") {
  const bool one_element = soft_set != nullptr && GENERATE(false, true);
  std::optional<adapter> a;
  if (one_element)
    a.emplace("plain,send_elements=1");
  scene t;
  if (!t.memory.exists())
    return;
  const registered_buffer there = filled(t.pool, 100, 1);
  outcome<void> lent;
  outcome<std::variant<registered_buffer, remote_region>> arrived;
  t.b.async_receive_region(arrived.handler());
  t.a.async_send_region(there, access::remote_read | access::remote_write, lent.handler());
  t.until([&] { return lent.done() && arrived.done(); });
  REQUIRE(arrived.succeeded());
  const auto& region = std::get<remote_region>(arrived.value);
  t.memory.put(0, "some");
  t.memory.put(100, "more");
  const std::array pieces{t.memory.view(0, 4), t.memory.view(100, 4)};
  sent write;
  t.b.async_write(pieces, region, write.handler());
  t.until([&] { return write.done(); });
  CHECK(write.ec ==
        (one_element ? error_code(asio::error::operation_not_supported) : error_code()));
  t.memory.put(0, "----");
  t.memory.put(100, "----");
  sent read;
  t.b.async_read(pieces, region, read.handler());
  t.until([&] { return read.done(); });
  if (t.dev.max_read_buffers() < 2) {
    CHECK(read.ec == asio::error::operation_not_supported);
  } else {
    CHECK(read.succeeded());
    CHECK(t.memory.text(0, 4) == "some");
    CHECK(t.memory.text(100, 4) == "more");
  }
  CHECK(t.lives());
}

TEST_CASE("device memory is the local side of accesses to the address space of nodes", "[h4]") {
  world w;
  const registered_device_memory memory(w.pool.get_protection_domain());
  if (!memory.exists())
    return;
  const remote_ptr<char> there = w.make<char>(1000);
  const std::string text = letters(1000, 2);
  memory.put(0, text);
  for (const std::size_t bytes : {std::size_t(8), std::size_t(1000)}) {
    CAPTURE(bytes);
    CHECK_FALSE(w.ask<std::size_t>([&](auto h) {
                   w.guest.async_write(there, memory.view(0, bytes), visibility::flushed, h);
                 }).ec);
    CHECK_FALSE(w.ask<std::size_t>([&](auto h) {
                   w.guest.async_read(there, memory.view(100'000, bytes), h);
                 }).ec);
    CHECK(memory.text(100'000, bytes) == text.substr(0, bytes));
  }
}

TEST_CASE("of memory with the same address, that of the view is offered", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  constexpr std::size_t bytes = 1 << 20, page = 1 << 16;
  const std::string text = letters(bytes, 1);
  t.memory.put(2 * bytes, text);
  error_code ec;
  const registered_buffer host = filled(t.pool, bytes + page, 1);
  const auto in_page = reinterpret_cast<std::uintptr_t>(host.data()) % page;
  const void* const address = static_cast<std::byte*>(host.data()) + (page - in_page);
  const memory_region before = t.memory.part(t.pd, bytes, bytes, address, all_rights, ec);
  REQUIRE_FALSE(ec);
  const memory_region own = t.memory.part(t.pd, 2 * bytes, bytes, address, all_rights, ec);
  REQUIRE_FALSE(ec);
  const memory_region after = t.memory.part(t.pd, 3 * bytes, bytes, address, all_rights, ec);
  REQUIRE_FALSE(ec);
  CHECK((carried(t, own.buffer()) == text));
}

TEST_CASE("the view of a region that was closed is not offered, and the connection lives", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  const mutable_buffer view = t.memory.view(0, 100'000);
  t.memory.region.close();
  sent s;
  t.a.async_send(view, s.handler());
  t.until([&] { return s.done(); });
  CHECK(s.ec == asio::error::invalid_argument);
  CHECK(t.lives());
}

TEST_CASE("a device that sends from one element sends no message of device memory", "[h4]") {
  if (soft_set == nullptr)
    return not_on_this_device("requests of one element");
  const adapter a("plain,send_elements=1");
  scene t;
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes : {std::size_t(1), std::size_t(500), std::size_t(10'000)}) {
    CAPTURE(bytes);
    sent s;
    t.a.async_send(t.memory.view(0, bytes), s.handler());
    t.until([&] { return s.done(); });
    CHECK(s.ec == asio::error::operation_not_supported);
  }
  sent send, receive; // the peer's device may be such a one
  std::string text = letters(10'000, 9);
  t.b.async_receive(t.memory.view(100'000, text.size()), receive.handler());
  t.a.async_send(asio::buffer(text), send.handler());
  t.until([&] { return send.done() && receive.done(); });
  CHECK(receive.succeeded());
  CHECK((t.memory.text(100'000, text.size()) == text));
}

} // namespace test::device_only_messages_tests
