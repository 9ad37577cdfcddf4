// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/alock_view.hpp>
#include <asio_rdma/detail/global_memory_impl.hpp>

#include "alock_local.hpp"
#include "background_timer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <utility>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;
using result = global_message::result;

std::uint64_t random_word() {
  std::random_device source;
  return std::uint64_t(source()) << 32 | source();
}

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

} // namespace

// --- What a node hosts -----------------------------------------------------------------------

global_node::global_node(const memory_pool& pool, node_id id)
    : pool_(pool),
      id_(id),
      incarnation_(random_word()),
      local_parties_(std::make_unique<alock_locals>(*this)) {}

global_node::~global_node() = default;

// A pool for each, so that the key of a segment covers nothing else.
error_code global_node::host(std::uint64_t bytes, segment_id& given) {
  if (bytes <= reserved || bytes > max_segment_bytes)
    return asio::error::invalid_argument;
  const std::lock_guard guard(mutex_);
  if (told_)
    return asio::error::already_started;
  if (segments_.size() == global_message::max_segments)
    return asio::error::no_buffer_space;
  const protection_domain& pd = pool_.get_protection_domain();
  memory_pool_options o;
  o.rights = access::local_write | access::remote_read | access::remote_write;
  if (pd.get_device().has_atomics())
    o.rights = o.rights | access::remote_atomic;
  constexpr std::size_t huge_page = std::size_t(2) << 20;
  const std::size_t whole = std::max<std::size_t>(bytes, largest_small + 1); // pages of its own
  o.first_arena = o.limit = round_up(whole, whole < huge_page ? page_bytes : huge_page);
  o.zeroed = true;
  error_code ec;
  const registered_buffer memory = memory_pool(pd, o).allocate(whole, page_bytes, ec);
  if (ec)
    return ec;
  given = static_cast<segment_id>(segments_.size());
  segments_.push_back({memory.first(bytes), segment_allocator(reserved, bytes)});
  published_[given].store(&segments_.back(), std::memory_order_release);
  return {};
}

bool global_node::hosts() const {
  const std::lock_guard guard(mutex_);
  return !segments_.empty();
}

global_message global_node::introduction(kind what) {
  const std::lock_guard guard(mutex_);
  told_ = true;
  global_message m;
  m.what = what;
  m.node = id_;
  m.incarnation = incarnation_;
  m.atomics = pool_.get_protection_domain().get_device().attributes().atomic_cap;
  for (const segment& s : segments_)
    m.segments.push_back({reinterpret_cast<std::uintptr_t>(s.memory.data()), s.memory.size(),
                          s.memory.region()->rkey()});
  return m;
}

global_message global_node::serve(const global_message& request) {
  global_message answer;
  answer.what = request.what == kind::free ? kind::freed : kind::allocated;
  answer.id = request.id;
  answer.segment = request.segment;
  answer.status = result::invalid;
  const bool locks = request.what == kind::descriptors;
  if (locks && request.value > global_message::max_descriptors)
    return answer;
  const std::uint64_t bytes = request.value * (locks ? sizeof(alock_descriptor) : 1);
  const std::uint64_t alignment = locks ? alignof(alock_descriptor) : request.alignment;
  void* memory = nullptr;
  {
    const std::lock_guard guard(mutex_);
    if (request.segment >= segments_.size())
      return answer;
    segment& s = segments_[request.segment];
    if (request.what == kind::free) {
      answer.status = s.space.free(request.value) ? result::ok : result::invalid;
    } else if (bytes != 0 && std::has_single_bit(alignment) &&
               alignment <= segment_allocator::max_alignment) {
      const auto at = s.space.allocate(bytes, alignment);
      answer.status = at ? result::ok : result::no_memory;
      answer.value = at.value_or(0);
      if (at)
        memory = static_cast<std::byte*>(s.memory.data()) + *at;
    }
  }
  if (memory != nullptr) {
    std::memset(memory, 0, bytes);
    zeroed_.fetch_add(1, std::memory_order_release);
  }
  return answer;
}

void global_node::mark_dead(segment_id where, std::uint64_t offset,
                            std::uint64_t count) const noexcept {
  void* const first = local(remote_word(id_, where, offset), count * sizeof(alock_descriptor),
                            alignof(alock_descriptor));
  if (first != nullptr)
    for (alock_descriptor& d : std::span(static_cast<alock_descriptor*>(first), count))
      d.dead.store(1);
}

void* global_node::local(remote_word p, std::uint64_t bytes,
                         std::uint64_t alignment) const noexcept {
  if (p.node() != id_)
    return nullptr;
  // Who has the address from a peer has it by the device, which orders nothing between CPUs.
  static_cast<void>(zeroed_.load(std::memory_order_acquire));
  const segment* const s = published_[p.segment()].load(std::memory_order_acquire);
  if (s == nullptr || bytes > s->memory.size() || p.offset() > s->memory.size() - bytes ||
      p.offset() % alignment != 0)
    return nullptr;
  return static_cast<std::byte*>(s->memory.data()) + p.offset();
}

// --- Opening and closing ---------------------------------------------------------------------

/// A connection to another node, from either side, and who waits for it.
struct global_memory_impl::peer {
  peer(const asio::any_io_executor& ex, bool was_accepted) : link(ex), accepted(was_accepted) {}

  asio_rdma::connection link;
  const bool accepted;
  bool serves = false;                        // it may ask at any time, so it is always listened to
  std::optional<global_message> introduction; // when it has said it
  std::unique_ptr<background_timer> silence;  // until then
  bool listening = false;
  bool ended = false;
  operation_list requests;
  std::size_t forgotten = 0; // requests that were cancelled and will be answered

  struct descriptors {
    segment_id segment;
    std::uint64_t offset, count;
  };
  std::vector<descriptors> lent; // for locks of this node
};

global_memory_impl::global_memory_impl(const asio::any_io_executor& executor,
                                       std::shared_ptr<global_node> node,
                                       const global_memory_options& options)
    : service_(completion_service::of(asio::query(executor, asio::execution::context))),
      executor_(executor),
      node_(std::move(node)),
      options_(options),
      listener_(executor),
      connector_(executor) {}

global_memory_impl::~global_memory_impl() = default;

error_code global_memory_impl::open() {
  if (!node_->pool().get_protection_domain().is_open())
    return asio::error::bad_descriptor;
  error_code ec;
  service_.add(*this, ec);
  return ec;
}

void global_memory_impl::close() {
  if (!removed_.exchange(true))
    service_.remove(*this);
  end_all();
}

void global_memory_impl::end_all() {
  std::vector<peer_ptr> all;
  std::shared_ptr<alock_view> locks;
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    locks = locks_;
    all = peers_;
    listener_.close();
    connector_.cancel();
  }
  for (const peer_ptr& p : all)
    end(p, asio::error::operation_aborted);
  if (locks)
    locks->close();
}

std::shared_ptr<alock_view> global_memory_impl::locks() {
  const std::lock_guard guard(mutex_);
  if (!locks_ && !closed_)
    locks_ = std::make_shared<alock_view>(*this);
  return locks_;
}

// Ends the connection, and who waits for something of it. Operations on the node's memory end with
// the connection's error, and those that are started later get it too.
void global_memory_impl::end(const peer_ptr& p, const error_code& why) {
  operation_list done;
  std::vector<peer::descriptors> lent;
  std::unique_ptr<background_timer> silence;
  {
    const std::lock_guard guard(mutex_);
    if (std::exchange(p->ended, true))
      return;
    lent.swap(p->lent);
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
  // The device has let go: what the peer had under way has happened, or will not.
  for (const peer::descriptors& d : lent)
    node_->mark_dead(d.segment, d.offset, d.count);
  service_.complete(done);
}

// Memory that a peer has for its part in the queues of locks, until its end.
void global_memory_impl::add_descriptors(const peer_ptr& p, const global_message& m) {
  const global_message reply = node_->serve(m);
  if (reply.status == result::ok) {
    const std::lock_guard guard(mutex_);
    if (p->ended)
      return node_->mark_dead(m.segment, reply.value, m.value);
    p->lent.push_back({m.segment, reply.value, m.value});
  }
  say(p, reply);
}

void global_memory_impl::forget_descriptors(segment_id segment, std::uint64_t offset) {
  const std::lock_guard guard(mutex_);
  for (const peer_ptr& p : peers_)
    std::erase_if(p->lent, [&](const peer::descriptors& d) {
      return d.segment == segment && d.offset == offset;
    });
}

global_memory_impl::peer_ptr global_memory_impl::make_peer(bool accepted, error_code& ec) {
  auto p = std::make_shared<peer>(executor_, accepted);
  p->serves = accepted || node_->hosts();
  p->link.open(node_->pool(), options_.lanes, ec);
  return p;
}

error_code global_memory_impl::listen(const asio::ip::tcp::endpoint& endpoint) {
  error_code ec;
  {
    const std::lock_guard guard(mutex_);
    listener_.open(endpoint, asio::socket_base::max_listen_connections, ec);
  }
  if (!ec)
    accept_next();
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
    const peer_ptr p = s->make_peer(true, ec);
    if (!ec) { // else the request is rejected
      const std::lock_guard of_peers(s->mutex_);
      if (s->closed_)
        return;
      s->peers_.push_back(p);
      s->listener_.async_accept(std::move(request), p->link,
                                [s, p](error_code e, const connection_info&) {
                                  if (e)
                                    return s->end(p, e);
                                  s->expect_introduction(p);
                                  s->listen_to(p);
                                });
    }
    s->accept_next();
  });
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
    const peer_ptr p = make_peer(false, op.ec);
    if (op.ec)
      return false;
    const std::lock_guard guard(mutex_);
    if (closed_) {
      op.ec = asio::error::operation_aborted;
      return false;
    }
    service_.operation_starting();
    p->requests.push_back(op);
    peers_.push_back(p);
    connector_.async_connect(p->link, op.endpoint,
                             [s = self(), p](error_code ec, const connection_info&) {
                               if (ec)
                                 return s->end(p, ec);
                               s->say(p, s->node_->introduction(kind::join));
                               s->listen_to(p);
                             });
    return true;
  }

  if (to == node_->id()) {
    if (op.message.what == kind::free)
      forget_descriptors(op.message.segment, op.message.value);
    const global_message reply = node_->serve(op.message);
    op.message.value = reply.value;
    op.ec = error_of(reply.status);
    if (op.ec)
      return false;
    service_.operation_starting();
    operation_list done;
    done.push_back(op);
    service_.complete(done);
    return true;
  }
  const auto keep = self(); // from its owner, which the operation's end may let go of it
  peer_ptr found;
  global_message request;
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
    service_.operation_starting();
    op.number = op.message.id = ++numbers_ != 0 ? numbers_ : ++numbers_;
    request = op.message;
    found->requests.push_back(op);
  }
  say(found, request);
  listen_to(found);
  return true;
}

// What has been asked is answered all the same: memory that comes then is given back.
void global_memory_impl::cancel(std::uint64_t id, asio::cancellation_type_t) {
  operation_list done;
  peer_ptr joining;
  {
    const std::lock_guard guard(mutex_);
    for (const peer_ptr& p : peers_) {
      const auto op = std::find_if(p->requests.begin(), p->requests.end(),
                                   [id](const operation& o) { return o.id == id; });
      if (op == p->requests.end())
        continue;
      if (static_cast<global_request&>(*op).is_join())
        joining = p;
      else
        ++p->forgotten;
      op->fail(asio::error::operation_aborted);
      done.splice(done.end(), p->requests, op);
      break;
    }
  }
  if (joining)
    end(joining, asio::error::operation_aborted);
  service_.complete(done);
}

// --- Messages --------------------------------------------------------------------------------

// What becomes of it shows in what the peer says next.
void global_memory_impl::say(const peer_ptr& p, const global_message& m) {
  const auto bytes = encode(m);
  p->link.async_send(asio::buffer(bytes), [s = self(), p](error_code, std::size_t) {});
}

// Waits for the next message, if there may be one.
void global_memory_impl::listen_to(const peer_ptr& p) {
  const std::lock_guard guard(mutex_);
  if (p->ended || p->listening || (!p->serves && p->requests.empty() && p->forgotten == 0))
    return;
  p->listening = true;
  p->link.async_receive(
      [s = self(), p](error_code ec, const message& m) { s->on_message(p, ec, m); });
}

void global_memory_impl::on_message(const peer_ptr& p, const error_code& ec, const message& m) {
  error_code why = ec;
  operation_list done;
  if (!why) {
    global_message g;
    why = decode(m.bytes(), g) ? take(p, g, done) : error_code(error::protocol_violation);
  }
  {
    const std::lock_guard guard(mutex_);
    p->listening = false;
  }
  if (why)
    end(p, why);
  else
    listen_to(p);
  service_.complete(done);
}

error_code global_memory_impl::take(const peer_ptr& p, const global_message& m,
                                    operation_list& done) {
  // It introduces itself once and before all else, with a join if it is who has connected.
  const bool first = m.what == kind::join || m.what == kind::welcome || m.what == kind::refuse;
  if (first ? p->introduction || p->accepted != (m.what == kind::join) : !p->introduction)
    return error::protocol_violation;
  switch (m.what) {
  case kind::refuse:
    return m.status == result::ok ? error_code(error::protocol_violation) : error_of(m.status);
  case kind::join: {
    const error_code ec = introduce(p, m);
    if (!ec) {
      say(p, node_->introduction(kind::welcome));
      return {};
    }
    global_message refusal;
    refusal.what = kind::refuse;
    refusal.status = result::node_in_use;
    p->link.async_send(asio::buffer(encode(refusal)),
                       [s = self(), p, ec](error_code, std::size_t) { s->end(p, ec); });
    return {};
  }
  case kind::welcome: {
    const error_code ec = introduce(p, m);
    if (ec)
      return ec;
    const std::lock_guard guard(mutex_);
    if (!p->requests.empty()) { // it may have been cancelled
      auto& op = static_cast<global_request&>(p->requests.front());
      op.message.node = m.node;
      done.splice(done.end(), p->requests, p->requests.begin());
    }
    return {};
  }
  case kind::free:
    forget_descriptors(m.segment, m.value);
    [[fallthrough]];
  case kind::allocate:
    say(p, node_->serve(m));
    return {};
  case kind::descriptors:
    add_descriptors(p, m);
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
      ++p->forgotten; // the answer to this
    }
    say(p, back);
  }
  return ec;
}

// The first way to a node that lives is the way to it; another view of it may have connected too.
error_code global_memory_impl::introduce(const peer_ptr& p, const global_message& m) {
  const std::lock_guard guard(mutex_);
  const bool own = m.node == node_->id();
  if (own && m.incarnation != node_->incarnation())
    return error::node_in_use;
  const global_lane* const before = lane(m.node);
  const bool lives =
      before != nullptr && before->link->queue_pair()->state() == queue_pair_state::connected;
  if (lives && before->incarnation != m.incarnation)
    return error::node_in_use;
  p->introduction = m;
  if (!lives)
    publish(*p);
  return {};
}

void global_memory_impl::publish(const peer& p) {
  const global_message& m = *p.introduction;
  if (m.node == node_->id() && p.accepted) // the other end is the lane
    return;
  made_.push_back({p.link.impl(), m.incarnation, m.atomics, m.segments});
  lanes_[m.node].store(&made_.back(), std::memory_order_release);
}

// Another view of the node may have a connection that lives.
void global_memory_impl::replace_lane(const peer& ended) {
  const global_message& m = *ended.introduction;
  if (lane(m.node)->link != ended.link.impl())
    return;
  for (const peer_ptr& p : peers_)
    if (p->introduction && p->introduction->node == m.node &&
        p->introduction->incarnation == m.incarnation &&
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
