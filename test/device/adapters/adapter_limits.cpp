// SPDX-License-Identifier: BSL-1.0
// Limits and capabilities of adapters.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <string>
#include <sys/mman.h>
#include <system_error>
#include <variant>
#include <vector>

namespace test::adapter_limits_tests {
namespace {

/// Memory of which the kernel provides no page before it is written to. Reading it gives zeros.
class untouched {
public:
  explicit untouched(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED)
      throw std::system_error(errno, std::generic_category(), "mmap");
  }
  untouched(const untouched&) = delete;
  ~untouched() { ::munmap(data_, bytes_); }
  void* data() const { return data_; }

private:
  std::size_t bytes_;
  void* data_;
};

/// Sends 100 KB there and back over two streams.
void carry_bytes() {
  stream_pair p;
  const auto bytes = pattern(100'000, 1);
  std::vector<std::uint8_t> there(bytes.size()), back(bytes.size());
  sent w, r, w2, r2;
  asio::async_write(p.a, asio::buffer(bytes), w.handler());
  asio::async_read(p.b, asio::buffer(there), r.handler());
  p.until([&] { return w.done() && r.done(); });
  asio::async_write(p.b, asio::buffer(there), w2.handler());
  asio::async_read(p.a, asio::buffer(back), r2.handler());
  p.until([&] { return w2.done() && r2.done(); });
  for (const sent& each : {w, r, w2, r2}) {
    INFO(describe(each.ec));
    CHECK(each.succeeded());
    CHECK(each.value == bytes.size());
  }
  CHECK((back == bytes)); // prints no bytes
}

/// A program lends memory to its peer, which writes to it and reads it back.
void lend_memory() {
  connection_options lends;
  lends.remote_memory.bytes = 1 << 20;
  talk t({}, lends);
  constexpr std::size_t bytes = 20'000;
  const registered_buffer lent = filled(t.pool, bytes, 1);
  outcome<void> given;
  outcome<std::variant<registered_buffer, remote_region>> arrived;
  t.a.async_receive_region(arrived.handler());
  t.b.async_send_region(lent, access::remote_read | access::remote_write, given.handler());
  t.until([&] { return given.done() && arrived.done(); });
  REQUIRE(given.succeeded());
  REQUIRE(arrived.succeeded());
  const remote_region target = std::get<remote_region>(arrived.value);
  const auto text = pattern(bytes, 3);
  std::vector<std::uint8_t> back(bytes);
  sent written, read;
  t.a.async_write(asio::buffer(text), target, written.handler());
  t.until([&] { return written.done(); });
  CHECK(written.succeeded());
  t.a.async_read(asio::buffer(back), target, read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.succeeded());
  CHECK((back == text));
}

/// A message of each size.
void send_messages() {
  talk t;
  for (const std::size_t bytes : {0u, 8u, 64u, 200u, 5000u, 300000u}) {
    CAPTURE(bytes);
    const auto text = pattern(bytes, 2);
    sent s;
    outcome<message> r;
    t.b.async_receive(r.handler());
    t.a.async_send(asio::buffer(text), s.handler());
    t.until([&] { return s.done() && r.done(); });
    CHECK(s.succeeded());
    REQUIRE(r.succeeded());
    CHECK(r.value.size() == bytes);
    CHECK(is_pattern(r.value.payload.data(), bytes, 2));
  }
}

} // namespace

TEST_CASE("messages, streams and lent memory on an adapter", "[h4][h7][h8]") {
  const std::string name = GENERATE("mlx5", "irdma", "bnxt_re");
  CAPTURE(name);
  const adapter a(name);
  SECTION("messages") { send_messages(); }
  SECTION("a stream") { carry_bytes(); }
  SECTION("lent memory") { lend_memory(); }
}

// erdma reports one element, the smaller of its two limits: 6 to send, 1 to receive. A link sends a
// header and a payload.
TEST_CASE("messages on an adapter that receives into one element", "[h8][!shouldfail]") {
  const adapter a("erdma");
  send_messages();
}

TEST_CASE("a stream on an adapter that receives into one element", "[h8][!shouldfail]") {
  const adapter a("erdma");
  carry_bytes();
}

TEST_CASE("an adapter that reports memory windows and can allocate none has none", "[h7]") {
  const adapter a("irdma");
  CHECK_FALSE(open_device().has_memory_windows());
}

TEST_CASE("more receive elements than an adapter has become as many as it has", "[h8]") {
  const adapter a("erdma");
  queue_pair_options o;
  o.max_send_sge = o.max_receive_sge = 4;
  pair p(o);
  CHECK(p.a.options().max_receive_sge == 1);
  CHECK(p.carries("short"));
}

TEST_CASE("small inline limits do not prevent a queue pair", "[h9]") {
  const std::string name = GENERATE("mlx5", "irdma", "bnxt_re", "erdma");
  CAPTURE(name);
  const adapter a(name);
  queue_pair_options o;
  o.max_inline = 400;
  pair p(o);
  CHECK(p.carries("inline or not"));
}

TEST_CASE("a request above the adapter's longest message is refused, and nothing else fails",
          "[h15][!shouldfail]") {
  const adapter a("mlx5"); // 1 GiB
  const std::size_t bytes = (std::size_t(1) << 30) + 4096;
  const untouched from(bytes), to(bytes);
  pair p;
  const memory_region source(p.pd, from.data(), bytes, access::local_write);
  const memory_region target(p.pd, to.data(), bytes, all_rights);
  sent s;
  p.a.async_write(source.buffer(), target.remote(), s.handler());
  p.until([&] { return s.done(); });
  REQUIRE(s.ec == asio::error::message_size);
  CHECK(p.carries("still"));
}

TEST_CASE("a device without reliable connections says so", "[h19]") {
  const adapter a("efa");
  const device dev = open_device();
  const protection_domain pd(dev);
  asio::io_context io(1);
  queue_pair q(io);
  error_code ec;
  q.open(pd, {}, ec);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK_FALSE(q.is_open());
}

TEST_CASE("shared receives are refused by an adapter without shared receive queues", "[h8]") {
  const std::string name = GENERATE("irdma", "erdma");
  CAPTURE(name);
  const adapter a(name);
  const device dev = open_device();
  const protection_domain pd(dev);
  asio::io_context io(1);
  shared_receive_queue q(io);
  error_code ec;
  q.open(pd, completion_queue(), {}, ec);
  CHECK(ec == asio::error::operation_not_supported);
}

TEST_CASE("atomic operations are refused by an adapter that has none", "[h16]") {
  const adapter a("irdma");
  pair p;
  outcome<std::uint64_t> r;
  p.a.async_fetch_add(p.mb.remote(0, 8), 1, r.handler());
  p.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::operation_not_supported);
  CHECK(p.carries("still"));
}

} // namespace test::adapter_limits_tests
