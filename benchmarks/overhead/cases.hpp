// SPDX-License-Identifier: BSL-1.0
//
// The cases of bench_overhead. Each runs a number of operations on the null device, from objects
// that it makes itself.
#pragma once

#include <asio_rdma/device.hpp>
#include <asio_rdma/memory_region.hpp>

#include <boost/asio/detail/concurrency_hint.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace bench::overhead {

constexpr std::uint32_t window = 32;
constexpr std::uint32_t batch_size = 16;
// The concurrency hint of a context that several threads may run.
constexpr int default_hint = BOOST_ASIO_CONCURRENCY_HINT_DEFAULT;
// That of a context without locks.
constexpr int unsafe_hint = BOOST_ASIO_CONCURRENCY_HINT_UNSAFE;

struct memory {
  asio_rdma::device d = asio_rdma::device::open("null0");
  asio_rdma::protection_domain pd{d};
  std::array<char, 64> bytes{};
  asio_rdma::memory_region region{pd, bytes.data(), bytes.size()};
};

struct test_case {
  std::string name;
  void (*run)(memory&, std::uint64_t operations);
};

/// SENDs of queue pairs, and `asio::post` beside them.
std::vector<test_case> sends();
/// Cases with a receiver: SENDs with RECEIVEs, messages of connections, and streams.
std::vector<test_case> links();

inline void check(bool good, const char* what) {
  if (good)
    return;
  std::cerr << "bench_overhead: " << what << " failed\n";
  std::exit(1);
}

/// A queue pair by verbs, connected to itself or to another.
class bare_queue_pair {
public:
  explicit bare_queue_pair(memory& m) {
    cq = ibv_create_cq(m.d.native_handle(), 2 * window, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {window, window, 1, 1, 64};
    qp = ibv_create_qp(m.pd.native_handle(), &init);
    connect(qp->qp_num);
  }
  bare_queue_pair(const bare_queue_pair&) = delete;
  bare_queue_pair& operator=(const bare_queue_pair&) = delete;
  ~bare_queue_pair() {
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
  }

  void connect(std::uint32_t number) {
    ibv_qp_attr attr{};
    attr.dest_qp_num = number;
    for (const auto state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = state;
      const int mask = IBV_QP_STATE | (state == IBV_QPS_RTR ? IBV_QP_DEST_QPN : 0);
      check(ibv_modify_qp(qp, &attr, mask) == 0, "ibv_modify_qp");
    }
  }

  ibv_cq* cq;
  ibv_qp* qp;
};

inline void rethrow(const std::exception_ptr& e) {
  if (e)
    std::rethrow_exception(e);
}

} // namespace bench::overhead
