// SPDX-License-Identifier: BSL-1.0
// Every end at every point, on streams and on TCP sockets: the results of all later calls.
#include "catch.hpp"
#include "device/streams/stream_scripts.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace test::stream_points_tests {
namespace {

using steps = std::vector<step>;

/// The state of a and its pending operation.
struct point {
  const char* name;
  steps what;
  char unread = 0; ///< The side that has not read all bytes.
};

const std::vector<point> points = {
    {"nothing", {}},
    {"bytes for it", {{'b', verb::write, 10}, {'a', verb::wait_read}}, 'a'},
    {"bytes for it, read in part",
     {{'b', verb::write, 10}, {'a', verb::wait_read}, {'a', verb::read, 4}},
     'a'},
    {"bytes of it", {{'a', verb::write, 10}, {'b', verb::wait_read}}, 'b'},
    {"a read", {{'a', verb::begin_read, 10}}},
    {"a wait", {{'a', verb::begin_wait}}},
    {"a write", {{'a', verb::non_blocking}, {'a', verb::fill}, {'a', verb::begin_write, 10}}, 'b'},
};

struct end {
  const char* name;
  step by;
};

const std::vector<end> ends = {
    {"it is cancelled", {'a', verb::cancel}},
    {"it is closed", {'a', verb::close}},
    {"it sends no more", {'a', verb::shutdown_send}},
    {"it receives no more", {'a', verb::shutdown_receive}},
    {"it is shut down", {'a', verb::shutdown_both}},
    {"it is reset", {'a', verb::die}},
    {"the peer resets it", {'b', verb::die}},
    {"the peer closes", {'b', verb::close}},
    {"the peer sends no more", {'b', verb::shutdown_send}},
};

/// The result of a's pending operation; then, for one side, its notice of the end, and each kind of
/// call.
steps all_of(const point& where, const step& by, char who) {
  steps result = where.what;
  const auto add = [&result](const steps& more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  add({by});
  const verb begun = where.what.empty() ? verb::move : where.what.back().what;
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
  if (by.who != who) {
    if (by.what == verb::die)
      add({{who, verb::wait_error}});
    // A read notices that the peer has left, except a read that was pending: Boost.Asio 1.81's
    // sockets report that to one read only. The number of bytes of a long write that arrived before
    // a failure differs.
    const bool leaves = by.what == verb::close || by.what == verb::shutdown_send ||
                        by.what == verb::shutdown_both ||
                        (by.what == verb::die && who == 'b' && writes);
    if (leaves && !(who == 'a' && begun == verb::begin_read))
      add({{who, verb::drain}});
  }
  if (who == 'b')
    add({{who, verb::non_blocking}}); // there may be nothing to read
  add({{who, verb::is_open}});
  if (who == 'a' || !writes) // the number of arrived bytes differs
    add({{who, verb::available}});
  add({{who, verb::non_blocking},
       {who, verb::sync_read, 3},
       {who, verb::sync_read, 50},
       {who, verb::sync_read, 50}});
  if (who == 'b' || !writes) // there may be room or not
    add({{who, verb::sync_write, 5}});
  add({{who, verb::remote},
       {who, verb::shutdown_send},
       {who, verb::cancel},
       {who, verb::close},
       {who, verb::is_open},
       {who, verb::sync_read, 1},
       {who, verb::sync_write, 1}});
  return result;
}

/// A difference from TCP that stream.hpp documents, and the ends by the peer after which it occurs.
struct difference {
  verb what;
  std::string of_tcp, of_stream;
  std::vector<verb> after;
  bool unread = false; ///< Only if the peer has unread bytes.
};
const char* const not_connected = "0 Transport endpoint is not connected";
const char* const reset = "0 Connection reset by peer";
const std::vector<difference> differences = {
    // An error of the connection is kept.
    {verb::sync_read, "0 eof", reset, {verb::die}},
    {verb::sync_write, "0 Broken pipe", reset, {verb::die}},
    // The endpoints are known afterwards, too.
    {verb::remote, not_connected, "0 ok", {verb::die, verb::close}},
    // A write notices the peer's close at once.
    {verb::sync_write, "5 ok", "0 Broken pipe", {verb::close}},
    // A shutdown after the peer's close succeeds.
    {verb::shutdown_send, not_connected, "0 ok", {verb::close}},
    // A peer that closes with unread bytes sends no reset.
    {verb::drain, reset, "0 eof", {verb::close}, true},
    // Nor does a peer that has shut down both ways: the write has reset the TCP connection.
    {verb::remote, not_connected, "0 ok the peer's", {verb::shutdown_both}},
    {verb::shutdown_send, not_connected, "0 ok", {verb::shutdown_both}},
};

} // namespace

TEST_CASE("every end at every point is reported as TCP reports it, to either side") {
  std::vector<bool> met(differences.size());
  for (const point& where : points)
    for (const auto& [name, by] : ends)
      for (const char who : {'a', 'b'}) {
        const script s{std::string(where.name) + "; then " + name, all_of(where, by, who)};
        const auto wanted = player<tcp_world>().play(s);
        const auto got = player<stream_world>().play(s);
        REQUIRE(got.size() == wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          const step& now = s.steps[i];
          CAPTURE(s.name, i, now.who, int(now.what));
          CHECK(wanted[i] != "never");
          const auto excuses = [&, &by = by](const difference& d) {
            return d.what == now.what && d.of_tcp == wanted[i] && d.of_stream == got[i] &&
                   by.who != now.who && std::count(d.after.begin(), d.after.end(), by.what) != 0 &&
                   (!d.unread || where.unread == by.who);
          };
          const auto d = std::find_if(differences.begin(), differences.end(), excuses);
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

} // namespace test::stream_points_tests
