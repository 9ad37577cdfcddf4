// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "message_party.hpp"

#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace protocol_test {

/// One side of a connection: its messages, and the memory that it lends and borrows.
class party final : public message_party {
public:
  party(const frame_options& l, const message_options& m, const grant_limits& g)
      : message_party(l, m), inbox(link), grants(link, inbox, g), leases(link, inbox) {}
  ~party() {
    if (!dead)
      die(asio::error::operation_aborted);
  }

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
    if (!idle_or_prepare_step(pick) && !grant_step(pick) && !pull_step(pick))
      return idle_asked;
    run();
    return true;
  }

  // Actions of the application.

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
  /// Recalls some grants, with a grace or none.
  void recall(const chooser& pick) {
    std::vector<std::uint32_t> all(grant_keys.begin(), grant_keys.end());
    all.insert(all.end(), making.begin(), making.end());
    recall_op& op = make(recalls);
    for (std::uint32_t n = pick(4); n != 0 && !all.empty(); --n) {
      const auto i = all.begin() + pick(static_cast<std::uint32_t>(all.size()));
      op.grants.push_back(*i);
      all.erase(i);
    }
    const auto grace = pick(3) == 0 ? no_lease : std::chrono::microseconds(pick(1000));
    for (const std::uint32_t id : op.grants) {
      const auto until = grace == no_lease ? protocol_clock::time_point::max() : now + grace;
      const auto [at, is_new] = recalled_until.emplace(id, until);
      at->second = std::min(at->second, until);
      if (!grant_keys.contains(id))
        unheard.insert(id);
    }
    grants.recall(op, grace, now);
    run();
  }
  void cancel_recall(const chooser& pick) {
    if (recall_op* const op = some_of(recalls, pick); op != nullptr && grants.cancel(*op)) {
      end(*op);
      recalls.erase(op);
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
    switch (pick(21)) {
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
    case 19:
      return pick(4) == 0 ? cancel_recall(pick) : recall(pick);
    default:
      return pick(4) == 0 ? revoke(pick) : let_go(pick);
    }
  }

private:
  bool part_action() override { return takes_receive() || message_step() || region_step(); }

  /// Makes or ends the key of a grant. False if no key is to be made or ended.
  bool grant_step(const chooser& pick) {
    const auto some = [&](auto& list) {
      return pick(static_cast<std::uint32_t>(list.size()));
    };
    if (!making.empty()) {
      const auto i = making.begin() + some(making);
      const std::uint32_t id = *i;
      making.erase(i);
      if (pick(16) == 15) {
        requested.erase(id);
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
      if (!handed_back.contains(id) || inbox.dropping())
        requested.erase(id);
      grants.ended(id);
    } else {
      return false;
    }
    return true;
  }
  bool region_step() {
    const grant_action a = grants.next();
    if (a.what == grant_action::kind::make) {
      making.push_back(a.grant);
      making_bytes[a.grant] = a.bytes;
      if (a.lend == nullptr)
        requested[a.grant] = a.bytes;
    } else if (a.what == grant_action::kind::end) {
      ending.push_back(a.grant);
      if (a.returned)
        handed_back.insert(a.grant);
    } else if (a.what == grant_action::kind::lent) {
      auto* const op = static_cast<lend_op*>(a.lend);
      end(*op);
      lends.erase(op);
    } else if (a.what == grant_action::kind::recalled) {
      auto* const op = static_cast<recall_op*>(a.recall);
      end(*op);
      must(op->grants.empty() && op->unconfirmed <= op->count, "a recall ends with its grants");
      recalled += op->count;
      yielded += op->count - op->unconfirmed;
      recalls.erase(op);
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
          receive_back(op->id);
        else
          my_leases.insert(op->id);
      }
      region_waits.erase(op);
    } else {
      return false;
    }
    return true;
  }

  void receive_back(std::uint32_t id) {
    must(!grant_keys.contains(id), "a grant that was handed back has no key");
    must(handed_back.erase(id) == 1, "a grant that was handed back is received once");
    requested.erase(id);
    grants.received(id);
  }

  op_set<lend_op> lends;
  op_set<lease_op> asked;
  op_set<region_op> region_waits;
  op_set<recall_op> recalls;
  std::map<std::uint32_t, std::uint64_t> making_bytes;
};

} // namespace protocol_test
