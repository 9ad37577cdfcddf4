// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/mutex.hpp>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>

#include <cstdint>

namespace asio_rdma::detail {

enum class access_kind : std::uint8_t {
  shared,   ///< Reads: of the device or of the CPU.
  exclusive ///< Writes.
};

/// One access to a range of addresses, while it lasts or while it is waited for.
struct access_node
    : boost::intrusive::set_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>,
                                      boost::intrusive::optimize_size<true>> {
  std::uintptr_t begin = 0, end = 0;
  access_kind kind = access_kind::shared;
  bool granted = false; // an empty range is granted at once, and in no set

  bool conflicts_with(const access_node& other) const noexcept {
    return begin < other.end && other.begin < end &&
           (kind == access_kind::exclusive || other.kind == access_kind::exclusive);
  }
};

/// Who waits for an access.
struct access_waiter
    : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>> {
  access_node* wanted = nullptr;
  bool waits = false; // is in the list of its access state, whose lock guards this
};

using access_waiters =
    boost::intrusive::list<access_waiter, boost::intrusive::constant_time_size<false>>;

/// Who reads and writes which part of a block now, and who waits for that. Two accesses conflict if
/// their ranges overlap and one of them writes. Nobody passes one that waits and conflicts with
/// it, so that a writer does not starve among readers. Safe from any thread; allocates nothing.
class access_state {
public:
  access_state() = default;
  access_state(const access_state&) = delete;

  /// Begins the access, or gives false.
  bool try_begin(access_node& node) noexcept;
  /// Ends an access that was granted. Gives who need not wait any more.
  access_waiters end(access_node& node) noexcept;
  /// The access `from`, which was granted, is from now on `to`.
  void move(access_node& from, access_node& to) noexcept;

  /// Begins the access of a waiter (true), or lets it wait.
  bool begin_or_wait(access_waiter& waiter) noexcept;
  /// Takes away a waiter; false if it does not wait any more. Call `resume` afterwards.
  bool stop_waiting(access_waiter& waiter) noexcept;
  /// Gives who need not wait any more.
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
  access_waiters waiters_;
};

} // namespace asio_rdma::detail
