// SPDX-License-Identifier: BSL-1.0
//
// Checks after a failed attempt to connect.
#pragma once

#include "catch.hpp"
#include "device/connecting/cm_support.hpp"

namespace test {

enum class peer { reached, not_reached };

// Checks that the queue pair of a failed attempt can be used for another one. On iWARP it cannot if
// the peer had been reached.
inline void check_next_attempt(meeting& m, peer p = peer::not_reached) {
  if (p == peer::reached && m.dev.type() == transport::iwarp) {
    CHECK(m.a.state() == queue_pair_state::failed);
    m.a.close();
    m.a.open(m.pd);
  }
  CHECK(m.a.state() == queue_pair_state::open);
  m.accepted = m.connected = {};
  m.meet();
  CHECK(m.carries("the second attempt"));
}

} // namespace test
