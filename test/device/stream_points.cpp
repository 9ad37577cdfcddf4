// SPDX-License-Identifier: BSL-1.0
// Every end at every point, on streams and on TCP sockets: what is told from then on.
#include "catch.hpp"
#include "stream_scripts.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace {

using namespace test;

using steps = std::vector<step>;

struct named {
  const char* name;
  steps what;
};

// What there is, and what is under way, of a.
const std::vector<named> points = {
    {"nothing", {}},
    {"bytes for it", {{'b', verb::write, 10}, {'a', verb::wait_read}}},
    {"bytes for it, read in part",
     {{'b', verb::write, 10}, {'a', verb::wait_read}, {'a', verb::read, 4}}},
    {"bytes of it", {{'a', verb::write, 10}, {'b', verb::wait_read}}},
    {"a read", {{'a', verb::begin_read, 10}}},
    {"a wait", {{'a', verb::begin_wait}}},
    {"a write", {{'a', verb::non_blocking}, {'a', verb::fill}, {'a', verb::begin_write, 10}}},
};

const std::vector<named> ends = {
    {"it is cancelled", {{'a', verb::cancel}}},
    {"it is closed", {{'a', verb::close}}},
    {"it sends no more", {{'a', verb::shutdown_send}}},
    {"it receives no more", {{'a', verb::shutdown_receive}}},
    {"it is shut down", {{'a', verb::shutdown_both}}},
    {"it is reset", {{'a', verb::die}}},
    {"the peer resets it", {{'b', verb::die}, {'a', verb::wait_error}}},
    {"the peer closes", {{'b', verb::close}}},
    {"the peer sends no more", {{'b', verb::shutdown_send}}},
};

/// Of a: how what was begun ends, and then each kind of call.
steps all_of(const named& point, const named& end) {
  steps result = point.what;
  const auto add = [&result](const steps& more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  add(end.what);
  const verb begun = point.what.empty() ? verb::move : point.what.back().what;
  const step& by = end.what.front();
  const bool begins =
      begun == verb::begin_read || begun == verb::begin_wait || begun == verb::begin_write;
  const bool writes = begun == verb::begin_write;
  const bool other_way = (by.who == 'a' && by.what == verb::shutdown_send && !writes) ||
                         (by.what == verb::shutdown_receive && writes) ||
                         (by.who == 'b' && by.what != verb::die && writes);
  if (begins && other_way)
    add({{'a', verb::cancel}});
  if (begins)
    add({{'a', verb::end}});
  // By reads a hears that its peer has left. Boost.Asio 1.81's sockets tell that to one only.
  if (by.who == 'b' && by.what != verb::die && begun != verb::begin_read)
    add({{'a', verb::drain}});
  add({{'a', verb::is_open},
       {'a', verb::available},
       {'a', verb::non_blocking},
       {'a', verb::sync_read, 3},
       {'a', verb::sync_read, 50},
       {'a', verb::sync_read, 50}});
  if (!writes) // there may be room or not
    add({{'a', verb::sync_write, 5}});
  add({{'a', verb::remote},
       {'a', verb::shutdown_send},
       {'a', verb::cancel},
       {'a', verb::close},
       {'a', verb::is_open},
       {'a', verb::sync_read, 1},
       {'a', verb::sync_write, 1}});
  return result;
}

/// What stream.hpp says to differ from TCP.
struct difference {
  verb what;
  const char* of_tcp;
  const char* of_stream;
};
const char* const not_connected = "0 Transport endpoint is not connected";
const char* const reset = "0 Connection reset by peer";
const std::vector<difference> differences = {
    // An error of the connection stays.
    {verb::sync_read, "0 eof", reset},
    {verb::sync_write, "0 Broken pipe", reset},
    // The endpoints are told afterwards, too.
    {verb::remote, not_connected, "0 ok"},
    // A write hears of the peer's close at once.
    {verb::sync_write, "5 ok", "0 Broken pipe"},
    // A shutdown after the peer's close succeeds.
    {verb::shutdown_send, not_connected, "0 ok"},
    // A peer that closes with bytes unread sends no reset.
    {verb::drain, reset, "0 eof"},
};

} // namespace

TEST_CASE("every end at every point is told as TCP tells it") {
  std::vector<bool> met(differences.size());
  for (const named& point : points)
    for (const named& end : ends) {
      const script s{std::string(point.name) + "; then " + end.name, all_of(point, end)};
      const auto wanted = player<tcp_world>().play(s);
      const auto got = player<stream_world>().play(s);
      REQUIRE(got.size() == wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(s.name, i, s.steps[i].who, int(s.steps[i].what));
        CHECK(wanted[i] != "never");
        const auto d =
            std::find_if(differences.begin(), differences.end(), [&](const difference& x) {
              return x.what == s.steps[i].what && x.of_tcp == wanted[i] && x.of_stream == got[i];
            });
        if (d != differences.end())
          met[static_cast<std::size_t>(d - differences.begin())] = true;
        else
          CHECK(got[i] == wanted[i]);
      }
    }
  for (std::size_t i = 0; i < met.size(); ++i) {
    CAPTURE(i);
    CHECK(met[i]);
  }
}
