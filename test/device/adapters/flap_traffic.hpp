// SPDX-License-Identifier: BSL-1.0
// A connection and a stream on an adapter whose link is down for a time.
#pragma once

#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/numbered_links.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace test::flaps_tests {

using namespace test::numbered;

/// A connection and a stream.
class traffic {
public:
  traffic(asio::io_context& io, const patience& p) : at(io), patience_(p) { connect(); }

  /// Connects what is not connected.
  void connect() {
    if (!talk)
      talk.emplace(at, patience_);
    if (!stream)
      stream.emplace(at, patience_);
  }
  void begin() {
    talk->begin();
    stream->begin();
  }
  /// Runs until `n` more operations have succeeded.
  void go_on(std::uint64_t n) {
    const std::uint64_t before = steps();
    at.until([&] { return steps() >= before + n || has_ended(); });
  }
  /// Begins, and goes on for a while.
  void load() {
    begin();
    go_on(300);
  }
  /// Makes a link silent, and waits until that has happened.
  void fall_silent(adapter& a, const std::string& settings) {
    REQUIRE_FALSE(has_ended());
    a.become(settings.c_str());
    until_silent();
    mark();
  }
  void until_silent() {
    at.until([] { return soft_get_faults() != 0; });
  }
  void mark() {
    talk->mark();
    stream->mark();
  }
  bool has_ended() const { return talk->has_ended() || stream->has_ended(); }
  /// Whether connection and stream have gone on, or an operation has failed.
  bool goes_on() const {
    return (talk->is_beyond_mark() || talk->has_ended()) &&
           (stream->is_beyond_mark() || stream->has_ended());
  }
  void check_empty() {
    talk.reset();
    stream.reset();
    at.listener.close();
    drain(at.io);
    CHECK(at.pool.statistics().blocks_in_use == 0);
  }

  site at;
  std::optional<talk_link> talk;
  std::optional<stream_link> stream;

private:
  std::uint64_t steps() const { return talk->steps() + stream->steps(); }

  patience patience_;
};

} // namespace test::flaps_tests
