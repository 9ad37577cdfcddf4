// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/link/link_fault_scene.hpp"
#include "device/streams/stream_support.hpp"

#include <span>

namespace test {

class stream_scene : public link_scene<stream_scene, stream_pair> {
public:
  static constexpr bool disconnect_has_reason = false; // `stream::wait_error` has no error

  explicit stream_scene(const kind_type& kind);

  static std::span<const kind_type> kinds();
  /// Whether bytes arrive in both directions.
  bool works();
  void drop() { long_out = long_in = {}; }
  /// Memory that is sent without a copy.
  const registered_buffer& in_place(unsigned i) const { return big[i]; }

  std::array<registered_buffer, most> long_out, long_in; ///< Read by READs of the device.

private:
  void exchange(stream& from, stream& to, const registered_buffer& bytes);
  /// Writes until there is no room.
  void fill();
};

} // namespace test
