// SPDX-License-Identifier: BSL-1.0
//
// The words of a lock in memory, and a driver that carries out accesses to them.
#pragma once

#include "locks/alock_protocol.hpp"

#include <map>

namespace alock_test {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using kind = alock_action::kind;
using access_kind = alock_access::kind;

constexpr alock_cohort local = alock_cohort::local, remote = alock_cohort::remote;

/// The words of one lock, from the view of one cohort.
struct words {
  std::uint64_t own = alock_free, other = alock_free, victim = 0;
  std::map<std::uint64_t, std::uint64_t> next, turn;

  std::uint64_t& at(const alock_access& a) {
    switch (a.word) {
    case alock_word::own_tail:
      return own;
    case alock_word::other_tail:
      return other;
    case alock_word::victim:
      return victim;
    case alock_word::next:
      return next[a.descriptor];
    case alock_word::turn:
      break;
    }
    return turn[a.descriptor];
  }
  void carry_out(alock_access& a) {
    std::uint64_t& word = at(a);
    a.seen = word;
    if (a.what == access_kind::write ||
        (a.what == access_kind::compare_exchange && word == a.expected))
      word = a.value;
  }
};

/// Carries out the protocol's accesses until its next action is another one. Counts the chains.
struct driver {
  words& memory;
  alock_protocol& p;
  int chains = 0;

  alock_action run() {
    for (;;) {
      const alock_action a = p.next();
      if (a.what != kind::access)
        return a;
      ++chains;
      for (alock_access& one : a.chain)
        memory.carry_out(one);
      p.on_done({});
    }
  }
  alock_action look() {
    p.look();
    return run();
  }
};

} // namespace alock_test
