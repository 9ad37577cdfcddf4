// SPDX-License-Identifier: BSL-1.0
#include "global/global_lanes.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {

void global_lanes::publish(node_id node, std::list<global_lane>& made) noexcept {
  assert(node <= max_node && !made.empty());
  published_.splice(published_.begin(), made, made.begin());
  const global_lane* const before = of_[node].exchange(&published_.front());
  if (before == nullptr)
    return;
  const auto found = std::find_if(published_.begin(), published_.end(),
                                  [before](const global_lane& l) { return &l == before; });
  assert(found != published_.end());
  replaced_.splice(replaced_.end(), published_, found);
}

std::list<global_lane> global_lanes::take_unused() noexcept {
  std::list<global_lane> result;
  if (looks_ == 0)
    result.swap(replaced_);
  return result;
}

} // namespace asio_rdma::detail
