// SPDX-License-Identifier: BSL-1.0
#include "../rpc.hpp"

#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using rpc::asio::awaitable;

/// Procedures: "wait" and "stubborn" end at the next "open". "stubborn" cannot be cancelled.
struct gate {
  awaitable<std::string> run(std::string name) {
    if (name == "open") {
      ++times_opened;
      opened.cancel();
      co_return "opened";
    }
    if (name == "stubborn")
      co_await boost::asio::this_coro::reset_cancellation_state(
          boost::asio::disable_cancellation());
    else if (name != "wait")
      throw std::runtime_error("no procedure " + name);
    ++waiting;
    co_await opened.async_wait(rpc::as_result);
    --waiting;
    const auto state = co_await boost::asio::this_coro::cancellation_state;
    cancelled += state.cancelled() != boost::asio::cancellation_type::none;
    co_return "the gate is open";
  }

  boost::asio::steady_timer opened; // never expires
  int waiting = 0, cancelled = 0, times_opened = 0;
};

struct scene : test::talk {
  scene() : gates{boost::asio::steady_timer(io, boost::asio::steady_timer::time_point::max())} {
    client.emplace(std::move(a));
    const auto run = [this](std::string name) {
      return gates.run(std::move(name));
    };
    co_spawn(io, rpc::serve(std::move(b), run), [this](std::exception_ptr) { served = true; });
  }

  /// Starts a call. Its answer, or its error, will be the last string of `outcomes`.
  void start(std::string name, std::chrono::milliseconds limit = 1min,
             boost::asio::cancellation_slot slot = {}) {
    co_spawn(io, client->call(std::move(name), limit),
             boost::asio::bind_cancellation_slot(
                 slot, [this](const std::exception_ptr& e, const std::string& answer) {
                   outcomes.push_back(answer + text_of(e));
                 }));
  }
  static std::string text_of(const std::exception_ptr& e) {
    try {
      if (e)
        std::rethrow_exception(e);
    } catch (const boost::system::system_error& error) {
      return error.code().message();
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
  std::string outcome(std::string name, std::chrono::milliseconds limit = 1min) {
    const std::size_t before = outcomes.size();
    start(std::move(name), limit);
    until([&] { return outcomes.size() > before; });
    return outcomes.back();
  }

  gate gates;
  std::optional<rpc::client> client;
  std::vector<std::string> outcomes;
  bool served = false;
};

const std::string timed_out = make_error_code(boost::asio::error::timed_out).message();
const std::string aborted = make_error_code(boost::asio::error::operation_aborted).message();

} // namespace

TEST_CASE("calls that are in flight at the same time end in any order") {
  scene s;
  s.start("wait");
  s.start("dance");
  s.start("wait");
  s.until([&] { return s.outcomes.size() == 1 && s.gates.waiting == 2; });
  CHECK(s.outcomes[0] == "no procedure dance");
  s.start("open");
  s.until([&] { return s.outcomes.size() == 4; });
  CHECK(std::count(s.outcomes.begin(), s.outcomes.end(), "the gate is open") == 2);
  CHECK(std::count(s.outcomes.begin(), s.outcomes.end(), "opened") == 1);
  CHECK(s.gates.cancelled == 0);
}

TEST_CASE("a call past its deadline is cancelled at the server") {
  scene s;
  CHECK(s.outcome("wait", 50ms) == timed_out);
  s.until([&] { return s.gates.cancelled == 1; });
  CHECK(s.outcome("open") == "opened");
  CHECK(s.client->late_answers() == 0); // a cancelled call is not answered
}

TEST_CASE("the answer of a call past its deadline is ignored") {
  scene s;
  CHECK(s.outcome("stubborn", 50ms) == timed_out);
  s.start("wait");
  s.until([&] { return s.gates.waiting == 2; });
  CHECK(s.outcome("open") == "opened");
  s.until([&] { return s.outcomes.size() == 3 && s.client->late_answers() == 1; });
  CHECK(std::count(s.outcomes.begin(), s.outcomes.end(), "the gate is open") == 1);
  CHECK(s.gates.cancelled == 0);
}

TEST_CASE("a caller that is cancelled cancels its call") {
  scene s;
  boost::asio::cancellation_signal signal;
  s.start("wait", 1min, signal.slot());
  s.until([&] { return s.gates.waiting == 1; });
  signal.emit(boost::asio::cancellation_type::terminal);
  s.until([&] { return s.outcomes.size() == 1 && s.gates.cancelled == 1; });
  CHECK(s.outcomes[0] == aborted);
  CHECK(s.outcome("open") == "opened");
}

TEST_CASE("the end of a client cancels its calls on both sides") {
  scene s;
  s.start("wait");
  s.start("wait");
  s.until([&] { return s.gates.waiting == 2; });
  s.client.reset();
  s.until([&] { return s.outcomes.size() == 2 && s.gates.cancelled == 2 && s.served; });
  CHECK(s.outcomes == std::vector{aborted, aborted});
}

TEST_CASE("a call beyond the most at a time is refused, and the others continue") {
  scene s;
  for (std::size_t i = 0; i != rpc::most_calls; ++i)
    s.start("wait");
  s.until([&] { return s.gates.waiting == static_cast<int>(rpc::most_calls); });
  CHECK(s.outcome("open") == "too many calls");
  CHECK(s.gates.times_opened == 0);
  s.gates.opened.cancel();
  s.until([&] { return s.outcomes.size() == rpc::most_calls + 1; });
  CHECK(s.outcomes.back() == "the gate is open");
  CHECK(s.outcome("open") == "opened");
}

TEST_CASE("a client that closes ends the server's side, and later calls fail") {
  scene s;
  bool closed = false;
  co_spawn(s.io, s.client->close(), [&](const std::exception_ptr& e) { closed = !e; });
  s.until([&] { return closed && s.served; });
  CHECK(!s.outcome("open").empty());
  CHECK(s.gates.times_opened == 0);
}
