// SPDX-License-Identifier: BSL-1.0
// Buffers that a connection or a stream cannot use as they are.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"

#include <sys/mman.h>

#include <array>
#include <string_view>

namespace test::connection_buffers_tests {
namespace {

template <class... Outcomes>
void check_refused(Outcomes&... outcomes) {
  for (const error_code& ec : {outcomes.ec...})
    CHECK(ec == asio::error::invalid_argument);
}

/// Address space in which only written pages take memory.
class mapping {
public:
  explicit mapping(std::size_t bytes)
      : data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        size_(bytes) {
    REQUIRE(data_ != MAP_FAILED);
  }
  mapping(const mapping&) = delete;
  ~mapping() { ::munmap(data_, size_); }
  asio::mutable_buffer buffer() const { return {data_, size_}; }

private:
  void* data_;
  std::size_t size_;
};

} // namespace

TEST_CASE("registered memory of another protection domain is refused, and the connection lives") {
  connection_options o;
  o.remote_memory.bytes = 1 << 20;
  talk t(o, o);
  const protection_domain elsewhere(t.dev);
  const memory_pool pool(elsewhere);
  const registered_buffer foreign = pool.allocate(1000);
  outcome<remote_region> region;
  t.a.async_request_memory(1000, region.handler());
  t.until([&] { return region.done(); });
  REQUIRE(region.succeeded());

  sent send, receive, write, with_immediate, read;
  outcome<void> lend;
  t.a.async_send(foreign, send.handler());
  t.a.async_receive(foreign, receive.handler());
  t.a.async_write(foreign, region.value, write.handler());
  t.a.async_write(foreign, region.value, 1, with_immediate.handler());
  t.a.async_read(foreign, region.value, read.handler());
  t.a.async_send_region(foreign, lend.handler());
  t.until([&] {
    return send.done() && receive.done() && write.done() && with_immediate.done() && read.done() &&
           lend.done();
  });
  check_refused(send, receive, write, with_immediate, read, lend);
  CHECK(!in_use(foreign));
  CHECK(t.lives());
  sent copied; // a view without a key is treated as plain memory
  t.a.async_write(asio::const_buffer(foreign.data(), foreign.size()), region.value,
                  copied.handler());
  t.until([&] { return copied.done(); });
  CHECK(copied.succeeded());
}

TEST_CASE("registered memory of another protection domain is refused by a stream") {
  stream_pair t;
  const protection_domain elsewhere(t.dev);
  const memory_pool pool(elsewhere);
  const registered_buffer foreign = pool.allocate(100'000);
  sent write, read;
  t.a.async_write_some(foreign, write.handler());
  t.b.async_read_some(foreign, read.handler());
  t.until([&] { return write.done() && read.done(); });
  check_refused(write, read);
  CHECK(!in_use(foreign));
  std::array<char, 5> to{};
  sent hello, got;
  t.a.async_write_some(asio::buffer("hello", 5), hello.handler());
  t.b.async_read_some(asio::buffer(to), got.handler());
  t.until([&] { return hello.done() && got.done(); });
  CHECK(hello.succeeded());
  REQUIRE(got.succeeded());
  CHECK(std::string_view(to.data(), got.value) == "hello");
}

TEST_CASE("a message is received into buffers of 4 GiB and more") {
  talk t;
  const mapping large((std::size_t(1) << 32) + 4096);
  const std::size_t bytes = GENERATE(std::size_t(10), std::size_t(5000), std::size_t(100'000));
  CAPTURE(bytes);
  sent s, r;
  t.b.async_receive(large.buffer(), r.handler());
  t.a.async_send(asio::buffer(pattern(bytes, 1)), s.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(r.succeeded());
  CHECK(r.value == bytes);
  CHECK(is_pattern(large.buffer().data(), bytes, 1));
}

} // namespace test::connection_buffers_tests
