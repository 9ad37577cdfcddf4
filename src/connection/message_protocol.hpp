// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/message_inbox.hpp"
#include "connection/message_outbox.hpp"

namespace asio_rdma::detail {

/// Messages of any size, whole and in order, and notices of RDMA WRITEs. A message that fits the
/// peer's receives is sent eagerly, in one frame, which small messages share, and completes when
/// the frame's SEND does. A longer message is offered; it completes when the peer has read it and
/// said so. While an offer waits for its key, later messages wait too.
///
/// Messages are received in order. A message that is not taken holds its receive, which slows down
/// the peer. An offered message is read when an operation waits for it.
///
/// After the peer's goodbye, the messages that it sent can still be received; then waits end with
/// `eof`. Sends end with `broken_pipe`. After a failure, the messages that have arrived whole can
/// still be received, up to the first incomplete one.
class message_protocol final : private link_part {
public:
  /// The link must outlive this object.
  message_protocol(frame_link& link, const message_options& o);

  /// Whether `next` may have an action. Otherwise it has none until the next event.
  bool has_news() const noexcept { return may_act(); }
  message_action next();

  /// The longest message that is sent eagerly.
  std::uint64_t eager_size() const noexcept { return outbox_.eager_size(); }

  void send(message_out& op) {
    if (outbox_.send(op))
      ask_to_act();
    if (outbox_.has_data())
      ask_for_data();
  }
  /// The straight way of an eager message: if nothing waits before it, it is no small message that
  /// waits for others, and the peer has room, the result is the action `send` that the driver
  /// carries out. Otherwise the result is `none`, and nothing has happened: call `send`.
  link_action send_at_once(message_out& op) {
    frame_header header;
    return link_.may_send_at_once() && outbox_.send_at_once(op, header)
               ? link_.send_at_once(*this, header, op, true)
               : link_action();
  }
  /// Reports that the key for `op` has been made.
  void prepared(message_out& op, const remote_buffer& memory) {
    ask_again();
    outbox_.prepared(op, memory);
  }
  /// Reports that the key could not be made. `op` ends with the error; other operations continue.
  void fail_send(message_out& op, const error_code& ec) {
    ask_again();
    outbox_.fail_send(op, ec);
  }
  /// Reports that the handlers that were ready have run.
  void on_idle() {
    ask_again();
    outbox_.on_idle();
  }
  /// Cancels a send. Returns true if nothing of `op` has been sent; `op` is the driver's again, and
  /// so is a key that was or is being made. Otherwise `op` continues to its end.
  bool cancel(message_out& op) {
    ask_again();
    return outbox_.cancel(op);
  }

  void receive(message_in& op) {
    if (inbox_.receive(op))
      ask_to_act();
  }
  /// Cancels a receive; no message is lost. Returns false while the device reads into its memory.
  /// Then `op` ends with `operation_aborted` when the device has finished, and the message can be
  /// read again.
  bool cancel(message_in& op) {
    ask_again();
    return inbox_.cancel(op);
  }
  /// Called after `cancel` returned false. `op` is the driver's again, and the driver keeps its
  /// memory until `pulled`.
  void abandon(message_in& op) {
    ask_again();
    inbox_.abandon(op);
  }

  /// Declares that the message of `slot` is read into the memory of `op`, which the `pull` action
  /// named. Must be the first call after that action.
  void read_into(std::uint32_t slot, message_in& op) {
    ask_again();
    inbox_.read_into(slot, op);
  }
  /// Reports that the message of `slot` has been read. If it was read into memory of a cancelled
  /// operation, it may be incomplete.
  void pulled(std::uint32_t slot) {
    ask_again();
    inbox_.pulled(slot);
  }
  /// Refuses the message of `slot` because there is no memory for it. The sender is notified, and
  /// the message is removed. No READ of it may be outstanding.
  void refuse(std::uint32_t slot, refusal why = refusal::memory) {
    ask_again();
    inbox_.refuse(slot, why);
  }

  /// Puts off reading the message of `slot`, and those behind it, until `go_on`. No READ of it may
  /// be outstanding.
  void put_off(std::uint32_t slot) { inbox_.put_off(slot); }
  void go_on() {
    ask_again();
    inbox_.go_on();
  }
  bool puts_off() const noexcept { return inbox_.puts_off(); }
  std::uint64_t pulled_bytes() const noexcept { return inbox_.pulled_bytes(); }

private:
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

  frame_link& link_;
  message_outbox outbox_;
  message_inbox inbox_;
};

} // namespace asio_rdma::detail
