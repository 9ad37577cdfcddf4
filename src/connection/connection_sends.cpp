// SPDX-License-Identifier: BSL-1.0
// A connection's sends of messages: the memory and the record of each, its frame or offer, its end.
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "connection/connection_impl.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <span>

namespace asio_rdma::detail {

bool connection_impl::start(message_send& op, const payload& p,
                            std::optional<std::uint32_t> immediate) {
  link_impl::visit v(link_);
  op.ec = link_.check();
  if (op.ec)
    return false;
  message_record& r = records_.take();
  r.what = message_out::kind::message;
  r.immediate = immediate;
  op.ec = fill(r, p);
  if (op.ec) {
    give_back(r);
    return false;
  }
  r.waiter = &op;
  op.record = &r;
  begin(op);
  const link_action a = messages_->send_at_once(r);
  if (a.what == link_action::kind::send)
    link_.send(a);
  else
    messages_->send(r);
  v.run();
  return true;
}

// Unregistered buffers are copied at once, so they are not needed any more. If there is no memory
// for that, the operation fails. Device-only memory is never copied: a frame refers to it, or it is
// offered.
error_code connection_impl::fill(message_record& r, const payload& p) {
  const std::uint64_t eager = messages_->eager_size();
  r.device_only = p.device_only;
  if (r.device_only && link_.copies_frames())
    return asio::error::operation_not_supported;
  if (p.owner != nullptr) {
    if (!link_.is_usable(*p.owner))
      return asio::error::invalid_argument;
    r.bytes = p.owner->size();
    r.memory = *p.owner;
    return r.access.try_begin_read(*p.owner);
  }
  r.bytes = p.bytes;
  if (p.too_many)
    return error::too_many_buffers;
  // Whether the message is sent in place if its buffers are registered.
  const bool copied = !r.device_only && p.bytes <= frame_transfer::payload_room && p.bytes <= eager;
  if (!copied && p.count <= (p.bytes > eager ? 1 : link_.frame_views()) && find_views(r, p)) {
    r.view_count = static_cast<std::uint32_t>(p.count);
    r.caller_keeps = true;
    return {};
  }
  if (r.device_only)
    return asio::error::operation_not_supported;
  std::byte* to = r.small.data();
  r.is_small = p.bytes <= r.small.size() && p.bytes <= eager;
  if (!r.is_small) {
    error_code ec;
    r.memory = link_.pool().allocate(p.bytes, ec);
    if (ec)
      return ec;
    to = static_cast<std::byte*>(r.memory.data());
  }
  asio::buffer_copy(asio::buffer(to, p.bytes), std::span(p.parts, p.count));
  return {};
}

// Whether the buffers are registered, perhaps because they lie in the pool. If so, `r` gets them.
bool connection_impl::find_views(message_record& r, const payload& p) const {
  assert(p.count <= message_record::max_views);
  for (std::size_t i = 0; i < p.count; ++i) {
    const payload::part& part = p.parts[i];
    r.views[i] = element_of(part);
    if (p.registered)
      continue;
    const auto block = link_.pool().find(part.data, part.bytes);
    if (!block)
      return false;
    r.views[i].lkey = block->lkey();
  }
  return true;
}

void connection_impl::add_payload(const outgoing_frame& frame, frame_transfer& to) {
  const auto* message = &static_cast<const message_out&>(*frame.operation);
  if (frame.header.type != frame_type::gathered)
    return add_message(static_cast<const message_record&>(*message), to);
  for (; message != nullptr; message = message->together()) {
    constexpr std::array<std::byte, 8> zeros{};
    std::array<std::byte, gathered_header::size> header;
    encode({static_cast<std::uint32_t>(message->bytes), message->immediate}, header.data());
    to.copy(header.data(), header.size());
    add_message(static_cast<const message_record&>(*message), to);
    to.copy(zeros.data(), gathered_size(message->bytes) - gathered_header::size - message->bytes);
  }
}

void connection_impl::add_message(const message_record& r, frame_transfer& to) {
  if (r.is_small) {
    to.copy(r.small.data(), r.bytes);
  } else if (r.view_count != 0) {
    // A small message has views if it was to be offered, and the peer's receives have grown since.
    const bool copied = r.bytes <= frame_transfer::payload_room && !r.device_only;
    for (const ibv_sge& e : std::span(r.views).first(r.view_count))
      copied ? to.copy(reinterpret_cast<const void*>(e.addr), e.length) : to.add(e);
  } else if (r.bytes <= frame_transfer::payload_room && !r.device_only) {
    to.copy(r.memory.data(), r.bytes);
  } else {
    to.add(element_of(r.memory));
  }
}

void connection_impl::expose(message_record& r) {
  const_buffer memory = const_buffer(r.memory).first(r.bytes);
  if (r.view_count != 0)
    memory = {reinterpret_cast<const void*>(r.views[0].addr), r.bytes, r.views[0].lkey,
              r.device_only};
  if (const error_code ec = link_.open_offer(r, memory))
    messages_->fail_send(r, ec);
  else
    messages_->prepared(r, link_impl::remote_of(r));
}

// The peer's access ends before the operation completes.
void connection_impl::end_send(message_record& r, operation_list& done) {
  if (!link_.begin_end(r))
    complete_send(r, done);
}

void connection_impl::complete_send(message_record& r, operation_list& done) {
  if (!r.ec && r.what == message_out::kind::message) {
    messages_sent_.add();
    link_.count_sent(r.bytes);
    rendezvous_sent_.add(r.key != nullptr ? 1 : 0);
  }
  const bool is_users = r.caller_keeps || r.access;
  if (!link_.end_offer(r, r.memory, r.access) && is_users)
    r.ec = error::device_keeps_memory;
  if (r.waiter != nullptr) {
    r.waiter->value = r.bytes;
    complete(*r.waiter, r.ec, done);
  } else if (r.write != nullptr) {
    r.write->notice = nullptr;
    if (!r.write->result)
      r.write->result = r.ec;
    end_remote(*r.write, done);
  }
  give_back(r);
}

// Returns false if the operation continues: the device may use the caller's memory, or the peer may
// have the message.
bool connection_impl::cancel(message_send& op, asio::cancellation_type_t type,
                             operation_list& done) {
  message_record& r = *op.record;
  if (messages_->cancel(static_cast<message_out&>(r))) {
    r.ec = asio::error::operation_aborted;
    link_.drop_offer(r, r.memory);
    complete_send(r, done);
    return true;
  }
  const bool is_terminal =
      (type & asio::cancellation_type::terminal) != asio::cancellation_type::none;
  if (link_impl::is_ending(r) && !is_terminal)
    return true; // too late: the peer has the message
  if (r.caller_keeps || !may_leave_effects(type))
    return false;
  r.waiter = nullptr;
  complete(op, asio::error::operation_aborted, done);
  return true;
}

void connection_impl::give_back(message_record& r) noexcept {
  assert(r.key == nullptr);
  r.waiter = nullptr;
  r.write = nullptr;
  link_.drop(r.access);
  link_.drop(r.memory);
  r.view_count = 0;
  r.caller_keeps = r.is_small = r.device_only = false;
  records_.give_back(r);
}

} // namespace asio_rdma::detail
