// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/completion_queue_options.hpp>
#include <asio_rdma/detail/completion_queue_impl.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/intrusive/list.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace asio_rdma::detail {

class device_watch;

/// An object that holds operations and must let go of them when the execution context shuts down.
/// It closes itself before its last owner lets go of it.
class context_member : public std::enable_shared_from_this<context_member>,
                       public boost::intrusive::list_base_hook<
                           boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  virtual void on_context_shutdown() = 0;
  /// Before that: called again and again as long as it gives the completion queue that is to be
  /// driven for it, as there is something that it has to do first.
  virtual completion_queue_impl* last_work() { return nullptr; }
  virtual void on_device_event(const ibv_async_event& event) = 0;
  virtual const device& member_device() const noexcept = 0;

protected:
  ~context_member() = default;
};

/// What the queue pairs of one execution context share: its completion queues, one set for each
/// device, and the watch for each device's asynchronous events.
class completion_service : public asio::execution_context::service {
public:
  using key_type = completion_service;
  static asio::execution_context::id id;

  explicit completion_service(asio::execution_context& context);
  ~completion_service() override;

  static completion_service& of(asio::execution_context& context);

  /// So many entries of the queue, or if it is null, of a shared one, are set aside for an object
  /// of the device. Errors: `invalid_argument` for a queue of another context,
  /// `error::wrong_device`, `error::completion_queue_full`, and those of making a shared one; then
  /// the result is null.
  std::shared_ptr<completion_queue_impl> use_queue(std::shared_ptr<completion_queue_impl> queue,
                                                   const device& d, std::uint32_t entries,
                                                   error_code& ec);
  /// A completion queue of somebody's own.
  std::shared_ptr<completion_queue_impl>
  make_queue(const device& d, const completion_queue_options& options, error_code& ec);
  std::shared_ptr<completion_queue_impl> adopt_queue(const device& d,
                                                     const completion_queue_options& options,
                                                     ibv_cq* cq, ownership owns, error_code& ec);

  /// The options of shared queues made from now on.
  void set_default_options(const completion_queue_options& options);

  /// For operations that no completion queue completes: each counts as work of the context from
  /// `operation_starting` until it has been given to `complete` and its handler has run.
  void operation_starting() noexcept;
  void complete(operation_list& done);

  /// From `add` to `remove` the member hears of its device's events and of the shutdown. False
  /// once the context has shut down, or if the events cannot be watched.
  bool add(context_member& member, error_code& ec);
  void remove(context_member& member) noexcept;

  /// When the context shuts down: drives the completion queues until no member has anything to do
  /// first. Handlers are not run. `look` is called now and then, and when `other` (a descriptor, or
  /// -1) can be read.
  void do_last_work(int other, const std::function<void()>& look);

  /// Tells the members of the device, which `by` keeps from then on.
  void broadcast(const device& d, const ibv_async_event& event,
                 std::vector<std::shared_ptr<void>>& by);

private:
  struct runner;
  struct watched {
    std::shared_ptr<device_watch> watch;
    std::size_t members = 0;
  };

  void shutdown() override;
  void drop_ready();
  std::shared_ptr<completion_queue_impl> shared_queue(const device& d, std::uint32_t entries,
                                                      error_code& ec);
  std::vector<watched>::iterator find_watch(const device& d) noexcept;
  std::vector<std::shared_ptr<context_member>> members_of(const device* d);
  std::shared_ptr<completion_queue_impl> remember(std::shared_ptr<completion_queue_impl> q,
                                                  error_code& ec);

  std::mutex mutex_;
  completion_queue_options defaults_;
  std::vector<std::weak_ptr<completion_queue_impl>> queues_, shared_;
  std::vector<watched> watches_; // of the members' devices
  boost::intrusive::list<context_member, boost::intrusive::constant_time_size<false>> members_;
  operation_list ready_;
  std::unique_ptr<runner> runner_;
  bool stopped_ = false;
};

} // namespace asio_rdma::detail
