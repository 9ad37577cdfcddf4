// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/message_protocol.hpp"
#include "fake_link.hpp"
#include "gathered.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "party_state.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace protocol_test {

/// One side of a connection.
class party final : public fake_link, public party_state {
public:
  party(const frame_options& l, const message_options& m, const grant_limits& g)
      : fake_link(l, l.receives + (l.promise != 0 ? shared_receives::spare : 0)),
        messages(link, m),
        inbox(link),
        grants(link, inbox, g),
        leases(link, inbox) {
    if (l.promise != 0)
      shared.emplace(l.receives, l.promise);
  }
  ~party() {
    if (!dead)
      die(asio::error::operation_aborted);
  }

  message_protocol messages;
  region_inbox inbox;
  grant_table grants;
  lease_table leases;

  /// Ends everything, as if the queue pair had been destroyed.
  void die(const error_code& why) {
    dead = true;
    for (pull& p : pulls)
      if (p.into != nullptr)
        std::exchange(p.into, nullptr)->written_to = false;
    if (shared) {
      shared->left = true;
      shared->shares.leave(link.flow().share(), static_cast<std::uint32_t>(filled.size()));
    }
    stop(why);
    finish_local_work();
    // Messages that had arrived can still be received.
    for (bool again = true; again;) {
      const std::size_t before = received.size() + noticed.size() + regions;
      receive(std::numeric_limits<std::uint64_t>::max());
      receive(0, true);
      receive_region();
      again = before != received.size() + noticed.size() + regions;
    }
    for (const std::uint32_t slot : std::exchange(lent_slots, {}))
      link.release(slot);
    run();
    while (const auto slot = link.next_freed())
      free_receive(*slot);
    while (!filled.empty()) // of messages that cannot be received any more
      free_receive(filled.begin()->first);
    if (shared)
      must(shared->shares.given() == shared->rival &&
               shared->shares.unclaimed() == posted.size() - shared->rival,
           "shared receives are neither lost nor doubled");
    must(read.empty(), "a message that was read is received or dropped");
    must(ended_ops == made_ops, "every operation ends when the link has stopped");
    must(grants.live() == 0 && grants.bytes() == 0 && grants.grants() == 0, "every grant ends");
    must(grant_keys.empty() && keys.empty(), "every key ends");
  }

  /// Completes all actions that need no peer.
  void finish_local_work() {
    run();
    while (!preparing.empty() || !pulls.empty() || !making.empty() || !ending.empty() ||
           idle_asked) {
      const chooser first = [](std::uint32_t) {
        return 0U;
      };
      while (local_step(first)) {
      }
      run();
    }
  }

  /// Performs one action of the device or the system. False if there is none.
  bool local_step(const chooser& pick) {
    const auto some = [&](auto& list) {
      return pick(static_cast<std::uint32_t>(list.size()));
    };
    if (idle_asked && pick(2) == 0) {
      idle_asked = false;
      messages.on_idle();
    } else if (!preparing.empty()) {
      const auto i = preparing.begin() + some(preparing);
      send_op& op = **i;
      preparing.erase(i);
      op.preparing = false;
      if (op.ended) {
        bury(&op);
      } else if (pick(16) == 15) {
        messages.fail_send(op, asio::error::no_memory);
      } else {
        op.keyed = true;
        op.key = next_key++;
        keys[op.key] = op.bytes;
        messages.prepared(op, {op.key << 32, op.bytes, op.sequence});
      }
    } else if (!making.empty()) {
      const auto i = making.begin() + some(making);
      const std::uint32_t id = *i;
      making.erase(i);
      if (pick(16) == 15) {
        grants.not_made(id, asio::error::no_memory);
      } else {
        must(grant_keys.insert(id).second, "a grant has one key");
        grants.made(id, {0x10000, making_bytes[id], id}, now);
      }
    } else if (!ending.empty()) {
      const auto i = ending.begin() + some(ending);
      const std::uint32_t id = *i;
      ending.erase(i);
      must(grant_keys.erase(id) == 1, "a key ends once");
      grants.ended(id);
    } else if (!pulls.empty()) {
      const auto i = pulls.begin() + some(pulls);
      const pull p = *i;
      pulls.erase(i);
      if (p.into != nullptr) {
        p.into->written_to = false;
        p.into->holds = p.memory.rkey;
      }
      if (pick(16) == 15 && (p.direct || read.erase(p.slot) == 1))
        messages.refuse(p.slot);
      else
        messages.pulled(p.slot);
    } else {
      return idle_asked;
    }
    run();
    return true;
  }

  // Actions of the application.

  void send(std::uint64_t bytes, bool written = false) {
    send_op& op = make(sends);
    op.what = written ? message_out::kind::written : message_out::kind::message;
    op.bytes = written ? 0 : bytes;
    op.sequence = sequence++;
    op.immediate = op.sequence;
    sent_sizes[op.sequence] = op.bytes;
    messages.send(op);
    run();
  }
  void cancel_send(const chooser& pick) {
    if (send_op* const op = some_of(sends, pick); op != nullptr && !op->ended)
      if (messages.cancel(*op)) {
        drop_key(*op);
        end(*op);
        if (!op->preparing)
          bury(op);
      }
    run();
  }
  void receive(std::uint64_t capacity, bool written = false) {
    receive_op& op = make(receives);
    op.what = written ? message_in::kind::written : message_in::kind::message;
    op.capacity = capacity;
    messages.receive(op);
    run();
  }
  void cancel_receive(const chooser& pick) {
    receive_op* op = some_of(receives, pick);
    if (pick(2) == 0) // prefers a receive whose memory is being written to
      for (const pull& p : pulls)
        op = p.into != nullptr ? p.into : op;
    if (op != nullptr) {
      bool ended = messages.cancel(*op);
      must(ended == !op->written_to,
           "a cancelled receive ends at once unless the device writes to its memory");
      if (!ended && pick(2) == 0) {
        for (pull& p : pulls)
          if (p.into == op)
            p.into = nullptr;
        op->written_to = false;
        messages.abandon(*op);
        ended = true;
        ++abandoned;
      }
      if (ended) {
        end(*op);
        receives.erase(op);
      }
    }
    run();
  }
  void let_go(const chooser& pick) {
    if (lent_slots.empty())
      return;
    const auto i = lent_slots.begin() + pick(static_cast<std::uint32_t>(lent_slots.size()));
    const std::uint32_t slot = *i;
    lent_slots.erase(i);
    link.release(slot);
    run();
  }
  void ask(lease_request::kind what, std::uint64_t bytes, remote_rights rights,
           std::chrono::microseconds lease, std::uint32_t id = 0) {
    lease_op& op = make(asked);
    op.what = what;
    op.bytes = bytes;
    op.rights = rights;
    op.lease = lease;
    op.id = id;
    if (what == lease_request::kind::give)
      my_leases.erase(id);
    leases.start(op, now);
    run();
  }
  void cancel_ask(const chooser& pick) {
    if (lease_op* const op = some_of(asked, pick); op != nullptr && leases.cancel(*op)) {
      end(*op);
      asked.erase(op);
    }
    run();
  }
  void lend(std::uint64_t bytes, std::chrono::microseconds lease) {
    lend_op& op = make(lends);
    op.bytes = bytes;
    op.rights = remote_rights::all;
    op.lease = lease;
    grants.lend(op);
    run();
  }
  void receive_region() {
    inbox.receive(make(region_waits));
    run();
  }
  void cancel_region(const chooser& pick) {
    if (region_op* const op = some_of(region_waits, pick); op != nullptr && inbox.cancel(*op)) {
      end(*op);
      region_waits.erase(op);
    }
    run();
  }
  void revoke(const chooser& pick) {
    std::vector<std::uint32_t> all(grant_keys.begin(), grant_keys.end());
    all.insert(all.end(), making.begin(), making.end());
    if (!all.empty()) {
      const std::uint32_t id = all[pick(static_cast<std::uint32_t>(all.size()))];
      if (grants.revoke(id)) {
        (grant_keys.contains(id) ? revoked : unheard).insert(id);
        must(!grants.revoke(id), "a grant is revoked once");
      }
    }
    run();
  }
  std::uint32_t some_lease(const chooser& pick) const {
    if (my_leases.empty())
      return 0;
    return *std::next(my_leases.begin(), pick(static_cast<std::uint32_t>(my_leases.size())));
  }
  void release_lease(std::uint32_t id) {
    if (my_leases.erase(id) != 0)
      leases.release(id);
    run();
  }
  void pass_time(std::chrono::microseconds by) {
    now += by;
    grants.expire(now);
    run();
    must(grants.next_expiry() > now, "an expired grant ends");
  }

  /// Performs one of all the actions that an application may do.
  void act(const chooser& pick) {
    const std::chrono::microseconds lease(std::uint64_t(1) << pick(24));
    switch (pick(20)) {
    case 0:
    case 1:
    case 2:
      return send(pick(140));
    case 3:
      return send(pick(3000));
    case 4:
      return send(0, true);
    case 5:
      return cancel_send(pick);
    case 6:
    case 7:
    case 8:
    case 9:
      return receive(pick(8) == 0 ? pick(2000) : ~std::uint64_t(0));
    case 10:
      return receive(0, true);
    case 11:
      return cancel_receive(pick);
    case 12:
      return let_go(pick);
    case 13:
      return ask(lease_request::kind::memory, 1 + pick(60), static_cast<remote_rights>(1 + pick(7)),
                 pick(4) == 0 ? no_lease : lease);
    case 14:
      return ask(pick(2) == 0 ? lease_request::kind::renew : lease_request::kind::give, 0,
                 remote_rights::none, lease, some_lease(pick));
    case 15:
      return cancel_ask(pick);
    case 16:
      return lend(1 + pick(100), pick(2) == 0 ? no_lease : lease);
    case 17:
      return pick(4) == 0 ? cancel_region(pick) : receive_region();
    case 18:
      return release_lease(some_lease(pick));
    default:
      return pick(4) == 0 ? revoke(pick) : let_go(pick);
    }
  }

private:
  template <class Op>
  struct op_set {
    std::vector<std::unique_ptr<Op>> list;
    void erase(const void* op) {
      for (auto& p : list)
        if (p.get() == op) {
          std::swap(p, list.back());
          list.pop_back();
          return;
        }
      must(false, "an operation is known");
    }
  };

  template <class Op>
  Op& make(op_set<Op>& set) {
    ++made_ops;
    set.list.push_back(std::make_unique<Op>());
    return *set.list.back();
  }
  template <class Op>
  static Op* some_of(op_set<Op>& set, const chooser& pick) {
    if (set.list.empty())
      return nullptr;
    return set.list[pick(static_cast<std::uint32_t>(set.list.size()))].get();
  }
  template <class Op>
  void end(Op& op) {
    must(!op.ended, "an operation ends once");
    op.ended = true;
    ++ended_ops;
  }
  void bury(send_op* op) { sends.erase(op); }
  void drop_key(send_op& op) {
    if (op.keyed)
      must(keys.erase(op.key) == 1, "a key ends once");
    op.keyed = false;
  }

  std::span<const std::byte> payload_of(const outgoing_frame& f) override {
    gathered_ = gathered_payload(f);
    return gathered_;
  }
  void free_receive(std::uint32_t slot) override {
    if (!shared)
      return fake_link::free_receive(slot);
    post(slot);
    link.freed();
    shared->shares.give_back(!shared->left && link.below_promise());
  }
  bool takes_receive() {
    if (!shared || shared->left || !link.wants_receive() ||
        !shared->shares.take(link.below_promise()))
      return false;
    link.granted();
    return true;
  }
  bool part_action() override { return takes_receive() || message_step() || region_step(); }

  bool message_step() {
    const message_action a = messages.next();
    switch (a.what) {
    case message_action::kind::none:
      return false;
    case message_action::kind::prepare: {
      auto* const op = static_cast<send_op*>(a.send);
      op->preparing = true;
      preparing.push_back(op);
      break;
    }
    case message_action::kind::pull:
      pulls.push_back({a.slot, a.memory, nullptr, false});
      if (a.memory.size % 4 != 0) {
        auto& op = static_cast<receive_op&>(*a.receive);
        must(!op.written_to, "a receive's memory is the target of one READ at a time");
        messages.read_into(a.slot, op);
        op.written_to = true;
        pulls.back().into = &op;
        pulls.back().direct = true;
      } else {
        must(read.insert(a.slot).second, "a message is the source of one READ at a time");
      }
      if (on_pull)
        on_pull(a.memory);
      break;
    case message_action::kind::drop: {
      const bool direct_read = std::any_of(
          pulls.begin(), pulls.end(), [&](const pull& p) { return p.direct && p.slot == a.slot; });
      must(direct_read ? dead : read.erase(a.slot) == 1, "a message that was read is dropped once");
      break;
    }
    case message_action::kind::await_idle:
      must(!idle_asked, "the protocol asks for one visit at a time");
      idle_asked = true;
      break;
    case message_action::kind::sent: {
      auto& op = *static_cast<send_op*>(a.send);
      end(op);
      drop_key(op);
      if (!op.ec)
        (op.what == message_out::kind::written ? written_well : sent_well).insert(op.sequence);
      else
        ++failed_sends;
      if (!op.preparing)
        bury(&op);
      break;
    }
    default: {
      auto& op = *static_cast<receive_op*>(a.receive);
      must(!op.written_to, "a receive ends after the device has written to its memory");
      end(op);
      if (!op.ec)
        take(op);
      receives.erase(&op);
    }
    }
    return true;
  }

  void take(receive_op& op) {
    if (op.what == message_in::kind::written) {
      noticed.push_back(*op.immediate);
      return;
    }
    must(op.bytes <= op.capacity, "a message fits its receive");
    if (op.where == message_in::place::direct) {
      must(!honest_peer || op.holds == op.immediate,
           "the memory of a receive has the receive's own message");
      ++direct;
    }
    if (op.where == message_in::place::pulled)
      must(read.erase(op.slot) == 1, "a message that was read is received once");
    if (op.where == message_in::place::slot) {
      const std::size_t size = filled.at(op.slot).size() - frame_header::size;
      const bool alone = op.at == 0;
      must(alone ? size == op.bytes : op.at + op.bytes <= size, "a message is whole");
      must(alone || op.last == (op.at - gathered_header::size + gathered_size(op.bytes) == size),
           "the last message of a frame is known");
      gathered += alone ? 0 : 1;
      if (op.last)
        lent_slots.push_back(op.slot);
    }
    received.emplace_back(op.immediate.value_or(0), op.bytes);
  }

  bool region_step() {
    const grant_action a = grants.next();
    if (a.what == grant_action::kind::make) {
      making.push_back(a.grant);
      making_bytes[a.grant] = a.bytes;
    } else if (a.what == grant_action::kind::end) {
      ending.push_back(a.grant);
    } else if (a.what == grant_action::kind::lent) {
      auto* const op = static_cast<lend_op*>(a.lend);
      end(*op);
      lends.erase(op);
    } else if (lease_request* const r = leases.next()) {
      auto* const op = static_cast<lease_op*>(r);
      end(*op);
      if (!op->ec && op->what == lease_request::kind::memory) {
        my_leases.insert(op->id);
        ++granted;
      }
      asked.erase(op);
    } else if (region_receive* const w = inbox.next()) {
      auto* const op = static_cast<region_op*>(w);
      end(*op);
      if (!op->ec) {
        ++regions;
        if (op->returned)
          must(!grant_keys.contains(op->id), "a grant that was handed back has no key");
        else
          my_leases.insert(op->id);
      }
      region_waits.erase(op);
    } else {
      return false;
    }
    return true;
  }

  op_set<send_op> sends;
  op_set<receive_op> receives;
  op_set<lend_op> lends;
  op_set<lease_op> asked;
  op_set<region_op> region_waits;
  std::map<std::uint32_t, std::uint64_t> making_bytes;
  std::vector<std::byte> gathered_;

public:
  std::function<void(const remote_buffer&)> on_pull;
};

} // namespace protocol_test
