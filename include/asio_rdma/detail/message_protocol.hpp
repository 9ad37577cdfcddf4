// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/frame_link.hpp>

#include <optional>

namespace asio_rdma::detail {

class message_protocol;

/// Something that is to arrive at the peer in order. The driver derives its operation from it.
class message_out : public frame_operation {
public:
  enum class kind {
    message, ///< `bytes` of the operation's buffers.
    written  ///< Notice of an RDMA WRITE that was posted before; `immediate` and no bytes.
  };

  kind what = kind::message;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> immediate;

  error_code ec; ///< The result.

  /// Where it is; the protocol's own.
  enum class state { idle, waiting, preparing, ready, eager, offered, done };
  state where() const noexcept { return state_; }

protected:
  ~message_out() = default;

private:
  friend message_protocol;
  state state_ = state::idle;
  bool under_way_ = false; // its frame's SEND
  bool answered_ = false;
  std::uint32_t id_ = 0; // of the offer
  remote_buffer memory_;
};

/// A wait for the next message, or for the next immediate data of an RDMA WRITE.
class message_in : public frame_operation {
public:
  enum class kind { message, written };
  enum class place {
    none,   ///< There is no payload.
    slot,   ///< Behind the header in the receive `slot`; `frame_link::release` it after use.
    pulled, ///< Where the driver had it read to, on the `pull` of `slot`.
    direct  ///< In the operation's own memory.
  };

  kind what = kind::message;
  /// A longer message is not taken: the result is `message_size` with its length, and it stays.
  std::uint64_t capacity = static_cast<std::uint64_t>(-1);

  // The result.
  error_code ec;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> immediate;
  place where = place::none;
  std::uint32_t slot = 0;

protected:
  ~message_in() = default;

private:
  friend message_protocol;
  bool waiting_ = false;
  bool pinned_ = false; // the message that it is to get is read, or has been, to its own memory
  bool busy_ = false;   // one that it does not get is read to its own memory
  bool left_ = false;   // it waits for nothing but the end of that
};

struct message_options {
  std::uint64_t limit = std::uint64_t(1) << 30; ///< Bytes of a message that is offered.
  std::uint32_t offers = 16; ///< Messages offered at a time, each with a key of its own.
  std::uint32_t pulls = 4;   ///< Messages read at a time, at least one.
  /// Bytes that may be read before anybody asked for the message.
  std::uint64_t prefetch = 0;
};

/// What the driver is to do.
struct message_action {
  enum class kind {
    none,
    prepare, ///< Make a key for reading exactly the buffers of `send`, then `prepared` or
             ///< `fail_send`.
    pull,    ///< Read what is at `memory`, then `pulled(slot)` or `refuse(slot)`.
    drop,    ///< Nobody gets what was read, or was being read, on the `pull` of `slot`.
    sent,    ///< `send` is complete; a key that was made for it has to end first.
    received ///< `receive` is complete.
  };
  kind what = kind::none;
  message_out* send = nullptr;
  /// On `pull`: who waits for it and has room, if its own memory may be read to (then `read_into`).
  message_in* receive = nullptr;
  std::uint32_t slot = 0;
  remote_buffer memory;
};

/// Messages, whole and in order, whatever their size, and notices of writes. A message that fits
/// the peer's receives goes eagerly, in a frame; it is complete when its SEND is. A longer one is
/// offered: the peer reads it and says so, and then it is complete. An offer that waits for its key
/// lets those behind it wait.
///
/// Received messages are taken in order. Those that nobody has taken hold their receives, and so
/// the peer waits; an offered one is read when somebody waits for it, or within `prefetch`.
///
/// After the peer's goodbye, what it sent can still be received, then waits end with `eof`; sends
/// end with `broken_pipe`. After a failure, messages that had arrived whole can still be received,
/// up to the first that had not.
class message_protocol final : private link_part {
public:
  /// The link must be of use as long as this is.
  message_protocol(frame_link& link, const message_options& o);

  message_action next();

  /// The longest message that goes eagerly.
  std::uint64_t eager_size() const noexcept { return eager_; }

  void send(message_out& op);
  /// The key for `op` is made.
  void prepared(message_out& op, const remote_buffer& memory);
  /// There is none: `op` ends with that error, and the others go on.
  void fail_send(message_out& op, const error_code& ec);
  /// Takes `op` out if nothing has been sent of it: true, and it is the driver's again (as is the
  /// key that it made or is making). Else it goes on to its end.
  bool cancel(message_out& op);

  void receive(message_in& op);
  /// Takes `op` out; no message is lost. False if its memory is being read to: it ends with
  /// `operation_aborted` when that is over, and the message can be read again.
  bool cancel(message_in& op);
  /// After that: the driver keeps the memory until `pulled`, and `op` is the driver's again.
  void abandon(message_in& op);

  /// The message of `slot` is read to the memory of the request that the pull named. To be called
  /// before anything else.
  void read_into(std::uint32_t slot, message_in& op);
  /// The message of `slot` has been read. What was read to memory of a request that was cancelled
  /// need not have been read to its end.
  void pulled(std::uint32_t slot);
  /// There is no memory for it: the sender is told, and the message takes no place. Nothing is read
  /// any more.
  void refuse(std::uint32_t slot, refusal why = refusal::memory);

  struct counters {
    std::uint64_t eager_sent = 0, offered = 0, eager_received = 0, pulled = 0, refused = 0;
  };
  const counters& count() const noexcept { return count_; }

private:
  struct entry {
    enum class state { whole, offered, pulling };
    state where = state::whole;
    message_in::place place = message_in::place::none;
    std::uint32_t slot = 0;
    std::uint32_t id = 0;
    std::optional<std::uint32_t> immediate = {};
    remote_buffer memory = {};  // its size is the message's
    message_in* into = nullptr; // whose memory it is read to
    bool spoiled = false;       // who does not get it that way: it has to be read again

    bool pinned() const noexcept { return into != nullptr && !spoiled; }
  };
  struct offer {
    message_out* send = nullptr;
    std::uint16_t generation = 0;
  };
  struct answer {
    std::uint32_t id;
    std::optional<refusal> why = {};
  };
  using request_list =
      boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;
  using inbox = boost::circular_buffer<entry>;

  bool next_control(outgoing_frame& f) override;
  bool next_data(outgoing_frame& f) override;
  bool has_data() const override;
  void on_sent(const frame_header& header, frame_operation* op) override;
  void on_dropped(const frame_header& header, frame_operation* op, const error_code& ec) override;
  disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot, protocol_clock::time_point now) override;
  void on_closing() override;
  bool drained() const override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  disposition on_offer(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot);
  bool on_answer(const frame_header& header);

  bool is_eager(const message_out& op) const noexcept;
  bool next_prepare(message_action& a);
  bool next_pull(message_action& a);
  void match();
  void match_written();
  void deliver(message_in& op, entry& e);
  void finish(message_out& op, const error_code& ec);
  void finish(message_in& op, const error_code& ec);
  void stop_waiting(message_in& op);
  bool leave(message_in& op, const error_code& ec);
  void unpin_from(std::size_t index);
  void let_go(entry& e);
  void drop_from(inbox::iterator first);
  void drop_pulled(const entry& e);
  void leave_queue(message_out& op);
  void free_offer(message_out& op);
  void end_receives(const error_code& ec);
  void end_sends(const error_code& ec);
  void drop_written();
  inbox::iterator find(std::uint32_t slot);

  frame_link& link_;
  message_options options_;
  std::uint64_t eager_;

  request_list queue_;                  // sends that have not begun, in order
  request_list::iterator next_prepare_; // the first of them not looked at for a key
  std::vector<offer> offers_;
  std::vector<std::uint16_t> free_offers_;
  std::uint32_t under_offer_ = 0; // sent and not complete
  request_list done_sends_;

  request_list waiters_;
  std::uint32_t waiting_ = 0, pinned_ = 0; // of waiters_
  inbox messages_;
  std::uint32_t unread_ = 0; // offers in messages_ that nobody reads
  std::uint32_t pulling_ = 0;
  std::vector<std::uint32_t> dropped_; // slots whose pulls the driver is to drop
  request_list written_waiters_;
  inbox written_;
  request_list done_receives_;
  boost::circular_buffer<answer> answers_;
  std::uint32_t unanswered_ = 0; // offers of the peer

  error_code no_sends_;    // why there are no more
  error_code no_receives_; // what they get when there are no messages left
  bool dropping_ = false;  // what arrives is for nobody
  counters count_;
};

} // namespace asio_rdma::detail
