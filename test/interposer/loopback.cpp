// SPDX-License-Identifier: BSL-1.0
#include "loopback.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

namespace {

constexpr std::uint64_t unused_wr_id = 1000;

void check(int result, const char* what) {
  if (result)
    throw std::system_error(result > 0 ? result : errno, std::generic_category(), what);
}
template <class T>
T* check(T* result, const char* what) {
  if (!result)
    throw std::system_error(errno, std::generic_category(), what);
  return result;
}

sockaddr_in address() {
  const char* text = std::getenv("ASIO_RDMA_ADDRESS");
  sockaddr_in result{};
  result.sin_family = AF_INET;
  if (!text || ::inet_pton(AF_INET, text, &result.sin_addr) != 1)
    throw std::runtime_error("ASIO_RDMA_ADDRESS: no IPv4 address of an RDMA device");
  return result;
}

// The identifier of the next event. Throws if the event is not the expected one.
rdma_cm_id* expect(rdma_event_channel* events, rdma_cm_event_type type) {
  rdma_cm_event* event;
  check(rdma_get_cm_event(events, &event), "rdma_get_cm_event");
  rdma_cm_id* const id = event->id;
  const auto got = event->event;
  const auto status = event->status;
  rdma_ack_cm_event(event);
  if (got != type)
    throw std::runtime_error(std::string("expected ") + rdma_event_str(type) + ", got " +
                             rdma_event_str(got) + ", status " + std::to_string(status));
  return id;
}

template <class Request, class Post>
int post_chain(const std::vector<std::uint64_t>& wr_ids, std::uint64_t* bad_wr_id, ibv_sge sge,
               Post post) {
  std::vector<Request> wr(wr_ids.size());
  for (std::size_t i = 0; i < wr.size(); ++i) {
    wr[i].wr_id = wr_ids[i];
    wr[i].next = i + 1 < wr.size() ? &wr[i + 1] : nullptr;
    wr[i].sg_list = &sge;
    wr[i].num_sge = 1;
    if constexpr (requires { wr[i].opcode; }) {
      wr[i].opcode = IBV_WR_SEND;
      wr[i].send_flags = IBV_SEND_SIGNALED;
    }
  }
  Request* bad = nullptr;
  const int e = post(wr.data(), &bad);
  if (bad_wr_id && bad)
    *bad_wr_id = bad->wr_id;
  return e;
}

} // namespace

void until(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit)
      throw std::runtime_error("timed out waiting for the condition");
    std::this_thread::yield();
  }
}

id_list ids(const std::vector<ibv_wc>& completions) {
  id_list result;
  for (const ibv_wc& wc : completions)
    result.push_back(wc.wr_id);
  return result;
}

cm_device::cm_device() : events_(check(rdma_create_event_channel(), "rdma_create_event_channel")) {
  auto local = address();
  check(rdma_create_id(events_, &id_, nullptr, RDMA_PS_TCP), "rdma_create_id");
  check(rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&local)), "rdma_bind_addr");
  check(id_->verbs, "no RDMA device for ASIO_RDMA_ADDRESS");
}

cm_device::~cm_device() {
  rdma_destroy_id(id_);
  rdma_destroy_event_channel(events_);
}

loopback::loopback(ibv_context* context) : context_(context) {
  try {
    connect();
  } catch (...) {
    destroy();
    throw;
  }
}

loopback::~loopback() { destroy(); }

void loopback::connect() {
  pd = check(ibv_alloc_pd(context_), "ibv_alloc_pd");
  const int access = IBV_ACCESS_LOCAL_WRITE;
  mr = check(ibv_reg_mr(pd, memory.data(), memory.size(), access), "ibv_reg_mr");
  for (end* e : {&a, &b}) {
    e->channel = check(ibv_create_comp_channel(context_), "ibv_create_comp_channel");
    check(::fcntl(e->channel->fd, F_SETFL, ::fcntl(e->channel->fd, F_GETFL) | O_NONBLOCK), "fcntl");
    e->cq = check(ibv_create_cq(context_, 64, e, e->channel, 0), "ibv_create_cq");
  }
  const auto make_qp = [&](end& e) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = e.cq;
    attr.cap = {32, 32, 1, 1, 0};
    attr.qp_type = IBV_QPT_RC;
    check(rdma_create_qp(e.id, pd, &attr), "rdma_create_qp");
    e.qp = e.id->qp;
  };

  events_ = check(rdma_create_event_channel(), "rdma_create_event_channel");
  auto local = address();
  check(rdma_create_id(events_, &listener_, nullptr, RDMA_PS_TCP), "rdma_create_id");
  check(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&local)), "rdma_bind_addr");
  check(rdma_listen(listener_, 1), "rdma_listen");
  auto peer = address();
  peer.sin_port = rdma_get_src_port(listener_);

  check(rdma_create_id(events_, &a.id, nullptr, RDMA_PS_TCP), "rdma_create_id");
  check(rdma_resolve_addr(a.id, nullptr, reinterpret_cast<sockaddr*>(&peer), 5000),
        "rdma_resolve_addr");
  expect(events_, RDMA_CM_EVENT_ADDR_RESOLVED);
  check(rdma_resolve_route(a.id, 5000), "rdma_resolve_route");
  expect(events_, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_qp(a);
  rdma_conn_param parameters{};
  parameters.retry_count = 6;
  parameters.rnr_retry_count = 6;
  check(rdma_connect(a.id, &parameters), "rdma_connect");
  b.id = expect(events_, RDMA_CM_EVENT_CONNECT_REQUEST);
  make_qp(b);
  check(rdma_accept(b.id, &parameters), "rdma_accept");
  expect(events_, RDMA_CM_EVENT_ESTABLISHED);
  expect(events_, RDMA_CM_EVENT_ESTABLISHED);
}

void loopback::destroy() {
  for (end* e : {&a, &b}) {
    if (e->id && e->id->qp)
      rdma_destroy_qp(e->id);
    if (e->id)
      rdma_destroy_id(e->id);
    if (e->cq && e->unacked)
      ibv_ack_cq_events(e->cq, e->unacked);
    if (e->cq)
      ibv_destroy_cq(e->cq);
    if (e->channel)
      ibv_destroy_comp_channel(e->channel);
  }
  if (listener_)
    rdma_destroy_id(listener_);
  if (events_)
    rdma_destroy_event_channel(events_);
  if (mr)
    ibv_dereg_mr(mr);
  if (pd)
    ibv_dealloc_pd(pd);
}

int loopback::send(std::uint64_t wr_id) { return send_chain({wr_id}); }
int loopback::receive(std::uint64_t wr_id) { return receive_chain({wr_id}); }

int loopback::send_chain(const std::vector<std::uint64_t>& wr_ids, std::uint64_t* bad_wr_id) {
  const ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory.data()), 64, mr->lkey};
  return post_chain<ibv_send_wr>(
      wr_ids, bad_wr_id, sge, [&](auto* wr, auto** bad) { return ibv_post_send(a.qp, wr, bad); });
}

int loopback::receive_chain(const std::vector<std::uint64_t>& wr_ids, std::uint64_t* bad_wr_id) {
  const ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory.data() + 1024), 64, mr->lkey};
  return post_chain<ibv_recv_wr>(
      wr_ids, bad_wr_id, sge, [&](auto* wr, auto** bad) { return ibv_post_recv(b.qp, wr, bad); });
}

bool loopback::readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

ibv_cq* loopback::event(end& e) {
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  if (ibv_get_cq_event(e.channel, &cq, &cq_context)) {
    check(errno == EAGAIN ? 0 : errno, "ibv_get_cq_event");
    return nullptr;
  }
  ++e.unacked;
  return cq;
}

std::vector<ibv_wc> loopback::poll(end& e, std::size_t limit) {
  std::vector<ibv_wc> wc(limit);
  const int n = ibv_poll_cq(e.cq, static_cast<int>(limit), wc.data());
  if (n < 0)
    throw std::runtime_error("ibv_poll_cq");
  wc.resize(static_cast<std::size_t>(n));
  return wc;
}

std::vector<ibv_wc> loopback::await(end& e, std::size_t n) {
  std::vector<ibv_wc> all;
  until([&] {
    const auto wc = poll(e, n - all.size());
    all.insert(all.end(), wc.begin(), wc.end());
    return all.size() == n;
  });
  return all;
}

int loopback::post_unused() {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory.data() + 2048), 64, mr->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = unused_wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(a.qp, &wr, &bad);
}

bool loopback::flushed() {
  const auto wc = await(a, 1).front();
  return wc.wr_id == unused_wr_id && wc.status == IBV_WC_WR_FLUSH_ERR;
}
