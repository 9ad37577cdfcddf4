// SPDX-License-Identifier: BSL-1.0
// rdma_cm for datagrams: RDMA_PS_UDP.
#include "datagrams.hpp"
#include "roce/service_resolution.hpp"
#include "support/processes.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

using namespace soft;
using namespace soft::test;

namespace {

sockaddr* base(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }

// An id, with a channel of its own unless it is synchronous.
struct datagram_id {
  explicit datagram_id(bool synchronous = false)
      : channel(synchronous ? nullptr : rdma_create_event_channel()) {
    REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_UDP) == 0);
    CHECK(id->qp_type == IBV_QPT_UD);
  }
  ~datagram_id() {
    if (id->qp != nullptr)
      rdma_destroy_qp(id);
    rdma_destroy_id(id);
    if (channel != nullptr)
      rdma_destroy_event_channel(channel);
  }
  datagram_id(const datagram_id&) = delete;
  datagram_id& operator=(const datagram_id&) = delete;

  // Listens on a free port, which it returns.
  std::uint16_t listen(int backlog = 8) {
    sockaddr_in a = local_address(0);
    REQUIRE(rdma_bind_addr(id, base(a)) == 0);
    REQUIRE(rdma_listen(id, backlog) == 0);
    return ntohs(rdma_get_src_port(id));
  }
  void resolve(std::uint16_t port) {
    sockaddr_in a = local_address(port);
    REQUIRE(rdma_resolve_addr(id, nullptr, base(a), 1000) == 0);
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id, 1000) == 0);
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  rdma_cm_event* next(rdma_cm_event_type what) {
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(channel, &e) == 0);
    CHECK(e->event == what);
    return e;
  }
  void expect(rdma_cm_event_type what) {
    if (channel != nullptr)
      rdma_ack_cm_event(next(what));
  }

  rdma_event_channel* channel;
  rdma_cm_id* id = nullptr;
};

void make_queue_pair(rdma_cm_id* id) {
  soft::test::make_queue_pair(id, IBV_QPT_UD, 4);
  CHECK(state_of(*id->qp) == IBV_QPS_RTS);
}

using filling = std::array<std::byte, 180>;
filling filled() {
  filling f;
  for (std::size_t i = 0; i != f.size(); ++i)
    f[i] = static_cast<std::byte>(i + 1);
  return f;
}

// Whether the private data of an event is the beginning of `filled`, and has the size.
bool holds(const rdma_cm_event& e, std::size_t size) {
  const auto& p = e.param.ud;
  return p.private_data_len == size && std::memcmp(p.private_data, filled().data(), size) == 0;
}

int connect(rdma_cm_id* id, std::size_t size, std::uint32_t qp_num = 5) {
  const filling f = filled();
  rdma_conn_param p{};
  p.private_data = f.data();
  p.private_data_len = static_cast<std::uint8_t>(size);
  p.qp_num = qp_num;
  return rdma_connect(id, &p);
}

int accept(rdma_cm_id* id, std::size_t size, std::uint32_t qp_num) {
  const filling f = filled();
  rdma_conn_param p{};
  p.private_data = f.data();
  p.private_data_len = static_cast<std::uint8_t>(size);
  p.qp_num = qp_num;
  return rdma_accept(id, &p);
}

/// A socket of UDP that speaks to ids.
class raw {
public:
  raw() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a = local_address(0);
    REQUIRE(bind(socket_, base(a), sizeof(a)) == 0);
    socklen_t size = sizeof(a);
    REQUIRE(getsockname(socket_, base(a), &size) == 0);
    port_ = ntohs(a.sin_port);
  }
  ~raw() { close(socket_); }
  std::uint16_t port() const { return port_; }
  roce::resolution_request request_to(std::uint16_t port) const {
    roce::resolution_request r;
    r.transaction = 77;
    r.id = 78;
    r.service = roce::service_of(port);
    r.source_port = port_;
    for (ibv_gid* const g : {&r.source, &r.destination}) {
      g->raw[10] = g->raw[11] = 0xff;
      g->raw[12] = 127;
      g->raw[15] = 1;
    }
    return r;
  }
  void send(const roce::resolution_message& m, std::uint16_t port, std::size_t size = 256) {
    sockaddr_in a = local_address(port);
    REQUIRE(sendto(socket_, m.data(), size, 0, base(a), sizeof(a)) == static_cast<ssize_t>(size));
  }
  roce::resolution_message receive(std::uint16_t* from = nullptr) {
    roce::resolution_message m;
    sockaddr_in a{};
    socklen_t size = sizeof(a);
    REQUIRE(recvfrom(socket_, m.data(), m.size(), 0, base(a), &size) == 256);
    if (from != nullptr)
      *from = ntohs(a.sin_port);
    return m;
  }

private:
  const int socket_;
  std::uint16_t port_ = 0;
};

} // namespace

TEST_CASE("child: an id for datagrams that connects", "[.child]") {
  datagram_id d(true);
  const char* const port = std::getenv("PORT");
  REQUIRE(port != nullptr);
  d.resolve(static_cast<std::uint16_t>(std::atoi(port)));
  make_queue_pair(d.id);
  REQUIRE(connect(d.id, 180) == 0);
  const rdma_cm_event& e = *d.id->event;
  CHECK(e.event == RDMA_CM_EVENT_ESTABLISHED);
  CHECK(holds(e, 136));
  CHECK(e.param.ud.qkey == 0x01234567);
  ibv_ah_attr way = e.param.ud.ah_attr;
  const owned_ah to(ibv_create_ah(d.id->pd, &way));
  REQUIRE(to);
  std::array<std::byte, 8> data{std::byte{7}};
  const owned_mr mr(ibv_reg_mr(d.id->pd, data.data(), data.size(), 0));
  REQUIRE(rdma_post_ud_send(d.id, nullptr, data.data(), data.size(), mr.get(), 0, to.get(),
                            e.param.ud.qp_num) == 0);
  CHECK(completion(d.id->send_cq).status == IBV_WC_SUCCESS);
}

TEST_CASE("An id for datagrams learns the queue pair of a listener in another process") {
  datagram_id listener(true);
  child other("child: an id for datagrams that connects",
              {{"PORT", std::to_string(listener.listen())}});
  rdma_cm_id* got = nullptr;
  REQUIRE(rdma_get_request(listener.id, &got) == 0);
  CHECK(holds(*got->event, 180));
  make_queue_pair(got);
  std::array<std::byte, 48> data{};
  owned_mr mr(ibv_reg_mr(got->pd, data.data(), data.size(), IBV_ACCESS_LOCAL_WRITE));
  REQUIRE(rdma_post_recv(got, nullptr, data.data(), data.size(), mr.get()) == 0);
  REQUIRE(accept(got, 136, 0) == 0);
  CHECK(completion(got->recv_cq).status == IBV_WC_SUCCESS);
  CHECK(data[40] == std::byte{7});
  mr.reset();
  rdma_destroy_qp(got);
  rdma_destroy_id(got);
  CHECK(other.wait() == 0);
}

TEST_CASE("A request for datagrams is accepted or rejected, with private data") {
  const bool accepts = GENERATE(true, false);
  datagram_id listener, d;
  d.resolve(listener.listen());
  CHECK(connect(d.id, 181) == -1);
  CHECK(errno == EINVAL);
  REQUIRE(connect(d.id, 180) == 0);
  rdma_cm_event* e = listener.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const got = e->id;
  CHECK(e->listen_id == listener.id);
  CHECK(holds(*e, 180));
  CHECK(got->qp_type == IBV_QPT_UD);
  CHECK(rdma_get_dst_port(got) == rdma_get_src_port(d.id));
  rdma_ack_cm_event(e);
  if (accepts) {
    CHECK(accept(got, 137, 9) == -1);
    REQUIRE(accept(got, 136, 9) == 0);
    e = d.next(RDMA_CM_EVENT_ESTABLISHED);
    CHECK(e->status == 0);
    CHECK(e->param.ud.qp_num == 9);
    CHECK(e->param.ud.ah_attr.grh.dgid.raw[12] == 127);
  } else {
    const filling f = filled();
    CHECK(rdma_reject(got, f.data(), 137) == -1);
    REQUIRE(rdma_reject(got, f.data(), 136) == 0);
    e = d.next(RDMA_CM_EVENT_UNREACHABLE);
    CHECK(e->status == 2);
  }
  CHECK(holds(*e, 136));
  rdma_ack_cm_event(e);
  CHECK(rdma_disconnect(d.id) == -1);
  rdma_destroy_id(got);
}

TEST_CASE("A port without a listener for datagrams is unreachable") {
  std::uint16_t port = 0;
  {
    const raw unused;
    port = unused.port();
  }
  datagram_id d;
  d.resolve(port);
  REQUIRE(connect(d.id, 0) == 0);
  rdma_cm_event* const e = d.next(RDMA_CM_EVENT_UNREACHABLE);
  CHECK(e->status == 1);
  rdma_ack_cm_event(e);
}

TEST_CASE("A request for datagrams that gets no answer is unreachable") {
  const with_settings set("answer=50ms");
  const raw silent;
  datagram_id d;
  d.resolve(silent.port());
  REQUIRE(connect(d.id, 0) == 0);
  rdma_cm_event* const e = d.next(RDMA_CM_EVENT_UNREACHABLE);
  CHECK(e->status == -ETIMEDOUT);
  rdma_ack_cm_event(e);
}

TEST_CASE("A listener that destroys a request, or has no room for it, rejects it") {
  datagram_id listener, first, second;
  const std::uint16_t port = listener.listen(1);
  first.resolve(port);
  second.resolve(port);
  REQUIRE(connect(first.id, 0) == 0);
  rdma_cm_event* e = nullptr;
  REQUIRE(connect(second.id, 0) == 0); // comes behind the first
  e = second.next(RDMA_CM_EVENT_UNREACHABLE);
  CHECK(e->status == 2);
  rdma_ack_cm_event(e);
  e = listener.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const got = e->id;
  rdma_ack_cm_event(e);
  rdma_destroy_id(got);
  e = first.next(RDMA_CM_EVENT_UNREACHABLE);
  CHECK(e->status == 2);
  rdma_ack_cm_event(e);
}

TEST_CASE("An id may be destroyed while its request for datagrams has no answer") {
  raw silent;
  datagram_id d;
  d.resolve(silent.port());
  REQUIRE(connect(d.id, 0) == 0);
  silent.receive();
}

TEST_CASE("A port of UDP has one listener, and another one of TCP") {
  datagram_id another;
  bool both = false;
  for (int attempt = 0; attempt < 20 && !both; ++attempt) { // a program may have either port
    datagram_id listener;
    sockaddr_in a = local_address(listener.listen());
    CHECK(rdma_bind_addr(another.id, base(a)) == -1);
    CHECK(errno == EADDRINUSE);
    rdma_cm_id* tcp = nullptr;
    REQUIRE(rdma_create_id(nullptr, &tcp, nullptr, RDMA_PS_TCP) == 0);
    both = rdma_bind_addr(tcp, base(a)) == 0 && rdma_listen(tcp, 1) == 0;
    rdma_destroy_id(tcp);
  }
  CHECK(both);
}

TEST_CASE("A request for datagrams is repeated until its reply comes; other replies are dropped") {
  raw peer;
  datagram_id d;
  d.resolve(peer.port());
  REQUIRE(connect(d.id, 180) == 0);
  std::uint16_t port = 0;
  const auto first = peer.receive(&port);
  CHECK(peer.receive() == first);
  const auto request = roce::decode_request(first);
  REQUIRE(request);
  roce::resolution_reply reply;
  reply.transaction = request->transaction;
  reply.id = request->id;
  reply.service = request->service;
  reply.qp_num = 1;
  auto wrong = reply;
  wrong.transaction ^= 1;
  peer.send(encode(wrong), port);
  wrong = reply;
  wrong.id ^= 1;
  peer.send(encode(wrong), port);
  wrong = reply;
  wrong.service ^= 1;
  peer.send(encode(wrong), port);
  auto broken = encode(reply);
  broken[35] = std::byte{1};
  peer.send(broken, port);
  peer.send(encode(reply), port, 255);
  peer.send(encode(reply), port, 0);
  reply.qp_num = 99;
  peer.send(encode(reply), port);
  rdma_cm_event* const e = d.next(RDMA_CM_EVENT_ESTABLISHED);
  CHECK(e->param.ud.qp_num == 99);
  rdma_ack_cm_event(e);
}

TEST_CASE("A request that comes twice makes one id, and is answered twice") {
  raw peer;
  datagram_id listener;
  const std::uint16_t port = listener.listen();
  const auto request = peer.request_to(port);
  peer.send(encode(request), port);
  peer.send(encode(request), port);
  rdma_cm_event* e = listener.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const got = e->id;
  rdma_ack_cm_event(e);
  auto another = request;
  another.id = 79;
  peer.send(encode(another), port); // comes behind the second
  e = listener.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const next = e->id;
  rdma_ack_cm_event(e);
  REQUIRE(accept(got, 0, 9) == 0);
  const auto reply = peer.receive();
  CHECK(roce::decode_reply(reply)->id == 78);
  CHECK(roce::decode_reply(reply)->qp_num == 9);
  peer.send(encode(request), port);
  CHECK(peer.receive() == reply);
  REQUIRE(accept(next, 0, 10) == 0);
  CHECK(roce::decode_reply(peer.receive())->id == 79);
  rdma_destroy_id(got);
  rdma_destroy_id(next);
}

TEST_CASE("Requests for datagrams with any error are dropped") {
  raw peer;
  datagram_id listener;
  const std::uint16_t port = listener.listen();
  const auto right = peer.request_to(port);
  auto wrong_service = right, wrong_port = right, wrong_source = right, foreign = right;
  wrong_service.service ^= 1;
  wrong_port.source_port ^= 1;
  wrong_source.source.raw[15] = 2;
  foreign.destination.raw[12] = 203;
  for (const auto& wrong : {wrong_service, wrong_port, wrong_source, foreign})
    peer.send(encode(wrong), port);
  for (std::size_t size = 0; size < 256; size += 15)
    peer.send(encode(right), port, size);
  auto last = right;
  last.id = 80;
  last.data[0] = std::byte{1};
  peer.send(encode(last), port);
  rdma_cm_event* const e = listener.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(static_cast<const std::byte*>(e->param.ud.private_data)[0] == std::byte{1});
  rdma_cm_id* const got = e->id;
  rdma_ack_cm_event(e);
  rdma_destroy_id(got);
}
