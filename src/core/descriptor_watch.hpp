// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/asio/io_context.hpp>
// After io_context.hpp, because these headers do not include what they use.
#include <boost/asio/detail/concurrency_hint.hpp>
#include <boost/asio/detail/reactor.hpp>
#include <boost/asio/detail/reactor_op.hpp>
#include <boost/asio/detail/scheduler.hpp>
#if __has_include(<boost/asio/config.hpp>)
#include <boost/asio/config.hpp>
#endif

#include <cassert>
#include <type_traits>

#if !defined(BOOST_ASIO_HAS_EPOLL)
#error "asio_rdma needs Asio's epoll reactor (not BOOST_ASIO_HAS_IO_URING_AS_DEFAULT)"
#endif

// Adapts private parts of Asio, as Asio's signal sets do. Its public interface cannot wait for a
// descriptor without keeping `run()` from returning. Nor can it wait again without a system call
// (`posix::descriptor::async_wait` costs an `epoll_ctl` each time).

namespace asio_rdma::detail {

using scheduler = asio::detail::scheduler;
using scheduled_operation = asio::detail::scheduler_operation;

// Since Boost 1.87, a context keeps settings instead of its concurrency hint.
#if __has_include(<boost/asio/config.hpp>)
/// Whether only one thread at a time may run the context, according to its concurrency hint. Same
/// conclusion as in Asio's scheduler.
inline bool has_one_thread(scheduler& s) {
  const asio::config settings(s.context());
  return settings.get("scheduler", "concurrency_hint", 0) == 1 ||
         !settings.get("scheduler", "locking", true) ||
         !settings.get("reactor", "io_locking", true);
}

inline bool has_locking_scheduler(scheduler& s) {
  return asio::config(s.context()).get("scheduler", "locking", true);
}

inline bool has_locking_reactor(scheduler& s) {
  const asio::config settings(s.context());
  return settings.get("reactor", "io_locking", true) &&
         settings.get("reactor", "registration_locking", true);
}
#else
inline bool has_one_thread(scheduler& s) {
  const int hint = s.concurrency_hint();
  return hint == 1 || !BOOST_ASIO_CONCURRENCY_HINT_IS_LOCKING(SCHEDULER, hint) ||
         !BOOST_ASIO_CONCURRENCY_HINT_IS_LOCKING(REACTOR_IO, hint);
}

inline bool has_locking_scheduler(scheduler& s) {
  return BOOST_ASIO_CONCURRENCY_HINT_IS_LOCKING(SCHEDULER, s.concurrency_hint());
}

inline bool has_locking_reactor(scheduler& s) {
  const int hint = s.concurrency_hint();
  return BOOST_ASIO_CONCURRENCY_HINT_IS_LOCKING(REACTOR_IO, hint) &&
         BOOST_ASIO_CONCURRENCY_HINT_IS_LOCKING(REACTOR_REGISTRATION, hint);
}
#endif

/// The innermost run of a context on this thread, or null. A handler may run a context itself.
inline const void* this_run_of_a_context() noexcept {
  return asio::detail::thread_context::top_of_thread_call_stack();
}

/// Whether threads that do not run the context may queue members in it.
inline bool may_be_queued_by_others([[maybe_unused]] scheduler& s) {
#if defined(BOOST_ASIO_HAS_THREADS) // else its mutexes lock nothing
  return has_locking_scheduler(s);
#else
  return false;
#endif
}

/// Whether threads that do not run the context may also stop a watch of it.
inline bool may_be_used_by_others(scheduler& s) {
  return may_be_queued_by_others(s) && has_locking_reactor(s);
}

/// Calls `on_readable` on a thread of the context each time the descriptor becomes readable, until
/// `stop`. Does not count as work. `on_readable` runs under the reactor's lock for the descriptor,
/// so it must neither stop the watch nor run handlers. If there is an `on_ready`, `on_readable`
/// returns a bool. If it returns true, `on_ready` follows at once, with no such restrictions, and
/// the watch pauses until `resume`.
template <class Owner, auto OnReadable, auto OnReady = nullptr>
class descriptor_watch {
public:
  explicit descriptor_watch(Owner& owner) noexcept : op_(owner, *this) {}
  descriptor_watch(const descriptor_watch&) = delete;
  ~descriptor_watch() { stop(); }

  /// Returns an errno value, 0 for success.
  int start(asio::execution_context& context, int descriptor) {
    assert(reactor_ == nullptr && descriptor >= 0);
    reactor_ = &asio::use_service<asio::detail::reactor>(context);
    scheduler_ = &asio::use_service<scheduler>(context);
    reactor_->init_task();
    descriptor_ = descriptor;
    const int e = reactor_->register_internal_descriptor(asio::detail::reactor::read_op, descriptor,
                                                         data_, &op_);
    if (e != 0) {
      // The operation is queued nevertheless. It must leave the reactor's record of the descriptor
      // before the record is reused. Another record may have the descriptor.
      reactor_->deregister_internal_descriptor(-1, data_);
      release();
    }
    return e;
  }

  /// Continues after `on_ready`. Events since then are reported at once by `on_readable`, which
  /// must not return true here. The context must have other work.
  void resume() {
    if (!resting_)
      return;
    assert(reactor_ != nullptr);
    resting_ = false;
    // A speculative read costs no system call. It counts as work, which the watch must not.
    reactor_->start_op(asio::detail::reactor::read_op, descriptor_, data_, &op_, false, true);
    scheduler_->work_finished();
  }

  void stop() {
    if (reactor_ == nullptr)
      return;
    reactor_->deregister_internal_descriptor(descriptor_, data_);
    release();
  }

private:
  static constexpr bool has_on_ready = !std::is_null_pointer_v<decltype(OnReady)>;

  struct op final : asio::detail::reactor_op {
    op(Owner& o, descriptor_watch& w) noexcept
        : asio::detail::reactor_op(error_code(), &op::perform, &op::complete), owner(o), watch(w) {}

    static status perform(asio::detail::reactor_op* base) {
      auto& self = *static_cast<op*>(base);
      if constexpr (!has_on_ready) {
        (self.owner.*OnReadable)();
      } else if ((self.owner.*OnReadable)()) {
        assert(!self.watch.resting_);
        self.watch.scheduler_->work_started(); // the completion counts as the end of work
        self.watch.resting_ = true;
        return done_and_exhausted;
      }
      return not_done;
    }
    // The reactor calls this without checking the context's queue again.
    static void complete([[maybe_unused]] void* context,
                         [[maybe_unused]] asio::detail::operation* base, const error_code&,
                         std::size_t) {
      if constexpr (has_on_ready)
        if (context != nullptr)
          OnReady(static_cast<op*>(base)->owner);
    }

    Owner& owner;
    descriptor_watch& watch;
  };

  void release() {
    reactor_->cleanup_descriptor_data(data_);
    reactor_ = nullptr;
  }

  op op_;
  bool resting_ = false;
  scheduler* scheduler_ = nullptr;
  asio::detail::reactor* reactor_ = nullptr;
  asio::detail::reactor::per_descriptor_data data_{};
  int descriptor_ = -1;
};

} // namespace asio_rdma::detail
