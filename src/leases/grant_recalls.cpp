// SPDX-License-Identifier: BSL-1.0
// Grants that the owner recalls: the peer may finish its accesses within a grace.
#include "leases/grant_table.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {

void grant_table::recall(recall_request& op, std::chrono::microseconds grace,
                         protocol_clock::time_point now) {
  assert(!op.waiting_);
  ask_again();
  std::erase_if(op.grants, [this](std::uint32_t id) { return find(id) == nullptr; });
  op.count = op.grants.size();
  op.unconfirmed = 0;
  op.waiting_ = true;
  recalls_.push_back(op);
  if (op.grants.empty())
    return finish(op);
  for (const std::uint32_t id : op.grants)
    recall(*find(id), grace, now);
}

void grant_table::recall(grant& g, std::chrono::microseconds grace,
                         protocol_clock::time_point now) {
  if (g.where == state::making) {
    g.revoked = true; // the peer never gets the grant
    g.confirmed = true;
  } else if (g.where == state::live && !g.told) {
    g.confirmed = true;
    begin_end(g);
  } else if (g.where == state::live && grace <= grace.zero()) {
    revoke(id_of(g));
  } else if (g.where == state::live) {
    // After this side's goodbye there is no recall, but the peer's goodbye will end the grant.
    if (!g.recalled)
      notify(g);
    g.recalled = true;
    if (grace != no_lease)
      g.until = std::min(g.until, now + std::min(grace, longest_lease));
  }
}

bool grant_table::cancel(recall_request& op) {
  ask_again();
  if (!op.waiting_)
    return false;
  op.waiting_ = false;
  recalls_.erase(frame_operation_list::s_iterator_to(op));
  return true;
}

// A grant is removed: recalls need not wait for it any more.
void grant_table::settle_recalls(std::uint32_t id, bool confirmed, const error_code& ec) {
  for (auto i = recalls_.begin(); i != recalls_.end();) {
    auto& op = static_cast<recall_request&>(*i++);
    if (std::erase(op.grants, id) == 0)
      continue;
    op.unconfirmed += confirmed ? 0u : 1u;
    if (ec)
      op.ec = ec;
    if (op.grants.empty())
      finish(op);
  }
}

void grant_table::finish(recall_request& op) {
  ask_again();
  op.waiting_ = false;
  recalls_.erase(frame_operation_list::s_iterator_to(op));
  done_recalls_.push_back(op);
}

} // namespace asio_rdma::detail
