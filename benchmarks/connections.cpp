// SPDX-License-Identifier: BSL-1.0
//
// Many connections between two processes, by verbs and librdmacm. Prints JSON: the seconds until
// all are established, and the resident memory of a connection in each process.
#include "cm_link.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <sys/prctl.h>

namespace {

using namespace bench;

/// The resident memory of this process.
std::size_t resident() {
  std::FILE* const f = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  check(f != nullptr && std::fscanf(f, "%*u %lu", &pages) == 1, "/proc/self/statm");
  std::fclose(f);
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// An end of many connections: its queue pairs have one completion queue and post no receives.
class crowd {
public:
  explicit crowd(const std::string& address)
      : channel_(rdma_create_event_channel()), listens_(make_id()) {
    sockaddr_in a = socket_address(address, 0);
    check(rdma_bind_addr(listens_, reinterpret_cast<sockaddr*>(&a)) == 0, "rdma_bind_addr");
    check(listens_->verbs != nullptr, "no RDMA device has the address");
    check((pd_ = ibv_alloc_pd(listens_->verbs)) != nullptr, "ibv_alloc_pd");
    check((cq_ = ibv_create_cq(listens_->verbs, 64, nullptr, nullptr, 0)) != nullptr,
          "ibv_create_cq");
  }

  std::uint16_t listen(int backlog) {
    check(rdma_listen(listens_, backlog) == 0, "rdma_listen");
    return ntohs(rdma_get_src_port(listens_));
  }
  void connect(const std::string& address, std::uint16_t port) {
    sockaddr_in a = socket_address(address, port);
    check(rdma_resolve_addr(make_id(), nullptr, reinterpret_cast<sockaddr*>(&a), 2000) == 0,
          "rdma_resolve_addr");
  }
  void until_established(unsigned connections) {
    while (connections != 0)
      connections -= step();
  }

private:
  rdma_cm_id* make_id() {
    rdma_cm_id* id = nullptr;
    check(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    return id;
  }
  void make_queue_pair(rdma_cm_id* id) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap.max_send_wr = init.cap.max_recv_wr = 16;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RC;
    check(rdma_create_qp(id, pd_, &init) == 0, "rdma_create_qp");
  }
  static rdma_conn_param parameters() {
    rdma_conn_param p{};
    p.responder_resources = p.initiator_depth = 1;
    p.retry_count = p.rnr_retry_count = 7;
    return p;
  }
  /// Handles an event. Returns whether a connection is established.
  bool step() {
    rdma_cm_event* event = nullptr;
    check(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
    rdma_cm_id* const id = event->id;
    const rdma_cm_event_type what = event->event;
    check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
    rdma_conn_param p = parameters();
    switch (what) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      check(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
      return false;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      make_queue_pair(id);
      check(rdma_connect(id, &p) == 0, "rdma_connect");
      return false;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      make_queue_pair(id);
      check(rdma_accept(id, &p) == 0, "rdma_accept");
      return false;
    case RDMA_CM_EVENT_ESTABLISHED:
      return true;
    default:
      fail("connect", rdma_event_str(what));
    }
  }

  rdma_event_channel* channel_;
  rdma_cm_id* listens_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

} // namespace

int main(int argc, char* argv[]) {
  CLI::App app("Opens many connections between two processes");
  std::string address;
  unsigned connections = 1000;
  app.add_option("--address", address, "IP address of the device")
      ->envname("ASIO_RDMA_ADDRESS")
      ->required()
      ->check(CLI::ValidIPV4);
  app.add_option("--connections", connections, "their number")->check(CLI::Range(1u, 10'000u));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  int to_parent[2];
  check(::pipe(to_parent) == 0, "pipe");
  const pid_t other = ::fork(); // before anything else, as verbs do not survive it
  check(other >= 0, "fork");
  if (other == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    crowd accepts(address);
    const std::uint16_t port = accepts.listen(static_cast<int>(connections));
    const std::size_t before = resident();
    check(::write(to_parent[1], &port, sizeof port) == sizeof port, "write");
    accepts.until_established(connections);
    const std::size_t grown = resident() - before;
    check(::write(to_parent[1], &grown, sizeof grown) == sizeof grown, "write");
    for (;;)
      ::pause();
  }
  crowd connects(address);
  std::uint16_t port = 0;
  check(::read(to_parent[0], &port, sizeof port) == sizeof port, "read");
  const std::size_t before = resident();
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < connections; ++i)
    connects.connect(address, port);
  connects.until_established(connections);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  const std::size_t grown = resident() - before;
  std::size_t grown_there = 0;
  check(::read(to_parent[0], &grown_there, sizeof grown_there) == sizeof grown_there, "read");
  std::cout << "{\"connections\": " << connections << ", \"seconds\": " << time.count()
            << ", \"bytes\": [" << grown / connections << ", " << grown_there / connections << "]}"
            << std::endl;
  ::kill(other, SIGKILL);
  std::_Exit(0);
}
