// SPDX-License-Identifier: BSL-1.0
// The rate of the log's lines that peers cause.
#include "connecting/log_rate.hpp"

#include <catch.hpp>

#include <string_view>

namespace test::log_rate_tests {

using namespace std::chrono_literals;
using asio_rdma::detail::log_rate;
using asio_rdma::detail::omitted_text;

TEST_CASE("few lines a second are written, and the next one tells how many were left out") {
  log_rate rate;
  const log_rate::clock::time_point start{1h};
  std::uint64_t omitted = 0;
  unsigned written = 0;
  for (int i = 0; i < 1000; ++i)
    if (rate.admits(start + 900us * i, omitted))
      ++written;
  CHECK(written == log_rate::most_a_second);
  CHECK(omitted == 0);
  CHECK(rate.admits(start + 1s, omitted));
  CHECK(omitted == 1000 - log_rate::most_a_second);
  CHECK(rate.admits(start + 1s, omitted));
  CHECK(omitted == 0);
}

TEST_CASE("the text of lines that were left out") {
  CHECK(std::string_view(omitted_text(0).c_str()).empty());
  CHECK(std::string_view(omitted_text(7).c_str()) == " (7 such lines were left out before)");
  CHECK(std::string_view(omitted_text(~std::uint64_t(0)).c_str()).ends_with("before)"));
}

} // namespace test::log_rate_tests
