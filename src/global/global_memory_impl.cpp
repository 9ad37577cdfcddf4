// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/connection/connection_arguments.hpp>

#include "connection/connection_impl.hpp"
#include "core/background_timer.hpp"
#include "global/global_memory_impl.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;
using result = global_message::result;

error_code error_of(result r) {
  switch (r) {
  case result::ok:
    return {};
  case result::node_in_use:
    return error::node_in_use;
  case result::no_memory:
    return make_error_code(boost::system::errc::not_enough_memory);
  case result::invalid:
    return asio::error::invalid_argument;
  }
  return error::protocol_violation;
}

// Outstanding hints to one peer: further hints would only wait behind these.
constexpr std::size_t most_hints = 64;

} // namespace

// --- Opening and closing ---------------------------------------------------------------------

/// A connection to another node, from either side, and the requests that wait for its answers.
struct global_memory_impl::peer {
  /// The receive of the next message.
  class arrival final : public message_receive {
  public:
    arrival(std::shared_ptr<global_memory_impl> to, peer_ptr from)
        : message_receive(&arrival::arrived), to_(std::move(to)), from_(std::move(from)) {}

  private:
    static void arrived(operation* base, disposal how) {
      auto& self = static_cast<arrival&>(static_cast<message_receive&>(*base));
      if (how == disposal::destroy)
        self.fail(asio::error::operation_aborted);
      const auto to = std::move(self.to_);
      const peer_ptr from = std::move(self.from_); // which owns this receive
      const error_code ec = self.ec;
      to->on_message(from, ec, std::exchange(self.result, {}));
    }

    std::shared_ptr<global_memory_impl> to_;
    peer_ptr from_;
  };

  peer(const asio::any_io_executor& ex, bool was_accepted) : link(ex), accepted(was_accepted) {}

  asio_rdma::connection link;
  const bool accepted;
  bool serves = false;                        // the peer may ask at any time: work of the context
  std::optional<global_message> introduction; // once received
  std::list<global_lane> lane;                // set with the introduction, until published
  std::unique_ptr<background_timer> silence;  // until the introduction
  std::optional<arrival> listening;
  std::size_t hints = 0; // on their way to the peer
  bool ended = false;
  operation_list requests;
  std::size_t forgotten = 0; // cancelled requests whose answers are outstanding
};

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
  std::map<place, loan> lent;
  std::unique_ptr<background_timer> silence;
  std::list<global_lane> unused;
  {
    const std::lock_guard guard(mutex_);
    if (std::exchange(p->ended, true))
      return;
    unused.swap(p->lane);
    for (auto l = loans_.begin(); l != loans_.end();) {
      const auto next = std::next(l);
      if (l->second.borrower == p)
        lent.insert(loans_.extract(l));
      l = next;
    }
    std::erase(peers_, p);
    silence = std::move(p->silence);
    if (!closed_ && p->introduction)
      replace_lane(*p);
    for (operation& op : p->requests)
      op.fail(why);
    done.swap(p->requests);
  }
  if (p->link.is_open())
    p->link.impl()->close();
  // The device no longer uses the memory: each outstanding access of the peer has happened or never
  // will.
  for (const auto& [where, l] : lent)
    node_->mark_dead(where.first, where.second, l.count);
  service_.complete(done);
}

// Gives the peer memory for its descriptors in the queues of locks, until the connection ends.
void global_memory_impl::add_descriptors(const peer_ptr& p, const global_message& m) {
  std::map<place, loan> lent{{{m.segment, 0}, {m.value, p}}}; // allocated in advance
  const global_message reply = node_->serve(m);
  if (reply.status == result::ok) {
    const std::lock_guard guard(mutex_);
    if (p->ended)
      return node_->mark_dead(m.segment, reply.value, m.value);
    auto one = lent.extract(lent.begin());
    one.key().second = reply.value;
    loans_.insert(std::move(one));
  }
  say(p, reply);
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

global_memory_impl::peer_ptr global_memory_impl::make_peer(bool accepted, error_code& ec) {
  auto p = std::make_shared<peer>(executor_, accepted);
  p->serves = accepted || node_->hosts();
  connection_options o = options_.lanes;
  o.max_message = global_message::max_size;
  p->link.open(node_->pool(), o, ec);
  return p;
}

error_code global_memory_impl::listen(const asio::ip::tcp::endpoint& endpoint) {
  error_code ec;
  {
    const std::lock_guard guard(mutex_);
    if (closed_)
      return asio::error::bad_descriptor;
    listener_.open(endpoint, asio::socket_base::max_listen_connections, ec);
  }
  if (!ec)
    accept_again();
  return ec;
}

asio::ip::tcp::endpoint global_memory_impl::local_endpoint(error_code& ec) const {
  const std::lock_guard guard(mutex_);
  return listener_.local_endpoint(ec);
}

void global_memory_impl::accept_next() {
  const std::lock_guard guard(mutex_);
  if (closed_)
    return;
  listener_.async_wait_request([s = self()](error_code ec, connection_request request) {
    if (ec)
      return;
    try { // on failure the request is rejected
      s->accept(std::move(request));
    } catch (const std::bad_alloc&) {
    }
    s->accept_again();
  });
}

// Accepts the next request. If there is no memory for that, tries again in the next turn of the
// context.
void global_memory_impl::accept_again() noexcept {
  try {
    accept_next();
  } catch (const std::bad_alloc&) {
    const std::lock_guard guard(mutex_);
    if (closed_)
      return;
    next_accept_.keep = self();
    service_.operation_starting();
    operation_list done;
    done.push_back(next_accept_);
    service_.complete(done);
  }
}

global_memory_impl::next_accept::next_accept() noexcept : operation(&next_accept::come) {}

void global_memory_impl::next_accept::come(operation* base, disposal) {
  const auto to = std::move(static_cast<next_accept*>(base)->keep);
  to->accept_again();
}

void global_memory_impl::accept(connection_request request) {
  error_code ec;
  const peer_ptr p = make_peer(true, ec);
  const std::lock_guard guard(mutex_);
  if (ec || closed_)
    return;
  keep_while_starting(p, [&] {
    listener_.async_accept(
        std::move(request), p->link,
        [s = self(), p](error_code e, const connection_info&) { s->on_connected(p, e); });
  });
}

template <class Start>
void global_memory_impl::keep_while_starting(const peer_ptr& p, Start start) {
  peers_.push_back(p);
  try {
    start();
  } catch (...) {
    std::erase(peers_, p);
    throw;
  }
}

void global_memory_impl::on_connected(const peer_ptr& p, error_code ec) noexcept {
  if (!ec) {
    try {
      expect_introduction(p);
      if (!p->accepted)
        say(p, node_->introduction(kind::join));
    } catch (const std::bad_alloc&) {
      ec = asio::error::no_memory;
    }
  }
  if (ec)
    end(p, ec);
  else
    listen_to(p);
}

void global_memory_impl::expect_introduction(const peer_ptr& p) {
  const auto longest = options_.lanes.keep_alive;
  const std::lock_guard guard(mutex_);
  if (p->ended || longest <= longest.zero())
    return;
  p->silence = std::make_unique<background_timer>(service_.context());
  p->silence->set(background_timer::clock::now() + longest,
                  [weak = weak_from_this(), of = std::weak_ptr<peer>(p)] {
                    const auto s = std::static_pointer_cast<global_memory_impl>(weak.lock());
                    const peer_ptr silent = of.lock();
                    if (s && silent && !s->has_introduced(*silent))
                      s->end(silent, asio::error::timed_out);
                  });
}

bool global_memory_impl::has_introduced(const peer& p) const {
  const std::lock_guard guard(mutex_);
  return p.introduction.has_value();
}

// --- Asking other nodes ----------------------------------------------------------------------

bool global_memory_impl::start(global_request& op, node_id to) {
  if (op.is_join()) {
    peer_ptr p; // declared first: not destroyed under the lock
    const std::lock_guard guard(mutex_);
    op.ec = closed_ ? error_code(asio::error::bad_descriptor) : error_code();
    if (!closed_)
      p = make_peer(false, op.ec);
    if (op.ec)
      return false;
    keep_while_starting(p, [&] {
      connector_.async_connect(
          p->link, op.endpoint,
          [s = self(), p](error_code ec, const connection_info&) { s->on_connected(p, ec); });
    });
    service_.operation_starting();
    p->requests.push_back(op);
    return true;
  }

  if (to == node_->id()) {
    {
      const std::lock_guard guard(mutex_);
      if (closed_) {
        op.ec = asio::error::bad_descriptor;
        return false;
      }
    }
    const global_message reply = node_->serve(op.message);
    op.message.value = reply.value;
    op.ec = error_of(reply.status);
    const std::lock_guard guard(mutex_);
    if (!op.ec && closed_)
      op.ec = asio::error::bad_descriptor;
    if (op.ec)
      return false;
    service_.operation_starting();
    operation_list done;
    done.push_back(op);
    service_.complete(done);
    return true;
  }
  const auto keep = self(); // the end of the operation may drop the owner's reference
  peer_ptr found;
  {
    const std::lock_guard guard(mutex_);
    const global_lane* const l = lane(to);
    if (l == nullptr) {
      op.ec = error::node_unknown;
      return false;
    }
    const auto p = std::find_if(peers_.begin(), peers_.end(),
                                [l](const peer_ptr& c) { return c->link.impl() == l->link; });
    if (p == peers_.end()) {
      op.ec = asio::error::connection_reset;
      return false;
    }
    found = *p;
    op.number = op.message.id = ++numbers_ != 0 ? numbers_ : ++numbers_;
    say(found, op.message);
    service_.operation_starting();
    found->requests.push_back(op);
  }
  listen_to(found);
  return true;
}

// The owner still answers a cancelled request: memory that it then allocates is given back. Memory
// that is being freed is lost, so `total` does not cancel that.
void global_memory_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  peer_ptr joining;
  {
    const std::lock_guard guard(mutex_);
    for (const peer_ptr& p : peers_) {
      const auto op = std::find_if(p->requests.begin(), p->requests.end(),
                                   [id](const operation& o) { return o.id == id; });
      if (op == p->requests.end())
        continue;
      if (static_cast<global_request&>(*op).message.what == global_message::kind::free &&
          !may_leave_effects(type))
        return;
      if (static_cast<global_request&>(*op).is_join())
        joining = p;
      else
        ++p->forgotten;
      op->fail(asio::error::operation_aborted);
      operation_list done;
      done.splice(done.end(), p->requests, op);
      service_.complete(done); // under the mutex: while there are requests, the context exists
      break;
    }
  }
  if (joining)
    end(joining, asio::error::operation_aborted);
}

// --- Messages --------------------------------------------------------------------------------

void global_memory_impl::say(const peer_ptr& p, const global_message& m) { send(p, encode(m)); }

// If a message cannot be sent, the connection ends: the peer would wait for the message, or take a
// later message for the first one.
void global_memory_impl::send(const peer_ptr& p, const std::vector<std::byte>& bytes) {
  p->link.async_send(asio::buffer(bytes), [s = self(), p](error_code ec, std::size_t) {
    if (ec)
      s->end(p, ec);
  });
}

void global_memory_impl::tell_next(const connection_impl* way, segment_id segment,
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

// Waits for the next message. If no message is due, the wait is not work of the context.
void global_memory_impl::listen_to(const peer_ptr& p) noexcept {
  error_code ec;
  {
    const std::lock_guard guard(mutex_);
    if (p->ended)
      return;
    const bool expected = p->serves || !p->requests.empty() || p->forgotten != 0;
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
    const error_code ec = introduce(p, m, welcome);
    if (!ec)
      return {};
    global_message refusal;
    refusal.what = kind::refuse;
    refusal.status = result::node_in_use;
    p->link.async_send(asio::buffer(encode(refusal)),
                       [s = self(), p, ec](error_code, std::size_t) { s->end(p, ec); });
    return {};
  }
  case kind::welcome: {
    const error_code ec = introduce(p, m, {});
    if (ec)
      return ec;
    const std::lock_guard guard(mutex_);
    if (!p->requests.empty()) { // the join may have been cancelled
      auto& op = static_cast<global_request&>(p->requests.front());
      op.message.node = m.node;
      done.splice(done.end(), p->requests, p->requests.begin());
    }
    return {};
  }
  case kind::free:
  case kind::allocate:
    say(p, node_->serve(m));
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
  operation_list unused;
  const error_code ec = answer(*p, m, done);
  if (!ec && done.empty() && m.what == kind::allocated && m.status == result::ok) {
    global_message back;
    back.what = kind::free;
    back.id = m.id;
    back.segment = m.segment;
    back.value = m.value;
    {
      const std::lock_guard guard(mutex_);
      ++p->forgotten; // the answer to this request
    }
    say(p, back);
  }
  return ec;
}

// The first live connection to a node becomes its lane; another view of the node may be connected
// too. The answer is the first message to the peer: before this, no other thread can find the lane.
error_code global_memory_impl::introduce(const peer_ptr& p, const global_message& m,
                                         const std::vector<std::byte>& answer) {
  const std::lock_guard guard(mutex_);
  const bool own = m.node == node_->id();
  if (own && m.incarnation != node_->incarnation())
    return error::node_in_use;
  const global_lane* const before = lane(m.node);
  const bool lives =
      before != nullptr && before->link->queue_pair()->state() == queue_pair_state::connected;
  if (lives && before->incarnation != m.incarnation)
    return error::node_in_use;
  std::list<global_lane> made;
  if (!own || !p->accepted) { // otherwise the other end has the lane
    const auto& link = p->link.impl();
    auto users = std::make_shared<lane_link>(link, places_);
    made.push_back({link, std::move(users), m.incarnation, m.atomics, m.segments});
  }
  p->introduction.emplace(m);
  if (!answer.empty())
    send(p, answer);
  p->lane.swap(made); // from here on the lane may be published
  if (!lives && !p->lane.empty())
    publish(*p);
  return {};
}

void global_memory_impl::publish(peer& p) noexcept {
  published_.splice(published_.end(), p.lane);
  lanes_[p.introduction->node].store(&published_.back(), std::memory_order_release);
}

// Another view of the node may have a live connection.
void global_memory_impl::replace_lane(const peer& ended) noexcept {
  const global_message& who = *ended.introduction;
  const global_lane* const used = lane(who.node);
  if (used == nullptr || used->link != ended.link.impl())
    return;
  for (const peer_ptr& p : peers_)
    if (!p->lane.empty() && p->introduction->node == who.node &&
        p->introduction->incarnation == who.incarnation &&
        p->link.impl()->queue_pair()->state() == queue_pair_state::connected)
      return publish(*p);
}

error_code global_memory_impl::answer(peer& p, const global_message& m, operation_list& done) {
  const std::lock_guard guard(mutex_);
  const auto found = std::find_if(p.requests.begin(), p.requests.end(), [&m](const operation& op) {
    return static_cast<const global_request&>(op).number == m.id;
  });
  if (found == p.requests.end()) {
    if (p.forgotten == 0)
      return error::protocol_violation;
    --p.forgotten;
    return {};
  }
  auto& op = static_cast<global_request&>(*found);
  const bool fits =
      (op.message.what == kind::free) == (m.what == kind::freed) && op.message.segment == m.segment;
  if (!fits)
    return error::protocol_violation;
  op.message.value = m.value;
  op.ec = error_of(m.status);
  done.splice(done.end(), p.requests, found);
  return {};
}

} // namespace asio_rdma::detail
