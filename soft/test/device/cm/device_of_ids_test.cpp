// SPDX-License-Identifier: BSL-1.0
// The domain, the GIDs and the path of an id of librdmacm, and its queue pair without a connection.
#include "support/cm_pair.hpp"
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <arpa/inet.h>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <rdma/rdma_verbs.h>
#include <string>
#include <thread>

using namespace soft::test;

namespace {

unsigned domains() {
  soft_resources now;
  soft_get_resources(&now);
  return now.domains;
}

// A listener, and the request of a thread for it.
struct requested {
  requested() {
    std::string port;
    std::tie(listener, port) = listen();
    resolve(from, port);
    thread = std::thread([this] {
      status = connect(from);
      error = errno;
    });
    rdma_cm_id* got = nullptr;
    REQUIRE(rdma_get_request(listener, &got) == 0);
    to = std::make_unique<endpoint>(got);
  }
  ~requested() {
    to.reset(); // a request that waits is rejected
    if (thread.joinable())
      thread.join();
    rdma_destroy_id(listener);
  }
  requested(const requested&) = delete;
  requested& operator=(const requested&) = delete;

  rdma_cm_id* listener = nullptr;
  endpoint from;
  std::unique_ptr<endpoint> to;
  std::thread thread;
  int status = 0, error = 0;
};

bool is_of(const ibv_gid& gid, const sockaddr_in& address) {
  return std::memcmp(gid.raw + 12, &address.sin_addr, sizeof(address.sin_addr)) == 0;
}

} // namespace

TEST_CASE("the ids of a device have one domain, which ends with the last of them") {
  const unsigned before = domains();
  rdma_cm_id* const a = bound_to();
  REQUIRE(a->pd != nullptr);
  CHECK(a->pd->context == a->verbs);
  rdma_cm_id* const b = bound_to();
  CHECK(b->pd == a->pd);
  CHECK(domains() == before + 1);
  rdma_cm_id* const any = bound_to("0.0.0.0");
  CHECK(any->verbs == nullptr);
  CHECK(any->pd == nullptr);
  rdma_destroy_id(a);
  rdma_destroy_id(any);
  CHECK(domains() == before + 1);
  rdma_destroy_id(b);
  CHECK(domains() == before);
}

TEST_CASE("a domain that cannot be made: no id gets the device") {
  const with_settings set("fail=alloc_pd:1:enomem");
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in a = local_address(0);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&a)) == -1);
  CHECK(errno == ENOMEM);
  CHECK(id->verbs == nullptr);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&a)) == 0);
  CHECK(id->pd != nullptr);
  rdma_destroy_id(id);
}

TEST_CASE("both ids of a connection know their GIDs, and the way as one path") {
  requested r;
  CHECK(r.to->id->pd == r.from.id->pd);
  for (const rdma_cm_id* const id : {r.from.id, r.to->id}) {
    const rdma_route& route = id->route;
    CHECK(is_of(route.addr.addr.ibaddr.sgid, route.addr.src_sin));
    CHECK(is_of(route.addr.addr.ibaddr.dgid, route.addr.dst_sin));
    CHECK(route.addr.addr.ibaddr.pkey == 0xffff);
    REQUIRE(route.num_paths == 1);
    const ibv_sa_path_rec& path = route.path_rec[0];
    CHECK(std::memcmp(&path.sgid, &route.addr.addr.ibaddr.sgid, sizeof(ibv_gid)) == 0);
    CHECK(std::memcmp(&path.dgid, &route.addr.addr.ibaddr.dgid, sizeof(ibv_gid)) == 0);
    CHECK(path.mtu == IBV_MTU_4096);
    CHECK(path.hop_limit > 1);
  }
}

TEST_CASE("a rejection flushes the receives of the queue pair that asked") {
  requested r;
  ibv_recv_wr receive{};
  receive.wr_id = 7;
  ibv_recv_wr* bad = nullptr;
  REQUIRE(ibv_post_recv(r.from.id->qp, &receive, &bad) == 0);
  REQUIRE(rdma_reject(r.to->id, nullptr, 0) == 0);
  r.thread.join();
  CHECK(r.status == -1);
  CHECK(r.error == ECONNREFUSED);
  const ibv_wc flushed = completion(r.from.id->recv_cq);
  CHECK(flushed.wr_id == 7);
  CHECK(flushed.status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("depths beyond those of the device are refused at both sides") {
  ibv_device_attr limits{};
  requested r;
  REQUIRE(ibv_query_device(r.to->id->verbs, &limits) == 0);
  rdma_conn_param p{};
  p.initiator_depth = static_cast<std::uint8_t>(limits.max_qp_init_rd_atom + 1);
  CHECK(rdma_accept(r.to->id, &p) == -1);
  CHECK(errno == EINVAL);
  p.initiator_depth = static_cast<std::uint8_t>(limits.max_qp_init_rd_atom);
  p.responder_resources = static_cast<std::uint8_t>(limits.max_qp_rd_atom + 1);
  CHECK(rdma_accept(r.to->id, &p) == -1);
  CHECK(errno == EINVAL);
  CHECK(rdma_accept(r.to->id, nullptr) == -1); // neither a queue pair nor the number of one
  CHECK(errno == EINVAL);

  endpoint other;
  resolve(other, std::to_string(ntohs(rdma_get_src_port(r.listener))));
  CHECK(rdma_connect(other.id, &p) == -1);
  CHECK(errno == EINVAL);
  rdma_destroy_qp(other.id);
  CHECK(rdma_connect(other.id, nullptr) == -1);
  CHECK(errno == EINVAL);
}

TEST_CASE("private data longer than a message has room for are refused at both sides") {
  const std::array<char, 256> bytes{};
  requested r;
  rdma_conn_param p{};
  p.private_data = bytes.data();
  p.private_data_len = 197;
  CHECK(rdma_accept(r.to->id, &p) == -1);
  CHECK(errno == EINVAL);
  CHECK(rdma_reject(r.to->id, bytes.data(), 149) == -1);
  CHECK(errno == EINVAL);

  endpoint other;
  resolve(other, std::to_string(ntohs(rdma_get_src_port(r.listener))));
  p.private_data_len = 57;
  CHECK(rdma_connect(other.id, &p) == -1);
  CHECK(errno == EINVAL);
}

TEST_CASE("a request carries at most 7 retries, which for receives that are missing is for ever") {
  requested r;
  r.to->make_queue_pair();
  rdma_conn_param p{};
  p.rnr_retry_count = 255;
  REQUIRE(rdma_accept(r.to->id, &p) == 0);
  r.thread.join();
  REQUIRE(r.status == 0);
  ibv_qp_attr a{};
  ibv_qp_init_attr made{};
  REQUIRE(ibv_query_qp(r.from.id->qp, &a, IBV_QP_RNR_RETRY | IBV_QP_RETRY_CNT, &made) == 0);
  CHECK(a.rnr_retry == 7);
}

TEST_CASE(
    "each side retries as often as its peer asks, and an acceptance without parameters asks 7") {
  const auto retries = [](const cm_end& end) {
    ibv_qp_attr a{};
    ibv_qp_init_attr made{};
    REQUIRE(ibv_query_qp(end.id->qp, &a, IBV_QP_RNR_RETRY, &made) == 0);
    return int{a.rnr_retry};
  };
  {
    const cm_pair both(2, 5);
    CHECK(retries(both.client) == 5);
    CHECK(retries(both.server) == 2);
  }
  const cm_pair client_only(2, std::nullopt);
  CHECK(retries(client_only.client) == 7);
  CHECK(retries(client_only.server) == 2);
}

TEST_CASE("no order of the bytes of a message is promised") {
  const connected_pair pair;
  CHECK(ibv_query_qp_data_in_order(pair.a.qp.get(), IBV_WR_RDMA_WRITE, 0) == 0);
}
