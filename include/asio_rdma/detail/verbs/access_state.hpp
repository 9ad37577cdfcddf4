// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/mutex.hpp>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>

#include <cstdint>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

enum class access_kind : std::uint8_t {
  shared,   ///< A read, by the device or by the CPU.
  exclusive ///< A write.
};

/// An access to a range of addresses, granted or waited for.
struct access_node
    : boost::intrusive::set_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>,
                                      boost::intrusive::optimize_size<true>> {
  std::uintptr_t begin = 0, end = 0;
  access_kind kind = access_kind::shared;
  bool granted = false; // an empty range is granted at once and is in no set

  bool conflicts_with(const access_node& other) const noexcept {
    return begin < other.end && other.begin < end &&
           (kind == access_kind::exclusive || other.kind == access_kind::exclusive);
  }
};

/// A wait for an access.
struct access_waiter
    : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>> {
  access_node* wanted = nullptr;
  bool waits = false; // it is in the list of its access state; guarded by the access state's mutex
};

using access_waiters =
    boost::intrusive::list<access_waiter, boost::intrusive::constant_time_size<false>>;

/// The accesses to a block of memory that are granted, and those that wait. Two accesses conflict
/// if their ranges overlap and one of them writes. An access waits behind every earlier waiter that
/// it conflicts with, so readers do not starve a writer. Thread-safe; allocates nothing.
class access_state {
public:
  access_state() = default;
  access_state(const access_state&) = delete;

  /// Begins the access. Returns false if it conflicts with a granted access or with a waiter.
  bool try_begin(access_node& node) noexcept;
  /// Ends a granted access. Returns the waiters that have now been granted.
  access_waiters end(access_node& node) noexcept;
  /// Makes a granted access last for ever, although its node does not: no further access is
  /// granted.
  void keep(access_node& node) noexcept;
  /// Replaces the granted access `from` by `to`.
  void move(access_node& from, access_node& to) noexcept;

  /// Begins the access and returns true, or queues the waiter and returns false.
  bool begin_or_wait(access_waiter& waiter) noexcept;
  /// Removes a waiter. Returns false if it is no longer waiting. Call `resume` afterwards.
  bool stop_waiting(access_waiter& waiter) noexcept;
  /// Grants the waiters that no longer conflict, and returns them.
  access_waiters resume() noexcept;

private:
  struct key_of_node {
    using type = std::uintptr_t;
    const type& operator()(const access_node& n) const noexcept { return n.begin; }
  };
  using nodes = boost::intrusive::multiset<access_node, boost::intrusive::key_of_value<key_of_node>,
                                           boost::intrusive::constant_time_size<false>>;

  bool is_free(const access_node& node) const noexcept;
  bool is_behind(const access_node& node, access_waiters::const_iterator last) const noexcept;
  bool begin(access_node& node) noexcept;
  void grant(access_waiters& granted) noexcept;

  mutex mutex_;
  nodes active_;
  std::uintptr_t longest_ = 0; // no range in `active_` is longer
  bool kept_ = false;
  access_waiters waiters_;
};

} // namespace asio_rdma::detail
#pragma GCC visibility pop
