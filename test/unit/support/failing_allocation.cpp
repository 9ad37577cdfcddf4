// SPDX-License-Identifier: BSL-1.0
#include <interposer/failing_allocation.hpp>

#include <catch.hpp>

#include <boost/asio.hpp>

#include <array>
#include <memory>
#include <new>
#include <optional>

namespace asio = boost::asio;

TEST_CASE("the n-th allocation throws, and no other") {
  bool first_threw = false;
  bool second_threw = false;
  bool third_threw = false;
  auto attempt = [](bool& threw) {
    try {
      auto p = std::make_unique<int>(1);
      asm volatile(""
                   :
                   : "g"(p.get())
                   : "memory"); // keeps the compiler from eliding the allocation
    } catch (const std::bad_alloc&) {
      threw = true;
    }
  };
  {
    test::failing_allocation guard(2);
    attempt(first_threw);
    attempt(second_threw);
    attempt(third_threw);
  }
  CHECK_FALSE(first_threw);
  CHECK(second_threw);
  CHECK_FALSE(third_threw);
}

TEST_CASE("an allocation that is not reached does not count as failed, and 0 only counts") {
  std::optional<test::failing_allocation> guard(std::in_place, 0);
  auto p = std::make_unique<int>(1);
  asm volatile("" : : "g"(p.get()) : "memory");
  const auto count = guard->count();
  const bool failed = guard->failed();
  guard.reset();
  CHECK(count == 1);
  CHECK_FALSE(failed);
}

TEST_CASE("memory that Boost.Asio allocates for an operation counts") {
  asio::io_context ioc;
  bool threw = false;
  {
    test::failing_allocation guard(1);
    try {
      asio::post(ioc, [big = std::array<char, 4096>{}] { (void)big; });
    } catch (const std::bad_alloc&) {
      threw = true;
    }
  }
  CHECK(threw);
  CHECK(ioc.poll() == 0);
}
