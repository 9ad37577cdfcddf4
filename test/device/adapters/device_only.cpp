// SPDX-License-Identifier: BSL-1.0
// Memory of a dma-buf, which only devices access: queue pairs. An access of the CPU is a fault.
#include "catch.hpp"
#include "device/adapters/device_memory.hpp"

#include <array>
#include <cstdlib>
#include <vector>

namespace test::device_only_tests {
namespace {

constexpr std::size_t small = 8; // as much is sent inline

/// Two connected queue pairs, and device memory that is zero.
struct scene : pair {
  registered_device_memory memory{pd, all_rights};
};

/// libmlx5 copies small messages by the CPU unless the environment forbids it.
struct without_copies {
  without_copies() { ::setenv("MLX5_SCATTER_TO_CQE", "0", 1); }
  without_copies(const without_copies&) = delete;
  ~without_copies() { ::unsetenv("MLX5_SCATTER_TO_CQE"); }
};

/// Its receives may have device memory.
struct receiving_scene : without_copies, scene {};

} // namespace

TEST_CASE("a region of a dma-buf and all its views tell that only devices access it", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  CHECK(t.memory.region.is_device_only());
  CHECK_FALSE(t.ma.region.is_device_only());
  const mutable_buffer view = t.memory.view(100, 50);
  CHECK(view.is_device_only());
  CHECK((view + 10).is_device_only());
  CHECK(view.first(10).is_device_only());
  CHECK(const_buffer(view).is_device_only());
  CHECK((const_buffer(view) + 10).is_device_only());
  CHECK(const_buffer(view).first(10).is_device_only());
  CHECK_FALSE(t.ma.buffer().is_device_only());
  memory_region moved = std::move(t.memory.region);
  CHECK(moved.is_device_only());
  const registered_buffer buffer(std::move(moved));
  CHECK(buffer.is_device_only());
  CHECK(buffer.slice(7, 8).is_device_only());
  CHECK_FALSE(registered_buffer().is_device_only());
}

TEST_CASE("messages of any size leave and enter device memory", "[h4]") {
  receiving_scene t;
  REQUIRE(t.dev.has_device_only_receives());
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes : {std::size_t(1), small, std::size_t(5000)}) {
    CAPTURE(bytes);
    const std::string text = letters(bytes, 1);
    t.memory.put(0, text);
    got r;
    sent s;
    t.b.async_receive(t.memory.view(100'000, bytes), r.handler());
    t.a.async_send(t.memory.view(0, bytes), s.handler());
    t.until([&] { return s.done() && r.done(); });
    CHECK(s.succeeded());
    CHECK(r.succeeded());
    CHECK(r.value.bytes == bytes);
    CHECK((t.memory.text(100'000, bytes) == text));
  }
}

TEST_CASE("a receive of device memory is refused if the processor may copy the message", "[h4]") {
  if (soft_set == nullptr)
    return not_on_this_device("the settings of soft");
  const adapter a("mlx5");
  scene t;
  REQUIRE(t.memory.exists());
  CHECK_FALSE(t.dev.has_device_only_receives());
  got refused, r;
  SECTION("one buffer") { t.b.async_receive(t.memory.view(0, 5000), refused.handler()); }
  SECTION("a buffer of both kinds") {
    t.b.async_receive(std::array{t.mb.buffer(0, 4), t.memory.view(0, 5000)}, refused.handler());
  }
  SECTION("a longer buffer than most") {
    t.b.async_receive(t.memory.view(0, 2 << 20), refused.handler());
  }
  SECTION("a longer buffer of the other kind follows") {
    const mutable_buffer host(t.ma.buffer().data(), 2 << 20, t.ma.buffer().lkey());
    t.b.async_receive(std::array{t.memory.view(0, 4), host}, refused.handler());
  }
  SECTION("shared receives") {
    shared_receive_queue shared(t.io, t.pd);
    shared.async_receive(t.memory.view(0, 5000), refused.handler());
    t.until([&] { return refused.done(); });
  }
  t.until([&] { return refused.done(); });
  CHECK(refused.ec == asio::error::operation_not_supported);
  CHECK(t.carries("as before"));
  // A WRITE with immediate data does not use the receive's buffers.
  sent write;
  t.memory.put(0, "1234");
  t.b.async_receive(t.mb.buffer(0, 4), r.handler());
  t.a.async_write_immediate(t.memory.view(0, 4), t.memory.region.remote(200, 4), 8,
                            write.handler());
  t.until([&] { return r.done() && write.done(); });
  CHECK(r.succeeded());
  CHECK(t.memory.text(200, 4) == "1234");
}

TEST_CASE("a small message of memory of both kinds is not copied into its request", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  t.memory.put(0, "device");
  t.ma.put(0, "host");
  const std::array<const_buffer, 2> both{t.ma.buffer(0, 4), t.memory.view(0, 6)};
  got r;
  sent s, w;
  t.b.async_receive(t.mb.buffer(0, 100), r.handler());
  t.a.async_write(std::array<const_buffer, 2>{both[1], both[0]}, t.mb.remote(100, 10), w.handler());
  SECTION("an array") { t.a.async_send(both, s.handler()); }
  SECTION("a sequence of run-time length") {
    t.a.async_send(std::vector<const_buffer>(both.begin(), both.end()), s.handler());
  }
  t.until([&] { return s.done() && r.done() && w.done(); });
  CHECK(s.succeeded());
  CHECK(w.succeeded());
  CHECK(t.mb.text(0, 10) == "hostdevice");
  CHECK(t.mb.text(100, 10) == "devicehost");
}

TEST_CASE("RDMA WRITEs and READs leave and enter device memory, on both sides", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes : {std::size_t(1), small, std::size_t(1) << 20}) {
    CAPTURE(bytes);
    const std::string text = letters(bytes, static_cast<unsigned>(bytes));
    t.memory.put(0, text);
    sent write, read;
    const std::size_t there = std::size_t(1) << 20, back = std::size_t(2) << 20;
    t.a.async_write(t.memory.view(0, bytes), t.memory.region.remote(there, bytes), write.handler());
    t.until([&] { return write.done(); });
    CHECK(write.succeeded());
    CHECK(t.placed());
    CHECK((t.memory.text(there, bytes) == text));
    t.a.async_read(t.memory.view(back, bytes), t.memory.region.remote(there, bytes),
                   read.handler());
    t.until([&] { return read.done(); });
    CHECK(read.succeeded());
    CHECK((t.memory.text(back, bytes) == text));
  }
}

TEST_CASE("immediate data comes with bytes of device memory", "[h4]") {
  receiving_scene t;
  if (!t.memory.exists() || !t.dev.has_immediate())
    return;
  t.memory.put(0, "1234");
  got first, second;
  sent send, write;
  t.b.async_receive(t.memory.view(100, 4), first.handler());
  t.b.async_receive(t.mb.buffer(0, 4), second.handler());
  t.a.async_send_immediate(t.memory.view(0, 4), 7, send.handler());
  t.a.async_write_immediate(t.memory.view(0, 4), t.memory.region.remote(200, 4), 8,
                            write.handler());
  t.until([&] { return first.done() && second.done() && send.done() && write.done(); });
  CHECK(send.succeeded());
  CHECK(write.succeeded());
  CHECK(first.value.immediate == 7u);
  CHECK(second.value.immediate == 8u);
  CHECK(t.memory.text(100, 4) == "1234");
  CHECK(t.memory.text(200, 4) == "1234");
}

TEST_CASE("the region's descriptor is its own, and a closed region has none", "[h4]") {
  const device dev = open_device();
  const protection_domain pd(dev);
  const auto descriptors = [] {
    int n = 0;
    for (int fd = 0; fd < 1024; ++fd)
      n += ::fcntl(fd, F_GETFD) >= 0;
    return n;
  };
  const device_memory m;
  const int before = descriptors();
  error_code ec;
  memory_region r = m.region(pd, all_rights, ec);
  if (ec)
    return not_on_this_device("memory of a dma-buf");
  CHECK(descriptors() == before + 1);
  r.close();
  CHECK(descriptors() == before);
  CHECK_FALSE(r.is_device_only());
  const memory_region bad = m.region(pd, access::remote_read | access::window_bind, ec);
  CHECK(ec == errc::invalid_argument);
  CHECK_FALSE(bad.is_open());
}

} // namespace test::device_only_tests
