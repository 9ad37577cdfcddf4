// SPDX-License-Identifier: BSL-1.0
#include "bare_verbs.hpp"

#include "elapsed.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>

namespace trial {

namespace {

void need(bool good, const char* what) {
  if (!good)
    throw failure(std::string(what) + ": " + std::strerror(errno));
}

rdma_conn_param parameters() {
  rdma_conn_param p{};
  p.responder_resources = RDMA_MAX_RESP_RES; // what both devices can
  p.initiator_depth = RDMA_MAX_INIT_DEPTH;
  p.retry_count = p.rnr_retry_count = 6;
  return p;
}

} // namespace

bare_end::bare_end(const flow& f, const asio::ip::address& local) : flow_(f) {
  asio::ip::tcp::endpoint where(local, 0);
  need(rdma_create_id(nullptr, &listener_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_bind_addr(listener_, where.data()) == 0, "rdma_bind_addr");
  need(rdma_listen(listener_, 1) == 0, "rdma_listen");
}

std::uint16_t bare_end::port() const { return ntohs(rdma_get_src_port(listener_)); }

void bare_end::accept() {
  need(rdma_get_request(listener_, &id_) == 0, "rdma_get_request");
  make_queue_pair();
  rdma_conn_param p = parameters();
  need(rdma_accept(id_, &p) == 0, "rdma_accept");
}

bare_end::bare_end(const flow& f, const asio::ip::tcp::endpoint& to) : flow_(f) {
  asio::ip::tcp::endpoint where = to;
  need(rdma_create_id(nullptr, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_resolve_addr(id_, nullptr, where.data(), 5000) == 0, "rdma_resolve_addr");
  need(rdma_resolve_route(id_, 5000) == 0, "rdma_resolve_route");
  make_queue_pair();
  rdma_conn_param p = parameters();
  need(rdma_connect(id_, &p) == 0, "rdma_connect");
}

bare_end::~bare_end() {
  if (id_ != nullptr) {
    rdma_disconnect(id_);
    if (id_->qp != nullptr)
      rdma_destroy_qp(id_);
  }
  for (ibv_mr* const region : {region_, lent_region_})
    if (region != nullptr)
      ibv_dereg_mr(region);
  if (cq_ != nullptr)
    ibv_destroy_cq(cq_);
  if (channel_ != nullptr)
    ibv_destroy_comp_channel(channel_);
  if (pd_ != nullptr)
    ibv_dealloc_pd(pd_);
  if (id_ != nullptr)
    rdma_destroy_id(id_);
  if (listener_ != nullptr)
    rdma_destroy_id(listener_);
}

ibv_ah_attr bare_end::route() const {
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  const int status = ibv_query_qp(id_->qp, &now, IBV_QP_AV, &init);
  expect(status == 0, std::string("ibv_query_qp: ") + std::strerror(status));
  return now.ah_attr;
}

void bare_end::make_queue_pair() {
  const unsigned slots = flow_.receives();
  need((pd_ = ibv_alloc_pd(id_->verbs)) != nullptr, "ibv_alloc_pd");
  need((channel_ = ibv_create_comp_channel(id_->verbs)) != nullptr, "ibv_create_comp_channel");
  need((cq_ = ibv_create_cq(id_->verbs, int(2 * slots + 16), nullptr, channel_, measured_vector)) !=
           nullptr,
       "ibv_create_cq");
  for (const std::uint32_t limit : {64u, 0u}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {slots + 2, slots + 2, 1, 1, limit};
    if (rdma_create_qp(id_, pd_, &init) == 0) {
      inline_limit_ = limit;
      break;
    }
    need(limit != 0, "rdma_create_qp");
  }
  region_ = make_region(memory_, (2 * slots + 2) * flow_.bytes, IBV_ACCESS_LOCAL_WRITE);
  for (unsigned slot = 0; slot < slots + 2; ++slot)
    post_receive(slot);
}

ibv_mr* bare_end::make_region(std::vector<char>& memory, std::size_t bytes, unsigned rights) {
  memory.resize(bytes);
  ibv_mr* const result = ibv_reg_mr(pd_, memory.data(), memory.size(), rights);
  if (result == nullptr && errno == ENOMEM)
    throw system_error(make_error_code(error::memory_limit));
  need(result != nullptr, "ibv_reg_mr");
  return result;
}

void bare_end::post_receive(std::uint64_t slot) {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory_.data() + slot * flow_.bytes),
              std::uint32_t(flow_.bytes), region_->lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = slot;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  need(ibv_post_recv(id_->qp, &wr, &bad) == 0, "ibv_post_recv");
}

void bare_end::post_send(char kind, std::size_t bytes) {
  const std::uint64_t slot = flow_.receives() + 2 + posted_++ % flow_.receives();
  char* const from = memory_.data() + slot * flow_.bytes;
  *from = kind;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  if (bytes <= inline_limit_)
    wr.send_flags = IBV_SEND_INLINE;
  post(wr, from, bytes, *region_);
}

void bare_end::post(ibv_send_wr& request, void* data, std::size_t bytes, const ibv_mr& region) {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(data), std::uint32_t(bytes), region.lkey};
  ibv_send_wr* bad = nullptr;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.send_flags |= IBV_SEND_SIGNALED;
  need(ibv_post_send(id_->qp, &request, &bad) == 0, "ibv_post_send");
}

char bare_end::wait() {
  std::array<ibv_wc, 32> wc;
  char kind = more;
  for (bool armed = false;;) {
    const int n = ibv_poll_cq(cq_, int(wc.size()), wc.data());
    need(n >= 0, "ibv_poll_cq");
    for (const ibv_wc& c : std::span(wc.data(), std::size_t(n))) {
      expect(c.status == IBV_WC_SUCCESS, ibv_wc_status_str(c.status));
      if (c.opcode != IBV_WC_RECV) {
        ++sent_;
        continue;
      }
      ++received_;
      kind = memory_[c.wr_id * flow_.bytes];
      post_receive(c.wr_id);
    }
    if (n > 0)
      return kind;
    if (flow_.busy)
      continue;
    if (!armed) { // and polled again: a completion may have come before
      need(ibv_req_notify_cq(cq_, 0) == 0, "ibv_req_notify_cq");
      armed = true;
      continue;
    }
    ibv_cq* of = nullptr;
    void* context = nullptr;
    need(ibv_get_cq_event(channel_, &of, &context) == 0, "ibv_get_cq_event");
    ibv_ack_cq_events(of, 1);
    armed = false;
  }
}

double bare_end::send_for(double seconds) {
  const auto begin = clock_type::now();
  std::uint64_t groups = 0;
  bool ends = false;
  for (;;) {
    if (!ends && posted_ < (received_ + 2) * flow_.group && posted_ - sent_ < flow_.receives()) {
      const bool completes = (posted_ + 1) % flow_.group == 0;
      ends = completes && seconds_since(begin) > seconds;
      post_send(ends ? last : more, flow_.bytes);
      groups += completes;
      continue;
    }
    if (ends && received_ == groups && sent_ == posted_)
      return double(posted_) / seconds_since(begin);
    wait();
  }
}

void bare_end::receive_all() {
  std::uint64_t answers = 0;
  for (bool ended = false; !ended || sent_ < answers;) {
    if (wait() == last)
      ended = true;
    for (; answers < received_ / flow_.group; ++answers)
      post_send(more, 1);
  }
}

double bare_end::ask_for(double seconds) {
  const auto begin = clock_type::now();
  for (;;) {
    const bool ends = seconds_since(begin) > seconds;
    post_send(ends ? last : more, flow_.bytes);
    while (received_ < posted_)
      wait();
    if (ends)
      return seconds_since(begin) / double(posted_);
  }
}

void bare_end::answer_all() {
  for (bool ended = false; !ended || sent_ < posted_;) {
    if (wait() == last)
      ended = true;
    while (posted_ < received_)
      post_send(more, flow_.bytes);
  }
}

remote_buffer bare_end::lend(std::size_t bytes) {
  // On iWARP the memory that a READ fills needs the right to be written by the peer.
  lent_region_ = make_region(
      lent_, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  return {reinterpret_cast<std::uintptr_t>(lent_.data()), bytes, lent_region_->rkey};
}

double bare_end::read_for(const remote_buffer& from, double seconds) {
  lend(flow_.receives() * from.size);
  const auto begin = clock_type::now();
  const std::uint64_t before = posted_;
  while (seconds_since(begin) < seconds) {
    if (posted_ - sent_ == flow_.receives()) {
      wait();
      continue;
    }
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = from.address;
    wr.wr.rdma.rkey = from.rkey;
    post(wr, lent_.data() + posted_++ % flow_.receives() * from.size, from.size, *lent_region_);
  }
  while (sent_ < posted_)
    wait();
  return double(posted_ - before) / seconds_since(begin);
}

awaitable<std::unique_ptr<bare_end>> link_bare(session& s, const flow& f) {
  if (s.is_near())
    co_return std::make_unique<bare_end>(f, co_await s.hear_endpoint());
  auto e = std::make_unique<bare_end>(f, s.address());
  co_await s.tell(asio::ip::tcp::endpoint(s.address(), e->port()));
  e->accept();
  co_return e;
}

namespace {

rdma_conn_param parameters(std::uint32_t number) {
  rdma_conn_param p = parameters();
  p.responder_resources = p.initiator_depth = 1;
  p.qp_num = number;
  return p;
}

bool is_readable(int descriptor, int milliseconds) {
  pollfd p{descriptor, POLLIN, 0};
  return ::poll(&p, 1, milliseconds) == 1;
}

} // namespace

bare_request::bare_request(const asio::ip::address& local) : channel_(rdma_create_event_channel()) {
  asio::ip::tcp::endpoint where(local, 0);
  need(channel_ != nullptr, "rdma_create_event_channel");
  need(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_bind_addr(listener_, where.data()) == 0, "rdma_bind_addr");
  need(rdma_listen(listener_, 1) == 0, "rdma_listen");
}

std::uint16_t bare_request::port() const { return ntohs(rdma_get_src_port(listener_)); }

ibv_ece bare_request::accept(std::uint32_t number) {
  id_ = expect_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  ibv_ece features{};
  rdma_get_remote_ece(id_, &features);
  rdma_conn_param p = parameters(number);
  need(rdma_accept(id_, &p) == 0, "rdma_accept");
  // The software device does not report it without a queue pair.
  if (is_readable(channel_->fd, 300))
    expect_event(RDMA_CM_EVENT_ESTABLISHED);
  return features;
}

bare_request::bare_request(const asio::ip::tcp::endpoint& to, std::uint32_t number,
                           ibv_ece features)
    : channel_(rdma_create_event_channel()) {
  asio::ip::tcp::endpoint where = to;
  need(channel_ != nullptr, "rdma_create_event_channel");
  need(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_resolve_addr(id_, nullptr, where.data(), 5000) == 0, "rdma_resolve_addr");
  expect_event(RDMA_CM_EVENT_ADDR_RESOLVED);
  need(rdma_resolve_route(id_, 5000) == 0, "rdma_resolve_route");
  expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  rdma_set_local_ece(id_, &features);
  rdma_conn_param p = parameters(number);
  need(rdma_connect(id_, &p) == 0, "rdma_connect");
  expect_event(RDMA_CM_EVENT_CONNECT_RESPONSE);
  need(rdma_establish(id_) == 0, "rdma_establish");
}

bare_request::~bare_request() {
  for (rdma_cm_id* const id : {id_, listener_})
    if (id != nullptr)
      rdma_destroy_id(id);
  if (channel_ != nullptr)
    rdma_destroy_event_channel(channel_);
}

bool bare_request::answer_end(const std::atomic<bool>& stop) {
  while (!is_readable(channel_->fd, 5))
    if (stop)
      return false;
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
  rdma_disconnect(id_);
  return true;
}

rdma_cm_id* bare_request::expect_event(rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  need(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
  rdma_cm_id* const id = event->id;
  const std::string found =
      std::string(rdma_event_str(event->event)) + " with status " + std::to_string(event->status);
  const bool right = event->event == wanted;
  rdma_ack_cm_event(event);
  expect(right, found + " in place of " + rdma_event_str(wanted));
  return id;
}

} // namespace trial
