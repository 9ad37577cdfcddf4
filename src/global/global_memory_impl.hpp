// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/detail/global/global_face.hpp>
#include <asio_rdma/detail/global/global_message.hpp>
#include <asio_rdma/detail/global/in_flight.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/remote_ptr.hpp>

#include "global/global_lanes.hpp"
#include "global/global_node.hpp"
#include "queues/completion_service.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// The logic of `basic_global_memory`: the lanes to other nodes and the messages on them.
/// Thread-safe.
class global_memory_impl final : public context_member {
public:
  /// Bounds on what one peer can make a node keep (docs/security.md).
  ///@{

  /// Outstanding hints to one peer: further hints would only wait behind these.
  static constexpr std::size_t most_hints = 64;
  /// Answers to one peer that are on their way. A peer of this library asks for no more.
  static constexpr std::size_t most_answers = 16;
  /// Requests to one peer that it has not answered. So their answers always have room on their way.
  static constexpr std::size_t most_asked = most_answers;
  /// Messages to one peer that are not sent yet. A peer of this library answers a request only once
  /// it has taken the request, so of its requests fewer wait.
  static constexpr std::size_t most_unsent = 2 * most_asked;
  /// Requests of one peer for descriptors of locks. This library requests 16 descriptors at a time.
  static constexpr std::size_t most_loans = 4096;
  /// Peers that have connected and not introduced themselves. The oldest one gives way.
  static constexpr std::size_t most_strangers = 64;
  ///@}

  global_memory_impl(const asio::any_io_executor& executor, std::shared_ptr<global_node> node,
                     const global_memory_options& options);
  ~global_memory_impl();

  /// The implementation for another object of the node: a new one, or, if lanes are shared, perhaps
  /// that of another object. Null with the error if that fails.
  static std::shared_ptr<global_memory_impl> open(const asio::any_io_executor& executor,
                                                  const std::shared_ptr<global_node>& node,
                                                  const global_memory_options& options,
                                                  error_code& ec);
  /// Removes a user. The last one ends the implementation.
  void close();
  /// Returns false if there are no users any more.
  bool add_user() noexcept;
  /// 0 once the implementation has ended.
  std::size_t users() const noexcept { return removed_.load() ? 0 : users_.load(); }

  error_code listen(const asio::ip::tcp::endpoint& endpoint, const accept_options& options);
  asio::ip::tcp::endpoint local_endpoint(error_code& ec) const;

  /// Joins a node, or sends it a request. Returns true, or false with the error in the operation,
  /// which then stays the caller's.
  bool start(global_request& op, node_id to);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  std::uint64_t next_id() noexcept { return ++ids_; }

  /// Whether a lane to the node exists, or existed.
  bool knows(node_id node) const noexcept { return global_lanes::look(lanes_)[node] != nullptr; }
  /// IBV_ATOMIC_NONE for an unknown node.
  ibv_atomic_cap atomics(node_id node) const noexcept {
    const global_lanes::look looking(lanes_);
    const global_lane* const l = looking[node];
    return l != nullptr ? l->atomics : IBV_ATOMIC_NONE;
  }
  /// Finds the lane to the target and the remote memory of the target, and if wanted its whole
  /// segment. Returns null with the error if the target cannot be accessed.
  std::shared_ptr<lane_link> find(const global_aim& aim, remote_buffer& target, error_code& ec,
                                  remote_buffer* segment = nullptr) const noexcept {
    const remote_word p = aim.at;
    const global_lanes::look looking(lanes_);
    const global_lane* const l = looking[p.node()];
    if (l == nullptr) [[unlikely]] {
      ec = error::node_unknown;
      return nullptr;
    }
    if (p.segment() >= l->segments.size() || aim.bytes > l->segments[p.segment()].size ||
        p.offset() > l->segments[p.segment()].size - aim.bytes) [[unlikely]] {
      ec = l->reason ? l->reason : error_code(error::remote_range);
      return nullptr;
    }
    if (p.offset() % aim.alignment != 0) [[unlikely]] {
      ec = error::misaligned;
      return nullptr;
    }
    if (aim.atomic && l->atomics == IBV_ATOMIC_NONE) [[unlikely]] { // the peer's device has no
                                                                    // atomic operations
      ec = asio::error::operation_not_supported;
      return nullptr;
    }
    const remote_buffer& whole = l->segments[p.segment()];
    target = {whole.address + p.offset(), aim.bytes, whole.rkey};
    if (segment != nullptr)
      *segment = whole;
    return l->link;
  }

  /// Hints to the node at the other end of the link that the party of this descriptor has been
  /// handed a lock. The hint may be lost.
  void hint_next(const connection_impl* way, segment_id segment, std::uint64_t descriptor) noexcept;

  const std::shared_ptr<global_node>& node() const noexcept { return node_; }
  completion_service& service() const noexcept { return service_; }
  /// The guest of this view, made by the first call. Null once the view is closed.
  std::shared_ptr<memory_guest> guest(std::shared_ptr<memory_guest> (*make)(global_memory_impl&));

  void on_context_shutdown() override;
  void on_device_event(const ibv_async_event&) noexcept override {}
  const device& member_device() const noexcept override {
    return node_->pool().get_protection_domain().get_device();
  }

private:
  struct peer;
  class hint;
  using peer_ptr = std::shared_ptr<peer>;
  using lock = std::unique_lock<std::mutex>;
  using place = std::pair<segment_id, std::uint64_t>;
  struct loan {
    std::uint64_t count;
    peer_ptr borrower;
  };
  using loans = std::map<place, loan>;

  std::shared_ptr<global_memory_impl> self() {
    return std::static_pointer_cast<global_memory_impl>(shared_from_this());
  }
  peer_ptr make_peer(bool accepted, error_code& ec);
  void accept_next();
  void accept_again() noexcept;
  bool is_admitted(connection_request& request) const;
  void accept(connection_request request);
  /// Adds the peer, and removes it if `start` throws.
  template <class Start>
  void keep_while_starting(const peer_ptr& p, Start start);
  void on_connected(const peer_ptr& p, error_code ec) noexcept;
  void send(const peer_ptr& p, const global_message& m);
  void send(const peer_ptr& p, const std::vector<std::byte>& bytes);
  /// These bound what the messages of a peer cost: its next request is taken once few answers are
  /// on their way, and this side leaves few requests unanswered, so that both make progress.
  ///@{
  void send_answer(const peer_ptr& p, const global_message& m);
  void send_counted(const peer_ptr& p, const global_message& m, std::size_t peer::*count,
                    std::size_t most);
  void ask(const peer_ptr& p, global_request& op);
  void send_numbered(const peer_ptr& p, global_request& op);
  void ask_next(const peer_ptr& p);
  void send_request(const peer_ptr& p, const global_message& m);
  ///@}
  std::shared_ptr<memory_guest> open_guest() const; // null if none has been made
  peer_ptr borrower(segment_id segment, std::uint64_t descriptor) const;
  void listen_to(const peer_ptr& p) noexcept;
  void on_message(const peer_ptr& p, const error_code& ec, const message& m) noexcept;
  /// Returns an error if the message is invalid; the peer's connection then ends.
  error_code take(const peer_ptr& p, const global_message& m, operation_list& done);
  error_code introduce(const peer_ptr& p, const global_message& m,
                       const std::vector<std::byte>& answer, operation_list& done);
  bool has_lane(const peer& p) const noexcept;
  void replace_lane(const peer& ended) noexcept;
  void note_departure(peer& p) noexcept;
  /// Returns a stranger that is to be ended, if there are too many.
  peer_ptr expect_introduction(const peer_ptr& p);
  bool has_introduced(const peer& p) const;
  error_code answer(const peer_ptr& p, const global_message& m, operation_list& done);
  void allocate(const peer_ptr& p, const global_message& m);
  void zero(const peer_ptr& p, const global_message& answer, global_node::unzeroed block);
  void add_descriptors(const peer_ptr& p, const global_message& m);
  void end(const peer_ptr& p, const error_code& why) noexcept;
  void end_all();
  peer_ptr first_peer() const noexcept;

  completion_service& service_;
  asio::any_io_executor executor_;
  const std::shared_ptr<global_node> node_;
  const global_memory_options options_;
  const std::shared_ptr<in_flight> places_;
  std::atomic<std::uint64_t> ids_{0};

  mutable std::mutex mutex_; // locked before all others
  struct next_accept final : operation {
    next_accept() noexcept;
    static void come(operation* base, disposal how);
    std::shared_ptr<global_memory_impl> keep; // while it is queued
  };

  acceptor listener_;
  accept_options how_; // constant once the acceptor listens; without `admit`
  admit_function admit_;
  next_accept next_accept_; // for an accept that lacked memory
  connector connector_;
  std::vector<peer_ptr> peers_;
  global_lanes lanes_;
  std::uint32_t numbers_ = 0;
  loans loans_; // of this node's memory, for descriptors of locks
  std::shared_ptr<memory_guest> guest_;
  bool closed_ = false;
  std::atomic<std::size_t> users_{1};
  std::atomic<bool> removed_{false}; // it is no member of the service
};

} // namespace asio_rdma::detail
