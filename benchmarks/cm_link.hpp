// SPDX-License-Identifier: BSL-1.0
//
// The ends that the loops drive: queue pairs made and connected by librdmacm, in the same way for
// every loop, so that loops differ only in their work per operation. Nothing is torn down: the
// programs end with the process.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace bench {

[[noreturn]] inline void fail(const char* what, const char* why = std::strerror(errno)) {
  std::fprintf(stderr, "bench_device: %s: %s\n", what, why);
  std::_Exit(1);
}

inline void check(bool good, const char* what) {
  if (!good) [[unlikely]]
    fail(what);
}

inline sockaddr_in socket_address(const std::string& address, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &a.sin_addr) != 1)
    fail(address.c_str(), "not an IPv4 address");
  return a;
}

enum class work { send, read, rate, write, bulk, batch, lock };
enum class mode {
  event,
  adaptive, ///< The library waits adaptively, loops on verbs poll.
  busy
};

struct plan {
  work what = work::send;
  mode how = mode::busy;
  std::uint32_t bytes = 64;
  std::string address;
  std::uint32_t in_flight = 0; ///< 0: as the work needs.
  std::uint32_t local = 0;     ///< Percentage of locks that are local.
  std::uint32_t locks = 100;   ///< On each node.
  /// Streams, sockets and connections have an `io_context` for any thread, as is the default; else
  /// for one thread only.
  bool any_thread = false;

  /// Operations in flight.
  std::uint32_t window() const {
    if (in_flight != 0)
      return in_flight;
    return what == work::rate ? 64 : what == work::write || what == work::bulk ? 8 : 1;
  }
  /// Receives posted at an end that gets messages. Four for one message in flight, because a
  /// coroutine posts its next receive only when its answer has been sent.
  std::uint32_t receives() const { return what == work::rate ? 128 : 4; }
};

/// Memory of an end. The front half is sent from or read into; the rear half is received into. Each
/// long message has its own place in the rear half, because an arrived message is not overwritten.
struct memory {
  static constexpr std::size_t half = 1 << 20;

  memory(ibv_pd* pd, char fill, std::size_t messages = 1)
      : data(static_cast<char*>(std::aligned_alloc(4096, (1 + messages) * half))) {
    std::memset(data, fill, half);
    std::memset(data + half, 0, messages * half);
    mr = ibv_reg_mr(pd, data, (1 + messages) * half,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    check(mr != nullptr, "ibv_reg_mr");
  }

  char* data;
  ibv_mr* mr;
};

/// One end of a connection, active or passive. Each step blocks only as far as needed for one
/// thread to make both ends.
class cm_end {
public:
  /// The device is found by an address of this machine.
  explicit cm_end(const std::string& address)
      : channel_(rdma_create_event_channel()), address_(address) {
    check(channel_ != nullptr, "rdma_create_event_channel");
    check(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    sockaddr_in a = socket_address(address_, 0);
    check(rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&a)) == 0, "rdma_bind_addr");
    check(id_->verbs != nullptr, "no RDMA device has the address");
  }

  ibv_context* context() const { return id_->verbs; }
  ibv_qp* qp() const { return id_->qp; }
  std::uint32_t inline_limit() const { return inline_limit_; }

  std::uint16_t listen() {
    check(rdma_listen(id_, 1) == 0, "rdma_listen");
    return ntohs(rdma_get_src_port(id_));
  }

  void connect(std::uint16_t port, ibv_pd* pd, ibv_cq* cq) {
    sockaddr_in a = socket_address(address_, port);
    check(rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&a), 2000) == 0,
          "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(rdma_resolve_route(id_, 2000) == 0, "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    create(pd, cq);
    rdma_conn_param p = parameters();
    check(rdma_connect(id_, &p) == 0, "rdma_connect");
  }

  void accept(ibv_pd* pd, ibv_cq* cq) {
    id_ = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create(pd, cq);
    rdma_conn_param p = parameters();
    check(rdma_accept(id_, &p) == 0, "rdma_accept");
  }

  void established() { expect(RDMA_CM_EVENT_ESTABLISHED); }

private:
  static rdma_conn_param parameters() {
    rdma_conn_param p{};
    p.responder_resources = p.initiator_depth = 16;
    p.retry_count = 6;
    p.rnr_retry_count = 6;
    return p;
  }

  rdma_cm_id* expect(rdma_cm_event_type type) {
    rdma_cm_event* event = nullptr;
    check(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
    if (event->event != type)
      fail("connecting", rdma_event_str(event->event));
    rdma_cm_id* id = event->id;
    rdma_ack_cm_event(event);
    return id;
  }

  void create(ibv_pd* pd, ibv_cq* cq) {
    for (const std::uint32_t limit : {64u, 0u}) {
      ibv_qp_init_attr init{};
      init.send_cq = init.recv_cq = cq;
      init.qp_type = IBV_QPT_RC;
      init.cap = {128, 128, 1, 1, limit};
      if (rdma_create_qp(id_, pd, &init) == 0) {
        inline_limit_ = limit;
        return;
      }
    }
    fail("rdma_create_qp");
  }

  rdma_event_channel* channel_;
  rdma_cm_id* id_ = nullptr;
  std::string address_;
  std::uint32_t inline_limit_ = 0;
};

/// A pipe to the other process of a pair. It carries the port to connect to, and the news that the
/// receives are posted.
struct process_pipe {
  process_pipe() { check(::pipe(ends) == 0, "pipe"); }
  template <class T>
  void put(const T& value) {
    check(::write(ends[1], &value, sizeof value) == sizeof value, "pipe");
  }
  template <class T>
  T get() {
    T value;
    check(::read(ends[0], &value, sizeof value) == sizeof value, "the other process");
    return value;
  }

  int ends[2];
};

/// Gives both processes the port on which the passive end listens.
inline std::uint16_t exchange_port(std::uint16_t listening, const cm_end* active,
                                   const cm_end* passive, process_pipe* to_active) {
  if (!passive)
    return to_active->get<std::uint16_t>();
  if (!active)
    to_active->put(listening);
  return listening;
}

/// Connects the ends, one of which may be in another process.
inline void connect_ends(cm_end* active, cm_end* passive, ibv_pd* pd, ibv_cq* cq,
                         process_pipe* to_active) {
  const std::uint16_t port =
      exchange_port(passive ? passive->listen() : 0, active, passive, to_active);
  if (active)
    active->connect(port, pd, cq);
  if (passive)
    passive->accept(pd, cq);
  if (active)
    active->established();
  if (passive)
    passive->established();
}

/// Counts of a loop's calls on its completion queue, and of the memory that it has registered for
/// single operations.
struct queue_counters {
  std::uint64_t polls = 0, arms = 0, events = 0, registrations = 0;
};

/// A loop that drives the ends in this process.
class loop {
public:
  virtual ~loop() = default;
  virtual queue_counters counters() const = 0;
  /// Carries out `operations` operations (round trips, for `work::send`) from the active end.
  virtual void run(std::uint64_t operations) = 0;
  /// Answers at the passive end until the process ends.
  [[noreturn]] virtual void serve() = 0;
};

} // namespace bench
