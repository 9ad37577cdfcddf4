// SPDX-License-Identifier: BSL-1.0
// Requests to other nodes: a join, allocating and freeing memory, and the answers.
#include "global/global_peer.hpp"

#include <algorithm>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;

} // namespace

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
          p->link, op.endpoint, op.how,
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
    const global_lane* const l = lanes_[to];
    if (l == nullptr) {
      op.ec = error::node_unknown;
      return false;
    }
    const auto p = std::find_if(peers_.begin(), peers_.end(), [l](const peer_ptr& c) {
      return l->link != nullptr && c->link.impl() == l->link->link();
    });
    if (p == peers_.end()) {
      op.ec = asio::error::connection_reset;
      return false;
    }
    found = *p;
    ask(found, op);
    service_.operation_starting();
  }
  listen_to(found);
  return true;
}

void global_memory_impl::ask(const peer_ptr& p, global_request& op) {
  if (p->asked >= most_asked)
    return p->waiting.push_back(op);
  send_numbered(p, op);
  p->requests.push_back(op);
}

void global_memory_impl::send_numbered(const peer_ptr& p, global_request& op) {
  op.number = op.message.id = ++numbers_ != 0 ? numbers_ : ++numbers_;
  send_request(p, op.message);
  ++p->asked;
}

// The mutex is locked. The peer can answer a request that it has not taken, and then the next one
// is sent. So the requests that are not sent are counted, too.
void global_memory_impl::send_request(const peer_ptr& p, const global_message& m) {
  send_counted(p, m, &peer::unsent, most_unsent);
  ++p->unsent;
}

void global_memory_impl::ask_next(const peer_ptr& p) {
  --p->asked;
  if (p->asked >= most_asked || p->waiting.empty())
    return;
  // If there is no memory to send it, it ends with the others that wait.
  send_numbered(p, static_cast<global_request&>(p->waiting.front()));
  p->requests.splice(p->requests.end(), p->waiting, p->waiting.begin());
}

// The owner still answers a cancelled request: memory that it then allocates is given back once,
// which takes the place of the request. Memory that is being freed is lost, so `total` does not
// cancel that.
void global_memory_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  peer_ptr joining;
  {
    const std::lock_guard guard(mutex_);
    for (const peer_ptr& p : peers_) {
      const auto is_it = [id](const operation& o) {
        return o.id == id;
      };
      operation_list done;
      auto op = std::find_if(p->waiting.begin(), p->waiting.end(), is_it);
      if (op != p->waiting.end()) {
        done.splice(done.end(), p->waiting, op);
      } else {
        op = std::find_if(p->requests.begin(), p->requests.end(), is_it);
        if (op == p->requests.end())
          continue;
        const auto& request = static_cast<const global_request&>(*op);
        if (request.message.what == kind::free && !may_leave_effects(type))
          return;
        if (request.is_join())
          joining = p;
        else
          p->forgotten.push_back({request.number, request.message.what, request.message.segment});
        done.splice(done.end(), p->requests, op);
      }
      done.front().fail(asio::error::operation_aborted);
      service_.complete(done); // under the mutex: while there are requests, the context exists
      break;
    }
  }
  if (joining)
    end(joining, asio::error::operation_aborted);
}

error_code global_memory_impl::answer(const peer_ptr& p, const global_message& m,
                                      operation_list& done) {
  const std::lock_guard guard(mutex_);
  const auto found =
      std::find_if(p->requests.begin(), p->requests.end(), [&m](const operation& op) {
        return static_cast<const global_request&>(op).number == m.id;
      });
  const auto fits = [&m](kind asked, segment_id segment) {
    return (asked == kind::free) == (m.what == kind::freed) && segment == m.segment;
  };
  if (found == p->requests.end()) {
    const auto f = std::find_if(p->forgotten.begin(), p->forgotten.end(),
                                [&m](const auto& one) { return one.number == m.id; });
    if (f == p->forgotten.end() || !fits(f->what, f->segment))
      return error::protocol_violation;
    if (f->what == kind::allocate && m.status == global_message::result::ok) {
      global_message back;
      back.what = f->what = kind::free;
      back.id = m.id;
      back.segment = m.segment;
      back.value = m.value;
      send_request(p, back);
      return {};
    }
    p->forgotten.erase(f);
    ask_next(p);
    return {};
  }
  auto& op = static_cast<global_request&>(*found);
  if (!fits(op.message.what, op.message.segment))
    return error::protocol_violation;
  op.message.value = m.value;
  op.ec = error_of(m.status);
  if (op.ec == boost::system::errc::not_enough_memory)
    op.ec = error::peer_out_of_memory;
  done.splice(done.end(), p->requests, found);
  ask_next(p);
  return {};
}

} // namespace asio_rdma::detail
