// SPDX-License-Identifier: BSL-1.0
// A connection's receives of messages, and the READs of offered messages.
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "connection/connection_impl.hpp"
#include "core/size_classes.hpp"
#include "memory/memory_pool_impl.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace asio_rdma::detail {

bool connection_impl::start(message_receive& op) {
  link_impl::visit v(link_);
  if (!messages_) {
    op.ec = link_.check();
    return false;
  }
  if (!link_.is_usable(op.memory)) {
    op.ec = asio::error::invalid_argument;
    return false;
  }
  if (!op.owning) {
    op.request.capacity = 0;
    for (std::size_t i = 0; i < op.target_count; ++i)
      op.request.capacity += op.targets[i].length;
    if (op.request.device_only && op.target_count > 1) {
      op.ec = asio::error::operation_not_supported;
      return false;
    }
    const bool is_long = op.request.capacity > frame_transfer::payload_room;
    op.request.direct =
        op.target_count == 1 && (is_long || op.request.device_only) && find_key(*op.targets);
  }
  begin(op);
  op.request.op = &op;
  messages_->receive(op.request);
  v.advance();
  return true;
}

void connection_impl::to_foreground(message_receive& op) {
  link_impl::visit v(link_);
  end_background(op);
  v.changed();
}

// Whether the buffer is registered, perhaps without the caller's knowledge.
bool connection_impl::find_key(ibv_sge& e) const {
  if (e.lkey != 0)
    return true;
  const auto found = link_.pool().find(reinterpret_cast<const void*>(e.addr), e.length);
  if (found)
    e.lkey = found->lkey();
  return found.has_value();
}

void connection_impl::complete_receive(message_receive& op, operation_list& done) {
  const message_in& result = op.request;
  op.ec = result.ec;
  op.size = result.bytes;
  op.result.immediate = result.immediate;
  op.word = result.immediate.value_or(0);
  if (!op.ec && result.what == message_in::kind::message) {
    messages_received_.add();
    link_.count_received(result.bytes);
    rendezvous_received_.add(
        result.where == message_in::place::pulled || result.where == message_in::place::direct ? 1
                                                                                               : 0);
  }
  if (op.pull != nullptr) // the link has stopped
    give_back(*op.pull);
  registered_buffer memory;
  const bool in_slot = result.where == message_in::place::slot;
  const std::size_t at = frame_header::size + result.at;
  const std::byte* bytes = nullptr;
  if (in_slot && op.owning) {
    memory = link_.take_received(result.slot, at, result.bytes);
  } else if (in_slot) {
    bytes = static_cast<const std::byte*>(link_.received(result.slot).data()) + at;
  } else if (result.where == message_in::place::pulled) {
    message_pull& p = pull_of(result.slot);
    memory = std::move(p.memory);
    bytes = static_cast<const std::byte*>(memory.data());
    give_back(p);
  }
  if (op.owning)
    op.result.payload = std::move(memory);
  else if (bytes != nullptr && result.bytes != 0) {
    link_.post_gathered();
    scatter(bytes, {op.targets, op.target_count}, 0, result.bytes);
  }
  if (in_slot && result.last)
    link_.frames().release(result.slot);
  has_ended(op, done);
}

// A message that is being read into the caller's memory will be read again for another receive.
void connection_impl::cancel(message_receive& op, operation_list& done) {
  if (!messages_->cancel(op.request)) {
    if (op.pull == nullptr)
      return;
    message_pull& p = *op.pull;
    p.stop();
    if (!op.memory.region()) // the operation ends after its READ
      return;
    p.memory = std::move(op.memory);
    p.access = std::move(op.access);
    p.abandoned = true;
    p.into = nullptr;
    op.pull = nullptr;
    messages_->abandon(op.request);
  }
  complete(op, asio::error::operation_aborted, done);
}

// --- Long messages, read from the sender's memory --------------------------------------------

message_pull::message_pull(connection_impl& connection) noexcept
    : link_pull(connection.link(),
                [](link_pull& p) {
                  auto& self = static_cast<message_pull&>(p);
                  self.owner.pull_done(self);
                }),
      owner(connection) {}

void connection_impl::pull_done(message_pull& p) {
  if (p.failure()) // the memory cannot be registered: the link itself has not failed
    messages_->refuse(p.slot);
  else
    messages_->pulled(p.slot);
  if (p.into != nullptr || p.abandoned || p.failure())
    give_back(p);
}

// Releases the pull and its memory: no READ is outstanding, and the bytes read are not needed.
void connection_impl::give_back(message_pull& p) noexcept {
  if (p.into != nullptr)
    std::exchange(p.into, nullptr)->pull = nullptr;
  p.abandoned = p.in_use = false;
  link_.drop(p.access);
  link_.drop(p.memory);
  pulls_.give_back(p);
}

message_pull& connection_impl::pull_of(std::uint32_t slot) noexcept {
  assert(link_.is_locked());
  auto& all = pulls_.all();
  return *std::find_if(all.begin(), all.end(),
                       [slot](const message_pull& p) { return p.in_use && p.slot == slot; });
}

void connection_impl::begin_pull(const message_action& a) {
  message_pull* free = nullptr;
  try {
    free = &pulls_.take(*this);
  } catch (const std::bad_alloc&) {
    return messages_->refuse(a.slot);
  }
  message_pull& p = *free;
  p.slot = a.slot;
  p.in_use = true;
  message_receive& op = *static_cast<message_receive::wait&>(*a.receive).op;
  if (op.request.direct) {
    messages_->read_into(a.slot, op.request);
    p.into = &op;
    op.pull = &p;
    const ibv_sge& to = *op.targets;
    return p.start(
        {reinterpret_cast<void*>(to.addr), a.memory.size, to.lkey, op.request.device_only},
        a.memory);
  }
  error_code ec;
  p.memory = allocate_to_pull(a.memory.size, ec);
  if (!ec)
    return p.start(p.memory, a.memory);
  if (ec == asio::error::would_block)
    messages_->put_off(a.slot);
  else
    messages_->refuse(a.slot);
  give_back(p);
}

// If a background thread allocates the memory (`would_block`), this looks for the result.
registered_buffer connection_impl::allocate_to_pull(std::size_t bytes, error_code& ec) {
  const memory_pool& pool = link_.pool();
  ec.clear();
  if (to_come_ && to_come_->bytes() != bytes)
    drop_to_come();
  if (to_come_ && to_come_->is_done()) {
    registered_buffer result = std::exchange(to_come_, nullptr)->take(ec);
    if (!ec && !has_room_to_pull(bytes, 0)) // meanwhile others have taken what is left for them
      ec = error::pool_limit;
    return result;
  }
  if (!to_come_) {
    if (!has_room_to_pull(bytes, bytes)) {
      ec = error::pool_limit;
      return {};
    }
    if (bytes <= largest_small)
      return pool.allocate(bytes, ec);
    if (registered_buffer present = allocate_present(pool, bytes); !present.empty())
      return present;
    if (!allocations_.admits(pool, bytes))
      to_come_ = allocations_.start<slow_allocation>(pool, bytes);
    if (!to_come_)
      return pool.allocate(bytes, ec);
  }
  look_for_memory();
  ec = asio::error::would_block;
  return {};
}

// The message is read in another way, or not at all.
void connection_impl::drop_to_come() noexcept {
  allocations_.cancel(*to_come_);
  to_come_.reset();
}

// A background thread does not report that it has allocated memory, so this polls.
void connection_impl::look_for_memory() {
  link_.call_at(link_impl::timer::put_off, protocol_clock::now() + allocations_.pause(), [this] {
    messages_->go_on();
    regions_->look_for_memory();
  });
}

// The peer chooses the size, and how long its memory takes to be read. So a part of the pool's
// limit is left for other links: for their receives, and each link's first short message. Long
// messages that wait for a thread may not get what they wait for, so they hold up no short one.
bool connection_impl::has_room_to_pull(std::uint64_t bytes, std::uint64_t more) const noexcept {
  const std::uint64_t limit = link_.pool().limit();
  const bool is_short = messages_->pulled_bytes() == bytes && bytes <= short_message;
  const std::uint64_t left = !is_short ? limit / 8 : bytes <= small_message ? 0 : limit / 16;
  const std::uint64_t most = limit - left;
  const std::uint64_t waiting =
      is_short || more == 0 ? 0 : allocations_.bytes_waiting(link_.pool());
  const std::uint64_t used = link_.pool().impl()->used() + waiting;
  return bytes <= options_.pull_bytes && used <= most && more <= most - used;
}

} // namespace asio_rdma::detail
