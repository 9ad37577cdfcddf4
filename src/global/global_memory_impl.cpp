// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/connection/connection_arguments.hpp>

#include "global/global_memory_impl.hpp"
#include "global/global_peer.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;
using result = global_message::result;

} // namespace

/// A message that no operation depends on. Not work of the context while the peer does not take it.
class global_memory_impl::hint final : public message_send {
public:
  /// Not sent if `most_hints` are outstanding, so a peer that takes none costs no more memory.
  static void send(const std::shared_ptr<global_memory_impl>& s, const peer_ptr& to,
                   const global_message& m) noexcept {
    try {
      try_send(s, to, m);
    } catch (const std::bad_alloc&) { // no operation depends on it
    }
  }

private:
  hint(std::shared_ptr<global_memory_impl> s, peer_ptr to)
      : message_send(&hint::sent), self_(std::move(s)), to_(std::move(to)) {
    background = true;
  }
  static void try_send(const std::shared_ptr<global_memory_impl>& s, const peer_ptr& to,
                       const global_message& m) {
    const auto bytes = encode(m);
    const std::lock_guard guard(s->mutex_);
    if (to->ended || to->hints == most_hints)
      return;
    auto h = std::unique_ptr<hint>(new hint(s, to));
    const payload_of<asio::const_buffer> whole(asio::buffer(bytes));
    if (!to->link.impl()->start(*h, whole, std::nullopt))
      return;
    ++to->hints;
    static_cast<void>(h.release());
  }
  static void sent(operation* base, disposal) {
    const std::unique_ptr<hint> h(&static_cast<hint&>(static_cast<message_send&>(*base)));
    const std::lock_guard guard(h->self_->mutex_);
    --h->to_->hints;
  }

  const std::shared_ptr<global_memory_impl> self_;
  const peer_ptr to_;
};

global_memory_impl::global_memory_impl(const asio::any_io_executor& executor,
                                       std::shared_ptr<global_node> node,
                                       const global_memory_options& options)
    : service_(completion_service::of(asio::query(executor, asio::execution::context))),
      executor_(executor),
      node_(std::move(node)),
      options_(options),
      places_(std::make_shared<in_flight>(service_, options.in_flight)),
      listener_(executor),
      connector_(executor) {}

global_memory_impl::~global_memory_impl() = default;

std::shared_ptr<global_memory_impl>
global_memory_impl::open(const asio::any_io_executor& executor,
                         const std::shared_ptr<global_node>& node,
                         const global_memory_options& options, error_code& ec) {
  const auto make = [&](error_code& e) -> std::shared_ptr<global_memory_impl> {
    auto made = std::make_shared<global_memory_impl>(executor, node, options);
    if (!node->pool().get_protection_domain().is_open())
      e = asio::error::bad_descriptor;
    else if (options.in_flight == 0)
      e = asio::error::invalid_argument;
    else
      made->service_.add(*made, e);
    return e ? nullptr : made;
  };
  return options.shared_lanes == 0 ? make(ec) : node->share(options.shared_lanes, make, ec);
}

bool global_memory_impl::add_user() noexcept {
  std::size_t n = users_.load();
  while (n != 0 && !users_.compare_exchange_weak(n, n + 1))
    continue;
  return n != 0 && !removed_.load();
}

// The remaining users have no context any more, so none of their operations can complete.
void global_memory_impl::on_context_shutdown() {
  removed_ = true;
  end_all();
}

void global_memory_impl::close() {
  if (--users_ != 0)
    return;
  if (!removed_.exchange(true))
    service_.remove(*this);
  end_all();
}

void global_memory_impl::end_all() {
  std::shared_ptr<memory_guest> guest;
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    guest = guest_;
    listener_.close();
    connector_.cancel();
  }
  places_->close();
  while (const peer_ptr p = first_peer())
    end(p, asio::error::operation_aborted);
  if (guest)
    guest->close();
}

global_memory_impl::peer_ptr global_memory_impl::first_peer() const noexcept {
  const std::lock_guard guard(mutex_);
  return peers_.empty() ? nullptr : peers_.front();
}

std::shared_ptr<memory_guest> global_memory_impl::open_guest() const {
  const std::lock_guard guard(mutex_);
  return closed_ ? nullptr : guest_;
}

std::shared_ptr<memory_guest>
global_memory_impl::guest(std::shared_ptr<memory_guest> (*make)(global_memory_impl&)) {
  const std::lock_guard guard(mutex_);
  if (closed_)
    return nullptr;
  if (!guest_)
    guest_ = make(*this);
  return guest_;
}

// Ends the connection and the requests that wait for its answers. Outstanding and later operations
// on the node's memory fail with the connection's error.
void global_memory_impl::end(const peer_ptr& p, const error_code& why) noexcept {
  operation_list done;
  loans lent;
  std::unique_ptr<background_timer> silence;
  std::list<global_lane> unused; // destroyed after the mutex is unlocked
  {
    const std::lock_guard guard(mutex_);
    if (std::exchange(p->ended, true))
      return;
    unused.swap(p->lane);
    for (const loans::iterator l : p->borrowed)
      lent.insert(loans_.extract(l));
    p->borrowed.clear();
    std::erase(peers_, p);
    silence = std::move(p->silence);
    if (!closed_ && has_lane(*p))
      replace_lane(*p);
    done.swap(p->requests);
    done.splice(done.end(), p->waiting);
    for (operation& op : done)
      op.fail(why);
  }
  if (p->link.is_open())
    p->link.impl()->close();
  {
    const std::lock_guard guard(mutex_);
    // Another view may have introduced itself while the connection was being closed.
    if (!closed_ && has_lane(*p))
      replace_lane(*p);
    if (!closed_ && has_lane(*p))
      note_departure(*p);
    unused.splice(unused.end(), lanes_.take_unused());
  }
  // The device no longer uses the memory: each outstanding access of the peer has happened or never
  // will.
  for (const auto& [where, l] : lent)
    node_->mark_dead(where.first, where.second, l.count);
  service_.complete(done);
}

// --- Messages --------------------------------------------------------------------------------

void global_memory_impl::send(const peer_ptr& p, const global_message& m) { send(p, encode(m)); }

// If a message cannot be sent, the connection ends: the peer would wait for the message, or take a
// later message for the first one.
void global_memory_impl::send(const peer_ptr& p, const std::vector<std::byte>& bytes) {
  p->link.async_send(asio::buffer(bytes), [s = self(), p](error_code ec, std::size_t) {
    if (ec)
      s->end(p, ec);
  });
}

void global_memory_impl::send_answer(const peer_ptr& p, const global_message& m) {
  {
    const std::lock_guard guard(mutex_);
    ++p->answers;
  }
  send_counted(p, m, &peer::answers, most_answers);
}

// The caller counts the message as one on its way. If there are `most`, no message of the peer's is
// taken until this one is sent.
void global_memory_impl::send_counted(const peer_ptr& p, const global_message& m,
                                      std::size_t peer::*count, std::size_t most) {
  p->link.async_send(asio::buffer(encode(m)),
                     [s = self(), p, count, most](error_code ec, std::size_t) {
                       bool listens = false;
                       {
                         const std::lock_guard guard(s->mutex_);
                         listens = (p.get()->*count)-- == most;
                       }
                       if (ec)
                         s->end(p, ec);
                       else if (listens)
                         s->listen_to(p);
                     });
}

// Waits for the next message. If no message is due, the wait is not work of the context.
void global_memory_impl::listen_to(const peer_ptr& p) noexcept {
  error_code ec;
  {
    const std::lock_guard guard(mutex_);
    const bool takes_more = p->answers < most_answers && p->unsent < most_unsent && !p->zeroing;
    if (p->ended || p->refused || (!p->listening && !takes_more))
      return;
    const bool expected = p->serves || !p->requests.empty() || p->asked != 0;
    connection_impl& link = *p->link.impl();
    if (p->listening) {
      if (expected)
        link.to_foreground(*p->listening);
      return;
    }
    p->listening.emplace(self(), p);
    p->listening->background = !expected;
    try {
      if (link.start(*p->listening))
        return;
      ec = p->listening->ec;
    } catch (const std::bad_alloc&) {
      ec = asio::error::no_memory;
    }
    p->listening.reset();
  }
  end(p, ec);
}

void global_memory_impl::on_message(const peer_ptr& p, const error_code& ec,
                                    const message& m) noexcept {
  error_code why = ec;
  operation_list done;
  if (!why) {
    try {
      global_message g;
      why = decode(m.bytes(), g) ? take(p, g, done) : error_code(error::protocol_violation);
    } catch (const std::bad_alloc&) { // the peer would wait for an answer
      why = asio::error::no_memory;
    }
  }
  {
    const std::lock_guard guard(mutex_);
    p->listening.reset();
  }
  if (why)
    end(p, why);
  else
    listen_to(p);
  service_.complete(done);
}

error_code global_memory_impl::take(const peer_ptr& p, const global_message& m,
                                    operation_list& done) {
  // The peer introduces itself once, in its first message: with a join if the peer has connected.
  const bool first = m.what == kind::join || m.what == kind::welcome || m.what == kind::refuse;
  if (first ? p->introduction || p->accepted != (m.what == kind::join) : !p->introduction)
    return error::protocol_violation;
  switch (m.what) {
  case kind::refuse:
    return m.status == result::ok ? error_code(error::protocol_violation) : error_of(m.status);
  case kind::join: {
    const auto welcome = encode(node_->introduction(kind::welcome));
    const error_code ec = introduce(p, m, welcome, done);
    if (!ec)
      return {};
    global_message refusal;
    refusal.what = kind::refuse;
    refusal.status = result::node_in_use;
    {
      const std::lock_guard guard(mutex_);
      p->refused = true;
    }
    p->link.async_send(asio::buffer(encode(refusal)),
                       [s = self(), p, ec](error_code, std::size_t) { s->end(p, ec); });
    return {};
  }
  case kind::welcome:
    return introduce(p, m, {}, done);
  case kind::free:
    send_answer(p, node_->serve(m));
    return {};
  case kind::allocate:
    allocate(p, m);
    return {};
  case kind::descriptors:
    add_descriptors(p, m);
    return {};
  case kind::wake:
    if (const peer_ptr next = borrower(m.segment, m.value)) {
      global_message woken = m;
      woken.what = kind::woken;
      hint::send(self(), next, woken);
    }
    return {};
  case kind::woken:
    if (const auto guest = open_guest())
      guest->on_next(p->link.impl().get(), m.segment, m.value);
    return {};
  case kind::allocated:
  case kind::freed:
    break;
  }
  return answer(p, m, done);
}

// --- Memory for peers ------------------------------------------------------------------------

// Other peers are served while much memory is zeroed. Meanwhile this peer's next request is not
// taken.
void global_memory_impl::allocate(const peer_ptr& p, const global_message& m) {
  global_node::unzeroed block;
  const global_message reply = node_->serve(m, block);
  if (block.bytes == 0)
    return send_answer(p, reply);
  {
    const std::lock_guard guard(mutex_);
    p->zeroing = true;
  }
  zero(p, reply, block);
}

void global_memory_impl::zero(const peer_ptr& p, const global_message& answer,
                              global_node::unzeroed block) {
  asio::post(executor_, [s = self(), p, answer, block]() mutable {
    {
      const std::lock_guard guard(s->mutex_);
      if (p->ended) // the block stays allocated: no node knows it
        return;
    }
    try {
      if (!s->node_->zero_some(block))
        return s->zero(p, answer, block);
      s->send_answer(p, answer);
    } catch (const std::bad_alloc&) { // the peer would wait for an answer
      return s->end(p, asio::error::no_memory);
    }
    {
      const std::lock_guard guard(s->mutex_);
      p->zeroing = false;
    }
    s->listen_to(p);
  });
}

// --- Locks -----------------------------------------------------------------------------------

void global_memory_impl::hint_next(const connection_impl* way, segment_id segment,
                                   std::uint64_t descriptor) noexcept {
  peer_ptr p;
  {
    const std::lock_guard guard(mutex_);
    const auto found = std::find_if(peers_.begin(), peers_.end(), [way](const peer_ptr& one) {
      return one->link.impl().get() == way;
    });
    if (found == peers_.end())
      return;
    p = *found;
  }
  global_message m;
  m.what = kind::wake;
  m.segment = segment;
  m.value = descriptor;
  hint::send(self(), p, m);
}

// Gives the peer memory for its descriptors in the queues of locks, until the connection ends.
void global_memory_impl::add_descriptors(const peer_ptr& p, const global_message& m) {
  loans lent{{{m.segment, 0}, {m.value, p}}}; // allocated in advance
  bool too_many = false;
  {
    const std::lock_guard guard(mutex_);
    too_many = p->borrowed.size() == most_loans;
    if (p->borrowed.size() == p->borrowed.capacity())
      p->borrowed.reserve(std::max<std::size_t>(16, 2 * p->borrowed.size()));
  }
  if (too_many) {
    global_message refusal;
    refusal.what = kind::allocated;
    refusal.id = m.id;
    refusal.segment = m.segment;
    refusal.status = result::no_memory;
    return send_answer(p, refusal);
  }
  const global_message reply = node_->serve(m);
  if (reply.status == result::ok) {
    const std::lock_guard guard(mutex_);
    if (p->ended)
      return node_->mark_dead(m.segment, reply.value, m.value);
    auto one = lent.extract(lent.begin());
    one.key().second = reply.value;
    p->borrowed.push_back(loans_.insert(std::move(one)).position);
  }
  send_answer(p, reply);
}

global_memory_impl::peer_ptr global_memory_impl::borrower(segment_id segment,
                                                          std::uint64_t descriptor) const {
  const std::lock_guard guard(mutex_);
  auto l = loans_.upper_bound({segment, descriptor});
  if (l == loans_.begin())
    return nullptr;
  --l;
  const auto& [first, lent] = *l;
  const bool inside =
      first.first == segment && (descriptor - first.second) / sizeof(alock_descriptor) < lent.count;
  return inside ? lent.borrower : nullptr;
}

} // namespace asio_rdma::detail
