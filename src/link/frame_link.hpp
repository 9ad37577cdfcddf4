// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/link/frame_operation.hpp>
#include <boost/circular_buffer.hpp>

#include "link/credits.hpp"
#include "link/frame.hpp"
#include "link/receive_sizes.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

struct outgoing_frame {
  frame_header header;
  payload_bytes payload;                ///< The first `header.length` bytes are sent,
  bool payload_of_operation = false;    ///< unless the payload is in the operation's buffers.
  bool fenced = false;                  ///< Starts after the preceding READs have completed.
  frame_operation* operation = nullptr; ///< Passed to `on_sent`; may be null.
};

class frame_link;

/// A part of a protocol on a link: messages, regions or a stream. Only the link calls the virtual
/// functions; the part offers its own functions to the driver.
///
/// If a part has no control frame, no data and no action for the driver, the link does not ask the
/// part again until an event of the part. Each function that may give the part a frame or an action
/// calls `ask_again`, or one of the functions beside it. Some calls of the link itself count as
/// such events: see below.
class link_part {
public:
  /// Takes the next control frame, if there is one. The link sends every frame that it takes. An
  /// event, if there is one.
  virtual bool next_control(outgoing_frame&) { return false; }
  /// Takes the next data frame, or a control frame that must follow the data. If an action has
  /// become possible, the part asks for it.
  virtual bool next_data(outgoing_frame&) { return false; }
  /// Whether `next_data` may have a frame. The beginning of its wait for credits is an event.
  virtual bool has_data() const { return false; }
  /// The frame's SEND has completed. If the frame has an operation, the part may have an action.
  virtual void on_sent(const frame_header&, frame_operation*) {}
  /// The link was stopped before the frame's SEND completed.
  virtual void on_dropped(const frame_header&, frame_operation*, const error_code&) {}

  enum class disposition { consumed, held, violation };
  /// Handles a frame of one of the part's types. If the result is `held`, the receive stays in use
  /// until `frame_link::release`, and the part may have an action. Otherwise this is an event.
  virtual disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                               std::uint32_t slot, protocol_clock::time_point now) = 0;
  /// Whether `on_frame` needs the time, which may cost a system call.
  virtual bool needs_time() const noexcept { return false; }

  /// This side is closing: start nothing new. This call and those below are events.
  virtual void on_closing() {}
  /// Whether everything that must precede the goodbye has been sent.
  virtual bool drained() const { return true; }
  /// The peer sends and takes nothing more. Returns false if it still owes an answer.
  virtual bool on_goodbye() { return true; }
  /// No work request of the link is outstanding any more.
  virtual void on_stopped(const error_code&) {}

protected:
  ~link_part() = default;
  /// The part may have something, so it is asked for everything again.
  inline void ask_again() noexcept;
  /// The part may have data, and nothing else is new.
  inline void ask_for_data() noexcept;
  /// The part may have an action for the driver, and nothing else is new.
  inline void ask_to_act() noexcept;
  /// Whether the part may have an action for the driver.
  inline bool may_act() const noexcept;
  /// The part has no action.
  inline void idle() noexcept;

private:
  friend frame_link; // sets `frames_` and `bit_`, and calls the virtual functions
  frame_link* frames_ = nullptr;
  std::uint8_t bit_ = 0;
};

struct frame_options {
  std::uint32_t receives = 16;        ///< Posted on this side, at least `credits::minimum`.
  std::uint32_t receive_size = 4096;  ///< Bytes, at least `frame_link::min_receive_size`.
  std::uint32_t max_receive_size = 0; ///< Receives may grow up to this size; 0: they do not grow.
  std::uint32_t promise = 0;          ///< Shared receives that are promised at a time; 0: all.
  /// The most payload of a frame from this side. The peer may announce receives larger than the
  /// device sends at once.
  std::uint32_t max_payload = std::uint32_t(1) << 20;
  std::uint32_t peer_receives = 16;
  std::uint32_t peer_receive_size = 4096;
  std::uint32_t peer_promise = 0; ///< The `promise` of the peer.
  std::uint32_t sends = 16;       ///< Frames whose SENDs may be outstanding at a time.
  bool speaks_first = false;      ///< Sends a frame at once; the peer waits for it.
  bool waits_for_peer = false;    ///< Sends nothing before the peer's first frame.
};

/// The next step of the driver.
struct link_action {
  enum class kind {
    none,
    repost, ///< Receive `slot` is free: post it again, then call `reposted`; or call `freed`.
    send,   ///< Post `frame` as one SEND, in this order; then `on_sent(slot)`. Valid until the next
            ///< call.
    grow,   ///< Allocate memory of `size` bytes for every receive; then call `grown`, and post the
            ///< receives with `receive_size()` bytes from then on. Otherwise call `not_grown`.
    fail,   ///< The connection has failed with `ec`: disconnect, then call `stop`.
    closed  ///< Both sides have said goodbye and no frame is outstanding: disconnect, then `stop`.
  };
  kind what = kind::none;
  std::uint32_t slot = 0;
  const outgoing_frame* frame = nullptr;
  std::uint32_t size = 0;
  error_code ec = {};
};

/// The frames of one queue pair: flow control, the order of sending, the dispatch of received
/// frames and the goodbye. Does no I/O. After each event the driver carries out the actions of the
/// link (`next`) and of the parts, in any order, until there are none. Only the constructor and
/// `add` allocate. Not thread-safe.
///
/// The driver chooses the numbers of receives, also for those of a shared receive queue. Sends have
/// numbers below `frame_options::sends`; each number may own the memory of a header.
class frame_link {
public:
  static constexpr std::uint32_t min_receive_size = frame_header::size + max_fixed_payload;

  /// Whether the values of both sides are usable. The peer's values come from the handshake.
  static bool usable(const frame_options& o) noexcept;
  /// `o` must be usable.
  explicit frame_link(const frame_options& o);
  frame_link(const frame_link&) = delete;

  /// Assigns frame types to a part, which must live as long as the link is used. At most 8 parts.
  void add(link_part& part, std::initializer_list<frame_type> types);

  link_action next();
  /// Whether `next` may have an action. Otherwise it has none until the next event. The end of what
  /// delays a goodbye is not always an event.
  bool has_news() const noexcept { return news_ || closing_ || !reposts_.empty(); }

  /// Whether a part may have an action for the driver.
  bool may_act() const noexcept { return acting_ != 0; }

  /// The straight way of a data frame: `send_at_once` returns the action that `next` would return
  /// if the part had just this frame. `operation` has the payload, and is passed to `on_sent` if
  /// `reports`. Requires `may_send_at_once`: no frame waits, and there is a credit for data.
  ///@{
  bool may_send_at_once() const noexcept {
    return !has_news() && !stopped_ && !failure_ && may_send_ && !free_.empty() &&
           credits_.may_send_data();
  }
  link_action send_at_once(link_part& part, const frame_header& header, frame_operation& operation,
                           bool reports);
  ///@}

  /// Reports that a receive has completed with the bytes of `frame`, at the time `at` or now.
  /// Returns false if the link has failed and does not keep the receive.
  bool on_received(std::uint32_t slot, std::span<const std::byte> frame,
                   std::optional<protocol_clock::time_point> at = {});
  /// Reports that a receive of the link's own has been posted again. The next frame returns its
  /// credit.
  void reposted() noexcept {
    credits_.reposted();
    note_credits();
  }
  /// For shared receives, `reposted` in two steps. `freed`: a receive has been given back.
  /// `granted`: while `wants_receive`, another posted receive has been assigned to the link.
  void freed() noexcept {
    credits_.freed();
    note_credits();
  }
  bool below_promise() const noexcept { return credits_.below_promise(); }
  bool wants_receive() const noexcept { return credits_.wants(); }
  void granted() noexcept {
    credits_.granted();
    note_credits();
  }
  /// Reports that the SEND of a frame has completed; called in posting order.
  void on_sent(std::uint32_t slot);
  /// Reports that a part no longer needs a receive that it has held.
  void release(std::uint32_t slot);
  /// Returns the receive that `next` would report by `repost`; also for a stopped link.
  std::optional<std::uint32_t> next_freed();

  /// Asks for receives that take `payload` bytes each, as far as the options allow. The receives
  /// grow only.
  void want_receives(std::uint64_t payload) noexcept;
  /// Whether the options allow receives of that payload.
  bool may_grow_to(std::uint64_t payload) const noexcept;
  void grown() noexcept {
    news_ = true;
    resizing_ = resize::due;
  }
  void not_grown() noexcept {
    news_ = true;
    options_.max_receive_size = wanted_size_ / 2; // so the number of attempts is bounded
    wanted_size_ = 0;
  }
  /// The size of the receives to be posted now.
  std::uint32_t receive_size() const noexcept { return sizes_.later(); }
  /// Whether data waits for the peer to return receives.
  bool data_waits() const noexcept { return waits_for_credits_ && !credits_.may_send_data(); }
  /// The bytes that can be sent at once, without waiting for the peer's application.
  std::uint64_t peer_room() const noexcept;
  /// The most payload of the next frame to the peer.
  std::uint32_t peer_payload() const noexcept {
    return std::min(peer_sizes_.next() - static_cast<std::uint32_t>(frame_header::size),
                    options_.max_payload);
  }

  /// Sends the waiting frames, then the goodbye. Call `stop` afterwards, or at any time.
  void close();
  /// Reports that no work request is outstanding. Every operation of every part ends, with `why`
  /// unless there is a more specific error. Only the first call has an effect.
  void stop(const error_code& why);
  /// Marks the link as failed; for parts outside of `on_frame`.
  void fail(const error_code& why) noexcept;

  bool closing() const noexcept { return closing_; }
  bool peer_closed() const noexcept { return peer_closed_; }
  /// Whether both sides have said goodbye.
  bool said_goodbye() const noexcept { return goodbye_sent_ && peer_closed_; }
  /// Whether the SEND of this side's goodbye has completed, and so all SENDs before it.
  bool told_goodbye() const noexcept { return goodbye_done_; }
  /// Whether the peer has said goodbye, and this side's goodbye has not arrived.
  bool answers_goodbye() const noexcept { return peer_closed_ && !goodbye_done_ && !stopped_; }
  bool stopped() const noexcept { return stopped_; }
  const error_code& failure() const noexcept { return failure_; }
  const frame_options& options() const noexcept { return options_; }
  const credits& flow() const noexcept { return credits_; }
  /// How often data had to wait for credits.
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

  friend link_part; // marks the part in the sets of parts to ask

  bool asks_in_vain() const;
  // Credits have changed, for which a frame may have waited.
  void note_credits() noexcept {
    news_ =
        news_ || (control_ | data_) != 0 || resizing_ != resize::none || credits_.should_return();
  }
  link_action next_action();
  link_action send_frame(frame_operation* reports_to);
  bool next_frame();
  void begin_frame(frame_type type);
  bool take(std::uint8_t& from, bool (link_part::*ask)(outgoing_frame&));
  bool all_drained() const;
  void ask_all_again() noexcept;
  void note_wait();
  void ask_parts_to_act();

  frame_options options_;
  credits credits_;
  receive_sizes sizes_, peer_sizes_;
  std::uint32_t wanted_size_ = 0;
  enum class resize { none, wanted, due } resizing_ = resize::none;
  std::vector<link_part*> parts_;
  std::uint8_t control_ = 0, data_ = 0; // the parts that may have a frame of the kind, by `bit_`
  std::uint8_t acting_ = 0;             // the parts that may have an action
  unsigned turn_ = 0;                   // the part to be asked first, for fairness
  std::array<link_part*, frame_types> part_of_{};
  boost::circular_buffer<std::uint32_t> reposts_;
  std::vector<sent_frame> sent_;
  std::vector<std::uint32_t> free_;
  outgoing_frame frame_;
  link_part* frame_part_ = nullptr;
  std::uint64_t credit_waits_ = 0;
  error_code failure_;
  bool news_ = true;               // since `next` has found nothing
  bool waits_for_credits_ = false; // data does
  bool failure_reported_ = false;
  bool speak_ = false;
  bool may_send_ = false;
  bool closing_ = false;
  bool closed_here_ = false;
  bool goodbye_sent_ = false;
  bool goodbye_done_ = false; // its SEND has completed
  bool peer_closed_ = false;
  bool closed_reported_ = false;
  bool stopped_ = false;
};

void link_part::ask_to_act() noexcept {
  assert(frames_ != nullptr);
  frames_->acting_ |= bit_;
}

bool link_part::may_act() const noexcept { return (frames_->acting_ & bit_) != 0; }

void link_part::idle() noexcept {
  frames_->acting_ = static_cast<std::uint8_t>(frames_->acting_ & ~bit_);
}

void link_part::ask_again() noexcept {
  ask_to_act();
  frames_->control_ |= bit_;
  frames_->data_ |= bit_;
  frames_->news_ = true;
}

void link_part::ask_for_data() noexcept {
  assert(frames_ != nullptr);
  frames_->data_ |= bit_;
  frames_->news_ = true;
}

} // namespace asio_rdma::detail
