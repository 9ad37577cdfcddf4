// SPDX-License-Identifier: BSL-1.0
#include "connecting/pending_handshakes.hpp"

#include "catch.hpp"

#include <boost/asio/ip/address.hpp>

#include <memory>
#include <vector>

namespace test::pending_handshakes_tests {
namespace {

using asio_rdma::detail::cm_connection;
using asio_rdma::detail::pending_handshakes;
using std::chrono::milliseconds;

const auto one = boost::asio::ip::make_address("10.0.0.1");
const auto other = boost::asio::ip::make_address("10.0.0.2");

/// Handshakes with a timeout of 10 s, of connections that are names only. They may be ended 100 ms
/// after their beginning.
struct scene {
  std::shared_ptr<cm_connection> begin(const boost::asio::ip::address& from, int at) {
    const auto name = std::make_shared<char>();
    const std::shared_ptr<cm_connection> which(name, reinterpret_cast<cm_connection*>(name.get()));
    all.begin(which, from, milliseconds(10000), start + milliseconds(at));
    return which;
  }
  void confirm(const std::shared_ptr<cm_connection>& which, int at) {
    all.confirm(*which, start + milliseconds(at));
  }
  pending_handshakes::overdue take(int at, std::size_t waiting) {
    return all.take_overdue(start + milliseconds(at), waiting, milliseconds(100));
  }
  int milliseconds_to(pending_handshakes::clock::time_point t) const {
    return static_cast<int>(std::chrono::duration_cast<milliseconds>(t - start).count());
  }

  const pending_handshakes::clock::time_point start = pending_handshakes::clock::now();
  pending_handshakes all;
};

} // namespace

TEST_CASE("the time of a silent handshake is shared among those that compete") {
  scene s;
  const auto a = s.begin(one, 0);
  CHECK(s.milliseconds_to(s.take(0, 1).next) == 5000);
  CHECK(s.milliseconds_to(s.take(0, 9).next) == 1000);
  CHECK(s.milliseconds_to(s.take(0, 999).next) == 100);
  CHECK(s.take(99, 999).which == nullptr);
  CHECK(s.take(100, 999).which == a);
  CHECK(s.all.count() == 0);
  CHECK(s.take(100, 999).next == pending_handshakes::clock::time_point::max());
}

TEST_CASE("the oldest handshake gives way, of the source with the most") {
  scene s;
  const auto first = s.begin(other, 0);
  const auto second = s.begin(one, 1), third = s.begin(one, 2);
  CHECK(s.all.by_source().count(one) == 2);
  CHECK(s.all.by_source().count(other) == 1);
  CHECK(s.all.by_source().count(boost::asio::ip::make_address("198.51.100.7")) == 0);
  CHECK(s.take(1000, 999).which == second);
  CHECK(s.take(1000, 999).which == first);
  CHECK(s.take(1000, 999).which == third);
}

TEST_CASE("a handshake that has ended gives way to none") {
  scene s;
  const auto a = s.begin(one, 0);
  s.all.end(*a);
  CHECK(s.all.count() == 0);
  CHECK(s.take(1000, 999).which == nullptr);
}

TEST_CASE("while other connectors confirm, none is silent") {
  scene s;
  const auto a = s.begin(one, 0), b = s.begin(other, 1);
  s.confirm(b, 90);
  CHECK(s.take(150, 999).which == nullptr);
  CHECK(s.milliseconds_to(s.take(150, 999).next) == 190);
  CHECK(s.take(190, 999).which == a);
}

TEST_CASE("a handshake is silent if a generation of later ones has confirmed") {
  scene s;
  const auto silent = s.begin(one, 0);
  for (int i = 1; i < 64; ++i)
    s.confirm(s.begin(other, i), i);
  CHECK(s.take(110, 999).which == nullptr);
  s.confirm(s.begin(other, 109), 109);
  CHECK(s.take(110, 999).which == silent);
}

TEST_CASE("the time in which this side is busy is not the connector's") {
  scene s;
  const auto a = s.begin(one, 0);
  s.all.allow(milliseconds(1000));
  CHECK(s.take(1099, 999).which == nullptr);
  CHECK(s.take(1100, 999).which == a);
}

TEST_CASE("a request gives way to one of a source that has fewer") {
  const auto third = boost::asio::ip::make_address("10.0.0.3");
  const auto busiest = &pending_handshakes::busiest_source;
  CHECK(busiest({one, one}, other) == one);
  CHECK(busiest({one, other, one}, third) == one);
  CHECK(busiest({one, other, third, other, other}, one) == other);
  CHECK_FALSE(busiest({one, other, third, other, other}, other)); // has the most
  CHECK_FALSE(busiest({one, other, third, other}, one));          // which would have as many
  CHECK_FALSE(busiest({one, other}, third));
  CHECK_FALSE(busiest({}, one));
  const auto a = boost::asio::ip::make_address("2001:db8:0:1::7"),
             b = boost::asio::ip::make_address("2001:db8:0:1::8");
  CHECK(busiest({a, b, one}, other) == pending_handshakes::source_of(a));
  CHECK_FALSE(busiest({a, one}, b));
}

TEST_CASE("the addresses of one IPv6 network are one source") {
  const auto source = [](const char* text) {
    return pending_handshakes::source_of(boost::asio::ip::make_address(text));
  };
  CHECK(source("2001:db8:0:1::7") == source("2001:db8:0:1:ffff::9"));
  CHECK(source("2001:db8:0:1::7") != source("2001:db8:0:2::7"));
  CHECK(source("10.0.0.1") != source("10.0.0.2"));
}

} // namespace test::pending_handshakes_tests
