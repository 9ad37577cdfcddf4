// SPDX-License-Identifier: BSL-1.0

#include "link/receive_shares.hpp"
#include "catch.hpp"

#include <random>
#include <vector>

using asio_rdma::detail::receive_shares;

TEST_CASE("links may join as long as their promised receives are left") {
  receive_shares s(17, 5);
  CHECK(s.join());
  CHECK(s.join());
  CHECK(s.join());
  CHECK(!s.join());
  CHECK(s.links() == 3);
  CHECK(s.unclaimed() == 2);
  s.leave(5, 0);
  CHECK(s.join());
  CHECK(!s.join());
}

TEST_CASE("unclaimed receives may be taken, and given back") {
  receive_shares s(17, 5);
  REQUIRE(s.join());
  REQUIRE(s.join());
  REQUIRE(s.join());
  CHECK(s.take(false));
  CHECK(s.take(false));
  CHECK(!s.take(false));
  CHECK(!s.any_left());
  // A link that has taken two gives one of them back, and takes it again.
  s.give_back(false);
  CHECK(s.unclaimed() == 1);
  CHECK(s.take(false));
  // A link gives back one of its own; no other link gets it.
  s.give_back(true);
  CHECK(!s.take(false));
  CHECK(s.take(true));
}

TEST_CASE("a link that leaves gives back its receives except those that it holds") {
  receive_shares s(12, 5);
  REQUIRE(s.join());
  REQUIRE(s.take(false));
  REQUIRE(s.take(false));
  s.leave(7, 4);
  CHECK(s.links() == 0);
  CHECK(s.given() == 4);
  CHECK(s.unclaimed() == 8);
  CHECK(s.join());
  CHECK(!s.join());
  s.give_back(false);
  s.give_back(false);
  CHECK(s.join());
  s.give_back(false);
  s.give_back(false);
  CHECK(s.unclaimed() == 2);
  CHECK(s.given() == 10);
}

TEST_CASE("a link leaves with fewer than it has claimed") {
  receive_shares s(12, 5);
  REQUIRE(s.join());
  s.give_back(true);
  s.lost();
  s.leave(4, 0);
  CHECK(s.given() == 0);
  CHECK(s.unclaimed() == 12);
  CHECK(s.join());
  CHECK(s.join());
}

TEST_CASE("missing receives are given to no link") {
  receive_shares s(12, 5);
  REQUIRE(s.join());
  for (int i = 0; i < 3; ++i) {
    s.give_back(true);
    s.lost();
  }
  CHECK(s.join());
  CHECK(s.given() == 7);
  CHECK(s.take(true));
  CHECK(s.take(true));
  CHECK(!s.take(true)); // three are missing
  CHECK(!s.join());
  s.found();
  CHECK(s.take(true));
}

TEST_CASE("any actions of links give no more receives than there are, and each link has those that "
          "it claimed") {
  constexpr std::uint32_t total = 40, promise = 5;
  std::mt19937 random(1);
  receive_shares s(total, promise);
  std::vector<std::uint32_t> shares; // of each link
  std::uint32_t kept = 0, missing = 0;
  for (int n = 0; n < 200'000; ++n) {
    const auto what = static_cast<std::uint32_t>(random() % 8);
    const std::size_t i = shares.empty() ? 0 : random() % shares.size();
    if (what == 0) {
      const std::uint32_t unclaimed = s.unclaimed();
      if (s.join())
        shares.push_back(promise);
      else
        REQUIRE((unclaimed < promise || missing != 0));
    } else if (what == 1 && shares.size() > 3) {
      const auto keeps = static_cast<std::uint32_t>(random() % (shares[i] + 1));
      s.leave(shares[i], keeps);
      kept += keeps;
      shares.erase(shares.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (what == 2 && kept != 0) {
      s.give_back(false);
      --kept;
    } else if (what <= 4 && !shares.empty()) {
      const bool own = shares[i] < promise;
      if (s.take(own))
        ++shares[i];
      else
        REQUIRE((!own || missing != 0));
    } else if (what <= 6 && !shares.empty() && shares[i] != 0) {
      --shares[i];
      s.give_back(shares[i] < promise);
      if (random() % 8 == 0) {
        s.lost();
        ++missing;
      }
    } else if (what == 7 && missing != 0) {
      s.found();
      --missing;
    }
    std::uint32_t given = kept, claimed = kept;
    for (const std::uint32_t share : shares) {
      given += share;
      claimed += std::max(share, promise);
    }
    REQUIRE(s.given() == given);
    REQUIRE(s.unclaimed() == total - claimed);
    REQUIRE(s.missing() == missing);
    REQUIRE(given + missing <= total);
  }
}
