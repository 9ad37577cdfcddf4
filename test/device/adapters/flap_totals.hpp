// SPDX-License-Identifier: BSL-1.0
// The sums of the flows of connections and streams that were interrupted, and the check of those
// that have ended.
#pragma once

#include "device/adapters/numbered_links.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <type_traits>

namespace test::numbered {

struct totals {
  int talks = 0, streams = 0; ///< That have ended.
  std::array<flow, 6> flows{};

  template <class Link>
  void add(const Link& l) {
    std::size_t to = std::is_same_v<Link, talk_link> ? 0 : 4;
    for (const flow& f : l.flows()) {
      flow& sum = flows[to++];
      sum.begun += f.begun;
      sum.delivered += f.delivered;
      sum.arrived += f.arrived;
    }
  }
  /// If a link has ended, waits for its end at both ends and takes it away. Returns whether it had.
  template <class Link>
  bool take_ended(site& at, std::optional<Link>& l) {
    if (!l->has_ended())
      return false;
    at.until([&] { return l->is_over(); });
    const error_code of_a = l->reason(0), of_b = l->reason(1);
    INFO(describe(of_a) << ", " << describe(of_b));
    for (const error_code& ec : {of_a, of_b})
      CHECK((ec == errc::timed_out || ec == asio::error::connection_reset));
    CHECK((of_a == errc::timed_out || of_b == errc::timed_out));
    l->check_nothing_lost();
    l->close();
    add(*l);
    l.reset();
    ++(std::is_same_v<Link, talk_link> ? talks : streams);
    return true;
  }
  void print() const {
    constexpr std::array names{"messages there",         "messages back",
                               "remote writes there",    "remote writes back",
                               "stream there (8 bytes)", "stream back (8 bytes)"};
    for (std::size_t i = 0; i != flows.size(); ++i) {
      std::printf("  %s: %" PRIu64 " begun, ", names[i], flows[i].begun);
      if (flows[i].delivered != 0) // a remote write is read back
        std::printf("%" PRIu64 " reported as delivered, ", flows[i].delivered);
      std::printf("%" PRIu64 " arrived\n", flows[i].arrived);
    }
  }
};

} // namespace test::numbered
