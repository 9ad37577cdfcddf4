// SPDX-License-Identifier: BSL-1.0
//
// One side of a connection, whose peer is the test.
#pragma once

#include "connection/message_protocol.hpp"
#include "protocol/fake_link.hpp"
#include "protocol/gathered.hpp"

#include <deque>
#include <set>
#include <vector>

namespace message_test {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using namespace protocol_test;

struct a_send final : message_out {
  explicit a_send(std::uint64_t n, std::optional<std::uint32_t> imm = {}) {
    bytes = n;
    immediate = imm;
  }
};

struct a_receive final : message_in {};

/// One side; the test acts as its peer.
struct party final : fake_link {
  explicit party(frame_options l = {}, message_options m = {}) : fake_link(l), messages(link, m) {}

  bool part_action() override {
    const message_action a = messages.next();
    if (a.what == message_action::kind::none)
      return false;
    actions.push_back(a);
    return true;
  }
  std::span<const std::byte> payload_of(const outgoing_frame& f) override {
    gathered_ = gathered_payload(f);
    return gathered_;
  }
  void free_receive(std::uint32_t slot) override {
    reposted.push_back(slot);
    fake_link::free_receive(slot);
  }

  /// Delivers a frame of the peer.
  void gets(const frame_header& h, std::span<const std::byte> payload = {}) {
    arrives(frame_of(h, payload));
  }
  void gets_message(std::uint32_t length, std::optional<std::uint32_t> imm = {}) {
    frame_header h{.type = frame_type::message, .length = length};
    h.flags = imm ? 1 : 0;
    h.immediate = imm.value_or(0);
    gets(h);
  }
  void gets_offer(std::uint32_t id, std::uint64_t bytes) {
    payload_bytes p;
    encode(offer_payload{{0x1000, bytes, 5}}, p);
    gets({.type = frame_type::offer, .length = offer_payload::size, .id = id}, p);
  }
  void gets_answer(std::uint32_t id, std::optional<refusal> why = {}) {
    gets({.type = why ? frame_type::refused : frame_type::taken,
          .id = id,
          .immediate = why ? static_cast<std::uint32_t>(*why) : 0});
  }
  void send(message_out& op) {
    if (const link_action a = messages.send_at_once(op); a.what == link_action::kind::send) {
      fake_link::send(a);
      ++sent_at_once;
    } else {
      messages.send(op);
    }
    run();
  }
  void receive(message_in& op) {
    messages.receive(op);
    run();
  }
  std::vector<frame_type> types() const {
    std::vector<frame_type> result;
    for (const wire_frame& f : wire)
      result.push_back(f.header.type);
    return result;
  }
  /// Takes the oldest action.
  message_action take() {
    if (actions.empty())
      return {};
    const message_action a = actions.front();
    actions.pop_front();
    return a;
  }
  /// Takes the next actions while they drop read messages; returns their slots.
  std::set<std::uint32_t> drops() {
    std::set<std::uint32_t> result;
    while (!actions.empty() && actions.front().what == message_action::kind::drop)
      result.insert(take().slot);
    return result;
  }
  /// Whether the next action completes `op`.
  bool completes(const message_out& op) {
    const message_action a = take();
    return a.what == message_action::kind::sent && a.send == &op;
  }
  bool completes(const message_in& op) {
    const message_action a = take();
    return a.what == message_action::kind::received && a.receive == &op;
  }

  message_protocol messages;
  std::size_t sent_at_once = 0;
  std::vector<std::uint32_t> reposted;
  std::deque<message_action> actions;
  std::vector<std::byte> gathered_;
};

/// The number of the receive that the peer's frame `n` fills.
constexpr std::uint32_t receive_of(std::uint32_t n) { return fake_link::first_receive + n; }

inline const remote_buffer key{0x2000, 10000, 7};

} // namespace message_test
