// SPDX-License-Identifier: BSL-1.0
// The steps of a party: its objects, its requests, its waits and its end.
#include "party.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <poll.h>

namespace soft::test {
namespace {

constexpr std::uint32_t unused_bytes = 4; // of a receive, behind its message

int access_to(area a) {
  switch (a) {
  case area::source:
    return IBV_ACCESS_REMOTE_READ;
  case area::target:
    return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  case area::window:
    return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
  case area::words:
    return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  default:
    return IBV_ACCESS_LOCAL_WRITE;
  }
}

} // namespace

party::party(const scene& s, role r, ibv_context& context, rdma_event_channel& events)
    : scene_(s),
      role_(r),
      own_(s.of(r)),
      theirs_(s.of(other_of(r))),
      before_(s.before(r)),
      after_(s.after(r)),
      memory_(before_),
      events_(events) {
  soft_get_resources(&resources_);
  for (unsigned i = 0; i != theirs_.size(); ++i)
    if (theirs_[i].is_message())
      messages_.push_back(i);
  pd_.reset(ibv_alloc_pd(&context));
  channel_.reset(ibv_create_comp_channel(&context));
  sends_.reset(ibv_create_cq(&context, 128, nullptr, channel_.get(), 0));
  receives_.reset(ibv_create_cq(&context, 128, nullptr, channel_.get(), 0));
  REQUIRE((pd_ && channel_ && sends_ && receives_));
  for (unsigned i = 0; i != areas; ++i) {
    const scene::range of = s.place_of(area{i});
    if (of.bytes == 0)
      continue;
    regions_[i].reset(
        ibv_reg_mr(pd_.get(), memory_.data() + of.first, of.bytes, access_to(area{i})));
    REQUIRE(regions_[i]);
  }
  window_.reset(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_2));
  REQUIRE(window_);
  window_key_ = ibv_inc_rkey(window_->rkey);
}

party::~party() { destroy(); }

grants party::own_grants() const {
  grants g;
  g.address = reinterpret_cast<std::uintptr_t>(memory_.data());
  for (unsigned i = 0; i != areas; ++i)
    g.keys[i] = regions_[i] ? regions_[i]->rkey : 0;
  g.keys[static_cast<unsigned>(area::window)] = window_key_;
  return g;
}

void party::take(rdma_cm_id* id) {
  id_ = id;
  ibv_qp_init_attr init{};
  init.send_cq = sends_.get();
  init.recv_cq = receives_.get();
  init.cap.max_send_wr = init.cap.max_recv_wr = 64;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  if (rdma_create_qp(id, pd_.get(), &init) != 0)
    see_the_end();
  while (posted_receives_ != scene_.early())
    receive();
}

// ---- steps

void party::connect() {
  rdma_conn_param p{};
  p.initiator_depth = p.responder_resources = 4;
  p.retry_count = p.rnr_retry_count = 7;
  REQUIRE(rdma_connect(id_, &p) == 0);
}

void party::accept() {
  rdma_conn_param p{};
  p.initiator_depth = p.responder_resources = 4;
  p.rnr_retry_count = 7;
  if (rdma_accept(id_, &p) != 0)
    see_the_end();
}

// A function has failed. That is right if the connection has ended before.
void party::see_the_end() {
  await([] { return false; });
}

void party::be_established() {
  await([this] { return report_.established; });
}

// One more receive than there are messages is flushed in the end. A WRITE with immediate data takes
// a receive, but none of its memory.
void party::receive() {
  ibv_sge e{};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = posted_receives_;
  if (posted_receives_ < messages_.size() && !message(posted_receives_).writes()) {
    const request& q = message(posted_receives_);
    e.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + q.to;
    e.length = q.bytes + unused_bytes;
    e.lkey = regions_[static_cast<unsigned>(area::inbox)]->lkey;
    wr.sg_list = &e;
    wr.num_sge = 1;
  }
  REQUIRE(ibv_post_recv(id_->qp, &wr, &bad) == 0);
  ++posted_receives_;
}

ibv_send_wr party::work_of(unsigned i, ibv_sge& e) {
  const request& q = own_[i];
  const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
  const area from = q.fetches() ? area::fetched : area::source;
  const auto key = [this](area a) {
    return peer_.keys[static_cast<unsigned>(a)];
  };
  const scene::range window = scene_.place_of(area::window);
  ibv_mr* const of_data = regions_[static_cast<unsigned>(from)].get();
  e = {at + q.from, q.bytes, of_data != nullptr ? of_data->lkey : 0};
  ibv_send_wr wr{};
  wr.wr_id = i;
  wr.opcode = q.what;
  wr.sg_list = &e;
  wr.num_sge = q.what == IBV_WR_BIND_MW ? 0 : 1;
  wr.send_flags = IBV_SEND_SIGNALED;
  switch (q.what) {
  case IBV_WR_BIND_MW:
    wr.bind_mw.mw = window_.get();
    wr.bind_mw.rkey = window_key_;
    wr.bind_mw.bind_info = {regions_[static_cast<unsigned>(area::window)].get(), at + window.first,
                            window.bytes, IBV_ACCESS_REMOTE_WRITE};
    break;
  case IBV_WR_SEND_WITH_INV:
    wr.invalidate_rkey = key(area::window);
    break;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    wr.wr.atomic.remote_addr = peer_.address + q.to;
    wr.wr.atomic.rkey = key(area::words);
    wr.wr.atomic.compare_add =
        q.what == IBV_WR_ATOMIC_FETCH_AND_ADD ? scene::addend : scene::found(q, role_);
    wr.wr.atomic.swap = scene::left(q, role_);
    break;
  default:
    wr.wr.rdma.remote_addr = peer_.address + q.to;
    wr.wr.rdma.rkey = key(q.writes() ? q.place : area::source);
  }
  if (q.has_immediate())
    wr.imm_data = htonl(scene::immediate(i, role_));
  return wr;
}

void party::post(unsigned n) {
  std::vector<ibv_sge> elements(n);
  std::vector<ibv_send_wr> list;
  for (unsigned i = 0; i != n; ++i)
    list.push_back(work_of(report_.posted + i, elements[i]));
  for (unsigned i = 1; i < n; ++i)
    list[i - 1].next = &list[i];
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(id_->qp, list.data(), &bad) == 0);
  report_.posted += n;
}

void party::await_sent(unsigned n) {
  await([this, n] { return report_.sent >= n; });
}
void party::await_received(unsigned n) {
  await([this, n] { return report_.received >= n; });
}

void party::disconnect() { REQUIRE(rdma_disconnect(id_) == 0); }

void party::play() {
  plays_ = true;
  be_established();
  const auto all = static_cast<unsigned>(messages_.size());
  while (report_.posted != own_.size()) {
    const request& next = own_[report_.posted];
    const unsigned after = next.last ? all : next.after;
    if (next.last)
      await_sent(report_.posted);
    await_received(after);
    const auto end = std::find_if(own_.begin() + report_.posted, own_.end(), [&](const request& q) {
      return q.last != next.last || q.after != next.after;
    });
    post(static_cast<unsigned>(end - own_.begin()) - report_.posted);
  }
  await_received(all);
  await_sent(report_.posted);
  if (role_ == role::connector)
    disconnect();
}

// ---- waiting

template <class Condition>
void party::await(Condition holds, bool until_the_end) {
  for (;;) {
    take_completions();
    if (holds())
      return;
    if (until_the_end && has_ended())
      throw connection_ended();
    next_event();
  }
}

// Waits for an event of the connection, or of a queue. An event of a queue may come without a
// completion.
void party::next_event() {
  for (ibv_cq* const q : {sends_.get(), receives_.get()})
    REQUIRE(ibv_req_notify_cq(q, 0) == 0);
  const unsigned before = sends_done_ + receives_done_;
  take_completions();
  if (before != sends_done_ + receives_done_)
    return;
  pollfd of[] = {{events_.fd, POLLIN, 0}, {channel_->fd, POLLIN, 0}};
  const int n = poll(of, 2, static_cast<int>(std::chrono::milliseconds(patience).count()));
  if (n == 0)
    throw stuck();
  REQUIRE(n > 0);
  if (of[1].revents != 0) {
    void* context = nullptr;
    ibv_cq* q = nullptr;
    REQUIRE(ibv_get_cq_event(channel_.get(), &q, &context) == 0);
    ibv_ack_cq_events(q, 1);
  }
  if (of[0].revents != 0) {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(&events_, &e) == 0);
    take_event(*e);
    REQUIRE(rdma_ack_cm_event(e) == 0);
  }
}

// ---- the end

void party::give_up() {
  fault("nothing comes any more: " + std::to_string(report_.sent) + " of " +
        std::to_string(report_.posted) + " requests have succeeded, " +
        std::to_string(report_.received) + " messages have come");
  rdma_disconnect(id_);
}

report party::finish(bool connected) {
  if (id_ != nullptr)
    try {
      await([&] { return event_of_end_ || !connected; }, false);
      flush();
    } catch (const stuck&) {
      fault("the connection does not end, or not all that was posted");
    }
  destroy();
  look_at_memory();
  soft_resources now{};
  soft_get_resources(&now);
  report_.is_clean = std::memcmp(&now, &resources_, sizeof(now)) == 0;
  return report_;
}

// A queue pair that has lost its connection is in the error state, unless it was not ready yet, or
// messages wait for receives.
void party::flush() {
  if (id_->qp == nullptr)
    return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  plays_ = false;
  REQUIRE(ibv_modify_qp(id_->qp, &a, IBV_QP_STATE) == 0);
  await([this] { return sends_done_ == report_.posted && receives_done_ == posted_receives_; },
        false);
}

void party::destroy() {
  plays_ = false;
  if (id_ != nullptr) {
    rdma_destroy_qp(id_);
    take_completions(); // there must be none
    rdma_destroy_id(id_);
    id_ = nullptr;
  }
  window_.reset();
  for (owned_mr& r : regions_)
    r.reset();
  sends_.reset();
  receives_.reset();
  channel_.reset();
  pd_.reset();
}

} // namespace soft::test
