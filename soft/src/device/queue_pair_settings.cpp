// SPDX-License-Identifier: BSL-1.0
// The effect of the settings on a queue pair: its pace, its faults, and the habits of its
// personality.
#include "device/faults.hpp"
#include "device/memory.hpp"
#include "device/queue_pair.hpp"

#include <algorithm>
#include <utility>

namespace soft {
namespace {

place place_of(ibv_wr_opcode o) {
  switch (o) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return place::write;
  case IBV_WR_RDMA_READ:
    return place::read;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return place::atomic;
  case IBV_WR_BIND_MW:
  case IBV_WR_LOCAL_INV:
    return place::bind;
  default:
    return place::send;
  }
}

} // namespace

// Rounded up: a request seems to be no older than it is.
std::uint32_t queue_pair::post_time() noexcept {
  return static_cast<std::uint32_t>(
      std::chrono::ceil<post_tick>(clock::now().time_since_epoch()).count());
}

namespace {

// 0 to 1: the same for the same seed, queue pair and request, in any process. The numbers are those
// of SplitMix64.
double random_part(std::uint64_t seed, std::uint32_t queue_pair, std::uint64_t request) {
  std::uint64_t x = seed + (std::uint64_t(queue_pair) << 32) + request * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ x >> 31) >> 11) * 0x1p-53;
}

} // namespace

// The wire carries one request after the other at its rate. Each takes the latency in addition.
clock::time_point queue_pair::arrival_of(send_work& r) {
  const settings& s = current();
  const auto now = clock::now();
  const auto tick =
      static_cast<std::uint32_t>(std::chrono::floor<post_tick>(now.time_since_epoch()).count());
  // Both are rounded: a post may seem to be one tick ahead.
  const post_tick age(r.posted == tick + 1 ? 0u : tick - r.posted);
  auto carried = std::max(now - age, wire_free_);
  if (s.rate > 0)
    carried += std::chrono::nanoseconds(
        static_cast<std::int64_t>(8e9 * static_cast<double>(r.bytes()) / s.rate));
  wire_free_ = carried;
  return carried + s.latency +
         std::chrono::nanoseconds(static_cast<std::int64_t>(
             static_cast<double>(s.jitter.count()) *
             random_part(s.seed, order_of_number(qp_base.qp_num), ++timed_)));
}

bool queue_pair::meets_settings(unsigned n, send_work& r, outcome& o) {
  o = {.is = outcome::later};
  if (needs_attention(is_removed) && device_context::of(qp_base.context).removed)
    return true; // nothing wakes it
  if (std::exchange(met_, sends_.position(n)) != sends_.position(n)) {
    failure_ = 0;
    due_ = {};
    if (needs_attention(is_timed) && !wire_)
      due_ = arrival_of(r);
    const place here = place_of(r.opcode);
    if (needs_attention(bit_of(here))) {
      const incident i = occasion(here);
      failure_ = i.failure;
      if (i.delay.count() > 0)
        due_ = std::max(due_, clock::now()) + i.delay;
      strike(i);
    }
  }
  if (clock::now() < due_) {
    engine::get().schedule_precisely(*this, due_);
    return true;
  }
  if (failure_ == 0)
    return false;
  o = {.status = static_cast<ibv_wc_status>(failure_)};
  return true;
}

void queue_pair::strike(const incident& i) {
  if (i.event >= 0)
    raise_event(*this, static_cast<ibv_event_type>(i.event));
  if (i.drop)
    cut();
  if (i.flap.count() > 0)
    interrupt(i.flap);
  if (i.kill)
    kill_peer();
}

ibv_wc_status queue_pair::meet_receive() {
  const incident i = occasion(place::receive);
  strike(i);
  if (i.failure != 0)
    fail(); // before the completion is seen
  return static_cast<ibv_wc_status>(i.failure);
}

void queue_pair::cut() {
  if (present() != IBV_QPS_RTR && present() != IBV_QPS_RTS)
    return;
  if (queue_pair* const p = peer()) {
    p->is_cut_ = true;
    engine::get().schedule(*p); // its request may wait for a receive
  }
  is_cut_ = true;
  if (wire_)
    wire_->fall_silent();
  engine::get().schedule(*this);
}

void queue_pair::interrupt(std::chrono::nanoseconds time) {
  queue_pair* const p = peer();
  if (p == nullptr || wire_ || (present() != IBV_QPS_RTR && present() != IBV_QPS_RTS))
    return;
  for (queue_pair* const each : {this, p}) {
    each->down_until_ = std::max(each->down_until_, clock::now() + time);
    engine::get().schedule(*each); // its request may wait for a receive
  }
}

bool queue_pair::is_silent() const {
  return is_cut_ || is_interrupted() ||
         (needs_attention(is_removed) && device_context::of(qp_base.context).removed);
}

void queue_pair::kill_peer() {
  if (wire_ && is_reliable()) // UC has no connection that ends
    wire_->kill();
  else
    cut();
}

// The receives that a device would have fetched before the queue pair has failed.
void queue_pair::take_ahead() {
  if (shared_ == nullptr || (present() != IBV_QPS_RTR && present() != IBV_QPS_RTS))
    return;
  for (unsigned left = habits().taken_receives; left != 0; --left) {
    const receive_work* const r = receives().front();
    if (r == nullptr)
      return;
    taken_.push_back(r->wr_id);
    take_receive();
  }
}

void queue_pair::flush_taken() {
  ibv_wc wc{};
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = qp_base.qp_num;
  for (; !taken_.empty(); taken_.pop_front()) {
    wc.wr_id = taken_.front();
    report(qp_base.recv_cq, wc, true);
  }
}

// The event about a request that has failed. If the completion comes later, it is kept, and the
// queue pair runs again.
void queue_pair::tell_failure(const ibv_wc& wc) {
  const personality& p = habits();
  if (p.event_of_failure == nullptr || wc.status == IBV_WC_WR_FLUSH_ERR)
    return;
  tell(p.event_of_failure(wc.status));
  if (p.late_failure.count() == 0)
    return;
  late_failure_ = wc;
  failure_due_ = clock::now() + p.late_failure;
  engine::get().schedule(*this);
}

bool queue_pair::reports_failure() {
  if (clock::now() < failure_due_) {
    engine::get().schedule_at(*this, failure_due_);
    return false;
  }
  report(qp_base.send_cq, *std::exchange(late_failure_, std::nullopt), true);
  return true;
}

// Whether IBV_EVENT_QP_LAST_WQE_REACHED is raised now. If not, the queue pair runs again.
bool queue_pair::tells_last_request() {
  const auto late = habits().late_last_wqe;
  if (late.count() == 0)
    return true;
  const auto now = clock::now();
  if (last_due_ == clock::time_point{})
    last_due_ = now + late;
  if (now >= last_due_)
    return true;
  engine::get().schedule_at(*this, last_due_);
  return false;
}

bool queue_pair::keep(completion_queue& q, const spans& to, const spans& from) {
  late_copy* const c = q.takes_data() ? q.data_of_next() : nullptr;
  if (c == nullptr || from.bytes == 0 || !polls_copy_ ||
      from.bytes > std::min(habits().copied_at_poll, late_copy::most_bytes))
    return false;
  unsigned used = 0;
  std::uint64_t left = from.bytes;
  for (unsigned i = 0; i < to.count && left != 0; ++i) {
    if (used == late_copy::most_parts)
      return false;
    const std::uint64_t n = std::min(left, to.parts[i].bytes);
    c->parts[used++] = {memory_table::get().as_named(to.parts[i].data), n};
    left -= n;
  }
  spans kept;
  kept.add(c->data, from.bytes);
  transfer(kept, from);
  c->count = used;
  return true;
}

} // namespace soft
