// SPDX-License-Identifier: BSL-1.0
// The operations and the records of one side of a connection, and the receives that it shares.
#pragma once

#include "connection/message_protocol.hpp"
#include "fake_link.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "link/receive_shares.hpp"

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace protocol_test {

/// A number below n.
using chooser = std::function<std::uint32_t(std::uint32_t n)>;

/// An operation of a party, of any kind, which must end exactly once.
template <class Request>
struct op_of final : Request {
  std::uint32_t sequence = 0; // for messages
  bool keyed = false, preparing = false, ended = false;
  std::uint64_t key = 0;
  bool written_to = false;            // the device is writing to its memory
  std::optional<std::uint32_t> holds; // the message that was read to its memory
};
using send_op = op_of<message_out>;
using receive_op = op_of<message_in>;
using lend_op = op_of<lend_request>;
using lease_op = op_of<lease_request>;
using region_op = op_of<region_receive>;
using recall_op = op_of<recall_request>;

/// The operations of one kind that a party has started.
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

/// Receives that a party shares with a rival, which takes and returns unclaimed receives.
struct shared_receives {
  static constexpr std::uint32_t spare = 4; // more than the party may have

  shared_receives(std::uint32_t receives, std::uint32_t promise)
      : shares(receives + spare, promise) {
    must(shares.join(), "the first link gets its share");
  }

  receive_shares shares;
  std::uint32_t rival = 0; // number of receives that the rival has
  bool left = false;       // the party has left

  void act(const chooser& pick) {
    if (rival != 0 && pick(2) == 0) {
      shares.give_back(false);
      --rival;
    } else if (shares.take(false)) {
      ++rival;
    }
  }
};

/// The pending actions of one side of a connection, and the records that a test compares.
struct party_state {
  std::optional<shared_receives> shared;

  // Pending actions.
  std::deque<std::uint32_t> lent_slots; // messages that the application holds
  struct pull {
    std::uint32_t slot;
    remote_buffer memory;
    receive_op* into; // its receive, until that ends
    bool direct;
  };
  std::vector<pull> pulls;
  std::map<std::uint32_t, std::uint64_t> read; // the memory of pulls that are not direct: sizes
  std::uint64_t most_read = std::numeric_limits<std::uint64_t>::max(); // see `message_options`
  std::vector<send_op*> preparing;
  bool idle_asked = false;
  std::vector<std::uint32_t> making, ending;
  std::map<std::uint64_t, std::uint64_t> keys;      // of offered messages: their sizes
  std::set<std::uint32_t> grant_keys;               // keys by which the peer may access
  std::map<std::uint32_t, std::uint64_t> requested; // grants whose memory is not free: their bytes
  std::set<std::uint32_t> handed_back;
  std::set<std::uint32_t> revoked;
  std::set<std::uint32_t> unheard; // revoked while their keys were being made
  std::map<std::uint32_t, protocol_clock::time_point> recalled_until; // with the end of the grace
  std::set<std::uint32_t> my_leases;

  /// Whether a grant was revoked, or the grace of its recall is over.
  bool may_have_ended(std::uint32_t grant, protocol_clock::time_point now) const {
    const auto i = recalled_until.find(grant);
    return revoked.contains(grant) || (i != recalled_until.end() && i->second <= now);
  }

  // Records.
  std::map<std::uint32_t, std::uint64_t> sent_sizes; // by sequence
  std::set<std::uint32_t> sent_well, written_well;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> received; // sequence and size, in order
  std::vector<std::uint32_t> noticed;
  std::size_t ended_ops = 0, made_ops = 0, regions = 0, granted = 0, failed_sends = 0;
  std::size_t recalled = 0, yielded = 0; // grants that recalls have ended, and those confirmed
  bool honest_peer = true;               // its keys of long messages are their numbers
  std::size_t direct = 0, abandoned = 0; // messages read to the receiver's own memory
  std::size_t gathered = 0;              // messages received that shared a frame
  bool dead = false;                     // the device has ended its accesses
  std::uint32_t sequence = 0;
  std::uint64_t next_key = 1;

protected:
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
};

} // namespace protocol_test
