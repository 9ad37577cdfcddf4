// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "core/checked_mutex.hpp"
#include "global/global_memory_impl.hpp"
#include "locks/alock_layout.hpp"
#include "locks/alock_view.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The locks of other nodes that a view takes, over its lanes. Thread-safe.
class alock_remotes final : public std::enable_shared_from_this<alock_remotes>,
                            public alock_parties {
public:
  explicit alock_remotes(global_memory_impl& memory);
  ~alock_remotes();

  /// As `alock_view::start`.
  bool start(alock_operation& op);
  /// As `alock_view::on_next`.
  void on_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor);
  /// Cancels the operation with that id.
  void cancel(std::uint64_t id);
  void abandon(const alock_view& other) override;
  void close();

private:
  class party;
  class request;
  using lock = std::unique_lock<checked_mutex>;

  /// The descriptors of a lane in one segment of its node. As a word, a descriptor is a
  /// `remote_ptr` to itself with the node of its party instead of its own.
  struct descriptor_set {
    std::shared_ptr<connection_impl> link;
    std::shared_ptr<lane_link> users; // of `link`
    node_id node = 0;
    segment_id segment_number = 0;
    remote_buffer segment;
    std::vector<std::uint64_t> free;
    std::unordered_map<std::uint64_t, party*> parties; // of each descriptor, or null
    operation_list waiting;                            // the operations that wait for a descriptor
    bool asked = false;                                // more descriptors were requested
  };

  void drop_unused() noexcept;
  void ask(descriptor_set& from) noexcept;
  void on_answer(descriptor_set& from, error_code ec, std::uint64_t offset,
                 std::uint64_t count) noexcept;
  static void add_descriptors(descriptor_set& to, std::uint64_t first, std::uint64_t count);
  static void fail_waiting(descriptor_set& from, const error_code& ec) noexcept;
  static bool descriptors_fit(const descriptor_set& p, std::uint64_t offset,
                              std::uint64_t count) noexcept;
  bool knows_any(const descriptor_set& s, std::uint64_t offset, std::uint64_t count) const noexcept;
  static bool aim(const party& p, const alock_access& a, remote_buffer& target) noexcept;
  bool count(alock_operation& op) noexcept;
  party* take_party(const memory_pool& memory, error_code& ec) noexcept;
  void begin(descriptor_set& from, alock_operation& op) noexcept;
  void run(party& p) noexcept;
  void pause(party& p) noexcept;
  void set_timer(party& p, unsigned longest_pause, bool maybe_in_vain);
  void take_steps(party& p);
  bool post(party& p, error_code& ec);
  bool on_refused(party& p, const error_code& ec) noexcept;
  void on_chain(party& p);
  void look(party& p) noexcept;
  void wake(descriptor_set& from, std::uint64_t descriptor);
  bool wake_here(descriptor_set& from, std::uint64_t descriptor);
  void end(party& p);
  static void complete(alock_operation& op, const error_code& ec) noexcept;
  static void complete(party& p, const error_code& ec) noexcept;

  const std::weak_ptr<global_memory_impl> memory_;
  completion_service& service_;
  const node_id id_;
  checked_mutex mutex_; // locked before the mutexes of the memory and of its links
  std::map<std::pair<const lane_link*, segment_id>, descriptor_set> sets_;
  std::deque<party> parties_;
  party* free_ = nullptr;
  bool closed_ = false;
};

} // namespace asio_rdma::detail
