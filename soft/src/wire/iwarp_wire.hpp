// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_IWARP_WIRE_HPP
#define SOFT_WIRE_IWARP_WIRE_HPP

#include "device/queue_pair.hpp"
#include "iwarp/fpdu_reader.hpp"
#include "iwarp/fpdu_writer.hpp"
#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/rdmap_payload.hpp"
#include "iwarp/terminate.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace soft {

/// The maker of a wire. The wire calls these functions, with the engine locked.
class wire_owner {
public:
  /// The peer's start frame came: a request, or the reply.
  virtual void started(const iwarp::start_frame& f) = 0;
  /// The first message of the peer came.
  virtual void heard() = 0;
  /// The connection has ended. `error`: 0 (the peer has closed it), or an error number. ETIMEDOUT:
  /// also if `iwarp_wire::expect` was called, and the peer was silent. ESHUTDOWN: the queue pair of
  /// this side has failed, or is destroyed or reset.
  virtual void ended(int error) = 0;

protected:
  ~wire_owner() = default;
};

/// The options of a start frame: how many READs and atomics this side answers at a time (IRD), and
/// how many it begins (ORD).
/// `crc`: whether it asks for CRCs.
iwarp::start_options start_options_of(unsigned answered, unsigned begun, bool crc) noexcept;

/// The error of a READ or an atomic of memory that the peer must not use.
iwarp::protocol_error read_error(refusal why);

/// A queue pair's way to a peer in another process: iWARP over TCP (RFC 5040, 5041, 5044, 6581,
/// 7306). It begins as a connection that its owner starts, and then belongs to a queue pair. The
/// engine must be locked.
class iwarp_wire final : public peer_wire,
                         public descriptor,
                         public task,
                         private iwarp::segment_sink {
public:
  /// Connects to `to` from a bound socket, which the wire takes. Errors, as errno, in `error`.
  static std::shared_ptr<iwarp_wire> connect(int socket, const sockaddr& to, socklen_t size,
                                             wire_owner& owner, int& error);
  /// Of a socket that was accepted.
  static std::shared_ptr<iwarp_wire> accept(int socket, wire_owner& owner, int& error);
  /// The wire with this number, which a queue pair gets as that of its peer; or nullptr.
  static std::shared_ptr<iwarp_wire> find(std::uint32_t number);
  ~iwarp_wire();

  std::uint32_t number() const noexcept { return number_; }
  int socket() const noexcept { return socket_; }

  // ---- the owner
  void send_start(const iwarp::start_frame& f);
  /// Ends the wire if the peer's start frame, or its first message if that comes next, does not
  /// come within `time`, in which TCP connects, too: the host may be gone.
  void expect(clock::duration time);
  /// After both start frames: segments follow. `initiator`: this side sends first.
  void begin(const iwarp::start_result& agreed, bool initiator);
  /// The initiator's first message: a READ of no bytes if both sides have agreed on it; else a
  /// WRITE of no bytes, unless there is something else to send.
  void send_ready();
  void leave_owner() noexcept { owner_ = nullptr; }
  void set_owner(wire_owner& o) noexcept { owner_ = &o; }
  /// Sends what is on its way, and closes.
  void close();
  /// The same after an error: the queue pair loses its wire.
  void give_up();
  /// Instead of `begin`: tells the peer in a Terminate message why its reply is refused, and
  /// closes.
  void refuse(const iwarp::protocol_error& e, bool crc);

  // ---- the queue pair
  void attach(queue_pair& qp) override;
  void detach() override;
  void pump() override;
  void fall_silent() override;
  void kill() override;

private:
  iwarp_wire(int socket, wire_owner& owner);
  static std::shared_ptr<iwarp_wire> numbered(std::shared_ptr<iwarp_wire> w);
  void ready(std::uint32_t events) override;
  void run() override;
  descriptor_table& present_table();
  int watch(std::uint32_t events);
  void stop_watching();
  void end_in(clock::duration time);
  void set_timer();
  std::size_t largest_ulpdu() const;

  // ---- receiving
  void receive();
  void receive_start(std::span<const std::byte> bytes);
  iwarp::failure check_place();
  bool has_receive_memory();
  bool takes_segments() const noexcept;
  bool is_reliable() const noexcept { return qp_ == nullptr || qp_->is_reliable(); }
  iwarp::begin_result begin_segment(const iwarp::segment_header& h,
                                    iwarp::placement& to) noexcept override;
  iwarp::failure end_segment(const iwarp::segment_header& h) noexcept override;
  iwarp::begin_result begin_send(const iwarp::segment_header& h, iwarp::placement& to);
  std::optional<iwarp::begin_result> take_receive();
  iwarp::begin_result refuse_message(ibv_wc_status status, const iwarp::protocol_error& e);
  iwarp::begin_result begin_tagged(const iwarp::segment_header& h, iwarp::placement& to);
  iwarp::failure end_send(const iwarp::segment_header& h);
  iwarp::failure too_many_requests();
  iwarp::failure end_read_request(std::uint32_t msn);
  iwarp::failure end_atomic_request();
  iwarp::failure end_response(const iwarp::segment_header& h);

  // ---- sending
  bool next_message();
  bool may_fetch() const noexcept;
  void complete_requests();
  void start_request(send_work& r, ibv_wc_status set);
  void send_segment();
  void write_out(std::span<const std::byte> bytes);
  void flush();

  // A request of this side, until it completes.
  struct flight {
    send_work* request;
    bool sent = false, done = false;
    bool immediate_next = false; // its WRITE is sent, and the immediate data follows
    outcome result;
    spans memory;
    std::uint64_t as_of = 0; // `memory_table::removals` when its memory was registered
    std::uint64_t base = 0;  // of a READ: the tagged offset of its first byte
    std::uint64_t end = 0;   // `queued_` after its last byte
    std::uint32_t id = 0;    // of an atomic: its request identifier
  };
  std::deque<flight>::iterator awaited(bool read);
  bool has_memory(flight& f);
  void lose_memory(flight& f);

  // An answer to the peer.
  struct answer {
    iwarp::opcode op;
    std::uint32_t length = 0;
    // of a READ
    std::uint32_t msn = 0, sink = 0, source = 0;
    std::uint64_t sink_offset = 0, source_offset = 0;
    // of an atomic: the payload
    std::array<std::byte, iwarp::atomic_response_size> bytes{};
  };

  // ---- its end
  void send_terminate(const iwarp::terminate& t);
  void fail(const iwarp::protocol_error& e);
  void fail(const iwarp::terminate& t);
  iwarp::protocol_error refuse_write(refusal why);
  void fail_answer(const answer& a, std::uint32_t offset, const iwarp::protocol_error& e);
  void end_terminate(std::uint32_t bytes);
  void end(int error);
  void lose_peer(int error);
  void close_socket();
  void stop_sending();
  void ended_while_stopped(std::uint32_t events);
  void drain();
  void stop_lingering();

  // ---- a silent host: iwarp_silence.cpp
  /// Begins to look whether the peer's host answers, unless it has begun.
  void watch_host();
  void keep_alive();
  void look();
  void look_again();
  void lose_host();

  // The STag of all READs of this side. It names no memory: the wire itself places the answers.
  static constexpr std::uint32_t sink_key = 0x50f7;

  static constexpr unsigned receives_until_visits = 64; // until `kept_by_engine_` is over

  enum class stage { connecting, starting, waiting, running, silent, draining, closed };

  int socket_;
  wire_owner* owner_;
  queue_pair* qp_ = nullptr;
  std::uint32_t number_ = 0;
  stage stage_ = stage::starting;
  clock::time_point deadline_ = clock::time_point::max(); // the wire's end
  clock::time_point next_look_ = clock::time_point::max();
  clock::duration silence_{}; // of the peer's host, at most
  clock::time_point unanswered_since_ = clock::time_point::max();
  descriptor_table* watched_by_ = nullptr;
  std::uint32_t watched_ = 0;
  unsigned kept_by_engine_ = 0; // so many times more the engine receives
  std::vector<std::byte> out_;  // on its way to the socket, from `out_sent_`
  std::size_t out_sent_ = 0;
  std::uint64_t queued_ = 0; // bytes for the socket so far, those in `out_` included
  bool peer_closed_ = false;
  bool finished_ = false; // nothing more is sent

  std::optional<iwarp::start_reader> start_;
  std::optional<iwarp::fpdu_reader> reader_;
  std::vector<std::byte> input_; // not yet taken, while no receive is posted
  bool heard_ = false, may_send_ = false;
  bool ready_by_read_ = false;  // the first message of this side is a READ
  bool ready_waits_ = false;    // that READ is sent, and not answered
  receive_waiter waits_{*this}; // for a receive of the queue pair
  // The message that is coming to a receive. A dropped one of type UC has no effect.
  enum class message { none, placed, dropped } message_ = message::none;
  bool receive_taken_ = false; // and its completion is not reported
  std::uint64_t receive_wr_ = 0;
  spans receive_memory_;
  std::uint64_t receive_as_of_ = 0;
  std::uint32_t written_ = 0;  // bytes of the last WRITE, which immediate data may follow
  bool write_dropped_ = false; // the last WRITE, of type UC, has failed
  const std::byte* write_place_ = nullptr; // of the last segment of a WRITE
  std::array<std::byte, iwarp::max_terminate_size> payload_{};

  std::optional<iwarp::fpdu_writer> writer_;
  std::deque<flight> flights_; // the first requests of the queue pair, in order
  unsigned ird_ = 0, ord_ = 0; // READs and atomics that are outstanding, at most
  std::deque<answer> answers_; // of up to `ird_` requests of the peer
  unsigned reads_ = 0;         // READs and atomics of this side that wait for their answers
  std::uint64_t next_base_ = 0;
  bool sends_answer_ = false; // whose message is being sent
  bool broken_ = false;       // a request has failed here: the next ones are not sent
  std::uint32_t atomic_id_ = 0;
  std::array<std::byte, iwarp::atomic_request_size>
      request_{}; // the payload of a READ's or an atomic's request
  std::array<std::byte, iwarp::immediate_data_size> immediate_{};
};

} // namespace soft

#endif
