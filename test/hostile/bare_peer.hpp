// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/handshake.hpp"
#include "device/support/pair.hpp"
#include "link/frame.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <infiniband/verbs.h>
#include <optional>
#include <rdma/rdma_cma.h>
#include <span>
#include <string_view>
#include <vector>

namespace test {

using bytes_view = std::span<const std::byte>;
using byte_vector = std::vector<std::byte>;

/// A peer that uses rdma_cm(7) and verbs, and none of the library's objects but a `device`. It
/// sends what the attack wants. All waits end after some seconds, with an exception or an error.
class bare_peer {
public:
  struct shape {
    std::uint32_t receives = 32;
    std::uint32_t receive_size = 8192;
    std::size_t longest_frame = 65536; ///< That it sends; also the longest access.
    std::size_t lent = 4096;           ///< Memory that it may offer, with all rights.
    std::optional<asio::ip::address> from = std::nullopt; ///< Its own address, if it matters.

    /// One that costs little, for many peers at a time.
    static shape small() { return {5, 64, 64, 64}; }
  };

  explicit bare_peer(std::uint32_t port) : bare_peer(port, shape()) {}
  bare_peer(std::uint32_t port, const shape& s);
  ~bare_peer();
  bare_peer(const bare_peer&) = delete;

  /// The handshake of an honest peer.
  detail::handshake hello(detail::handshake::kind what) const;

  /// Sends a request with this private data, and does not wait for the answer.
  void request(bytes_view private_data);
  void request(const detail::handshake& h);
  /// Waits until rdma_cm has an event, such as the victim's answer, and does not take it: this side
  /// does not go on.
  void wait_for_event() const;
  /// Connects. False if the victim has rejected the request, or has ended the connection.
  bool connect(bytes_view private_data);
  /// Connects, and on iWARP sends the first frame, which that transport expects of this side.
  bool connect(const detail::handshake& h);
  bool connect(detail::handshake::kind what) { return connect(hello(what)); }

  /// Sends a frame, and waits until its SEND has completed. False if the connection has ended.
  bool send(bytes_view frame);
  bool send(detail::frame_header h, bytes_view payload = {});
  /// Returns the credits of all frames that have arrived since the last time.
  bool return_credits();
  /// The credits that this side owes the victim; the next frame may return them.
  std::uint16_t take_owed() noexcept;
  std::uint16_t owed() const noexcept { return owed_; }
  /// The next frame of the victim. Empty if none comes within the time, or if the connection ends.
  std::optional<byte_vector> receive(std::chrono::milliseconds patience);
  /// The next frame of this type; others are dropped.
  std::optional<byte_vector> receive(detail::frame_type type,
                                     std::chrono::milliseconds patience = std::chrono::seconds(5));

  /// Whether a WRITE reaches the victim's memory. On iWARP a WRITE that is refused has completed
  /// before; so a READ of `good`, which the victim permits, follows.
  bool reaches(const remote_buffer& to, const remote_buffer& good);
  /// The device's accesses to the victim's memory. After an error the connection has ended.
  ibv_wc_status read(const remote_buffer& from);
  /// Writes `content`, or without it some pattern.
  ibv_wc_status write(const remote_buffer& to, bytes_view content = {});

  bool ended() const noexcept { return ended_; }
  /// Its own memory, as it may describe that to the victim.
  remote_buffer lent() const noexcept;
  const std::byte* lent_bytes() const noexcept { return memory_.data() + lent_at(); }
  /// Registers memory of the caller's, to be described to the victim as well.
  remote_buffer lend(void* data, std::size_t bytes);
  /// The victim's handshake, after `connect`.
  const detail::handshake& of_victim() const noexcept { return of_victim_; }
  /// The frames that this side may send at first.
  std::uint32_t first_credits() const noexcept {
    return of_victim_.promise != 0 ? of_victim_.promise : of_victim_.receives;
  }

private:
  void resolve();
  void open();
  void close();
  rdma_cm_event_type next_event(byte_vector* data = nullptr);
  bool hears_end();
  void post_receive(std::uint64_t index);
  /// Takes completions until one with this id, or until the time is over.
  std::optional<ibv_wc_status> poll(std::uint64_t id, std::chrono::milliseconds patience);
  ibv_wc_status access(ibv_wr_opcode what, const remote_buffer& at, bytes_view content);
  std::size_t lent_at() const noexcept;
  std::size_t sent_at() const noexcept;

  shape shape_;
  std::uint32_t port_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<ibv_mr*> further_; // regions of the caller's memory
  byte_vector memory_;           // receives, one frame to send, and memory to lend
  std::deque<byte_vector> arrived_;
  std::uint16_t owed_ = 0;
  bool ended_ = false;
  detail::handshake of_victim_;
};

/// A header with a type; its other fields are zero.
detail::frame_header frame(detail::frame_type type, std::uint32_t id = 0);

/// The bytes of a payload of fixed size.
template <class Payload>
byte_vector payload_of(const Payload& p) {
  detail::payload_bytes bytes{};
  encode(p, bytes);
  return {bytes.begin(), bytes.begin() + Payload::size};
}

bytes_view as_bytes(std::string_view text);

} // namespace test
