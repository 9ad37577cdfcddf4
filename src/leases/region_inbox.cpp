// SPDX-License-Identifier: BSL-1.0
#include "leases/region_inbox.hpp"

#include <cassert>
#include <utility>

namespace asio_rdma::detail {

void region_inbox::receive(region_receive& op) {
  assert(!op.waiting_);
  ask_again();
  op.ec = {};
  op.waiting_ = true;
  waiting_.push_back(op);
}

bool region_inbox::cancel(region_receive& op) {
  ask_again();
  if (!std::exchange(op.waiting_, false))
    return false;
  waiting_.erase(frame_operation_list::s_iterator_to(op));
  return true;
}

region_receive* region_inbox::next() {
  if (waiting_.empty()) {
    idle();
    return nullptr;
  }
  auto& op = static_cast<region_receive&>(waiting_.front());
  if (!put_back_.empty()) {
    op.returned = false;
    op.id = put_back_.front().id;
    op.tag = put_back_.front().tag;
    put_back_.pop_front();
  } else if (!paused_ && !arrived_.empty() && arrived_.front().ready) {
    op.returned = arrived_.front().returned;
    op.id = arrived_.front().id;
    op.tag = arrived_.front().tag;
    link_.release(arrived_.front().slot);
    arrived_.pop_front();
  } else if (arrived_.empty() && why_) {
    op.ec = why_;
  } else {
    idle();
    return nullptr;
  }
  waiting_.pop_front();
  op.waiting_ = false;
  return &op;
}

void region_inbox::push(std::uint32_t slot, bool returned, std::uint32_t id, std::uint64_t tag,
                        bool is_ready) {
  assert(!arrived_.full()); // each has a receive
  ask_again();
  arrived_.push_back({slot, returned, id, tag, is_ready});
}

void region_inbox::ready(std::uint32_t id) {
  ask_again();
  for (arrival& a : arrived_)
    if (a.returned && a.id == id)
      a.ready = true;
}

void region_inbox::on_closing() {
  why_ = asio::error::operation_aborted;
  dropping_ = true;
  for (const arrival& a : arrived_)
    link_.release(a.slot);
  arrived_.clear();
  put_back_.clear();
}

bool region_inbox::on_goodbye() {
  if (!why_)
    why_ = asio::error::eof;
  return true;
}

void region_inbox::on_stopped(const error_code& ec) {
  if (!why_)
    why_ = ec;
}

} // namespace asio_rdma::detail
