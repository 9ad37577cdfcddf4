// SPDX-License-Identifier: BSL-1.0
#include "link/receive_sizes.hpp"

#include "catch.hpp"

#include <vector>

using asio_rdma::detail::receive_sizes;

namespace {

std::vector<std::uint32_t> next(receive_sizes& s, int receives) {
  std::vector<std::uint32_t> result;
  for (int i = 0; i < receives; ++i) {
    result.push_back(s.next());
    s.use();
  }
  return result;
}

using sizes = std::vector<std::uint32_t>;

} // namespace

TEST_CASE("receives from before a change keep their size") {
  receive_sizes s(100);
  CHECK(next(s, 7) == sizes(7, 100));
  REQUIRE(s.change(200, 3));
  CHECK(s.later() == 200);
  CHECK(next(s, 5) == sizes{100, 100, 100, 200, 200});
}

TEST_CASE("a change may follow another one before its first receive is used") {
  receive_sizes s(100);
  REQUIRE(s.change(200, 2));
  REQUIRE(s.change(400, 5)); // three receives were added meanwhile
  CHECK(next(s, 1) == sizes{100});
  REQUIRE(s.change(50, 4)); // none was added
  REQUIRE(s.change(800, 4));
  CHECK(next(s, 5) == sizes{100, 200, 200, 200, 800});
}

TEST_CASE("a change without unused receives takes effect at once") {
  receive_sizes s(100);
  REQUIRE(s.change(200, 0));
  CHECK(s.next() == 200);
}

TEST_CASE("the number of changes with unused receives before them is limited") {
  receive_sizes s(100);
  std::uint32_t unused = 0;
  for (std::uint32_t i = 0; i < receive_sizes::max_changes; ++i)
    REQUIRE(s.change(200 + i, ++unused));
  CHECK_FALSE(s.change(1000, unused + 1));
  s.use();
  CHECK(s.change(1000, unused));
}
