// SPDX-License-Identifier: BSL-1.0
#include "peer.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netdb.h>
#include <rdma/rdma_verbs.h>

namespace peer {

void give_up(const std::string& why) {
  std::fprintf(stderr, "peer: %s\n", why.c_str());
  std::exit(1);
}

void require(int result, const char* what) {
  if (result != 0)
    give_up(std::string(what) + ": " + std::strerror(result > 0 ? result : errno));
}

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i != size; ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) & 0xff);
  return bytes;
}

event next_event(rdma_event_channel* channel) {
  rdma_cm_event* e = nullptr;
  require(rdma_get_cm_event(channel, &e), "rdma_get_cm_event");
  event got{.type = e->event, .status = e->status, .data = {}, .id = e->id};
  const rdma_conn_param& p = e->param.conn;
  if (p.private_data != nullptr && e->event != RDMA_CM_EVENT_ADDR_RESOLVED &&
      e->event != RDMA_CM_EVENT_ROUTE_RESOLVED) {
    const auto* const first = static_cast<const std::byte*>(p.private_data);
    got.data.assign(first, first + p.private_data_len);
  }
  require(rdma_ack_cm_event(e), "rdma_ack_cm_event");
  return got;
}

side::side(const char* address, const char* port) : owns_channel_(true) {
  check((channel_ = rdma_create_event_channel()) != nullptr, "rdma_create_event_channel");
  require(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), "rdma_create_id");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  check(inet_pton(AF_INET, address, &to.sin_addr) == 1, "the address is wrong");
  require(rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&to), 2000),
          "rdma_resolve_addr");
  expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  require(rdma_resolve_route(id_, 2000), "rdma_resolve_route");
  expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queue_pair();
}

side::side(rdma_cm_id* requested, rdma_event_channel* channel) : channel_(channel), id_(requested) {
  make_queue_pair();
}

side::~side() {
  if (id_->qp != nullptr)
    rdma_destroy_qp(id_);
  if (mr_ != nullptr)
    ibv_dereg_mr(mr_);
  rdma_destroy_id(id_);
  if (owns_channel_)
    rdma_destroy_event_channel(channel_);
}

void side::make_queue_pair() {
  ibv_qp_init_attr a{};
  a.cap.max_send_wr = a.cap.max_recv_wr = depth;
  a.cap.max_send_sge = a.cap.max_recv_sge = 1;
  a.qp_type = IBV_QPT_RC;
  a.sq_sig_all = 1;
  require(rdma_create_qp(id_, nullptr, &a), "rdma_create_qp");
  mr_ = ibv_reg_mr(id_->pd, memory_.data(), memory_.size(),
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  check(mr_ != nullptr, "ibv_reg_mr");
}

remote side::own() const noexcept {
  return {reinterpret_cast<std::uintptr_t>(memory_.data()), mr_->rkey};
}

event side::next_event() { return peer::next_event(channel_); }

event side::expect(rdma_cm_event_type type) {
  event e = next_event();
  if (e.type != type)
    give_up(std::string(rdma_event_str(e.type)) + " (" + std::to_string(e.status) +
            ") instead of " + rdma_event_str(type));
  return e;
}

int side::connect(const std::vector<std::byte>& data) {
  rdma_conn_param p{};
  p.private_data = data.data();
  p.private_data_len = static_cast<std::uint8_t>(data.size());
  p.initiator_depth = p.responder_resources = 4;
  p.retry_count = p.rnr_retry_count = 7;
  return rdma_connect(id_, &p) == 0 ? 0 : errno;
}

void side::accept(const std::vector<std::byte>& data) {
  rdma_conn_param p{};
  p.private_data = data.data();
  p.private_data_len = static_cast<std::uint8_t>(data.size());
  p.initiator_depth = p.responder_resources = 4;
  p.rnr_retry_count = 7;
  require(rdma_accept(id_, &p), "rdma_accept");
}

void side::receive(std::size_t bytes, std::size_t offset) {
  require(rdma_post_recv(id_, nullptr, inbox() + offset, bytes, mr_), "rdma_post_recv");
}

int side::post(ibv_wr_opcode what, std::size_t offset, std::size_t bytes, remote at) {
  ibv_sge e{reinterpret_cast<std::uintptr_t>(memory_.data()) + offset,
            static_cast<std::uint32_t>(bytes), mr_->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = what;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = at.address;
  wr.wr.rdma.rkey = at.key;
  return ibv_post_send(id_->qp, &wr, &bad);
}

ibv_wc side::received() {
  ibv_wc wc{};
  const int n = rdma_get_recv_comp(id_, &wc);
  check(n == 1, "rdma_get_recv_comp");
  return wc;
}

ibv_wc side::sent() {
  ibv_wc wc{};
  const int n = rdma_get_send_comp(id_, &wc);
  check(n == 1, "rdma_get_send_comp");
  return wc;
}

void side::carry_out(ibv_wr_opcode what, std::size_t offset, std::size_t bytes, remote at) {
  require(post(what, offset, bytes, at), "ibv_post_send");
  const ibv_wc wc = sent();
  if (wc.status != IBV_WC_SUCCESS)
    give_up(std::string("a request: ") + ibv_wc_status_str(wc.status));
}

} // namespace peer
