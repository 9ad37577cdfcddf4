// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/connection/message_in.hpp>

#include "connection/message_action.hpp"
#include "link/frame_link.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// The messages of the peer, in order, and the receives that wait for them. A part of
/// `message_protocol`, which describes the public functions.
class message_inbox {
public:
  message_inbox(frame_link& link, const message_options& o);

  /// Returns whether there may be an action.
  bool receive(message_in& op);
  bool cancel(message_in& op);
  void abandon(message_in& op);
  void read_into(std::uint32_t slot, message_in& op);
  void pulled(std::uint32_t slot);
  void refuse(std::uint32_t slot, refusal why);
  void put_off(std::uint32_t slot);
  void go_on() noexcept { puts_off_ = false; }
  bool puts_off() const noexcept { return puts_off_; }
  /// The bytes of messages in memory of the driver, or on the way there.
  std::uint64_t pulled_bytes() const noexcept { return pulled_bytes_; }

  /// Gives the arrived messages to the receives that wait.
  void match();
  /// Return true if there is an action.
  ///@{
  bool next_drop(message_action& a);
  bool next_received(message_action& a);
  bool next_pull(message_action& a);
  ///@}

  /// Takes a message, the offer of a message, or a notice.
  link_part::disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                                  std::uint32_t slot);
  bool has_answer() const noexcept { return !answers_.empty(); }
  bool next_answer(outgoing_frame& f);
  /// Drops the answers that refuse a message because this side has closed.
  void drop_refusals();

  /// Ends all receives; arriving messages are dropped.
  void close();
  bool drained() const noexcept { return pulling_ == 0 && answers_.empty(); }
  /// Returns false for a protocol violation.
  bool on_goodbye();
  /// The link has stopped: messages that have not arrived whole are lost.
  void stop(const error_code& ec);

private:
  struct entry {
    enum class state { whole, offered, pulling };
    state where = state::whole;
    message_in::place place = message_in::place::none;
    std::uint32_t slot = 0;
    std::uint32_t at = 0; // in the receive, behind the header
    bool last = true;     // of the messages in the receive
    std::uint32_t id = 0;
    std::optional<std::uint32_t> immediate = {};
    remote_buffer memory = {};  // its size is the size of the message
    message_in* into = nullptr; // the operation whose memory it is read into
    bool spoiled = false;       // `into` was cancelled, so it has to be read again
    bool counted = false;       // in `pulled_bytes_`

    bool pinned() const noexcept { return into != nullptr && !spoiled; }
  };
  struct answer {
    std::uint32_t id;
    std::optional<refusal> why = {};
  };
  using queue = boost::circular_buffer<entry>;

  static message_in& as_receive(frame_operation& op) noexcept {
    return static_cast<message_in&>(op);
  }
  link_part::disposition on_offer(const frame_header& header, std::span<const std::byte> payload,
                                  std::uint32_t slot);
  link_part::disposition on_gathered(std::span<const std::byte> payload, std::uint32_t slot);
  void reserve(std::uint32_t further);
  void release(const entry& e);
  void match_messages();
  void match_written();
  void deliver(message_in& op, entry& e);
  void finish(message_in& op, const error_code& ec);
  void stop_waiting(message_in& op);
  bool leave(message_in& op, const error_code& ec);
  void unpin_from(std::size_t index);
  void let_go(entry& e);
  bool may_pull(const entry& e, const message_in& op) const noexcept;
  void uncount(entry& e) noexcept;
  void drop_from(queue::iterator first);
  void drop_pulled(entry& e);
  void end_receives(const error_code& ec);
  void drop_written();
  queue::iterator find(std::uint32_t slot);

  frame_link& link_;
  message_options options_;
  frame_operation_list waiters_;
  std::uint32_t waiting_ = 0, pinned_ = 0; // of those in `waiters_`
  queue messages_;
  std::uint32_t unread_ = 0; // offers in `messages_` that are not being read
  std::uint32_t pulling_ = 0;
  std::uint64_t pulled_bytes_ = 0;     // of messages in memory of the driver, or on the way there
  std::vector<std::uint32_t> dropped_; // slots of pulls that the driver has to drop
  frame_operation_list written_waiters_;
  queue written_;
  frame_operation_list done_receives_;
  boost::circular_buffer<answer> answers_;
  std::uint32_t unanswered_ = 0; // offers of the peer
  error_code no_receives_;       // the error of receives when no messages are left
  bool dropping_ = false;        // arriving messages are dropped
  bool puts_off_ = false;        // no message is read until the driver goes on
};

} // namespace asio_rdma::detail
