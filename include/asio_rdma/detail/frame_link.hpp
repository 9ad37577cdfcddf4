// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/credits.hpp>
#include <asio_rdma/detail/frame.hpp>
#include <boost/circular_buffer.hpp>
#include <boost/intrusive/list.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// What a driver's operation is known by to the parts of a protocol: a node that they keep in their
/// lists, so that any number may wait without an allocation.
class frame_operation : public boost::intrusive::list_base_hook<
                            boost::intrusive::link_mode<boost::intrusive::normal_link>> {
protected:
  frame_operation() = default;
  ~frame_operation() = default;
  frame_operation(const frame_operation&) = delete;
};

struct outgoing_frame {
  frame_header header;
  payload_bytes payload;                ///< Its first `header.length` bytes follow the header,
  bool payload_of_operation = false;    ///< unless as many bytes of the operation's buffers do.
  bool fenced = false;                  ///< Not before the READs that were started have completed.
  frame_operation* operation = nullptr; ///< Told again by `on_sent`; may be none.
};

using protocol_clock = std::chrono::steady_clock;

/// Part of a protocol on a link: messages, regions, a stream. Called by the link only, except for
/// what the part itself offers to the driver.
class link_part {
public:
  /// The next frame that waits for no application. The link can send it, so it is gone.
  virtual bool next_control(outgoing_frame&) { return false; }
  /// The same for a frame of data, and for what must stay behind data.
  virtual bool next_data(outgoing_frame&) { return false; }
  /// Whether there is something for `next_data` to look at.
  virtual bool has_data() const { return false; }
  /// The frame's SEND has completed.
  virtual void on_sent(const frame_header&, frame_operation*) {}
  /// The link was stopped with the frame under way.
  virtual void on_dropped(const frame_header&, frame_operation*, const error_code&) {}

  enum class disposition { consumed, held, violation };
  /// A frame of a type that is this part's. What is held is released by `frame_link::release`.
  virtual disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                               std::uint32_t slot, protocol_clock::time_point now) = 0;
  /// Whether `on_frame` is to know the time, which may cost a system call.
  virtual bool needs_time() const noexcept { return false; }

  /// This side closes: nothing new is to be started.
  virtual void on_closing() {}
  /// Whether nothing is left that has to go before the goodbye.
  virtual bool drained() const { return true; }
  /// The peer sends nothing more and takes nothing more. False if it still owes something.
  virtual bool on_goodbye() { return true; }
  /// The device has let go of everything.
  virtual void on_stopped(const error_code&) {}

protected:
  ~link_part() = default;
};

struct link_options {
  std::uint32_t receives = 16;       ///< Posted here, at least `credits::minimum`,
  std::uint32_t receive_size = 4096; ///< of so many bytes, at least `frame_link::min_receive_size`.
  std::uint32_t promise = 0;         ///< So many of these at a time, if they are shared; 0: all.
  std::uint32_t peer_receives = 16;
  std::uint32_t peer_receive_size = 4096;
  std::uint32_t peer_promise = 0; ///< Likewise.
  std::uint32_t sends = 16;       ///< Frames under way at a time.
  bool speaks_first = false;      ///< Sends a frame at once, for a peer that waits for it.
  bool waits_for_peer = false;    ///< Sends nothing before the first frame came.
};

/// What the driver is to do.
struct link_action {
  enum class kind {
    none,
    repost, ///< The receive `slot` is needed no more: post it again, then `reposted`; or `freed`.
    send,  ///< `frame`, in one SEND in this order; then `on_sent(slot)`. Valid until the next call.
    fail,  ///< The connection is broken for `ec`: end it, then `stop`.
    closed ///< Both sides have said goodbye and nothing is under way: end it, then `stop`.
  };
  kind what = kind::none;
  std::uint32_t slot = 0;
  const outgoing_frame* frame = nullptr;
  error_code ec = {};
};

/// The frames of one queue pair: flow control, which frame is next, what a received one is for,
/// and the goodbye. Does no I/O: after each event the driver does what the parts' `next` say until
/// that is nothing, and then the same for the link. Allocates only when made. Not thread-safe.
///
/// Receives are known by numbers of the driver's choice (of a shared receive queue too), sends by
/// numbers below `link_options::sends`, of which each may own the memory of a header.
class frame_link {
public:
  static constexpr std::uint32_t min_receive_size = frame_header::size + max_fixed_payload;

  /// Whether both sides' values, of which the peer's came by the handshake, can be worked with.
  static bool usable(const link_options& o) noexcept;
  /// `o` is usable.
  explicit frame_link(const link_options& o);
  frame_link(const frame_link&) = delete;

  /// Gives the frames of these types to a part, which stays as long as the link is used.
  void add(link_part& part, std::initializer_list<frame_type> types);

  link_action next();

  /// A receive has completed with these bytes, now if no time is given. False if the link does not
  /// keep it, as it is broken.
  bool on_received(std::uint32_t slot, std::span<const std::byte> frame,
                   std::optional<protocol_clock::time_point> at = {});
  /// A receive of the link's own has been posted again: the next frame may promise it to the peer.
  void reposted() noexcept {
    credits_.freed();
    credits_.granted();
  }
  /// The same in two steps, for receives that links share: one has been given back; and while it
  /// `wants_receive`, another one, which is posted, has been given to the link.
  void freed() noexcept { credits_.freed(); }
  bool below_promise() const noexcept { return credits_.below_promise(); }
  bool wants_receive() const noexcept { return credits_.wants(); }
  void granted() noexcept { credits_.granted(); }
  /// The SEND of a frame has completed, in order.
  void on_sent(std::uint32_t slot);
  /// What a part has held is needed no more.
  void release(std::uint32_t slot);
  /// What `next` tells by `repost`, also of a link that has stopped.
  std::optional<std::uint32_t> next_freed();

  /// Sends what is waiting, then goodbye. Then, or at any time, `stop`.
  void close();
  /// The device has let go of everything: every operation of every part ends, with `why` if with
  /// nothing better. The first call counts.
  void stop(const error_code& why);
  /// Notes that the link is broken; a part's way to say so outside of `on_frame`.
  void fail(const error_code& why) noexcept;

  bool closing() const noexcept { return closing_; }
  bool peer_closed() const noexcept { return peer_closed_; }
  /// Whether both sides have said goodbye.
  bool said_goodbye() const noexcept { return goodbye_sent_ && peer_closed_; }
  /// Whether the SEND of this side's has completed, and so all before it.
  bool told_goodbye() const noexcept { return goodbye_done_; }
  bool stopped() const noexcept { return stopped_; }
  const error_code& failure() const noexcept { return failure_; }
  const link_options& options() const noexcept { return options_; }
  const credits& flow() const noexcept { return credits_; }
  /// How often data had to wait for the peer's credits.
  std::uint64_t credit_waits() const noexcept { return credit_waits_; }
  std::uint32_t sends_under_way() const noexcept {
    return options_.sends - static_cast<std::uint32_t>(free_.size());
  }

private:
  struct sent_frame {
    frame_header header;
    link_part* part = nullptr;
    frame_operation* operation = nullptr;
    bool under_way = false;
  };

  bool next_frame();
  void begin_frame(frame_type type);
  bool take(bool (link_part::*from)(outgoing_frame&));
  bool all_drained() const;
  void note_wait();

  link_options options_;
  credits credits_;
  std::vector<link_part*> parts_;
  std::size_t turn_ = 0; // of parts, to be fair
  std::array<link_part*, frame_types> part_of_{};
  boost::circular_buffer<std::uint32_t> reposts_;
  std::vector<sent_frame> sent_;
  std::vector<std::uint32_t> free_;
  outgoing_frame frame_;
  link_part* frame_part_ = nullptr;
  std::uint64_t credit_waits_ = 0;
  error_code failure_;
  bool waits_for_credits_ = false; // with data
  bool failure_told_ = false;
  bool speak_ = false;
  bool heard_ = false;
  bool closing_ = false;
  bool closed_here_ = false;
  bool goodbye_sent_ = false;
  bool goodbye_done_ = false; // its SEND has completed
  bool peer_closed_ = false;
  bool closed_told_ = false;
  bool stopped_ = false;
};

} // namespace asio_rdma::detail
