// SPDX-License-Identifier: BSL-1.0
// The framework of scenes with failing allocations, tested with Asio's own operations.
#include <catch.hpp>

#include "device/support/allocation_scene.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <chrono>

namespace {

namespace asio = boost::asio;
using test::handler_accounts;

struct waits {
  asio::io_context io{1};
  asio::steady_timer timer{io};

  void play(handler_accounts& accounts) {
    timer.expires_after(std::chrono::milliseconds(1));
    accounts.start("wait", [&](auto handler) {
      timer.async_wait([h = std::move(handler), big = std::array<char, 3000>()](auto ec) mutable {
        static_cast<void>(big);
        h(ec);
      });
    });
    if (!accounts.run(io))
      return;
    accounts.start("wait again", [&](auto handler) { timer.async_wait(std::move(handler)); });
  }
  void close() { timer.cancel(); }
};

/// A scene that does not call its handler.
struct forgetful : waits {
  void play(handler_accounts& accounts) {
    accounts.start("forgotten", [](auto handler) { auto dropped = std::move(handler); });
    const auto p = std::make_unique<int>();
  }
};

/// A scene whose initiating function throws after its handler was called.
struct indecisive : waits {
  void play(handler_accounts& accounts) {
    accounts.start("completed twice", [](auto handler) {
      handler(asio_rdma::error_code());
      throw std::bad_alloc();
    });
  }
};

} // namespace

TEST_CASE("a scene of Asio's own operations is played with each allocation failing") {
  test::fail_each_allocation<waits>();
}

TEST_CASE("a handler that is lost, or called although its initiating function threw, is reported") {
  bool reached = false;
  CHECK(test::play_scene<forgetful>(0, reached) != "");
  CHECK(test::play_scene<indecisive>(0, reached) != "");
  CHECK_FALSE(reached);
}
