// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/queues/shared_receive_queue_face.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/shared_receive_queue.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "queues/completion_service.hpp"
#include "queues/receive_queue.hpp"
#include "verbs/kept_blocks.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

class queue_pair_impl;

/// The logic of `basic_shared_receive_queue`.
class shared_receive_queue_impl final : public context_member {
public:
  shared_receive_queue_impl(asio::execution_context& context, const protection_domain& pd,
                            const shared_receive_queue_options& options);
  ~shared_receive_queue_impl();

  error_code open(std::shared_ptr<completion_queue_impl> queue);
  error_code adopt(std::shared_ptr<completion_queue_impl> queue, ibv_srq* srq);
  /// Takes effect when the last attached queue pair has been destroyed: it may be using a receive.
  void close();
  /// Announces a queue pair that will use the queue. It calls `detach` when it has been destroyed
  /// or could not be made. Until then it fails if one of its receives fails. If the queue pair is
  /// yet to be made, `attach` may replace the verbs object, to restore receives that were lost.
  error_code attach(queue_pair_impl& qp, bool yet_to_be_made);
  /// Whether an attached queue pair is to be notified of its first receive.
  void await_first(queue_pair_impl& qp, bool first) noexcept;
  /// `confirmed`: the device has reported that the queue pair uses no receive any more.
  void detach(queue_pair_impl& qp, bool destroyed = true, bool confirmed = true);
  /// The number of queue pairs that were detached without that report, and whose receives may be
  /// lost.
  std::uint32_t unconfirmed() const noexcept { return unconfirmed_; }
  /// Whether the posted receives end with the last attached queue pair.
  bool is_ending() const;
  /// `linger`: a detached queue pair that uses no receive is destroyed later. The verbs object
  /// exists until `lingered`.
  void linger();
  void lingered();
  void cancel();
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  bool start(receive_operation& op) { return detail::start(*this, op); }
  /// Arms the limit. `op` completes when fewer receives than `limit` are posted.
  bool start_wait_limit(operation& op, std::uint32_t limit);

  std::uint64_t next_id() noexcept { return ids_.fetch_add(1, std::memory_order_relaxed) + 1; }
  asio::execution_context& context() const noexcept { return service_.context(); }
  const std::shared_ptr<completion_queue_impl>& completion_queue() const noexcept { return cq_; }
  ibv_srq* native_handle() const noexcept {
    const std::lock_guard lock(mutex_);
    return srq_;
  }
  const shared_receive_queue_options& options() const noexcept { return options_; }
  bool is_open() const;

  void on_context_shutdown() override { close(); }
  void on_device_event(const ibv_async_event& event) noexcept override;
  const device& member_device() const noexcept override { return pd_.get_device(); }

private:
  // The path of each receive: as a friend it costs one call, not two.
  friend bool detail::start(shared_receive_queue_impl& impl, receive_operation& op);

  class refused;
  class shared_work_queue final : public work_queue {
  public:
    explicit shared_work_queue(shared_receive_queue_impl& srq) noexcept
        : work_queue(srq.mutex_, srq.options_.depth), srq_(srq) {}
    void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) override;

  private:
    int post(operation_list::iterator first, operation_list::iterator last, operation*& failed,
             operation_list& ended) override;

    shared_receive_queue_impl& srq_;
  };

  error_code use(std::shared_ptr<completion_queue_impl> queue);
  ibv_srq* make() noexcept;
  void renew() noexcept;
  void destroy() noexcept;
  bool destroy(ibv_srq* srq) noexcept;
  void fail(const error_code& why, const ibv_srq* only = nullptr);
  void fail_waiters(const error_code& ec);
  queue_pair_impl* awaiting(std::uint32_t number) noexcept;
  void end_receives() noexcept;

  completion_service& service_;
  protection_domain pd_;
  shared_receive_queue_options options_;
  std::shared_ptr<completion_queue_impl> cq_;
  std::atomic<std::uint64_t> ids_{0};

  std::mutex renewal_; // held while the verbs object may be replaced
  mutable biased_mutex mutex_;
  ibv_srq* srq_ = nullptr;
  std::unique_ptr<refused> refused_;
  shared_work_queue receive_;
  operation_list waiters_;
  std::vector<queue_pair_impl*> attached_;
  std::atomic<std::size_t> awaiting_count_{0};
  mutex awaiting_mutex_;                   // locked last
  std::vector<queue_pair_impl*> awaiting_; // by number; has room for all that are attached
  bool kept_ = false;                      // a queue pair could not be destroyed
  bool adopted_ = false;                   // the verbs object is never replaced
  std::atomic<std::uint32_t> unconfirmed_{0};
  std::uint32_t limit_ = 0;           // of those in `waiters_`
  kept_blocks kept_memory_;           // of receives that have ended, but that the device still has
  std::uint32_t lingering_ = 0;       // the number of lingering queue pairs
  ibv_srq* destroyed_late_ = nullptr; // to be destroyed by the last lingering queue pair
  bool closing_ = false;
  error_code reason_; // why the queue has failed
};

} // namespace asio_rdma::detail
