// SPDX-License-Identifier: BSL-1.0
// Buffers that a connection or a stream cannot use as they are.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/streams/stream_support.hpp"

#include <sys/mman.h>

#include <boost/asio/read.hpp>

#include <array>
#include <concepts>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// A message is a sequence of one constant buffer, and no container of bytes.
static_assert(asio::is_const_buffer_sequence<message>::value);
static_assert(!asio::is_mutable_buffer_sequence<message>::value);
static_assert(const_buffer_sequence<message>);
static_assert(!mutable_buffer_sequence<message>);
static_assert(std::bidirectional_iterator<message::const_iterator>);
template <class T>
using buffer_of = decltype(asio::buffer(std::declval<const T&>()));
static_assert(std::derived_from<buffer_of<message>, asio::const_buffer>);
static_assert(std::derived_from<buffer_of<registered_buffer>, asio::mutable_buffer>);

TEST_CASE("a message is a buffer, and text") {
  talk t;
  sent first, second;
  outcome<message> r;
  t.a.async_send(asio::buffer(std::string_view("some text")), 7, first.handler());
  t.b.async_receive(r.handler());
  t.until([&] { return first.done() && r.done(); });
  REQUIRE(r.succeeded());
  const message& m = r.value;
  CHECK(m.text() == "some text");
  CHECK(asio::buffer(m).data() == m.payload.data());
  CHECK(asio::buffer(m).size() == 9);
  CHECK(asio::buffer(m.payload).data() == m.payload.data());
  CHECK(asio::buffer(m.payload).size() == 9);
  CHECK(asio::buffer_size(m) == 9);
  std::string copy(9, ' ');
  CHECK(asio::buffer_copy(asio::buffer(copy), m) == 9);
  CHECK(copy == "some text");
  CHECK(static_cast<asio_rdma::const_buffer>(m).lkey() == m.payload.lkey());
  CHECK(message().text().empty());

  outcome<message> back;
  t.b.async_send(m, second.handler());
  t.a.async_receive(back.handler());
  t.until([&] { return second.done() && back.done(); });
  CHECK(second.value == 9);
  CHECK(back.value.text() == "some text");
  CHECK_FALSE(back.value.immediate);
}

TEST_CASE("an operation keeps the message that it sends, without a copy") {
  talk t;
  message m{filled(t.pool, 200'000, 3), {}}; // longer than the receives: it is offered
  const registered_buffer slice = m.payload.slice(0, 1);
  sent send;
  t.a.async_send(std::exchange(m, {}), send.handler());
  CHECK(in_use(slice));
  CHECK(m.size() == 0);
  outcome<message> r;
  t.b.async_receive(r.handler());
  t.until([&] { return send.done() && r.done(); });
  CHECK_FALSE(in_use(slice));
  CHECK(is_pattern(r.value.payload.data(), 200'000, 3));

  stream_pair s;
  message bytes{filled(s.pool, 200'000, 4), {}};
  const registered_buffer part = bytes.payload.slice(0, 1);
  sent write, read;
  s.a.async_write_some(std::exchange(bytes, {}), write.handler());
  CHECK(in_use(part));
  std::vector<std::uint8_t> got(200'000);
  asio::async_read(s.b, asio::buffer(got), read.handler());
  s.until([&] { return write.done() && read.done(); });
  CHECK(write.value == 200'000);
  CHECK_FALSE(in_use(part));
  CHECK(is_pattern(got.data(), got.size(), 4));
}

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
  t.a.async_send(foreign, send.handler());
  t.a.async_receive(foreign, receive.handler());
  t.a.async_write(foreign, region.value, write.handler());
  t.a.async_write(foreign, region.value, 1, with_immediate.handler());
  t.a.async_read(foreign, region.value, read.handler());
  t.until([&] {
    return send.done() && receive.done() && write.done() && with_immediate.done() && read.done();
  });
  check_refused(send, receive, write, with_immediate, read);
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
  const registered_buffer foreign = pool.allocate(200'000);
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
  const std::size_t bytes = GENERATE(std::size_t(10), std::size_t(5000), std::size_t(200'000));
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
