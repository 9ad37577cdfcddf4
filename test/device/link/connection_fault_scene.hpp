// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/connection/connection_support.hpp"
#include "device/link/link_fault_scene.hpp"

#include <span>

namespace test {

/// Two connections, each with access to memory of the other.
class connection_scene : public link_scene<connection_scene, talk> {
public:
  static constexpr bool disconnect_has_reason = true;

  explicit connection_scene(const kind_type& kind);

  static std::span<const kind_type> kinds();
  /// Whether messages arrive from a at b.
  bool works();
  void drop();
  /// Memory that is sent without a copy.
  const registered_buffer& in_place(unsigned i) const { return mine[i]; }

private:
  std::array<remote_region, most> there_; // memory of b
  remote_region of_a_;                    // memory of a, for b
};

} // namespace test
