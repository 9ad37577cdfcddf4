// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/connection/message_in.hpp>

#include "link/frame_link.hpp"

#include <optional>

namespace asio_rdma::detail {

class message_protocol;

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

  error_code ec; ///< The result.

  /// The progress of the operation, set by the protocol.
  enum class state { idle, waiting, preparing, ready, eager, offered, done };
  state where() const noexcept { return state_; }

protected:
  ~message_out() = default;

private:
  friend message_protocol;
  state state_ = state::idle;
  bool under_way_ = false; // the SEND of its frame is outstanding
  bool answered_ = false;
  std::uint32_t id_ = 0; // of the offer
  remote_buffer memory_;
};

struct message_options {
  std::uint64_t limit = std::uint64_t(1) << 30; ///< Bytes of an offered message, at most.
  std::uint32_t offers = 16; ///< Messages that are offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Messages that are read at a time, at least one.
  /// Bytes that may be read before an operation waits for the message.
  std::uint64_t prefetch = 0;
};

/// The next step of the driver.
struct message_action {
  enum class kind {
    none,
    prepare, ///< Make a key for reading exactly the buffers of `send`; then call `prepared` or
             ///< `fail_send`.
    pull,    ///< Read `memory`; then call `pulled(slot)` or `refuse(slot)`.
    drop,    ///< Discard the bytes of the `pull` of `slot`, also if it is still in progress.
    sent,    ///< `send` has completed; end its key first, if it has one.
    received ///< `receive` has completed.
  };
  kind what = kind::none;
  message_out* send = nullptr;
  /// For `pull`: the operation that waits for the message and has room, if its own memory may be
  /// used (call `read_into`). Otherwise null.
  message_in* receive = nullptr;
  std::uint32_t slot = 0;
  remote_buffer memory;
};

/// Messages of any size, whole and in order, and notices of RDMA WRITEs. A message that fits the
/// peer's receives is sent eagerly, in one frame, and completes when its SEND does. A longer
/// message is offered; it completes when the peer has read it and said so. While an offer waits for
/// its key, later messages wait too.
///
/// Messages are received in order. A message that is not taken holds its receive, which slows down
/// the peer. An offered message is read when an operation waits for it, or within `prefetch`.
///
/// After the peer's goodbye, the messages that it sent can still be received; then waits end with
/// `eof`. Sends end with `broken_pipe`. After a failure, the messages that have arrived whole can
/// still be received, up to the first incomplete one.
class message_protocol final : private link_part {
public:
  /// The link must outlive this object.
  message_protocol(frame_link& link, const message_options& o);

  message_action next();

  /// The longest message that is sent eagerly.
  std::uint64_t eager_size() const noexcept { return eager_; }

  void send(message_out& op);
  /// Reports that the key for `op` has been made.
  void prepared(message_out& op, const remote_buffer& memory);
  /// Reports that the key could not be made. `op` ends with the error; other operations go on.
  void fail_send(message_out& op, const error_code& ec);
  /// Cancels a send. Returns true if nothing of `op` has been sent; `op` is the driver's again, and
  /// so is a key that was or is being made. Otherwise `op` continues to its end.
  bool cancel(message_out& op);

  void receive(message_in& op);
  /// Cancels a receive; no message is lost. Returns false while the device reads into its memory.
  /// Then `op` ends with `operation_aborted` when the device has finished, and the message can be
  /// read again.
  bool cancel(message_in& op);
  /// Called after `cancel` returned false. `op` is the driver's again, and the driver keeps its
  /// memory until `pulled`.
  void abandon(message_in& op);

  /// Declares that the message of `slot` is read into the memory of `op`, which the `pull` action
  /// named. Must be the first call after that action.
  void read_into(std::uint32_t slot, message_in& op);
  /// Reports that the message of `slot` has been read. If it was read into memory of a cancelled
  /// operation, it may be incomplete.
  void pulled(std::uint32_t slot);
  /// Refuses the message of `slot` because there is no memory for it. The sender is notified, and
  /// the message is removed. No READ of it may be outstanding.
  void refuse(std::uint32_t slot, refusal why = refusal::memory);

  struct counters {
    std::uint64_t eager_sent = 0, offered = 0, eager_received = 0, pulled = 0, refused = 0;
  };
  const counters& count() const noexcept { return count_; }

private:
  struct entry {
    enum class state { whole, offered, pulling };
    state where = state::whole;
    message_in::place place = message_in::place::none;
    std::uint32_t slot = 0;
    std::uint32_t id = 0;
    std::optional<std::uint32_t> immediate = {};
    remote_buffer memory = {};  // its size is the size of the message
    message_in* into = nullptr; // the operation whose memory it is read into
    bool spoiled = false;       // `into` was cancelled, so it has to be read again

    bool pinned() const noexcept { return into != nullptr && !spoiled; }
  };
  struct offer {
    message_out* send = nullptr;
    std::uint16_t generation = 0;
  };
  struct answer {
    std::uint32_t id;
    std::optional<refusal> why = {};
  };
  using request_list =
      boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;
  using inbox = boost::circular_buffer<entry>;

  bool next_control(outgoing_frame& f) override;
  bool next_data(outgoing_frame& f) override;
  bool has_data() const override;
  void on_sent(const frame_header& header, frame_operation* op) override;
  void on_dropped(const frame_header& header, frame_operation* op, const error_code& ec) override;
  disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot, protocol_clock::time_point now) override;
  void on_closing() override;
  bool drained() const override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  disposition on_offer(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot);
  bool on_answer(const frame_header& header);

  bool is_eager(const message_out& op) const noexcept;
  bool next_prepare(message_action& a);
  bool next_pull(message_action& a);
  void match();
  void match_written();
  void deliver(message_in& op, entry& e);
  void finish(message_out& op, const error_code& ec);
  void finish(message_in& op, const error_code& ec);
  void stop_waiting(message_in& op);
  bool leave(message_in& op, const error_code& ec);
  void unpin_from(std::size_t index);
  void let_go(entry& e);
  void drop_from(inbox::iterator first);
  void drop_pulled(const entry& e);
  void leave_queue(message_out& op);
  void free_offer(message_out& op);
  void end_receives(const error_code& ec);
  void end_sends(const error_code& ec);
  void drop_written();
  inbox::iterator find(std::uint32_t slot);

  frame_link& link_;
  message_options options_;
  std::uint64_t eager_;

  request_list queue_;                  // sends that have not begun, in order
  request_list::iterator next_prepare_; // the first of them whose key was not requested
  std::vector<offer> offers_;
  std::vector<std::uint16_t> free_offers_;
  std::uint32_t under_offer_ = 0; // sent and not completed
  request_list done_sends_;

  request_list waiters_;
  std::uint32_t waiting_ = 0, pinned_ = 0; // of those in `waiters_`
  inbox messages_;
  std::uint32_t unread_ = 0; // offers in `messages_` that are not being read
  std::uint32_t pulling_ = 0;
  std::vector<std::uint32_t> dropped_; // slots of pulls that the driver has to drop
  request_list written_waiters_;
  inbox written_;
  request_list done_receives_;
  boost::circular_buffer<answer> answers_;
  std::uint32_t unanswered_ = 0; // offers of the peer

  error_code no_sends_;    // why sends are not possible
  error_code no_receives_; // the error of receives when no messages are left
  bool dropping_ = false;  // arriving messages are dropped
  counters count_;
};

} // namespace asio_rdma::detail
