// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "link/frame_link.hpp"
#include "simulation.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace protocol_test {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using simulation::must;

/// The bytes of a frame. Missing bytes of the payload are zeros.
inline std::vector<std::byte> frame_of(const frame_header& h,
                                       std::span<const std::byte> payload = {}) {
  const frame_bytes head = encode(h);
  std::vector<std::byte> result(head.begin(), head.end());
  result.insert(result.end(), payload.begin(), payload.end());
  result.resize(frame_header::size + h.length);
  return result;
}

struct wire_frame {
  frame_header header;
  std::vector<std::byte> bytes; ///< With the header.
  bool payload_of_operation;
  bool fenced;
};

/// A `frame_link`, its driver and a device. The device consists of lists. Each pending action waits
/// in a list until the test continues it, so the test can delay or drop the action. A derived class
/// has the parts and carries out their actions.
class fake_link {
public:
  /// The numbers of receives begin here, so that they differ from other numbers.
  static constexpr std::uint32_t first_receive = 1000;

  explicit fake_link(const frame_options& l = {}) : fake_link(l, l.receives) {}
  /// `posted_receives` exceeds `l.receives` if other links share them.
  fake_link(const frame_options& l, std::uint32_t posted_receives)
      : link(l), receive_count(posted_receives) {
    for (std::uint32_t i = 0; i < posted_receives; ++i) {
      posted.push_back(first_receive + i);
      size_of[first_receive + i] = l.receive_size;
    }
  }
  fake_link(const fake_link&) = delete;

  frame_link link;
  const std::size_t receive_count;
  std::deque<std::uint32_t> posted;                       ///< Receives.
  std::map<std::uint32_t, std::uint32_t> size_of;         ///< Each receive.
  std::map<std::uint32_t, std::vector<std::byte>> filled; ///< Receives that the link has.
  std::deque<wire_frame> wire;                            ///< To the peer; what was sent.
  std::deque<std::uint32_t> unsent;                       ///< SENDs to complete.
  std::size_t frames_sent = 0;
  std::function<bool()> refuses_growth; ///< There is no memory for larger receives.
  error_code failure;
  bool closed = false;
  bool parts_first = false; ///< The order of `run`.
  protocol_clock::time_point now{std::chrono::hours(1)};

  /// Carries out the actions of the link and of the parts until there is none; first those of the
  /// link, as the driver of a queue pair does, or those of the parts.
  void run() {
    for (bool more = true; more;) {
      while (parts_first && part_action())
        continue;
      more = link_action_done() || part_action();
    }
  }

  /// Delivers the oldest frame on the wire. Returns false if there is none.
  bool deliver_to(fake_link& peer) {
    if (wire.empty())
      return false;
    const std::vector<std::byte> frame = std::move(wire.front().bytes);
    wire.pop_front();
    must(!peer.posted.empty(), "a frame finds a receive");
    must(frame.size() <= peer.size_of[peer.posted.front()], "a frame fits its receive");
    peer.arrives(frame);
    return true;
  }
  /// Returns false if there is no posted receive for the frame.
  bool arrives(std::span<const std::byte> frame) {
    if (posted.empty())
      return false;
    complete_receive(frame);
    run();
    return true;
  }
  /// Completes the oldest receive, without `run`.
  void complete_receive(std::span<const std::byte> frame) {
    const std::uint32_t slot = posted.front();
    posted.pop_front();
    const auto [at, is_new] = filled.emplace(slot, std::vector(frame.begin(), frame.end()));
    must(is_new, "a receive is used by one frame at a time");
    if (!link.on_received(slot, at->second, now))
      post(slot);
  }
  bool complete_send() {
    if (unsent.empty())
      return false;
    const std::uint32_t slot = unsent.front();
    unsent.pop_front();
    link.on_sent(slot);
    run();
    return true;
  }
  /// Ends everything, as if the queue pair had been destroyed.
  void stop(const error_code& why) {
    wire.clear();
    unsent.clear();
    link.stop(why);
    run();
  }

  /// Checks invariants of this side and of the credits that it has promised to its peer.
  void check(const fake_link& peer) const {
    must(!failure, "neither finds the other at fault");
    const credits& flow = link.flow();
    std::size_t promised = peer.link.flow().available() + peer.wire.size();
    for (const wire_frame& f : wire)
      promised += f.header.credits;
    must(promised == flow.with_peer(), "credits are neither lost nor doubled");
    must(flow.share() == flow.with_peer() + flow.owed() + flow.held(),
         "every receive of a link is the peer's, owed to it, or held");
    must(posted.size() + flow.held() == receive_count,
         "every receive is posted or holds something");
  }

protected:
  ~fake_link() = default;

  /// Carries out the next action of the link. Returns false if there is none.
  bool link_action_done() {
    const bool news = link.has_news();
    const link_action a = link.next();
    must(news || a.what == link_action::kind::none, "a link without news has no action");
    switch (a.what) {
    case link_action::kind::repost:
      free_receive(a.slot);
      break;
    case link_action::kind::send:
      send(a);
      break;
    case link_action::kind::grow:
      if (refuses_growth && refuses_growth())
        link.not_grown();
      else
        link.grown();
      break;
    case link_action::kind::fail:
      failure = a.ec;
      break;
    case link_action::kind::closed:
      closed = true;
      break;
    case link_action::kind::none:
      return false;
    }
    return true;
  }

  void send(const link_action& a) {
    const frame_header& h = a.frame->header;
    const bool of_operation = a.frame->payload_of_operation;
    wire.push_back({h,
                    frame_of(h, of_operation ? payload_of(*a.frame)
                                             : std::span(a.frame->payload).first(h.length)),
                    of_operation, a.frame->fenced});
    unsent.push_back(a.slot);
    ++frames_sent;
  }

  /// Carries out the next action of a part. Returns false if there is none.
  virtual bool part_action() { return false; }
  /// The link does not need the receive any more.
  virtual void free_receive(std::uint32_t slot) {
    post(slot);
    link.reposted();
  }
  /// The payload of a frame, if it is in the operation's buffers; without it, zeros are sent.
  virtual std::span<const std::byte> payload_of(const outgoing_frame&) { return {}; }

  void post(std::uint32_t slot) {
    must(filled.erase(slot) == 1, "a receive is given back once");
    posted.push_back(slot);
    size_of[slot] = link.receive_size();
  }
};

} // namespace protocol_test
