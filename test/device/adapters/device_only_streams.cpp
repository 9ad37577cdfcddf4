// SPDX-License-Identifier: BSL-1.0
// Memory of a dma-buf, which only devices access: streams. An access of the CPU is a fault.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/device_memory.hpp"
#include "device/streams/stream_support.hpp"

#include <boost/asio/read.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace test::device_only_streams_tests {
namespace {

struct scene : stream_pair {
  explicit scene(const stream_options& o = {}) : stream_pair(o, o) {}

  registered_device_memory memory{pd, all_rights};
};

/// Writes the buffers at a, and returns the bytes as b gets them.
template <class Buffers>
std::string carried(scene& t, const Buffers& buffers, std::size_t bytes) {
  std::string result(bytes, '\0');
  sent write, read;
  t.a.async_write_some(buffers, write.handler());
  asio::async_read(t.b, asio::buffer(result), read.handler());
  t.until([&] { return write.done() && read.done(); });
  CHECK(write.succeeded());
  CHECK(write.value == bytes);
  CHECK(read.succeeded());
  return result;
}

} // namespace

TEST_CASE("writes of any length leave device memory", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes :
       {std::size_t(1), std::size_t(240), std::size_t(241), std::size_t(10'000),
        std::size_t(1 << 17) - 1, std::size_t(1) << 17, std::size_t(3) << 20}) {
    CAPTURE(bytes);
    const std::string text = letters(bytes, static_cast<unsigned>(bytes));
    t.memory.put(9, text);
    CHECK((carried(t, t.memory.view(9, bytes), bytes) == text));
  }
  const registered_buffer all(std::move(t.memory.region));
  CHECK(carried(t, all.slice(9, 8), 8) == t.memory.text(9, 8));
  CHECK(carried(t, all.slice(9, 500'000), 500'000) == t.memory.text(9, 500'000));
  CHECK(all.try_write_access()); // no operation uses it
}

TEST_CASE("writes of both kinds of memory keep their order", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  t.memory.put(0, letters(300'000, 1));
  std::vector<sent> writes(30);
  std::string expected;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const std::size_t bytes = i % 7 == 4 ? 300'000 : i;
    if (i % 2 == 0) {
      t.a.async_write_some(t.memory.view(0, bytes), writes[i].handler());
      expected += letters(300'000, 1).substr(0, bytes);
    } else {
      t.a.async_write_some(asio::buffer("host", 4), writes[i].handler());
      expected += "host";
    }
  }
  std::string got(expected.size(), '\0');
  sent read;
  asio::async_read(t.b, asio::buffer(got), read.handler());
  t.until([&] {
    return read.done() &&
           std::all_of(writes.begin(), writes.end(), [](auto& w) { return w.done(); });
  });
  CHECK(read.succeeded());
  CHECK(got == expected);
}

TEST_CASE("a write of device memory waits for a peer that does not read", "[h4]") {
  scene t(fixed_receives(1024));
  if (!t.memory.exists())
    return;
  constexpr std::size_t bytes = 100'000; // more than the receives hold, and not offered
  t.memory.put(0, letters(bytes, 2));
  CHECK(carried(t, t.memory.view(0, bytes), bytes) == letters(bytes, 2));
}

TEST_CASE("a write gathers pieces of device memory; of long ones it writes the first", "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  t.memory.put(0, "some");
  t.memory.put(100, "more");
  CHECK(carried(t, std::array{t.memory.view(0, 4), t.memory.view(100, 4)}, 8) == "somemore");
  t.memory.put(0, letters(200'000, 3));
  CHECK(carried(t, std::array{t.memory.view(0, 200'000), t.memory.view(300'000, 4)}, 200'000) ==
        letters(200'000, 3));
  CHECK(carried(t, std::array{t.memory.view(0, 50), t.memory.view(300'000, 200'000)}, 50) ==
        letters(200'000, 3).substr(0, 50));
}

TEST_CASE("reads into device memory and blocking functions are refused, and nothing is lost",
          "[h4]") {
  scene t;
  if (!t.memory.exists())
    return;
  sent read;
  t.b.async_read_some(t.memory.view(0, 100'000), read.handler());
  t.until([&] { return read.done(); });
  CHECK(read.ec == asio::error::operation_not_supported);
  error_code ec;
  CHECK(t.b.read_some(t.memory.view(0, 100), ec) == 0);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK(t.a.write_some(t.memory.view(0, 100), ec) == 0);
  CHECK(ec == asio::error::operation_not_supported);
  t.memory.put(0, "still here");
  CHECK(carried(t, t.memory.view(0, 10), 10) == "still here");
}

TEST_CASE("a device that sends from one element writes no device memory", "[h4]") {
  if (soft_set == nullptr)
    return not_on_this_device("requests of one element");
  const adapter a("plain,send_elements=1");
  scene t;
  if (!t.memory.exists())
    return;
  for (const std::size_t bytes : {std::size_t(1), std::size_t(300'000)}) {
    sent write;
    t.a.async_write_some(t.memory.view(0, bytes), write.handler());
    t.until([&] { return write.done(); });
    CHECK(write.ec == asio::error::operation_not_supported);
  }
  std::string text = letters(1000, 1);
  CHECK((carried(t, asio::buffer(text), text.size()) == text));
}

TEST_CASE("a write of device memory that is cancelled or cut off ends", "[h4]") {
  char c = 0;
  sent read;
  scene t(fixed_receives(1024));
  if (!t.memory.exists())
    return;
  const auto bytes = static_cast<std::size_t>(GENERATE(100'000, 1'000'000));
  CAPTURE(bytes);
  const registered_buffer all(std::move(t.memory.region));
  sent write;
  t.a.async_write_some(all.slice(0, bytes), write.handler());
  t.io.poll();
  SECTION("cancelled") {
    t.a.cancel();
    // Lets the withdrawal be answered.
    t.b.async_read_some(asio::buffer(&c, 1), read.handler());
  }
  SECTION("closed by the peer") { t.b.close(); }
  SECTION("closed") { t.a.close(); }
  t.until([&] { return write.done(); });
  CHECK(write.calls == 1);
  CHECK(all.try_write_access());
}

} // namespace test::device_only_streams_tests
