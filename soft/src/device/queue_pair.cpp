// SPDX-License-Identifier: BSL-1.0
#include "device/queue_pair.hpp"

#include "device/limits.hpp"
#include "device/transitions.hpp"
#include "engine/of_process.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace soft {
namespace {

using number_table = std::unordered_map<std::uint32_t, queue_pair*>;
number_table& numbers() { return of_process<number_table>(); }

// RoCE has global routes only, by a GID of the port (the kernel's rdma_check_ah_attr, and for the
// port modify_qp of uverbs_cmd.c).
bool is_route(const ibv_ah_attr& to, const std::vector<gid_entry>& own) {
  return to.port_num == 1 && to.is_global != 0 && to.grh.sgid_index < own.size() &&
         !is_zero(own[to.grh.sgid_index].gid);
}

// Whether the environment switches the habit off, as use_scatter_to_cqe of p/mlx5/verbs.c reads it.
bool is_off(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "0";
}

constexpr std::uint8_t longest_timeout = 31; // rxe_qp_chk_attr
constexpr std::uint32_t psn_bits = 0xffffff;

// A program may post as soon as both queue pairs are ready. An adapter delivers that message, and
// the search for the peer takes some time.
constexpr std::chrono::seconds patience{1};

// Copying so many bytes takes as long as waking a thread.
constexpr std::uint64_t long_request = 1 << 16;

} // namespace

queue_pair::queue_pair(const ibv_qp_init_attr& a)
    : verbs_queue_pair{},
      made_of(a),
      sends_(a, habits()),
      own_(a.srq != nullptr ? 0 : a.cap.max_recv_wr, a.srq != nullptr ? 0 : a.cap.max_recv_sge),
      shared_(a.srq != nullptr ? &shared_queue::of(a.srq) : nullptr),
      message_bytes_(a.qp_type == IBV_QPT_UD ? habits().datagram_bytes : habits().message_bytes),
      ece_vendor_(habits().ece_vendor),
      ece_options_(habits().ece_options),
      polls_copy_(!is_off("MLX5_SCATTER_TO_CQE")) {
  attributes_.path_mtu = IBV_MTU_4096;
}

queue_pair* queue_pair::find(std::uint32_t number) {
  const auto found = numbers().find(number);
  return found == numbers().end() ? nullptr : found->second;
}

void queue_pair::for_all(const std::function<void(queue_pair&)>& f) {
  for (const auto& [number, qp] : numbers())
    f(*qp);
}

bool queue_pair::open() {
  if (numbers().size() >= limits::queue_pairs)
    return false;
  qp_base.qp_num = take_number();
  if (qp_base.qp_num == 0)
    return false;
  numbers().emplace(qp_base.qp_num, this);
  return true;
}

void queue_pair::close() {
  take_ahead();
  if (!habits().drops_completions) {
    if (late_failure_)
      report(qp_base.send_cq, *late_failure_, true);
    flush_taken();
  }
  leave_wire();
  waits_.stop();
  end_late_writes();
  late_.reset();
  engine::get().remove(*this);
  own_.close();
  receives().wake();
  if (habits().drops_completions) {
    completion_queue::of(qp_base.send_cq).drop(qp_base.qp_num);
    completion_queue::of(qp_base.recv_cq).drop(qp_base.qp_num);
  }
  numbers().erase(qp_base.qp_num);
  give_back_number(qp_base.qp_num);
}

int queue_pair::post_send(ibv_send_wr* first, ibv_send_wr** bad, std::uint32_t posted) noexcept {
  const int error = may_send() ? sends_.post(first, posted) : EINVAL;
  if (error != 0 && bad != nullptr) [[unlikely]]
    *bad = first;
  begin();
  return error;
}

int queue_pair::post_built() noexcept {
  if (!may_send())
    sends_.refuse(EINVAL);
  if (needs_attention(is_timed))
    sends_.stamp(post_time());
  const int error = sends_.complete();
  if (error == 0)
    begin();
  return error;
}

// Within a process the engine carries requests out, so that no post completes inside the call. A
// socket takes them from the posting thread: that saves the time in which the engine wakes up.
void queue_pair::begin() noexcept {
  if ((sends_by_socket_.load(std::memory_order_relaxed) || needs_attention(is_at_post)) &&
      !needs_attention(request_places | is_timed))
    engine::get().run_here(*this);
  else
    engine::get().schedule(*this);
}

int queue_pair::post_receive(ibv_recv_wr* first, ibv_recv_wr** bad) noexcept {
  if (state_.load() == IBV_QPS_RESET || shared_ != nullptr) {
    *bad = first;
    return EINVAL;
  }
  const int error = own_.post(first, bad);
  if (state_.load() == IBV_QPS_ERR)
    engine::get().schedule(*this);
  return error;
}

int queue_pair::modify(const ibv_qp_attr& a, int mask) {
  if (find(qp_base.qp_num) != this) // of the parent, before fork(2)
    return ENODEV;
  const ibv_qp_state from = present(), to = (mask & IBV_QP_STATE) != 0 ? a.qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && a.cur_qp_state != from)
    return EINVAL;
  if (!is_allowed(qp_base.qp_type, from, to, mask))
    return EINVAL;
  // Reading the addresses of the machine takes system calls.
  const std::vector<gid_entry> own = to == IBV_QPS_RTR ? gids() : std::vector<gid_entry>();
  if (((mask & IBV_QP_PORT) != 0 && a.port_num != 1) ||
      ((mask & IBV_QP_PKEY_INDEX) != 0 && a.pkey_index >= limits::partitions) ||
      ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && a.max_rd_atomic > habits().reads) ||
      ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && a.max_dest_rd_atomic > habits().reads) ||
      ((mask & IBV_QP_PATH_MTU) != 0 && (a.path_mtu < IBV_MTU_256 || a.path_mtu > IBV_MTU_4096)) ||
      ((mask & IBV_QP_TIMEOUT) != 0 && a.timeout > longest_timeout) ||
      ((mask & IBV_QP_AV) != 0 && !is_route(a.ah_attr, own)))
    return EINVAL;
  if (to == IBV_QPS_RTR && qp_base.qp_type == IBV_QPT_UD)
    if (const int error = hear_datagrams(qp_base.qp_num))
      return error;
  const auto set = [&](int bit, auto member) {
    if ((mask & bit) != 0)
      attributes_.*member = a.*member;
  };
  set(IBV_QP_PORT, &ibv_qp_attr::port_num);
  set(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
  set(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  set(IBV_QP_QKEY, &ibv_qp_attr::qkey);
  set(IBV_QP_AV, &ibv_qp_attr::ah_attr);
  set(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  set(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
  set(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
  set(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
  attributes_.rq_psn &= psn_bits; // as the kernel does (_ib_modify_qp)
  attributes_.sq_psn &= psn_bits;
  set(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
  set(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  set(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  set(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  set(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  set(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
  if (ece_wanted_)
    ece_ = *std::exchange(ece_wanted_, std::nullopt) & ece_options_;
  if (to == IBV_QPS_RESET)
    reset();
  else if (to == IBV_QPS_ERR)
    fail();
  else
    state_ = to;
  if (to == IBV_QPS_RTR) {
    peer_is_here_ = index_in(own, attributes_.ah_attr.grh.dgid) >= 0;
    if (auto w = is_reliable() ? find_wire(attributes_.dest_qp_num) : nullptr) {
      use_wire(std::move(w));
    } else if (peer_is_here_ && qp_base.qp_type != IBV_QPT_UD &&
               find(attributes_.dest_qp_num) == nullptr) {
      search_ = search_peer(*this, first_search);
      found_by_ = clock::now() + patience;
    }
    established_told_ = !is_reliable();
    if (queue_pair* const p = peer()) // its requests may wait for this
      engine::get().schedule(*p);
  }
  return 0;
}

void queue_pair::query(ibv_qp_attr& a) const {
  a = attributes_;
  a.qp_state = a.cur_qp_state = present();
  a.cap = made_of.cap;
  if (habits().untold_route) {
    a.ah_attr = {};
    a.timeout = 0;
  }
}

// As mlx5: no option is reported between this and the next change of the state.
int queue_pair::set_ece(const ibv_ece& e) {
  if (ece_vendor_ == 0 || e.vendor_id == 0)
    return EOPNOTSUPP;
  if (e.vendor_id != ece_vendor_ || e.comp_mask != 0)
    return EINVAL;
  ece_wanted_ = e.options;
  ece_ = 0;
  return 0;
}

int queue_pair::query_ece(ibv_ece& e) const {
  if (ece_vendor_ == 0)
    return EOPNOTSUPP;
  e = {ece_vendor_, ece_, 0};
  return 0;
}

void queue_pair::tell(ibv_event_type what) {
  ibv_async_event e{};
  e.event_type = what;
  e.element.qp = base();
  device_context::of(qp_base.context).events.push(e);
}

void queue_pair::fail() {
  if (present() == IBV_QPS_ERR)
    return;
  end_late_writes();
  take_ahead();
  state_ = IBV_QPS_ERR;
  engine::get().schedule(*this);
  receives().wake(); // a sender that waits for a receive gets no answer
}

void queue_pair::fail_by_peer(ibv_event_type what) {
  tell(what);
  erred_ = true;
  fail();
}

void queue_pair::fail_receiving() {
  if (habits().event_of_failure != nullptr)
    tell(IBV_EVENT_QP_REQ_ERR);
  erred_ = true;
  fail();
}

void queue_pair::peer_left() {
  if (!is_reliable() || search_ == nullptr)
    return lose_wire();
  is_cut_ = true;
  engine::get().schedule(*this);
}

void queue_pair::lose_wire() {
  if (is_reliable())
    return fail();
  wire_lost_ = true;
  engine::get().schedule(*this);
}

void queue_pair::reset() {
  end_late_writes();
  leave_wire();
  state_ = IBV_QPS_RESET;
  while (sends_.front() != nullptr)
    sends_.take();
  while (own_.front() != nullptr)
    own_.take();
  completion_queue::of(qp_base.send_cq).drop(qp_base.qp_num);
  completion_queue::of(qp_base.recv_cq).drop(qp_base.qp_num);
  last_told_ = is_cut_ = erred_ = false;
  late_failure_.reset();
  taken_.clear();
  tries_ = 0;
  given_up_ = next_try_ = down_until_ = found_by_ = last_due_ = wire_free_ = {};
  receives().wake();
}

// Flushes requests of the error state. Completions that their queue has no room for are lost.
void queue_pair::flush() {
  if (late_failure_ && !reports_failure())
    return;
  ibv_wc wc{};
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.qp_num = qp_base.qp_num;
  for (send_work* r = sends_.front(); r != nullptr; r = sends_.front()) {
    wc.wr_id = r->wr_id;
    sends_.take();
    report(qp_base.send_cq, wc, true);
  }
  wc.opcode = IBV_WC_RECV;
  for (receive_work* r = own_.front(); r != nullptr; r = own_.front()) {
    wc.wr_id = r->wr_id;
    own_.take();
    report(qp_base.recv_cq, wc, true);
  }
  if (shared_ == nullptr || last_told_ || !tells_last_request())
    return;
  flush_taken();
  last_told_ = true;
  if (!habits().no_last_wqe && !(erred_ && habits().last_wqe_only_without_error))
    tell(IBV_EVENT_QP_LAST_WQE_REACHED);
}

queue_pair::~queue_pair() = default;

void queue_pair::leave_wire() {
  search_.reset();
  wire_lost_ = false;
  sends_by_socket_ = false;
  if (const auto w = std::exchange(wire_, nullptr); w && find(qp_base.qp_num) == this)
    w->detach(); // not in a child after fork(2): the connection is its parent's
}

// The requests of a queue pair of type UC are lost until it finds its peer again.
void queue_pair::leave_lost_wire() {
  leave_wire();
  found_by_ = {};
  if (!is_cut_ && (present() == IBV_QPS_RTR || present() == IBV_QPS_RTS))
    search_ = search_peer(*this, another_search);
}

void queue_pair::use_wire(std::shared_ptr<peer_wire> w) {
  wire_ = std::move(w);
  given_up_ = {}; // of requests that waited for it
  sends_by_socket_ = true;
  wire_->attach(*this);
  engine::get().schedule(*this);
}

void queue_pair::run() {
  waits_.stop();
  if (wire_ && !is_reliable() && (is_cut_ || wire_lost_))
    leave_lost_wire();
  if (wire_ && !is_cut_ && present() != IBV_QPS_ERR) {
    if (present() == IBV_QPS_RTS)
      wire_->pump();
    return;
  }
  // A turn is short, so that control functions and other queue pairs get theirs. Therefore a long
  // request has a turn of its own, behind the events of the requests before it.
  const bool by_turns = engine::get().takes_turns();
  for (int n = 0; n < 64; ++n) {
    if (present() == IBV_QPS_ERR) {
      leave_wire();
      flush();
      return;
    }
    send_work* const r = present() == IBV_QPS_RTS ? sends_.front() : nullptr;
    if (r == nullptr)
      return;
    const bool is_long = by_turns && r->bytes() >= long_request;
    if (is_long && n != 0)
      break;
    const outcome o = carry(*r);
    if (o.is == outcome::later)
      return;
    tries_ = 0;
    given_up_ = next_try_ = {};
    complete(*r, o);
    if (is_long)
      break;
  }
  engine::get().schedule(*this);
}

namespace {

ibv_wc_opcode completed(ibv_wr_opcode o) {
  switch (o) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  case IBV_WR_LOCAL_INV:
    return IBV_WC_LOCAL_INV;
  case IBV_WR_BIND_MW:
    return IBV_WC_BIND_MW;
  default:
    return IBV_WC_SEND;
  }
}

} // namespace

void queue_pair::complete(send_work& r, const outcome& o) {
  const bool failed = o.status != IBV_WC_SUCCESS,
             told = failed || (r.flags & IBV_SEND_SIGNALED) != 0;
  ibv_wc wc{};
  wc.wr_id = r.wr_id;
  wc.status = o.status;
  wc.opcode = completed(r.opcode);
  wc.byte_len = o.bytes;
  wc.qp_num = qp_base.qp_num;
  sends_.take(); // before the completion is seen: the program may post in its place
  if (failed) {
    erred_ = true;
    fail();
    tell_failure(wc);
  }
  if (told && !late_failure_)
    report(qp_base.send_cq, wc, failed);
}

// A completion queue that has overflowed is in error, and so are its queue pairs (InfiniBand
// specification, 11.6.3.2; ibv_get_async_event(3), IBV_EVENT_CQ_ERR).
void queue_pair::lose_completions(const ibv_cq* q) {
  for_all([q](queue_pair& each) {
    if ((each.qp_base.send_cq != q && each.qp_base.recv_cq != q) || each.present() == IBV_QPS_ERR)
      return;
    each.fail();
    each.tell(IBV_EVENT_QP_FATAL);
  });
}

} // namespace soft
