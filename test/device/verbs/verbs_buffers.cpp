// SPDX-License-Identifier: BSL-1.0
// The memory that an operation moves: many buffers, none, inline, large.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace test::verbs_buffers_tests {

TEST_CASE("scatter and gather") {
  pair p;
  sent s;
  got r;
  p.ma.put(0, "abc");
  p.ma.put(10, "defgh");
  p.ma.put(20, "i");
  p.ma.put(30, "jk");
  SECTION("arrays") {
    p.b.async_receive(std::array{p.mb.buffer(0, 4), p.mb.buffer(10, 2), p.mb.buffer(20, 100)},
                      r.handler());
    p.a.async_send(std::array<const_buffer, 4>{p.ma.buffer(0, 3), p.ma.buffer(10, 5),
                                               p.ma.buffer(20, 1), p.ma.buffer(30, 2)},
                   s.handler());
  }
  SECTION("vectors, with empty buffers") {
    p.b.async_receive(
        std::vector{p.mb.buffer(0, 4), p.mb.buffer(9, 0), p.mb.buffer(10, 2), p.mb.buffer(20, 100)},
        r.handler());
    p.a.async_send(std::vector<const_buffer>{p.ma.buffer(0, 3), p.ma.buffer(10, 5),
                                             p.ma.buffer(20, 1), p.ma.buffer(500, 0),
                                             p.ma.buffer(30, 2)},
                   s.handler());
  }
  p.drain();
  if (p.dev.attributes().max_sge == 1) {
    CHECK(s.ec == error::too_many_buffers);
    CHECK(r.ec == error::too_many_buffers);
    return;
  }
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(s.value == 11);
  CHECK(r.value.bytes == 11);
  CHECK(p.mb.text(0, 4) == "abcd");
  CHECK(p.mb.text(10, 2) == "ef");
  CHECK(p.mb.text(20, 5) == "ghijk");
}

TEST_CASE("gathering by a write, scattering by a read") {
  pair p;
  sent write, read;
  p.ma.put(0, "abc");
  p.ma.put(30, "jk");
  p.a.async_write(std::array{p.ma.buffer(0, 3), p.ma.buffer(30, 2)}, p.mb.remote(3000),
                  write.handler());
  p.drain();
  if (p.dev.attributes().max_sge == 1) {
    CHECK(write.ec == error::too_many_buffers);
    p.mb.put(3000, "abcjk");
  } else {
    CHECK(write.succeeded());
    CHECK(write.value == 5);
    CHECK(p.placed());
    CHECK(p.mb.text(3000, 5) == "abcjk");
  }
  p.a.async_read(std::array{p.ma.buffer(4000, 2), p.ma.buffer(4100, 3)}, p.mb.remote(3000, 5),
                 read.handler());
  p.drain();
  if (p.dev.max_read_buffers() == 1) {
    CHECK(read.ec == error::too_many_buffers);
    CHECK(p.ma.text(4000, 2) == std::string(2, 0));
    CHECK(p.carries("unharmed"));
    return;
  }
  CHECK(read.succeeded());
  CHECK(p.ma.text(4000, 2) == "ab");
  CHECK(p.ma.text(4100, 3) == "cjk");
}

TEST_CASE("messages without bytes") {
  pair p;
  sent s, w;
  got r;
  SECTION("an empty buffer") {
    p.b.async_receive(p.mb.buffer(0, 10), r.handler());
    p.a.async_send(p.ma.buffer(0, 0), s.handler());
  }
  SECTION("no buffers at all") {
    p.b.async_receive(std::vector<mutable_buffer>(), r.handler());
    p.a.async_send(const_buffer(), s.handler());
  }
  p.a.async_write(const_buffer(), remote_buffer(), w.handler());
  p.drain();
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(s.value == 0);
  CHECK(r.value.bytes == 0);
  CHECK(w.succeeded());
  CHECK(p.carries("still connected"));
}

TEST_CASE("sizes around the inline limit") {
  queue_pair_options options;
  options.max_inline = 96;
  pair p(options);
  const std::size_t limit = p.a.options().max_inline;
  INFO("inline limit " << limit);
  std::iota(p.ma.data(), p.ma.data() + 1024, char(1));
  for (const std::size_t n : {limit == 0 ? 1 : limit - 1, limit, limit + 1, 2 * limit + 7}) {
    CAPTURE(n);
    got r;
    sent s, w;
    std::memset(p.mb.data(), 0, 4096);
    p.b.async_receive(p.mb.buffer(0, 1024), r.handler());
    p.a.async_send(p.ma.buffer(0, n), s.handler());
    p.a.async_write(p.ma.buffer(5, n), p.mb.remote(2048), w.handler());
    p.drain();
    REQUIRE(s.succeeded());
    REQUIRE(w.succeeded());
    CHECK(r.value.bytes == n);
    CHECK(p.mb.text(0, n + 1) == p.ma.text(0, n) + '\0');
    CHECK(p.placed());
    CHECK(p.mb.text(2048, n + 1) == p.ma.text(5, n) + '\0');
  }
}

TEST_CASE("memory that is sent inline may be overwritten at once, and needs no key") {
  pair p;
  if (p.a.options().max_inline < 8)
    return not_on_this_device("inline data");
  got r;
  sent s;
  std::string text = "inlined!";
  p.b.async_receive(p.mb.buffer(0, 100), r.handler());
  p.a.async_send(const_buffer(text.data(), 8, 0), s.handler());
  text = "changed!";
  p.drain();
  REQUIRE(s.succeeded());
  CHECK(p.mb.text(0, 8) == "inlined!");
}

TEST_CASE("a large message crosses in one operation") {
  pair p;
  constexpr std::size_t size = 3'000'001;
  memory from(p.pd, size, access::local_write), to(p.pd, size + 1, all_rights);
  for (std::size_t i = 0; i < size; ++i)
    from.data()[i] = static_cast<char>(i * 2654435761u >> 24);
  sent s;
  got r;
  SECTION("send") {
    p.b.async_receive(to.buffer(), r.handler());
    p.a.async_send(from.buffer(), s.handler());
    p.drain();
    CHECK(r.value.bytes == size);
  }
  SECTION("write") {
    p.a.async_write(from.buffer(), to.remote(), s.handler());
    p.drain();
    CHECK(p.placed());
  }
  SECTION("read") {
    memory source(p.pd, size, all_rights);
    std::memcpy(source.data(), from.data(), size);
    p.a.async_read(to.buffer(0, size), source.remote(), s.handler());
    p.drain();
  }
  REQUIRE(s.succeeded());
  CHECK(s.value == size);
  CHECK(std::memcmp(from.data(), to.data(), size) == 0);
  CHECK(to.data()[size] == 0);
}

} // namespace test::verbs_buffers_tests
