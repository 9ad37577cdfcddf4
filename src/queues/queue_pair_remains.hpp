// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "memory/memory_pool_impl.hpp"
#include "queues/queue_pair_impl.hpp"
#include "queues/shared_receive_queue_impl.hpp"
#include "verbs/withheld.hpp"

#include <cassert>
#include <cstddef>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// Adds the blocks, of any pool, that are in use by posted operations of the queue.
template <class Operation>
void find_posted_blocks(const work_queue& queue, kept_blocks& to) noexcept {
  queue.each_posted([&](const operation& op) {
    const auto& wr = static_cast<const Operation&>(op).wr;
    memory_pool_impl::find_blocks({wr.sg_list, static_cast<std::size_t>(wr.num_sge)}, to);
  });
}

/// A queue pair that the device has refused to destroy, with all that it uses. Allocated when the
/// queue pair opens, as its end may find no memory.
class queue_pair_impl::refused final : public withheld {
public:
  void keep(std::shared_ptr<queue_pair_impl> self, ibv_qp* qp) noexcept {
    self_ = std::move(self);
    qp_ = qp;
    abandoned_.number = self_->number_;
    self_->cq_->abandon(abandoned_);
  }

  bool release() noexcept override {
    if (!self_->windows_->free_all() ||
        end_use(self_->cq_->get_device(), &ibv_destroy_qp, qp_) != 0)
      return false;
    const auto& cq = self_->cq_;
    cq->drain();
    cq->forget(abandoned_);
    cq->unreserve(self_->reserved_);
    return true;
  }

  kept_blocks memory;

private:
  std::shared_ptr<queue_pair_impl> self_;
  ibv_qp* qp_ = nullptr;
  abandoned_queue_pair abandoned_;
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
    assert(qp_ == nullptr && qp != nullptr);
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

/// A shared receive queue that the device has refused to destroy. Allocated when the queue opens,
/// as its end may find no memory.
class shared_receive_queue_impl::refused final : public withheld {
public:
  void keep(std::shared_ptr<shared_receive_queue_impl> self, ibv_srq* srq) noexcept {
    self_ = std::move(self);
    srq_ = srq;
  }

  bool release() noexcept override {
    if (end_use(self_->cq_->get_device(), &ibv_destroy_srq, srq_) != 0)
      return false;
    self_->cq_->unreserve(self_->options_.depth);
    const std::lock_guard lock(self_->mutex_);
    self_->kept_memory_.clear();
    return true;
  }

private:
  std::shared_ptr<shared_receive_queue_impl> self_;
  ibv_srq* srq_ = nullptr;
};

} // namespace asio_rdma::detail
