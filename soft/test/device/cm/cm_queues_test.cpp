// SPDX-License-Identifier: BSL-1.0
// The queues of an id of librdmacm, rdma_getaddrinfo(3) and rdma_get_devices(3).
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <rdma/rdma_verbs.h>
#include <string>

using namespace soft::test;

namespace {

// An id that has a local address, and so a device.
struct bound_id {
  bound_id() = default;
  ~bound_id() { rdma_destroy_id(id); }
  bound_id(const bound_id&) = delete;
  bound_id& operator=(const bound_id&) = delete;
  rdma_cm_id* id = bound_to();
};

ibv_qp_init_attr queue_pair() {
  ibv_qp_init_attr a{};
  a.cap.max_send_wr = a.cap.max_recv_wr = 4;
  a.cap.max_send_sge = a.cap.max_recv_sge = 1;
  a.qp_type = IBV_QPT_RC;
  return a;
}

// Whether the process has as many objects as before.
class nothing_is_left {
public:
  nothing_is_left() { soft_get_resources(&before_); }
  bool operator()() const {
    soft_resources now;
    soft_get_resources(&now);
    return std::memcmp(&now, &before_, sizeof(now)) == 0;
  }

private:
  soft_resources before_;
};

using owned_info = std::unique_ptr<rdma_addrinfo, destroys<rdma_freeaddrinfo>>;

} // namespace

TEST_CASE(
    "rdma_create_qp_ex takes the domain of the id, and makes the queues that it is not given") {
  const bound_id b;
  const nothing_is_left left;
  ibv_pd* const of_id = b.id->pd;
  REQUIRE(of_id != nullptr);
  ibv_qp_init_attr_ex a{};
  const ibv_qp_init_attr basic = queue_pair();
  std::memcpy(&a, &basic, sizeof(basic));
  REQUIRE(rdma_create_qp_ex(b.id, &a) == 0);
  CHECK(b.id->qp != nullptr);
  CHECK(a.pd == of_id);
  CHECK(b.id->send_cq == a.send_cq);
  CHECK(rdma_create_qp_ex(b.id, &a) == -1);
  CHECK(errno == EINVAL);
  rdma_destroy_qp(b.id);
  CHECK(b.id->pd == of_id);
  CHECK(left());
}

TEST_CASE("A shared receive queue of an id is that of its queue pair") {
  const bound_id b;
  const nothing_is_left left;
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = 4;
  shared.attr.max_sge = 1;
  REQUIRE(rdma_create_srq(b.id, nullptr, &shared) == 0);
  REQUIRE(b.id->srq != nullptr);
  ibv_qp_init_attr a = queue_pair();
  REQUIRE(rdma_create_qp(b.id, nullptr, &a) == 0);
  CHECK(b.id->qp->srq == b.id->srq);
  CHECK(b.id->qp->pd == b.id->srq->pd);
  rdma_destroy_qp(b.id);
  rdma_destroy_srq(b.id);
  CHECK(b.id->srq == nullptr);
  CHECK(left());
}

TEST_CASE("rdma_destroy_ep destroys the shared receive queue of the id, too") {
  const bound_id other; // keeps the domain of all ids
  const nothing_is_left left;
  rdma_cm_id* const id = bound_to();
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = shared.attr.max_sge = 1;
  REQUIRE(rdma_create_srq(id, nullptr, &shared) == 0);
  ibv_qp_init_attr a = queue_pair();
  REQUIRE(rdma_create_qp(id, nullptr, &a) == 0);
  rdma_destroy_ep(id);
  CHECK(left());
}

TEST_CASE("rdma_create_srq_ex knows no other kind than the basic one") {
  const bound_id b;
  ibv_srq_init_attr_ex a{};
  CHECK(rdma_create_srq_ex(b.id, &a) == -1);
  CHECK(errno == EINVAL);
  a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
  a.srq_type = IBV_SRQT_XRC;
  CHECK(rdma_create_srq_ex(b.id, &a) == -1);
  CHECK(errno == EOPNOTSUPP);
}

TEST_CASE("rdma_destroy_qp destroys the queues of the id, one for both directions included") {
  const bound_id b;
  const nothing_is_left left;
  b.id->send_cq_channel = b.id->recv_cq_channel = ibv_create_comp_channel(b.id->verbs);
  REQUIRE(b.id->recv_cq_channel != nullptr);
  b.id->send_cq = b.id->recv_cq = ibv_create_cq(b.id->verbs, 8, b.id, b.id->recv_cq_channel, 0);
  REQUIRE(b.id->recv_cq != nullptr);
  ibv_qp_init_attr a = queue_pair();
  REQUIRE(rdma_create_qp(b.id, nullptr, &a) == 0);
  CHECK(b.id->qp->recv_cq == a.recv_cq);
  rdma_destroy_qp(b.id);
  CHECK(b.id->recv_cq == nullptr);
  CHECK(b.id->recv_cq_channel == nullptr);
  CHECK(left());
}

TEST_CASE("rdma_getaddrinfo takes from the hints what neither name tells") {
  sockaddr_in from = local_address(1), to = local_address(2);
  rdma_addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_src_addr = reinterpret_cast<sockaddr*>(&from);
  hints.ai_src_len = sizeof(from);
  hints.ai_dst_addr = reinterpret_cast<sockaddr*>(&to);
  hints.ai_dst_len = sizeof(to);
  rdma_addrinfo* found = nullptr;
  REQUIRE(rdma_getaddrinfo(nullptr, nullptr, &hints, &found) == 0);
  const owned_info both(found);
  REQUIRE(both->ai_src_len == sizeof(from));
  REQUIRE(both->ai_dst_len == sizeof(to));
  CHECK(std::memcmp(both->ai_src_addr, &from, sizeof(from)) == 0);
  CHECK(std::memcmp(both->ai_dst_addr, &to, sizeof(to)) == 0);
  CHECK(both->ai_family == AF_INET);

  hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
  REQUIRE(rdma_getaddrinfo("127.0.0.1", "3", &hints, &found) == 0);
  const owned_info passive(found);
  REQUIRE(passive->ai_src_len == sizeof(from));
  const sockaddr_in named = local_address(3);
  CHECK(std::memcmp(passive->ai_src_addr, &named, sizeof(named)) == 0);
  CHECK(passive->ai_dst_len == 0);
}

TEST_CASE("rdma_get_devices gives soft0") {
  int count = 0;
  ibv_context** const all = rdma_get_devices(&count);
  REQUIRE(all != nullptr);
  CHECK(count == 1);
  CHECK(std::string(ibv_get_device_name(all[0]->device)) == "soft0");
  CHECK(all[1] == nullptr);
  rdma_free_devices(all);
}

TEST_CASE("child: rdma_get_devices without a device", "[.child]") {
  int count = 5;
  errno = 0;
  CHECK(rdma_get_devices(&count) == nullptr);
  CHECK(errno == EINVAL);
  CHECK(count == 0);
  errno = 0;
  CHECK(rdma_get_devices(nullptr) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("rdma_get_devices fails if the device cannot be opened") {
  child other("child: rdma_get_devices without a device", {{"ASIO_RDMA_SOFT", "nonsense"}});
  CHECK(other.wait() == 0);
}
