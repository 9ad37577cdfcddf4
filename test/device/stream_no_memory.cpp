// SPDX-License-Identifier: BSL-1.0
// Streams where an allocation fails.
#include "catch.hpp"
#include "faults/failing_allocation.hpp"
#include "stream_support.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <new>
#include <vector>

namespace {

using namespace test;

} // namespace

TEST_CASE("a blocking function for which memory is refused leaves nothing behind") {
  const bool waits = GENERATE(true, false);
  for (std::size_t n = 1, failed = 1; failed != 0; ++n) {
    CAPTURE(waits, n);
    stream_pair t;
    const auto values = pattern(100'000, 1); // which is read ahead
    asio::write(t.a, asio::buffer(values));
    std::vector<std::uint8_t> got(values.size());
    std::size_t taken = 0;
    t.b.non_blocking(!waits);
    error_code ec;
    {
      const failing_allocation failing(n);
      const asio::mutable_buffer to = asio::buffer(got);
      try {
        for (int i = 0; i < 1000 && taken == 0 && (!ec || ec == asio::error::would_block); ++i)
          taken = t.b.read_some(to, ec);
      } catch (const std::bad_alloc&) {
      }
      failed = failing.failed();
    }
    t.b.non_blocking(false);
    // The rest comes, or the reason why it does not.
    sent rest;
    asio::async_read(t.b, asio::buffer(got) + taken, rest.handler());
    t.until([&] { return rest.done(); });
    if (!rest.ec)
      CHECK(is_pattern(got.data(), got.size(), 1));
    else
      CHECK(failed);
    t.a.close();
    t.b.close();
    drain(t.io);
    CHECK(t.pool.statistics().blocks_in_use == 0);
  }
}

TEST_CASE("an initiating function for which memory is refused leaves nothing behind") {
  for (std::size_t n = 1, failed = 1; failed != 0; ++n) {
    CAPTURE(n);
    stream_pair t;
    const auto values = pattern(100'000, 1);
    std::vector<std::uint8_t> got(values.size());
    sent write, read;
    bool wrote = true, reads = true;
    {
      const failing_allocation failing(n);
      const asio::const_buffer from = asio::buffer(values);
      const asio::mutable_buffer to = asio::buffer(got);
      try {
        t.a.async_write_some(from, write.handler());
      } catch (const std::bad_alloc&) {
        wrote = false;
      }
      try {
        t.b.async_read_some(to, read.handler());
      } catch (const std::bad_alloc&) {
        reads = false;
      }
      failed = failing.failed();
    }
    t.a.close();
    t.b.close();
    drain(t.io);
    CHECK(write.calls == int(wrote));
    CHECK(read.calls == int(reads));
    CHECK(t.pool.statistics().blocks_in_use == 0);
  }
}
