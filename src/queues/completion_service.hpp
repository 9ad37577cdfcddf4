// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/intrusive/list.hpp>

#include "queues/completion_queue_impl.hpp"
#include "verbs/device_listeners.hpp"
#include "verbs/device_watch_service.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// An object that holds operations and must end them when the execution context shuts down. It is
/// closed before its last owner releases it.
class context_member : public notified_object,
                       public std::enable_shared_from_this<context_member>,
                       public boost::intrusive::list_base_hook<
                           boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  virtual void on_context_shutdown() = 0;
  /// Called before `on_context_shutdown`, again and again while it returns a completion queue. That
  /// queue is then driven, because the member has work to finish first.
  virtual completion_queue_impl* last_work() { return nullptr; }
  virtual void on_device_event(const ibv_async_event& event) noexcept = 0;
  virtual const device& member_device() const noexcept = 0;
  /// Of all queue pairs, the one whose events are reported to the member; null if none. Asked once,
  /// by `completion_service::add`.
  virtual const ibv_qp* member_queue_pair() const noexcept { return nullptr; }
  /// Whether the events of all queue pairs are reported to the member.
  virtual bool observes_queue_pairs() const noexcept { return false; }

protected:
  ~context_member() = default;

private:
  friend class leaving_members;    // it links the members
  friend class completion_service; // it finds the member of an event

  std::shared_ptr<context_member> next_leaving_;
  const ibv_qp* queue_pair_ = nullptr;
};

/// References to the members of a context that shuts down. Allocates nothing: a shutdown must not
/// fail. A member is in one such list at a time.
class leaving_members {
public:
  leaving_members() = default;
  leaving_members(const leaving_members&) = delete;
  ~leaving_members() {
    while (first_)
      first_ = std::exchange(first_->next_leaving_, nullptr);
  }

  void add(std::shared_ptr<context_member> member) noexcept {
    context_member* const added = member.get();
    (last_ == nullptr ? first_ : last_->next_leaving_) = std::move(member);
    last_ = added;
  }
  template <class Function>
  void for_each(Function f) const {
    for (context_member* m = first_.get(); m != nullptr; m = m->next_leaving_.get())
      f(*m);
  }

private:
  std::shared_ptr<context_member> first_;
  context_member* last_ = nullptr;
};

/// The service that the queue pairs of one execution context share: completion queues for each
/// device, and the watches for the devices' asynchronous events.
class completion_service : public asio::execution_context::service, public device_watch_service {
public:
  using key_type = completion_service;
  static asio::execution_context::id id;

  explicit completion_service(asio::execution_context& context);
  ~completion_service() override;

  static completion_service& of(asio::execution_context& context);

  /// Reserves entries of `queue`, or of a shared queue if it is null, for an object of the device.
  /// Returns null on errors: `invalid_argument` for a queue of another context,
  /// `error::wrong_device`, `error::completion_queue_full`, and those of making a shared queue.
  std::shared_ptr<completion_queue_impl> use_queue(std::shared_ptr<completion_queue_impl> queue,
                                                   const device& d, std::uint32_t entries,
                                                   error_code& ec);
  /// Those that exist, until the context has shut down.
  const std::shared_ptr<open_queues>& all_queues() const noexcept { return open_queues_; }
  /// Makes a completion queue for one owner.
  std::shared_ptr<completion_queue_impl>
  make_queue(const device& d, const completion_queue_options& options, error_code& ec);
  std::shared_ptr<completion_queue_impl> adopt_queue(const device& d,
                                                     const completion_queue_options& options,
                                                     ibv_cq* cq, ownership owns, error_code& ec);

  /// Sets the options of shared queues that are made from now on.
  void set_default_options(const completion_queue_options& options);

  /// For operations that no completion queue completes. Each counts as work of the context from
  /// `operation_starting` until it was passed to `complete` and its handler has run.
  void operation_starting() noexcept;
  void complete(operation_list& done);

  /// Registers a member for its device's events and for the shutdown, until `remove`. Returns false
  /// with the error if the context has shut down or the events cannot be watched.
  bool add(context_member& member, error_code& ec);
  void remove(context_member& member) noexcept;

  /// For the shutdown of the context: drives the completion queues until no member has work to
  /// finish. Handlers are not run. `look` is called from time to time, and when `other` (a
  /// descriptor, or -1) is readable.
  void do_last_work(int other, const std::function<void()>& look);

  /// Whether the context shuts down, and its members do their last work or have done it. No handler
  /// runs any more.
  bool is_leaving();
  /// Whether that work is done: all objects of the context end.
  bool has_stopped();

  /// The members and the completion queues that exist, for reports.
  std::vector<std::shared_ptr<context_member>> members();
  std::vector<std::shared_ptr<completion_queue_impl>> queues();

  /// Reports an event that the library has detected itself to the members of the device.
  void broadcast(const device& d, const ibv_async_event& event);

private:
  struct runner;
  struct watched {
    std::shared_ptr<device_watch> watch;
    std::size_t members = 0;
  };
  enum class adding { done, failed, again };
  class noting;

  void shutdown() override;
  void broadcast(const device_watch& from, const ibv_async_event& event,
                 notified_objects& notified) noexcept override;
  void drop_ready();
  std::shared_ptr<completion_queue_impl> shared_queue(const device& d, std::uint32_t entries,
                                                      error_code& ec);
  std::vector<watched>::iterator find_watch(const device& d) noexcept;
  adding try_add(context_member& member, error_code& ec, std::shared_ptr<device_watch>& left);
  void forget(context_member& member) noexcept;
  std::shared_ptr<device_watch> take_useless_watch(int descriptor) noexcept;
  template <class Is, class Add>
  void pin_members(Is is, Add add); // with `mutex_` locked
  void find_members(leaving_members& result) noexcept;
  std::shared_ptr<completion_queue_impl> remember(std::shared_ptr<completion_queue_impl> q,
                                                  error_code& ec);

  std::mutex mutex_;
  completion_queue_options defaults_;
  const std::shared_ptr<open_queues> open_queues_ = std::make_shared<open_queues>();
  std::vector<std::weak_ptr<completion_queue_impl>> queues_, shared_;
  std::vector<watched> watches_; // for devices of present and of former members
  by_queue_pair<context_member> queue_pairs_;
  std::vector<context_member*> observers_; // of all queue pairs
  boost::intrusive::list<context_member, boost::intrusive::constant_time_size<false>> members_;
  operation_list ready_;
  std::unique_ptr<runner> runner_;
  bool leaving_ = false, stopped_ = false;
};

/// An attempt to open or adopt a member that has a verbs object (`ibv_qp`, `ibv_srq`), beginning
/// with reserved entries of a completion queue. Unless the attempt succeeds, its destructor
/// destroys the verbs object and gives the entries back.
template <class Verbs>
class member_opening {
public:
  member_opening(Verbs*& made, int (*destroy)(Verbs*), completion_queue_impl& cq,
                 std::uint32_t entries) noexcept
      : made_(made), destroy_(destroy), cq_(cq), entries_(entries) {}
  member_opening(const member_opening&) = delete;
  ~member_opening() {
    if (succeeded_)
      return;
    Verbs* const made = std::exchange(made_, nullptr);
    if (made != nullptr && made != adopted_)
      destroy_(made);
    cq_.unreserve(entries_);
  }

  /// After a failure, the adopted verbs object still belongs to the caller.
  void adopt(Verbs* object) noexcept { made_ = adopted_ = object; }
  /// The last step: from here on events of the device arrive, on any thread.
  error_code finish(completion_service& service, context_member& member) {
    error_code ec;
    succeeded_ = service.add(member, ec);
    return ec;
  }

private:
  Verbs*& made_;
  int (*destroy_)(Verbs*);
  completion_queue_impl& cq_;
  std::uint32_t entries_;
  Verbs* adopted_ = nullptr;
  bool succeeded_ = false;
};

} // namespace asio_rdma::detail
