// SPDX-License-Identifier: BSL-1.0
#include "connecting/pending_handshakes.hpp"

#include "catch.hpp"

#include <boost/asio/ip/address.hpp>

namespace test::ending_ids_tests {
namespace {

using asio_rdma::detail::ending_ids;
using boost::asio::ip::make_address;

const auto one = make_address("10.0.0.1"), other = make_address("10.0.0.2");

void begin(ending_ids& ids, const boost::asio::ip::address& from, std::size_t n) {
  for (; n != 0; --n)
    REQUIRE(ids.begin(from));
}

void end(ending_ids& ids, const boost::asio::ip::address& from, std::size_t n) {
  for (; n != 0; --n)
    ids.end(from);
}

} // namespace

TEST_CASE("a source is crowded while many of its ids wait to be destroyed") {
  constexpr std::size_t most = ending_ids::most_ends_of_source;
  ending_ids ids;
  begin(ids, one, most - 1);
  begin(ids, other, 1);
  CHECK(ids.crowded().empty());
  begin(ids, one, 2);
  CHECK(ids.crowded().have(one));
  CHECK_FALSE(ids.crowded().have(other));
  end(ids, one, 1);
  CHECK(ids.crowded().have(one));
  end(ids, one, 1);
  CHECK(ids.crowded().empty());
  end(ids, one, most - 1);
  begin(ids, one, most);
  CHECK(ids.crowded().have(one));
}

TEST_CASE("the ids of one IPv6 network are those of one source") {
  ending_ids ids;
  const auto a = make_address("2001:db8:0:1::7"), b = make_address("2001:db8:0:1::8"),
             c = make_address("2001:db8:0:2::7");
  begin(ids, a, ending_ids::most_ends_of_source - 1);
  begin(ids, b, 1);
  CHECK(ids.crowded().have(a));
  CHECK(ids.crowded().have(b));
  CHECK_FALSE(ids.crowded().have(c));
  CHECK(ending_ids::number_of(a) == ending_ids::number_of(b));
  CHECK(ending_ids::number_of(a) != ending_ids::number_of(c));
  CHECK(ending_ids::number_of(one) != ending_ids::number_of(other));
}

TEST_CASE("ids pile up if several sources have many") {
  constexpr std::size_t most = ending_ids::most_ends_of_source;
  ending_ids ids;
  begin(ids, one, 2 * ending_ids::most_ends);
  CHECK_FALSE(ids.pile_up());
  for (const char* const source : {"10.0.0.2", "10.0.0.3"})
    begin(ids, make_address(source), most);
  begin(ids, make_address("10.0.0.4"), most - 1);
  CHECK_FALSE(ids.pile_up());
  begin(ids, make_address("10.0.0.5"), 1);
  CHECK(ids.pile_up());
  end(ids, one, 2 * ending_ids::most_ends - most);
  CHECK(ids.pile_up());
  end(ids, one, 1);
  CHECK_FALSE(ids.pile_up());
}

} // namespace test::ending_ids_tests
