// SPDX-License-Identifier: BSL-1.0
// The common parts of pairs of objects with which tests begin.
#pragma once

#include "device/connecting/cm_support.hpp"

namespace test {

/// Connects the open objects a and b by the connection manager on the pair's device. Throws if that
/// fails.
template <class Pair>
void connect_by_manager(Pair& p) {
  p.listener.open({device_address(p.dev), 0});
  connection accepted, connected;
  p.listener.async_accept(p.b, accepted.handler());
  p.initiator.async_connect(p.a, p.listener.local_endpoint(), connected.handler());
  p.until([&] { return accepted.done() && connected.done(); });
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
}

} // namespace test
