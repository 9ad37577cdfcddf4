// SPDX-License-Identifier: BSL-1.0
// Nodes join: they listen, connect, introduce themselves and become reachable by lanes.
#include "global/global_peer.hpp"

#include "connecting/cm_connection.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;

} // namespace

global_memory_impl::peer_ptr global_memory_impl::make_peer(bool accepted, error_code& ec) {
  auto p = std::make_shared<peer>(executor_, accepted);
  p->serves = accepted || node_->hosts();
  connection_options o = options_.lanes;
  o.max_message = global_message::max_size;
  o.gather = false;     // such messages are rare
  o.own_domain = false; // the segments belong to that of the pool
  p->link.open(node_->pool(), o, ec);
  return p;
}

error_code global_memory_impl::listen(const asio::ip::tcp::endpoint& endpoint,
                                      const accept_options& options) {
  error_code ec;
  if (!options.data.empty())
    return asio::error::invalid_argument;
  accept_options how = options;
  {
    const std::lock_guard guard(mutex_);
    if (closed_)
      return asio::error::bad_descriptor;
    listener_.open(endpoint, asio::socket_base::max_listen_connections, ec);
    if (!ec) {
      admit_ = std::exchange(how.admit, nullptr);
      how_ = std::move(how);
    }
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
      if (s->is_admitted(request))
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

// Until the request is admitted, nothing is made for it.
bool global_memory_impl::is_admitted(connection_request& request) const {
  {
    const std::lock_guard guard(mutex_);
    if (closed_ || !admit_)
      return !closed_;
  }
  const auto asked = request.release();
  request = connection_request(asked);
  return asked->is_admitted(admit_);
}

void global_memory_impl::accept(connection_request request) {
  error_code ec;
  const peer_ptr p = make_peer(true, ec);
  const std::lock_guard guard(mutex_);
  if (ec || closed_)
    return;
  keep_while_starting(p, [&] {
    listener_.async_accept(
        std::move(request), p->link, how_,
        [s = self(), p](error_code e, const connection_info&) { s->on_connected(p, e); });
  });
}

void global_memory_impl::on_connected(const peer_ptr& p, error_code ec) noexcept {
  if (!ec) {
    try {
      if (const peer_ptr stranger = expect_introduction(p))
        end(stranger, asio::error::timed_out);
      if (!p->accepted)
        send(p, node_->introduction(kind::join));
    } catch (const std::bad_alloc&) {
      ec = asio::error::no_memory;
    }
  }
  if (ec)
    end(p, ec);
  else
    listen_to(p);
}

global_memory_impl::peer_ptr global_memory_impl::expect_introduction(const peer_ptr& p) {
  const auto longest = options_.lanes.keep_alive;
  const std::lock_guard guard(mutex_);
  p->connected = true;
  if (!p->ended && longest > longest.zero()) {
    p->silence = std::make_unique<background_timer>(service_.context());
    p->silence->set(background_timer::clock::now() + longest,
                    [weak = weak_from_this(), of = std::weak_ptr<peer>(p)] {
                      const auto s = std::static_pointer_cast<global_memory_impl>(weak.lock());
                      const peer_ptr silent = of.lock();
                      if (s && silent && !s->has_introduced(*silent))
                        s->end(silent, asio::error::timed_out);
                    });
  }
  const auto is_stranger = [](const peer_ptr& q) {
    return q->accepted && q->connected && !q->introduction;
  };
  const auto strangers = std::count_if(peers_.begin(), peers_.end(), is_stranger);
  return std::size_t(strangers) > most_strangers
             ? *std::find_if(peers_.begin(), peers_.end(), is_stranger)
             : nullptr;
}

bool global_memory_impl::has_introduced(const peer& p) const {
  const std::lock_guard guard(mutex_);
  return p.introduction.has_value();
}

// The first live connection to a node becomes its lane; another view of the node may be connected
// too. The answer is the first message to the peer: before this, no other thread can find the lane.
error_code global_memory_impl::introduce(const peer_ptr& p, const global_message& m,
                                         const std::vector<std::byte>& answer,
                                         operation_list& done) {
  std::list<global_lane> unused; // destroyed after the mutex is unlocked
  const std::lock_guard guard(mutex_);
  if (p->ended) // since the message arrived: nothing would withdraw the lane
    return asio::error::operation_aborted;
  const bool own = m.node == node_->id();
  if (own && m.incarnation != node_->incarnation())
    return error::node_in_use;
  const global_lane* const before = lanes_[m.node];
  const bool lives =
      before != nullptr && before->link != nullptr &&
      before->link->link()->target_queue_pair()->state() == queue_pair_state::connected;
  if (lives && before->incarnation != m.incarnation)
    return error::node_in_use;
  std::list<global_lane> made, departure;
  if (!own || !p->accepted) { // otherwise the other end has the lane
    auto link = std::make_shared<lane_link>(p->link.impl(), places_);
    made.push_back({std::move(link), m.incarnation, m.atomics, m.segments});
    departure.push_back({nullptr, m.incarnation, m.atomics, {}});
  }
  p->introduction.emplace(m);
  if (!answer.empty())
    send(p, answer);
  p->departure.swap(departure);
  p->lane.swap(made); // from here on the lane may be published
  if (!lives && !p->lane.empty())
    lanes_.publish(m.node, p->lane);
  unused = lanes_.take_unused();
  // Before the unlocking, after which other requests may be sent to the node.
  if (!p->requests.empty()) { // the join may have been cancelled
    auto& join = static_cast<global_request&>(p->requests.front());
    assert(join.is_join() && p->requests.size() == 1);
    join.message.node = m.node;
    done.splice(done.end(), p->requests);
  }
  return {};
}

bool global_memory_impl::has_lane(const peer& p) const noexcept {
  const global_lane* const used = p.introduction ? lanes_[p.introduction->node] : nullptr;
  return used != nullptr && used->link != nullptr && used->link->link() == p.link.impl();
}

// Another view of the node may have a live connection.
void global_memory_impl::replace_lane(const peer& ended) noexcept {
  const global_message& introduction = *ended.introduction;
  for (const peer_ptr& p : peers_)
    if (!p->lane.empty() && p->introduction->node == introduction.node &&
        p->introduction->incarnation == introduction.incarnation &&
        p->link.impl()->target_queue_pair()->state() == queue_pair_state::connected)
      return lanes_.publish(introduction.node, p->lane);
}

// Of a node that has left, the reason remains, for later operations on its memory.
void global_memory_impl::note_departure(peer& p) noexcept {
  const link_impl& link = p.link.impl()->link();
  p.departure.front().reason = [&] {
    const auto guard = link.lock();
    return link.check();
  }();
  lanes_.publish(p.introduction->node, p.departure);
}

} // namespace asio_rdma::detail
