// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/alock_view.hpp>

#include <asio_rdma/detail/global_memory_impl.hpp>

#include "alock_local.hpp"
#include "alock_remote.hpp"

namespace asio_rdma::detail {

alock_view::alock_view(global_memory_impl& memory)
    : service_(memory.service()),
      node_(memory.node()),
      remotes_(std::make_shared<alock_remotes>(memory)) {}

alock_view::~alock_view() = default;

bool alock_view::start(alock_operation& op) {
  op.service = &service_;
  op.view = this;
  return op.at.node() == node_->id() ? node_->local_parties().start(op, node_)
                                     : remotes_->start(op);
}

bool alock_view::start_unlock(alock_operation& op, alock_party* held) {
  op.ec = asio::error::invalid_argument;
  if (held == nullptr)
    return false;
  op.service = &service_;
  op.view = this;
  service_.operation_starting();
  held->unlock(&op);
  return true;
}

void alock_view::cancel(std::uint64_t id, asio::cancellation_type_t) {
  node_->local_parties().cancel(*this, id);
  remotes_->cancel(id);
}

void alock_view::on_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor) {
  remotes_->on_next(way, segment, descriptor);
}

void alock_view::close() {
  node_->local_parties().cancel(*this, 0);
  remotes_->close();
}

} // namespace asio_rdma::detail
