// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_QUEUE_PAIR_HPP
#define SOFT_DEVICE_QUEUE_PAIR_HPP

#include "device/completion_queue.hpp"
#include "device/in_force.hpp"
#include "device/memory.hpp"
#include "device/other_processes.hpp"
#include "device/receive_queue.hpp"
#include "device/send_queue.hpp"
#include "engine/engine.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace soft {

namespace roce {
struct datagram;
}

/// The result of a request that the engine began.
struct outcome {
  enum kind { done, later } is = done;
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint32_t bytes = 0;
};
constexpr outcome failed(ibv_wc_status status) { return {.status = status}; }

/// The bits of `attention` that concern a request before it is carried out.
inline constexpr std::uint32_t request_attention = request_places | is_timed | is_removed;

/// The beginning of a queue pair as libibverbs sees it: `struct verbs_qp` of its sources, which it
/// installs no header of.
struct verbs_queue_pair : ibv_qp_ex {
  std::uint32_t libibverbs_mask = 0;
  void* xrc_domain = nullptr;
  /// The bit of `libibverbs_mask` for ibv_qp_to_qp_ex: a program may post by ibv_wr_post(3).
  static constexpr std::uint32_t is_extended = 1 << 1;
};

struct queue_pair;

/// The WRITEs of a queue pair that have completed, and whose bytes are on their way to the peer's
/// memory: `personality::late_placement`. The engine must be locked.
class late_writes final : public task {
public:
  explicit late_writes(queue_pair& from) : from_(from) {}
  ~late_writes() { engine::get().remove(*this); }

  /// Copies the bytes of a WRITE, which arrive after `time`. False: there is no room for them.
  bool add(std::uint32_t key, std::uint64_t address, const spans& bytes, clock::duration time);
  /// Those that are due at `now` arrive. False: one is refused by `to`, and those behind it are
  /// lost.
  bool arrive(queue_pair& to, clock::time_point now = clock::time_point::max());
  void lose();
  void wait_until(clock::time_point t) { engine::get().schedule_at(*this, t); }

private:
  void run() override;

  struct late_write {
    std::uint32_t key;
    std::uint64_t address;
    std::vector<std::byte> bytes;
    clock::time_point due;
  };
  queue_pair& from_;
  std::deque<late_write> all_;
  std::size_t bytes_ = 0; // of all
};

struct queue_pair final : verbs_queue_pair, task {
  counted<&resource_counts::queue_pairs> count;

  queue_pair(const ibv_qp_init_attr& attributes);
  ~queue_pair();
  static queue_pair& of(ibv_qp* q) noexcept {
    return *static_cast<queue_pair*>(reinterpret_cast<ibv_qp_ex*>(q));
  }
  /// The queue pair of this process with this number, or nullptr. The engine must be locked.
  static queue_pair* find(std::uint32_t number);
  /// Calls `f` with each queue pair of this process. The engine must be locked.
  static void for_all(const std::function<void(queue_pair&)>& f);
  ibv_qp* base() noexcept { return &qp_base; }

  // ---- from any thread
  /// `posted`: the result of `post_time`.
  int post_send(ibv_send_wr* first, ibv_send_wr** bad, std::uint32_t posted) noexcept;
  /// Builds requests for `post_built`.
  send_queue& sends() noexcept { return sends_; }
  /// ibv_wr_complete(3).
  int post_built() noexcept;
  /// The present time, for `send_work::posted`.
  static std::uint32_t post_time() noexcept;
  int post_receive(ibv_recv_wr* first, ibv_recv_wr** bad) noexcept;

  // ---- with the engine locked
  /// Numbers the queue pair and makes it known. False: no number is left.
  bool open();
  /// Ends the queue pair. To be called before the destructor.
  void close();
  /// ibv_modify_qp(3): an error number.
  int modify(const ibv_qp_attr& a, int mask);
  void query(ibv_qp_attr& a) const;
  /// ibv_set_ece(3): the next `modify` enables those of these options that the device has. An error
  /// number.
  int set_ece(const ibv_ece& e);
  /// ibv_query_ece(3): an error number.
  int query_ece(ibv_ece& e) const;
  ibv_qp_state present() const noexcept { return state_.load(std::memory_order_relaxed); }
  /// To the error state; posted requests are flushed soon.
  void fail();
  /// The same because a request of the peer's is in error; `what` reports it.
  void fail_by_peer(ibv_event_type what);
  /// The connection to a peer in another process has ended. The queue pair fails; one of type UC
  /// looks for its peer again.
  void lose_wire();
  /// An event on the context's descriptor.
  void tell(ibv_event_type what);
  /// Drops the link to the peer: both sides hear nothing more of each other.
  void cut();
  /// The link to a peer of this process carries nothing for this time.
  void interrupt(std::chrono::nanoseconds time);
  /// Whether the link carries nothing now, or the device was removed.
  bool is_silent() const;
  /// Ends as if the peer's process had: the connection to another process is reset.
  void kill_peer();
  /// The peer's process has closed or reset the connection. A queue pair that librdmacm connected
  /// fails, as those of iWARP do. A queue pair that the program connected itself gets no answer any
  /// more, as those of InfiniBand: it keeps its state and its receives.
  void peer_left();

  acknowledged_events events_got;
  ibv_qp_init_attr made_of;

  // ---- for its wire
  /// Type RC, whose requests the peer acknowledges.
  bool is_reliable() const noexcept { return qp_base.qp_type == IBV_QPT_RC; }
  /// Whether the type has this kind of request (ibv_post_send(3)).
  bool offers(ibv_wr_opcode o) const noexcept;
  /// The message that a receive gets.
  struct arrival {
    std::uint32_t bytes = 0, source = 0, immediate = 0;
    unsigned flags = 0; ///< IBV_WC_WITH_*
    bool solicited = false;
    std::uint8_t service_level = 0; ///< of a datagram
  };
  receive_queue& receives() noexcept { return shared_ != nullptr ? shared_->receives : own_; }
  /// Takes the first receive; `received` is to be called for it.
  void take_receive();
  void received(std::uint64_t receive, ibv_wc_status status, const arrival& a,
                ibv_wc_opcode as = IBV_WC_RECV);
  /// The domain of the receives' memory.
  const ibv_pd* receive_domain() const noexcept {
    return shared_ != nullptr ? shared_->pd : qp_base.pd;
  }
  /// The memory of a receive; nothing: it names memory that it must not.
  std::optional<spans> sink(receive_work& r) const;
  bool gather(send_work& r, unsigned access, spans& to) const;
  /// The memory that the peer may use in this way, or nullptr and the reason.
  std::byte* remote_memory(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                           ibv_access_flags access, refusal& why) const;
  std::byte* remote_memory(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                           ibv_access_flags access) const {
    refusal why{};
    return remote_memory(key, address, bytes, access, why);
  }
  /// Carries out a request about memory windows.
  ibv_wc_status carry_locally(send_work& r);
  /// Delivers a datagram, if the queue pair may take it. `whole`: the network header and the
  /// payload.
  void take_datagram(const roce::datagram& d, const spans& whole);
  /// The `n`th posted request that has not completed, or nullptr.
  send_work* request(unsigned n) noexcept { return sends_.at(n); }
  void complete_first(const outcome& o) { complete(*sends_.front(), o); }
  std::uint32_t peer_number() const noexcept { return attributes_.dest_qp_num; }
  /// Whether the program has connected it to the queue pair `number` of another process.
  bool waits_for_peer(std::uint32_t number) const noexcept {
    return search_ != nullptr && attributes_.dest_qp_num == number;
  }
  peer_search* search() noexcept { return search_.get(); }
  void use_wire(std::shared_ptr<peer_wire> w);
  unsigned read_depth() const noexcept { return attributes_.max_rd_atomic; }
  unsigned answered_reads() const noexcept { return attributes_.max_dest_rd_atomic; }
  /// The time of all tries of a request that gets no answer. 0: without limit.
  clock::duration answer_time() const noexcept;
  std::uint64_t message_limit() const noexcept { return message_bytes_; }
  /// Looks up what the settings do to the `n`th request, which is the next to be carried out. True:
  /// `o` says what becomes of it; if that is `later`, the queue pair runs again. False: it is
  /// carried out.
  bool meets_settings(unsigned n, send_work& r, outcome& o);
  /// The time of a late WRITE has come.
  void late_writes_are_due();

private:
  void begin() noexcept;
  void run() override;
  void leave_wire();
  void leave_lost_wire();
  void flush();
  void reset();
  void complete(send_work& r, const outcome& o);
  void tell_failure(const ibv_wc& wc);
  bool reports_failure();
  // `solicited`: as in `completion_queue::push`.
  void report(ibv_cq* to, const ibv_wc& wc, bool solicited) {
    if (!completion_queue::of(to).push(wc, solicited)) [[unlikely]]
      lose_completions(to);
  }
  static void lose_completions(const ibv_cq* q);
  bool may_send() const noexcept {
    const ibv_qp_state s = state_.load();
    return s != IBV_QPS_RESET && s != IBV_QPS_INIT && s != IBV_QPS_RTR;
  }
  bool tells_last_request();
  void take_ahead();
  void flush_taken();
  ibv_wc_status meet_receive();
  // The effects of faults that are not the failure or the delay of a request.
  void strike(const incident& i);
  clock::time_point arrival_of(send_work& r);
  // Whether the poll of the next completion in `q` copies this data, because there is little of it.
  bool is_for_poll(ibv_cq* q, const spans& to, const spans& from) {
    return needs_attention(is_copied) && keep(completion_queue::of(q), to, from);
  }
  bool keep(completion_queue& q, const spans& to, const spans& from);

  // ---- direct/requests.cpp: a request and the peer's queue pair, from memory to memory
  outcome carry(send_work& r);
  outcome carry_by_settings(send_work& r);
  outcome carry_connected(send_work& r);
  outcome carry_datagram(send_work& r);
  outcome send(send_work& r, queue_pair& to, const spans& from);
  outcome write(send_work& r, queue_pair& to, const spans& from);
  outcome read(send_work& r, queue_pair& to, const spans& into);
  outcome atomic(send_work& r, queue_pair& to, const spans& into);
  /// Completes the first receive of `to` with the message of `r`.
  void deliver(queue_pair& to, const send_work& r, std::uint64_t bytes,
               ibv_wc_opcode as = IBV_WC_RECV);
  void refuse_receive(ibv_wc_status why);
  /// Fails this queue pair, and raises the event, because of a peer's request that it must not
  /// carry out: a key, a misaligned atomic, or a READ too many.
  outcome refuse(ibv_wc_status why);
  /// After a receive that ends with an error. Some adapters raise an event, too.
  void fail_receiving();
  outcome no_receive(queue_pair& at);
  outcome no_answer();
  bool is_interrupted() const noexcept {
    return down_until_ != clock::time_point{} && clock::now() < down_until_;
  }
  outcome lost();
  queue_pair* peer() const;
  queue_pair* ready_peer() const;
  bool write_late(const send_work& r, const queue_pair& to, const spans& from);
  bool late_writes_arrive(queue_pair& to, clock::time_point now = clock::time_point::max());
  void end_late_writes();

  send_queue sends_;
  receive_queue own_;
  shared_queue* const shared_;
  const std::uint64_t message_bytes_;            ///< of the personality that it was made with
  const std::uint32_t ece_vendor_, ece_options_; ///< likewise
  std::uint32_t ece_ = ece_options_;             ///< the options that it reports
  const bool polls_copy_;                        ///< see `is_for_poll`
  std::optional<std::uint32_t> ece_wanted_;      ///< for the next `modify`
  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  std::atomic<bool> sends_by_socket_{false}; ///< it has a wire
  ibv_qp_attr attributes_{};
  bool peer_is_here_ = false;          ///< on this machine
  bool is_cut_ = false;                ///< the link to the peer is dropped
  bool wire_lost_ = false;             ///< the connection to the peer has ended
  bool last_told_ = false;             ///< IBV_EVENT_QP_LAST_WQE_REACHED
  bool erred_ = false;                 ///< a request in error, its own or the peer's
  std::optional<ibv_wc> late_failure_; ///< the completion of its own, to be reported when it is due
  clock::time_point failure_due_{};
  std::deque<std::uint64_t> taken_;     ///< shared receives (`wr_id`) to be flushed before that
  bool established_told_ = true;        ///< IBV_EVENT_COMM_EST
  receive_waiter waits_{*this};         ///< for a receive of the peer
  std::unique_ptr<late_writes> late_;   ///< from the first late WRITE on
  std::shared_ptr<peer_wire> wire_;     ///< to a peer in another process
  std::unique_ptr<peer_search> search_; ///< until it has a wire
  unsigned tries_ = 0;                  ///< of the first request, after receiver not ready
  clock::time_point next_try_{}, given_up_{};
  clock::time_point down_until_{}; ///< the link carries nothing before
  clock::time_point found_by_{};   ///< until then the requests of type UC wait for the peer

  // ---- settings
  std::uint64_t met_ = ~0ull;     ///< position of the request whose settings are looked up:
  int failure_ = 0;               ///< its status; 0: it is carried out
  clock::time_point due_{};       ///< not before this time
  clock::time_point wire_free_{}; ///< the wire has carried all earlier requests
  std::uint64_t timed_ = 0;       // requests that had a latency
  clock::time_point last_due_{};  ///< IBV_EVENT_QP_LAST_WQE_REACHED is raised
};

} // namespace soft

#endif
