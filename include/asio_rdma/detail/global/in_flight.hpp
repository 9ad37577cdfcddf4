// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/connection/connection_face.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {
class completion_service;
} // namespace asio_rdma::detail

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

/// The limit of outstanding operations of a global memory, on all its lanes together. An
/// outstanding operation has a place; operations without a place wait in order. Thread-safe.
class in_flight {
public:
  in_flight(completion_service& service, std::size_t most);

  /// A waiting operation.
  class waiter {
  public:
    waiter(connection_impl& on, operation& which, bool places) noexcept
        : link(on), op(which), needs_place(places) {}
    virtual ~waiter() = default;
    /// Returns true, or false with the error in the operation.
    virtual bool start() = 0;
    /// Calls `start` and turns an exception into an error of the operation: no memory.
    bool try_start() noexcept;

    connection_impl& link;
    operation& op;
    const bool needs_place; ///< If false, it only waits behind operations of the same link.
  };

  /// Takes a place, unless operations wait for one.
  bool take() noexcept { return !anyone_waits() && take_free(); }
  bool anyone_waits() const noexcept { return waiting_.load() != 0; }
  void give_back() {
    free_.fetch_add(1);
    if (anyone_waits()) [[unlikely]]
      start_waiting();
  }
  /// Queues an operation and starts it when there is a place. Returns false with the error in the
  /// operation if closed.
  bool wait(std::unique_ptr<waiter> w);
  /// Cancels the operation with this id, if it waits.
  bool cancel(const connection_impl& on, std::uint64_t id);
  /// Ends the waiting operations. From now on `give_back` starts none.
  void close();

private:
  bool take_free() noexcept {
    std::size_t n = free_.load(); // sequentially consistent with `waiting_`: otherwise each side
                                  // could miss the other's change
    while (n != 0 && !free_.compare_exchange_weak(n, n - 1))
      continue;
    return n != 0;
  }
  void start_waiting();
  void run() noexcept;

  completion_service& service_;
  std::atomic<std::size_t> free_;
  std::atomic<std::size_t> waiting_{0}; // queued operations: new ones must not overtake them
  std::mutex mutex_;                    // locked before those of links
  std::list<std::unique_ptr<waiter>> waiters_;
  std::size_t placeless_ = 0; // waiters without `needs_place`
  bool closed_ = false;
};

/// An operation on a node's memory. It has a place while it is outstanding.
class placed_operation : public remote_operation {
public:
  using remote_operation::remote_operation;

  std::shared_ptr<in_flight> place;

protected:
  // The place is given back before the handler runs, so the next operation can be posted.
  ~placed_operation() {
    if (place)
      place->give_back();
  }
};

/// A connection to a node for operations of users.
class lane_link {
public:
  lane_link(std::shared_ptr<connection_impl> link, std::shared_ptr<in_flight> places) noexcept
      : link_(std::move(link)), places_(std::move(places)) {}

  /// `start(link, op)` returns true, or false with the error in the operation; so does this
  /// function.
  template <class Operation, class Start>
  bool start(Operation& op, Start&& start) {
    if (places_->take()) [[likely]] {
      op.place = places_;
      return start(*link_, op);
    }
    return wait(op, true,
                [start = std::forward<Start>(start), places = places_](connection_impl& link,
                                                                       Operation& o) {
                  o.place = places;
                  return start(link, o);
                });
  }
  /// Starts an operation, like `start`, that needs no place but must keep the order.
  template <class Operation, class Start>
  bool start_behind(Operation& op, Start&& start) {
    if (!places_->anyone_waits()) [[likely]]
      return start(*link_, op);
    return wait(op, false, std::forward<Start>(start));
  }

  const std::shared_ptr<connection_impl>& link() const noexcept { return link_; }

  // The functions that initiate.hpp calls, found by argument-dependent lookup.
  friend const char* object_name(const lane_link*) noexcept { return "global_memory"; }
  friend std::uint64_t next_id_of(lane_link& lane) noexcept { return next_id_of(*lane.link_); }
  friend void cancel(lane_link& lane, std::uint64_t id, asio::cancellation_type_t type) {
    if (!lane.places_->cancel(*lane.link_, id))
      cancel(*lane.link_, id, type);
  }

private:
  template <class Operation, class Start>
  bool wait(Operation& op, bool needs_place, Start&& start) {
    const auto places = places_; // once `op` is started, another thread may destroy this object
    return places->wait(std::make_unique<waiting<Operation, std::decay_t<Start>>>(
        link_, op, needs_place, std::forward<Start>(start)));
  }

  template <class Operation, class Start>
  class waiting final : public in_flight::waiter {
  public:
    waiting(std::shared_ptr<connection_impl> on, Operation& which, bool places, Start how)
        : waiter(*on, which, places), kept_(std::move(on)), op_(which), start_(std::move(how)) {}
    bool start() override { return start_(*kept_, op_); }

  private:
    const std::shared_ptr<connection_impl> kept_;
    Operation& op_;
    Start start_;
  };

  const std::shared_ptr<connection_impl> link_;
  const std::shared_ptr<in_flight> places_;
};

} // namespace asio_rdma::detail
#pragma GCC visibility pop
