// SPDX-License-Identifier: BSL-1.0
#include "connection/connection_impl.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

link_options link_options_of(const connection_options& o) {
  link_options result;
  result.receives = o.receives;
  result.receive_size = o.receive_size;
  result.max_receive_size = o.max_receive_size;
  result.sends = o.sends;
  if (o.gather)
    result.send_room = connection_impl::gathered_room;
  result.most_payload = o.max_message;
  result.keep_alive = o.keep_alive;
  result.read_timeout = o.read_timeout;
  result.own_domain = o.own_domain;
  result.queue_pair = o.queue_pair;
  return result;
}

} // namespace

connection_impl::connection_impl(asio::execution_context& context, const memory_pool& pool,
                                 const connection_options& options)
    : link_session(context, pool, handshake::kind::message, link_options_of(options)),
      options_(options),
      allocations_(slow_allocations::of(context)) {
  if (options_.pull_bytes == 0)
    options_.pull_bytes = pool.limit() / 2;
}

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
  options_.max_receive_size = link_.options().max_receive_size;
  return ec;
}

void connection_impl::make_parts(frame_link& frames, const handshake&) {
  message_options o;
  o.limit = options().max_message;
  o.offers = options().offers;
  o.pulls = options().pulls;
  o.pull_bytes = options().pull_bytes;
  if (options().gather) {
    o.gather = gathered_room - frame_header::size;
    o.small = frame_transfer::payload_room;
  }
  try {
    messages_.emplace(frames, o);
    frames.add(remote_part_.emplace(*this), {});
    regions_.emplace(*this, frames, options().remote_memory);
  } catch (...) {
    messages_.reset(); // the messages would refer to destroyed frames
    throw;
  }
}

connection_statistics connection_impl::counters() const noexcept {
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

// --- Driving ---------------------------------------------------------------------------------

bool connection_impl::run_parts(operation_list& done) {
  assert(link_.is_locked());
  if (!messages_)
    return false;
  if (!told_later_.empty() && (hold_is_over_ || !link_.frames().answers_goodbye())) [[unlikely]]
    done.splice(done.end(), told_later_);
  bool any = false;
  while (messages_->has_news()) {
    const message_action a = messages_->next();
    if (a.what == message_action::kind::none)
      break;
    any = true;
    run_action(a, done);
    if (link_.frames().has_news())
      return true;
  }
  if (to_come_ && !messages_->puts_off()) [[unlikely]]
    drop_to_come();
  remote_part_->idle();
  return regions_->run(done) || any;
}

void connection_impl::run_action(const message_action& a, operation_list& done) {
  switch (a.what) {
  case message_action::kind::prepare:
    return expose(static_cast<message_record&>(*a.send));
  case message_action::kind::pull:
    return begin_pull(a);
  case message_action::kind::drop:
    return give_back(pull_of(a.slot));
  case message_action::kind::sent:
    return end_send(static_cast<message_record&>(*a.send), done);
  case message_action::kind::received:
    return complete_receive(*static_cast<message_receive::wait&>(*a.receive).op, done);
  case message_action::kind::await_idle:
    return link_.visit_when_idle();
  case message_action::kind::none:
    return;
  }
}

void connection_impl::on_idle(bool) {
  if (messages_)
    messages_->on_idle();
}

void connection_impl::on_key_ended(offered& o, operation_list& done) {
  complete_send(static_cast<message_record&>(o), done);
}

void connection_impl::begin(connection_operation& op) {
  op.background ? link_.completion_queue().background_starting() : link_.operation_starting(op);
  active_.push_back(op);
}

void connection_impl::complete(connection_operation& op, const error_code& ec,
                               operation_list& done) {
  if (ec)
    op.fail(ec);
  has_ended(op, done);
}

void connection_impl::has_ended(connection_operation& op, operation_list& done) {
  end_background(op);
  active_.erase(operation_list::s_iterator_to(op));
  const bool tells_end = op.ec == asio::error::eof || op.ec == asio::error::broken_pipe;
  (tells_end && holds_ends() ? told_later_ : done).push_back(op);
}

// A peer that has died meanwhile does not delay the program for longer.
bool connection_impl::holds_ends() {
  constexpr std::chrono::seconds longest_hold(1);
  if (!link_.connected() || hold_is_over_ || !link_.frames().answers_goodbye())
    return false;
  if (!told_later_.empty())
    return true;
  try {
    link_.call_at(link_impl::timer::goodbye, protocol_clock::now() + longest_hold, [this] {
      hold_is_over_ = true;
      remote_part_->ask_to_act(); // so that `run_parts` is called
    });
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void connection_impl::end_background(connection_operation& op) {
  if (std::exchange(op.background, false))
    link_.completion_queue().background_ending();
}

// --- Cancelling ------------------------------------------------------------------------------

void connection_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  if (!link_.cancel_close(id, type) && !link_.cancel_wait(id))
    cancel_active(id, type);
}

void connection_impl::cancel_active(std::uint64_t id, asio::cancellation_type_t type) {
  link_impl::visit v(link_);
  const auto found = std::find_if(active_.begin(), active_.end(),
                                  [id](const operation& op) { return op.id == id; });
  if (found == active_.end())
    return;
  link_.do_or_fail([&] { cancel(static_cast<connection_operation&>(*found), type, v.done); });
  v.run();
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

void connection_impl::cancel_receives() {
  link_impl::visit v(link_);
  link_.do_or_fail([&] {
    for (auto i = active_.begin(); i != active_.end();) {
      auto& op = static_cast<connection_operation&>(*i++);
      if (op.what == connection_operation::kind::receive)
        cancel(static_cast<message_receive&>(op), v.done);
      else if (op.what == connection_operation::kind::region &&
               static_cast<region_operation&>(op).why == region_operation::purpose::receive)
        regions_->cancel(static_cast<region_operation&>(op), asio::cancellation_type::total,
                         v.done);
    }
  });
  v.run();
}

} // namespace asio_rdma::detail
