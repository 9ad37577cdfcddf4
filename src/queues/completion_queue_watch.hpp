// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/descriptor_watch.hpp"
#include "queues/completion_queue_impl.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The queue's operations in the context, and the watch of its channel.
struct completion_queue_impl::watch {
  /// A turn of the runner. Several lie in the context's queue one behind the other, so that the
  /// context looks at its reactor once for all of them.
  struct runner final : scheduled_operation {
    runner() noexcept : scheduled_operation(&runner::execute) {}

    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t) {
      auto& turn = *static_cast<runner*>(base);
      auto queue = std::move(turn.queue);
      const std::uint64_t of_group = turn.of_group;
      const bool last = queue->turns_queued_.fetch_sub(1) == 1;
      if (owner == nullptr)
        return;
      completion_queue_impl& q = *queue;
      const std::size_t n = q.left_to_runner_.load() != 0 ? q.left_to_runner_.exchange(0) : 0;
      const done_at_end left{n != 0 ? queue : nullptr, n};
      if (!last && q.found_nothing_.load(std::memory_order_relaxed))
        return; // the last turn looks again
      // A blocked thread may have taken the role and given it up again.
      if (q.become_active(state::queued, queue) || q.become_active(state::armed, queue))
        q.run(of_group);
    }

    std::shared_ptr<completion_queue_impl> queue; // while it is queued
    std::uint64_t of_group = 0;                   // 0 for a turn alone
  };

  /// Counts operations, if any, as done when their handlers have returned or thrown.
  struct done_at_end {
    std::shared_ptr<completion_queue_impl> queue; // null if there are none
    std::size_t n;

    ~done_at_end() {
      if (n != 0)
        queue->operations_done(n);
    }
  };

  /// A reusable operation of the context that calls the handler of one completed operation.
  struct handed_out final : scheduled_operation {
    handed_out() noexcept : scheduled_operation(&handed_out::execute) {}

    static void execute(void* owner, scheduled_operation* base, const error_code&, std::size_t) {
      auto& self = *static_cast<handed_out*>(base);
      auto queue = std::move(self.queue);
      operation* const op = self.op.load(std::memory_order_acquire);
      if (op == nullptr) // the context has shut down
        return;
      // From here on the runner may reuse the place.
      self.op.store(nullptr, std::memory_order_release);
      const done_at_end done{std::move(queue), owner != nullptr ? 1u : 0u};
      op->dispose(owner != nullptr ? disposal::complete_here : disposal::destroy);
    }

    std::atomic<operation*> op{nullptr};
    std::shared_ptr<completion_queue_impl> queue;
  };

  /// Lies in the context's queue from the start of work in a stopped context until the context runs
  /// again, or is destroyed.
  struct late_start final : scheduled_operation {
    late_start() noexcept : scheduled_operation(&late_start::execute) {}

    static void execute(void*, scheduled_operation* base, const error_code&, std::size_t) {
      auto& self = *static_cast<late_start*>(base);
      const auto queue = std::move(self.queue);
      self.queued.store(false);
    }

    std::atomic<bool> queued{false};
    std::shared_ptr<completion_queue_impl> queue;
  };

  explicit watch(completion_queue_impl& q)
      : context_scheduler(asio::use_service<scheduler>(q.context_)),
        places(has_one_thread(context_scheduler) ? 0 : poll_batch),
        runners(std::max<std::size_t>(places.size(), 1)),
        channel(q) {}

  scheduler& context_scheduler;
  late_start late;
  std::vector<handed_out> places; // none if only one thread may run the context
  std::vector<runner> runners;
  static void on_ready(completion_queue_impl& q) { q.run(); }
  descriptor_watch<completion_queue_impl, &completion_queue_impl::on_readable, &watch::on_ready>
      channel;
};

/// Operations that are handed out, and turns of the runner behind them.
struct completion_queue_impl::group {
  asio::detail::op_queue<scheduled_operation> queued;
  std::size_t handed_out = 0; // of `queued`
};

} // namespace asio_rdma::detail
