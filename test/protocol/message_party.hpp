// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/message_protocol.hpp"
#include "fake_link.hpp"
#include "gathered.hpp"
#include "party_state.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace protocol_test {

/// The messages of a party: its sends and receives, and the actions of the device for them.
class message_party : public fake_link, public party_state {
public:
  message_party(const frame_options& l, const message_options& m)
      : fake_link(l, l.receives + (l.promise != 0 ? shared_receives::spare : 0)),
        messages(link, m) {
    if (l.promise != 0)
      shared.emplace(l.receives, l.promise);
  }

  message_protocol messages;
  std::function<void(const remote_buffer&)> on_pull;
  std::function<bool()> goes_straight; ///< Whether a message tries to be sent at once.
  std::size_t sent_at_once = 0;
  std::size_t begun_pulls = 0;

  // Actions of the application.

  void send(std::uint64_t bytes, bool written = false) {
    send_op& op = make(sends);
    op.what = written ? message_out::kind::written : message_out::kind::message;
    op.bytes = written ? 0 : bytes;
    op.sequence = sequence++;
    op.immediate = op.sequence;
    sent_sizes[op.sequence] = op.bytes;
    if (!send_at_once(op))
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

protected:
  ~message_party() = default;

  /// Notices an idle link, or makes the key of an offered message. False if there is neither.
  bool idle_or_prepare_step(const chooser& pick) {
    if (idle_asked && pick(2) == 0) {
      idle_asked = false;
      messages.on_idle();
      return true;
    }
    if (preparing.empty())
      return false;
    const auto i = preparing.begin() + pick(static_cast<std::uint32_t>(preparing.size()));
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
    return true;
  }
  /// Completes a READ of an offered message, or goes on after one was put off. False if none is
  /// pending.
  bool pull_step(const chooser& pick) {
    if (messages.puts_off() && (pulls.empty() || pick(2) == 0)) {
      messages.go_on();
      return true;
    }
    if (pulls.empty())
      return false;
    const auto i = pulls.begin() + pick(static_cast<std::uint32_t>(pulls.size()));
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
    return true;
  }
  /// Carries out the next action of the messages. False if there is none.
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
      if (a.memory.size % 4 == 0 && ++begun_pulls % 4 == 0) {
        messages.put_off(a.slot);
        break;
      }
      pulls.push_back({a.slot, a.memory, nullptr, false});
      if (a.memory.size % 4 != 0) {
        auto& op = static_cast<receive_op&>(*a.receive);
        must(!op.written_to, "a receive's memory is the target of one READ at a time");
        messages.read_into(a.slot, op);
        op.written_to = true;
        pulls.back().into = &op;
        pulls.back().direct = true;
      } else {
        std::uint64_t before = 0;
        for (const auto& [slot, bytes] : read)
          before += bytes;
        must(before <= most_read, "memory that is read ahead has a bound");
        must(read.emplace(a.slot, a.memory.size).second,
             "a message is the source of one READ at a time");
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

private:
  bool send_at_once(send_op& op) {
    if (goes_straight && !goes_straight())
      return false;
    const link_action a = messages.send_at_once(op);
    if (a.what == link_action::kind::none)
      return false;
    fake_link::send(a);
    ++sent_at_once;
    return true;
  }
  void bury(send_op* op) { sends.erase(op); }
  void drop_key(send_op& op) {
    if (op.keyed)
      must(keys.erase(op.key) == 1, "a key ends once");
    op.keyed = false;
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

  std::span<const std::byte> payload_of(const outgoing_frame& f) override {
    gathered_ = gathered_payload(f);
    return gathered_;
  }

  op_set<send_op> sends;
  op_set<receive_op> receives;
  std::vector<std::byte> gathered_;
};

} // namespace protocol_test
