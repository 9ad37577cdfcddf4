// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "connection/connection_impl.hpp"

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

namespace asio_rdma::detail {
namespace {

link_options link_options_of(const connection_options& o) {
  link_options result;
  result.receives = o.receives;
  result.receive_size = o.receive_size;
  result.sends = o.sends;
  result.most_payload = o.max_message;
  result.keep_alive = o.keep_alive;
  result.queue_pair = o.queue_pair;
  return result;
}

} // namespace

// --- Long messages, read from the sender's memory --------------------------------------------

message_pull::message_pull(connection_impl& connection) noexcept
    : link_pull(connection.link(),
                [](link_pull& p) {
                  auto& self = static_cast<message_pull&>(p);
                  self.owner.pull_done(self);
                }),
      owner(connection) {}

void connection_impl::pull_done(message_pull& p) {
  if (p.failure() && p.failure() != boost::system::errc::not_enough_memory)
    return link_.fail(p.failure());
  if (p.failure())
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
  if (a.receive != nullptr) {
    message_receive& op = *static_cast<message_receive::wait&>(*a.receive).op;
    if (op.direct) {
      messages_->read_into(a.slot, op.request);
      p.into = &op;
      op.pull = &p;
      const ibv_sge& to = *op.targets;
      return p.start({reinterpret_cast<void*>(to.addr), a.memory.size, to.lkey}, a.memory);
    }
  }
  error_code ec;
  p.memory = link_.pool().allocate(a.memory.size, ec);
  if (!ec)
    return p.start(p.memory, a.memory);
  messages_->refuse(a.slot);
  give_back(p);
}

// --- Sending ---------------------------------------------------------------------------------

connection_impl::connection_impl(asio::execution_context& context, const memory_pool& pool,
                                 const connection_options& options)
    : link_session(context, pool, handshake::kind::message, link_options_of(options)),
      options_(options) {}

connection_impl::~connection_impl() = default;

error_code connection_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  return take_sizes(link_.open(std::move(queue)));
}

error_code connection_impl::open(const std::shared_ptr<shared_receives_impl>& shared) {
  return take_sizes(link_.open(shared));
}

// The link fits its receives to the shared ones, to the device and to the largest message.
error_code connection_impl::take_sizes(const error_code& ec) noexcept {
  options_.receives = link_.options().receives;
  options_.receive_size = link_.options().receive_size;
  return ec;
}

void connection_impl::make_parts(frame_link& frames, const handshake&) {
  message_options o;
  o.limit = options().max_message;
  o.offers = options().offers;
  o.pulls = options().pulls;
  try {
    messages_.emplace(frames, o);
    frames.add(remote_part_.emplace(*this), {});
    regions_.emplace(*this, frames, options().remote_memory);
  } catch (...) {
    messages_.reset(); // the messages would refer to destroyed frames
    throw;
  }
}

void connection_impl::give_back(message_record& r) noexcept {
  assert(!r.exposed.is_open());
  r.waiter = nullptr;
  r.write = nullptr;
  link_.drop(r.access);
  link_.drop(r.memory);
  r.view_count = 0;
  r.caller_keeps = r.is_small = false;
  records_.give_back(r);
}

// Unregistered buffers are copied at once, so they are not needed any more. If there is no memory
// for that, the operation fails.
error_code connection_impl::fill(message_record& r, const payload& p) {
  const std::uint64_t eager = messages_->eager_size();
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
  bool registered = p.registered;
  std::array<payload::part, message_record::max_views> found;
  if (!registered && p.count <= found.size()) { // the buffers may lie in the pool nevertheless
    registered = true;
    for (std::size_t i = 0; i < p.count && registered; ++i) {
      const auto b = link_.pool().find(p.parts[i].data, p.parts[i].bytes);
      registered = b.has_value();
      if (registered)
        found[i] = {p.parts[i].data, p.parts[i].bytes, b->lkey()};
    }
  } else if (p.count <= found.size()) {
    std::copy_n(p.parts, p.count, found.begin());
  }
  if (registered && p.count <= (p.bytes > eager ? 1 : found.size()) &&
      (p.bytes > frame_transfer::payload_room || p.bytes > eager)) {
    for (std::size_t i = 0; i < p.count; ++i)
      r.views[i] = element_of(found[i]);
    r.view_count = static_cast<std::uint32_t>(p.count);
    r.caller_keeps = true;
    return {};
  }
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

bool connection_impl::start(message_send& op, const payload& p,
                            std::optional<std::uint32_t> immediate) {
  link_impl::turn t(link_);
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
  op.background ? link_.completion_queue().background_starting() : link_.operation_starting();
  r.waiter = &op;
  op.record = &r;
  active_.push_back(op);
  messages_->send(r);
  t.run();
  return true;
}

void connection_impl::add_payload(const outgoing_frame& frame, frame_transfer& to) {
  auto& r = static_cast<message_record&>(static_cast<message_out&>(*frame.operation));
  if (r.is_small) {
    to.copy(r.small.data(), r.bytes);
  } else if (r.view_count != 0) {
    for (std::uint32_t i = 0; i < r.view_count; ++i)
      to.add(r.views[i]);
  } else if (r.bytes <= frame_transfer::payload_room) {
    to.copy(r.memory.data(), r.bytes);
  } else {
    to.add(element_of(r.memory));
  }
}

void connection_impl::expose(message_record& r) {
  void* data = r.memory.data();
  if (r.view_count != 0)
    data = reinterpret_cast<void*>(r.views[0].addr);
  error_code ec;
  r.exposed =
      memory_region(link_.pool().get_protection_domain(), data, r.bytes, access::remote_read, ec);
  if (ec)
    messages_->fail_send(r, ec);
  else
    messages_->prepared(r, r.exposed.remote());
}

void connection_impl::complete_send(message_record& r, operation_list& done) {
  if (!r.ec && r.what == message_out::kind::message) {
    messages_sent_.add();
    link_.count_sent(r.bytes);
    rendezvous_sent_.add(r.exposed.is_open() ? 1 : 0);
  }
  if (r.exposed.is_open()) {
    const bool is_users = r.caller_keeps || r.access;
    if (!link_.end_key(r.exposed, r.memory, r.access) && is_users)
      r.ec = error::device_keeps_memory;
  }
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

// --- Receiving -------------------------------------------------------------------------------

// Whether the buffer is registered, perhaps without the caller's knowledge.
bool connection_impl::find_key(ibv_sge& e) const {
  if (e.lkey != 0)
    return true;
  const auto found = link_.pool().find(reinterpret_cast<const void*>(e.addr), e.length);
  if (found)
    e.lkey = found->lkey();
  return found.has_value();
}

bool connection_impl::start(message_receive& op) {
  link_impl::turn t(link_);
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
    op.direct = op.target_count == 1 && find_key(*op.targets);
  }
  op.background ? link_.completion_queue().background_starting() : link_.operation_starting();
  active_.push_back(op);
  op.request.op = &op;
  messages_->receive(op.request);
  t.advance();
  return true;
}

void connection_impl::to_foreground(message_receive& op) {
  link_impl::turn t(link_);
  end_background(op);
  t.changed();
}

void connection_impl::end_background(connection_operation& op) {
  if (std::exchange(op.background, false))
    link_.completion_queue().background_ending();
}

void connection_impl::complete_receive(message_receive& op, operation_list& done) {
  end_background(op);
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
  if (in_slot)
    memory = link_.received(result.slot).slice(frame_header::size, result.bytes);
  else if (result.where == message_in::place::pulled) {
    message_pull& p = pull_of(result.slot);
    memory = std::move(p.memory);
    give_back(p);
  }
  if (op.owning) {
    op.result.payload = std::move(memory);
    if (in_slot)
      link_.received(result.slot) = {}; // the next frame uses other memory
  } else if (!memory.empty()) {
    scatter(memory.data(), {op.targets, op.target_count}, 0, memory.size());
  }
  if (in_slot)
    link_.frames().release(result.slot);
  active_.erase(operation_list::s_iterator_to(op));
  done.push_back(op);
}

void connection_impl::complete(connection_operation& op, const error_code& ec,
                               operation_list& done) {
  if (ec)
    op.fail(ec);
  end_background(op);
  active_.erase(operation_list::s_iterator_to(op));
  done.push_back(op);
}

bool connection_impl::run_parts(operation_list& done) {
  assert(link_.is_locked());
  if (!messages_)
    return false;
  const message_action a = messages_->next();
  switch (a.what) {
  case message_action::kind::prepare:
    expose(static_cast<message_record&>(*a.send));
    return true;
  case message_action::kind::pull:
    begin_pull(a);
    return true;
  case message_action::kind::drop:
    give_back(pull_of(a.slot));
    return true;
  case message_action::kind::sent:
    complete_send(static_cast<message_record&>(*a.send), done);
    return true;
  case message_action::kind::received:
    complete_receive(*static_cast<message_receive::wait&>(*a.receive).op, done);
    return true;
  case message_action::kind::none:
    break;
  }
  return regions_->run(done);
}

connection_statistics connection_impl::statistics() const noexcept {
  connection_statistics result;
  static_cast<link_statistics&>(result) = link_.statistics();
  result.messages_sent = messages_sent_.value();
  result.messages_received = messages_received_.value();
  result.rendezvous_sent = rendezvous_sent_.value();
  result.rendezvous_received = rendezvous_received_.value();
  result.remote_operations = remote_operations_.value();
  result.remote_bytes = remote_bytes_.value();
  return result;
}

// --- Cancelling ------------------------------------------------------------------------------

void connection_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  if (link_.cancel_close(id, type))
    return;
  if (!cancel_active(id, type))
    link_.queue_pair()->cancel(id, type);
}

bool connection_impl::cancel_active(std::uint64_t id, asio::cancellation_type_t type) {
  link_impl::turn t(link_);
  const auto found = std::find_if(active_.begin(), active_.end(),
                                  [id](const operation& op) { return op.id == id; });
  if (found == active_.end())
    return false;
  link_.do_or_fail([&] { cancel(static_cast<connection_operation&>(*found), type, t.done); });
  t.run();
  return true;
}

void connection_impl::cancel(connection_operation& op, asio::cancellation_type_t type,
                             operation_list& done) {
  bool goes_on = false;
  switch (op.what) {
  case connection_operation::kind::receive:
    cancel(static_cast<message_receive&>(op), done);
    break;
  case connection_operation::kind::send:
    goes_on = !cancel(static_cast<message_send&>(op), type, done);
    break;
  case connection_operation::kind::region:
    regions_->cancel(static_cast<region_operation&>(op), type, done);
    break;
  case connection_operation::kind::remote:
    goes_on = !cancel(static_cast<remote_operation&>(op), type, done);
    break;
  }
  if (goes_on && (type & asio::cancellation_type::terminal) != asio::cancellation_type::none)
    link_.fail(asio::error::operation_aborted);
}

// Returns false if the operation continues: the device may use the caller's memory, or the peer may
// have the message.
bool connection_impl::cancel(message_send& op, asio::cancellation_type_t type,
                             operation_list& done) {
  message_record& r = *op.record;
  if (messages_->cancel(static_cast<message_out&>(r))) {
    r.ec = asio::error::operation_aborted;
    complete_send(r, done);
    return true;
  }
  if (r.caller_keeps || !may_leave_effects(type))
    return false;
  r.waiter = nullptr;
  complete(op, asio::error::operation_aborted, done);
  return true;
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

void connection_impl::cancel_receives() {
  link_impl::turn t(link_);
  link_.do_or_fail([&] {
    for (auto i = active_.begin(); i != active_.end();) {
      auto& op = static_cast<connection_operation&>(*i++);
      if (op.what == connection_operation::kind::receive)
        cancel(static_cast<message_receive&>(op), t.done);
      else if (op.what == connection_operation::kind::region &&
               static_cast<region_operation&>(op).why == region_operation::purpose::receive)
        regions_->cancel(static_cast<region_operation&>(op), asio::cancellation_type::total,
                         t.done);
    }
  });
  t.run();
}

} // namespace asio_rdma::detail
