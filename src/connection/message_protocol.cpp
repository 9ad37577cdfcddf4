// SPDX-License-Identifier: BSL-1.0
#include "connection/message_protocol.hpp"

namespace asio_rdma::detail {

message_protocol::message_protocol(frame_link& link, const message_options& o)
    : link_(link), outbox_(link, o), inbox_(link, o) {
  link.add(*this, {frame_type::message, frame_type::gathered, frame_type::offer,
                   frame_type::written, frame_type::taken, frame_type::refused});
}

message_action message_protocol::next() {
  message_action a;
  if (!may_act())
    return a;
  inbox_.match();
  if (!inbox_.next_drop(a) && !inbox_.next_received(a) && !outbox_.next_sent(a) &&
      !inbox_.next_pull(a) && !outbox_.next_prepare(a) && !outbox_.next_wait(a))
    idle();
  if (inbox_.has_answer()) [[unlikely]]
    ask_again();
  return a;
}

// The goodbye that follows ends what was offered. If an answer did so before, the peer's program
// could end the connection before its own goodbye.
bool message_protocol::next_control(outgoing_frame& f) {
  if (link_.closing() && outbox_.drained())
    inbox_.drop_refusals();
  return inbox_.next_answer(f);
}

bool message_protocol::next_data(outgoing_frame& f) { return outbox_.next_data(f); }

bool message_protocol::has_data() const { return outbox_.has_data(); }

void message_protocol::on_sent(const frame_header&, frame_operation* op) {
  outbox_.on_sent(op);
  if (outbox_.queues())
    ask_for_data(); // messages may have waited for the end of the frame
}

void message_protocol::on_dropped(const frame_header&, frame_operation* op, const error_code& ec) {
  outbox_.on_dropped(op, ec);
}

link_part::disposition message_protocol::on_frame(const frame_header& header,
                                                  std::span<const std::byte> payload,
                                                  std::uint32_t slot, protocol_clock::time_point) {
  if (header.type == frame_type::taken || header.type == frame_type::refused)
    return outbox_.on_answer(header) ? disposition::consumed : disposition::violation;
  return inbox_.on_frame(header, payload, slot);
}

void message_protocol::on_closing() {
  outbox_.close();
  inbox_.close();
}

bool message_protocol::drained() const { return outbox_.drained() && inbox_.drained(); }

bool message_protocol::on_goodbye() {
  if (!inbox_.on_goodbye())
    return false;
  outbox_.end_sends(asio::error::broken_pipe);
  return true;
}

void message_protocol::on_stopped(const error_code& ec) {
  outbox_.end_sends(ec);
  inbox_.stop(ec);
}

} // namespace asio_rdma::detail
