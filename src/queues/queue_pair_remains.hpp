// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "memory/memory_pool_impl.hpp"
#include "verbs/withheld.hpp"

#include <asio_rdma/detail/queues/queue_pair_impl.hpp>
#include <asio_rdma/detail/queues/shared_receive_queue_impl.hpp>

#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// A queue pair that the device has refused to destroy, with all that it uses. Allocated when the
/// queue pair opens, as its end may find no memory.
class queue_pair_impl::refused final : public withheld {
public:
  void keep(std::shared_ptr<queue_pair_impl> self, ibv_qp* qp) noexcept {
    self_ = std::move(self);
    qp_ = qp;
  }

  bool release() noexcept override {
    if (!self_->windows_->free_all() || ibv_destroy_qp(qp_) != 0)
      return false;
    const auto& cq = self_->cq_;
    cq->drain();
    cq->forget(self_->number_);
    cq->unreserve(self_->reserved_);
    return true;
  }

  kept_blocks memory;

private:
  std::shared_ptr<queue_pair_impl> self_;
  ibv_qp* qp_ = nullptr;
};

/// The verbs object of a queue pair whose destruction would wait for the peer, with the objects
/// that it was made of. Allocated when the queue pair opens, likewise.
class queue_pair_impl::lingering {
public:
  explicit lingering(const queue_pair_impl& of) : cq_(of.cq_), srq_(of.srq_), pd_(of.pd_) {}
  lingering(const lingering&) = delete;
  ~lingering() {
    if (qp_ == nullptr)
      return;
    ibv_destroy_qp(qp_);
    if (srq_)
      srq_->lingered();
  }

  void keep(ibv_qp* qp) noexcept {
    qp_ = qp;
    if (srq_)
      srq_->linger();
  }

private:
  ibv_qp* qp_ = nullptr;
  std::shared_ptr<completion_queue_impl> cq_;
  std::shared_ptr<shared_receive_queue_impl> srq_;
  protection_domain pd_;
};

} // namespace asio_rdma::detail
