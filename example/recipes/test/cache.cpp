// SPDX-License-Identifier: BSL-1.0
#include "../cache.hpp"

#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <thread>
#include <utility>

namespace {

using boost::asio::awaitable;

struct scene : test::talk {
  scene() {
    client.emplace(std::move(a));
    co_spawn(io, cache::serve(std::move(b), entries),
             [this](const std::exception_ptr& e) { served = !e; });
  }

  /// Runs the coroutine to its end.
  void play(awaitable<void> what) {
    bool done = false;
    std::exception_ptr failure;
    co_spawn(io, std::move(what), [&](std::exception_ptr e) {
      failure = std::move(e);
      done = true;
    });
    until([&] { return done; });
    if (failure)
      std::rethrow_exception(failure);
  }
  std::string get(std::string key) {
    std::string result;
    play([&]() -> awaitable<void> {
      result = (co_await client->get(key)).value_or("none");
    }());
    return result;
  }
  bool erase(std::string key) {
    bool result = false;
    play([&]() -> awaitable<void> {
      result = co_await entries.erase(key);
    }());
    return result;
  }

  cache::store entries{pool};
  std::optional<cache::reader> client;
  bool served = false;
};

} // namespace

TEST_CASE("a client reads an entry, and its new value, without the server's program") {
  scene s;
  s.entries.put("red", "#f00");
  CHECK(s.get("red") == "#f00");
  CHECK(s.client->requests() == 1);
  s.entries.put("red", "#e00");
  CHECK(s.get("red") == "#e00");
  s.entries.put("red", "");
  CHECK(s.get("red").empty());
  CHECK(s.client->requests() == 1);
  CHECK(s.get("green") == "none");
  CHECK(s.client->requests() == 2);
  CHECK_THROWS_AS(s.entries.put("red", std::string(61, 'x')), std::length_error);
}

TEST_CASE("an entry that goes is revoked, and may come again") {
  scene s;
  s.entries.put("green", "#0f0");
  const std::size_t before = s.pool.statistics().bytes_in_use;
  s.entries.put("red", "#f00");
  CHECK(s.get("red") == "#f00");
  CHECK(s.get("green") == "#0f0");
  CHECK(s.erase("red"));
  CHECK(!s.erase("red"));
  CHECK(s.pool.statistics().bytes_in_use == before);
  CHECK(s.get("red") == "none");
  s.entries.put("red", "#c00");
  CHECK(s.get("red") == "#c00");
  CHECK(s.get("green") == "#0f0");
  CHECK(s.client->requests() == 4);
}

TEST_CASE("a value that is replaced while clients read it is complete") {
  scene s;
  s.entries.put("digits", std::string(60, '0'));
  CHECK(s.get("digits") == std::string(60, '0'));
  std::atomic<bool> stop = false;
  std::thread server([&] {
    for (int i = 0; !stop; ++i)
      s.entries.put("digits", std::string(60, static_cast<char>('0' + i % 10)));
  });
  std::size_t torn = 0;
  for (int i = 0; i != 200; ++i) {
    const std::string text = s.get("digits");
    torn += text != std::string(60, text.at(0));
  }
  stop = true;
  server.join();
  CHECK(torn == 0);
  CHECK(s.client->requests() == 1);
}

TEST_CASE("an entry that goes and comes while a client reads it fails no look-up") {
  scene s;
  s.entries.put("red", "#f00");
  bool over = false;
  std::exception_ptr failure;
  std::size_t found = 0, missing = 0, wrong = 0;
  co_spawn(
      s.io,
      [&]() -> awaitable<void> {
        while (found < 100 || missing == 0) {
          const auto text = co_await s.client->get("red");
          found += text.has_value();
          missing += !text;
          wrong += text && *text != "#f00";
        }
      },
      [&](std::exception_ptr e) {
        failure = std::move(e);
        over = true;
      });
  s.play([&]() -> awaitable<void> {
    while (!over) {
      co_await s.entries.erase("red");
      co_await boost::asio::post(boost::asio::deferred);
      s.entries.put("red", "#f00");
      co_await boost::asio::post(boost::asio::deferred);
    }
  }());
  CHECK(!failure);
  CHECK(wrong == 0);
  CHECK(s.get("red") == "#f00");
}

TEST_CASE("the look-up after one that was cancelled has its own answer") {
  scene s;
  s.entries.put("red", "#f00");
  s.entries.put("green", "#0f0");
  for (int turns = 0; turns != 6; ++turns) { // the cancellation meets each step
    boost::asio::cancellation_signal signal;
    bool done = false;
    co_spawn(s.io, s.client->get(turns % 2 == 0 ? "red" : "none"),
             boost::asio::bind_cancellation_slot(
                 signal.slot(), [&](const std::exception_ptr&, const std::optional<std::string>&) {
                   done = true;
                 }));
    for (int i = 0; i != turns && !done; ++i)
      s.io.run_one();
    signal.emit(boost::asio::cancellation_type::terminal);
    s.until([&] { return done; });
    CHECK(s.get("green") == "#0f0");
    CHECK(s.get("none") == "none");
  }
}

TEST_CASE("a client that closes ends the server's side") {
  scene s;
  s.entries.put("red", "#f00");
  CHECK(s.get("red") == "#f00");
  s.play(s.client->close());
  s.until([&] { return s.served; });
  CHECK(s.erase("red"));
}
