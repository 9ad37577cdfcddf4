// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connect_options.hpp>
#include <rdma/rdma_cma.h>

#include "queues/queue_pair_impl.hpp"

#include <cstdint>
#include <memory>

namespace asio_rdma::detail {

/// Whether the connector of a request has withdrawn it, as far as the device knows. Costs one
/// system call.
bool has_given_up(rdma_cm_id* id) noexcept;

/// The queue pair of an attempt: its way to RTS by the attributes that rdma_cm provides, and the
/// facts about it that rdma_cm sends to the peer. For one thread at a time.
struct cm_queue_pair {
  /// The step of the attempt: the request of the connector, the answer of the acceptor, or the
  /// connector's confirmation.
  enum class step { request, answer, confirm };
  /// The READs and atomics that may be in flight at a time: to the peer, and from the peer.
  struct read_limits {
    std::uint8_t out = 0, in = 0;
  };
  /// A change of the queue pair's state, for ibv_modify_qp.
  struct change {
    ibv_qp_attr attr{};
    int mask = 0;
  };

  error_code find_change(ibv_qp_state to, read_limits reads, change& c) const noexcept;
  error_code apply(change& c) const noexcept;
  error_code prepare(ibv_qp_state to, read_limits reads) const noexcept;
  error_code offer_features() const noexcept;
  error_code take_features() const noexcept;
  rdma_conn_param parameters(const private_data& data) const noexcept;
  /// The error of a call of rdma_cm that has failed with this errno value.
  error_code error_of(int value) const noexcept;

  rdma_cm_id* id = nullptr;
  std::shared_ptr<queue_pair_impl> qp;
  step now = step::request;
};

} // namespace asio_rdma::detail
