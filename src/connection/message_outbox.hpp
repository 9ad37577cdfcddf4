// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/message_action.hpp"
#include "link/frame_link.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

class message_outbox;

/// A message or notice that is sent to the peer in order. The driver derives its operation from it.
class message_out : public frame_operation {
public:
  enum class kind {
    message, ///< `bytes` of the operation's buffers.
    written  ///< The notice of an RDMA WRITE that was posted before: `immediate` and no bytes.
  };

  kind what = kind::message;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> immediate;
  bool device_only = false; ///< Its bytes are not copied, so it shares no frame.

  error_code ec; ///< The result.

  /// The progress of the operation, set by the protocol.
  enum class state { idle, waiting, preparing, ready, eager, offered, done };
  state where() const noexcept { return state_; }
  /// The next message of the same `gathered` frame; null behind the last.
  const message_out* together() const noexcept { return together_; }

protected:
  ~message_out() = default;

private:
  friend message_outbox; // only the outbox changes the progress
  state state_ = state::idle;
  bool under_way_ = false; // the SEND of its frame is outstanding
  bool answered_ = false;
  bool leads_ = false; // the first message of a frame of small messages
  message_out* together_ = nullptr;
  std::uint32_t id_ = 0; // of the offer
  remote_buffer memory_;
};

/// The messages to the peer, in order, and the notices of RDMA WRITEs. A part of
/// `message_protocol`, which describes the public functions.
///
/// Small messages share frames. A small message is sent at once if no frame of small messages is
/// outstanding. Otherwise it waits until that frame's SEND has completed, and until the handlers of
/// the completed messages have run, as they may send further ones; or until a frame is full, or a
/// message that is not small follows.
class message_outbox {
public:
  message_outbox(const frame_link& link, const message_options& o);

  /// Does not decrease, because the peer's receives do not shrink.
  std::uint64_t eager_size() const noexcept { return link_.peer_payload(); }
  /// Returns whether there may be an action.
  bool send(message_out& op);
  /// Begins to send a message before which nothing waits. If it is not possible, returns false.
  bool send_at_once(message_out& op, frame_header& header);
  void prepared(message_out& op, const remote_buffer& memory);
  void fail_send(message_out& op, const error_code& ec);
  bool cancel(message_out& op);

  /// Return true if there is an action.
  ///@{
  bool next_sent(message_action& a);
  bool next_prepare(message_action& a);
  bool next_wait(message_action& a);
  ///@}

  bool queues() const noexcept { return !queue_.empty(); }
  bool has_data() const;
  bool next_data(outgoing_frame& f);
  void on_sent(frame_operation* sent);
  void on_dropped(frame_operation* sent, const error_code& ec);
  void on_idle() noexcept { idle_ = idle_wait::none; }
  /// Takes the peer's answer to an offer. Returns false for a protocol violation.
  bool on_answer(const frame_header& header);

  /// From now on no message can be started. Messages that were started continue.
  void close();
  bool drained() const noexcept { return queue_.empty() && under_offer_ == 0; }
  /// Ends all messages with the error.
  void end_sends(const error_code& ec);

private:
  struct offer {
    message_out* send = nullptr;
    std::uint16_t generation = 0;
  };

  bool is_eager(const message_out& op) const noexcept;
  bool is_small(const message_out& op) const noexcept;
  std::uint64_t gather_room() const noexcept;
  bool may_be_small(const message_out& op) const noexcept;
  bool gathers() const;
  void entered(const message_out& op) noexcept;
  void left(const message_out& op) noexcept;
  message_out& take_first();
  void begin_eager(message_out& op, bool small, frame_header& header);
  void fill_together(message_out& first, outgoing_frame& f);
  void end_together(message_out& first, const error_code& ec);
  void finish(message_out& op, const error_code& ec);
  void leave_queue(message_out& op);
  void free_offer(message_out& op);

  const frame_link& link_;
  frame_operation_list queue_;                  // sends that have not begun, in order
  frame_operation_list::iterator next_prepare_; // the first of them whose key was not requested
  std::uint32_t queued_ = 0, queued_large_ = 0; // their number, and of those that are not small
  std::uint64_t queued_bytes_ = 0;              // `gathered_size` of all
  std::vector<offer> offers_;
  std::vector<std::uint16_t> free_offers_;
  std::uint32_t under_offer_ = 0;  // sent and not completed
  std::uint32_t gather_, small_;   // of `message_options`
  std::uint32_t small_frames_ = 0; // outstanding
  enum class idle_wait : std::uint8_t { none, due, asked } idle_ = idle_wait::none;
  frame_operation_list done_sends_;
  error_code no_sends_; // why sends are not possible
};

} // namespace asio_rdma::detail
