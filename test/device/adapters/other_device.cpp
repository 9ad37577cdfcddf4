// SPDX-License-Identifier: BSL-1.0
// A process that has soft0 and a device of the kernel. If soft0 is removed, the other one goes on.
// Without rdma_cm: while soft0 is there, it belongs to soft0 alone (soft/README.md).
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/numbered_links.hpp"

#include <algorithm>
#include <stdexcept>

namespace test::other_device_tests {
namespace {

using namespace test::numbered;

device open_other_than(const std::string& name) {
  for (const device::description& d : device::list())
    if (d.name != name && d.port_active)
      return device::open(d.name);
  throw std::runtime_error("this process has no device but " + name);
}

/// A connection and a stream on one device.
struct links {
  links(asio::io_context& io, const device& d) : at(io, d, site::by_exchange()) {
    talk.begin();
    stream.begin();
  }
  void mark() {
    talk.mark();
    stream.mark();
  }
  bool is_beyond_mark(std::uint64_t more) const {
    return talk.is_beyond_mark(more) && stream.is_beyond_mark(more);
  }
  bool has_ended() const { return talk.has_ended() || stream.has_ended(); }

  site at;
  talk_link talk{at, patience()};
  stream_link stream{at, patience()};
};

template <class Link>
void check_removed(const Link& l) {
  CHECK(l.reason(0) == error::device_removed);
  CHECK(l.reason(1) == error::device_removed);
  l.check_nothing_lost();
}

} // namespace

TEST_CASE("operations on another device go on when a device is removed", "[.beside][h6]") {
  const char* const settings =
      GENERATE("mlx5,event=now:device_fatal",
               "mlx5,removal=20ms,event=now:device_fatal"); // takes a while
  adapter a("mlx5");
  asio::io_context io(1);
  links removed(io, open_device());
  links other(io, open_other_than(removed.at.dev.name()));
  for (links* const each : {&removed, &other})
    until(io, [=] { return each->is_beyond_mark(100); });
  REQUIRE_FALSE(removed.has_ended());
  REQUIRE_FALSE(other.has_ended());
  other.mark();
  a.become(settings);
  until(io, [&] { return removed.talk.is_over() && removed.stream.is_over(); });
  CHECK(removed.at.dev.is_removed());
  check_removed(removed.talk);
  check_removed(removed.stream);
  removed.talk.close();
  removed.stream.close();
  CHECK(removed.at.pool.statistics().blocks_in_use == 0);

  // All that was begun before the removal arrives, and 1000 of each kind after it.
  until(io, [&] { return other.is_beyond_mark(0) || other.has_ended(); });
  other.mark();
  until(io, [&] { return other.is_beyond_mark(1000) || other.has_ended(); });
  REQUIRE_FALSE(other.has_ended());
  CHECK_FALSE(other.at.dev.is_removed());
  other.talk.finish();
  other.stream.finish();
  CHECK(other.at.pool.statistics().blocks_in_use == 0);
  drain(io);
}

} // namespace test::other_device_tests
