// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/work_queue.hpp>
#include <asio_rdma/device.hpp>

#include <cstdint>

namespace asio_rdma::detail {

class queue_pair_impl;

/// Chains the work requests of receives; gives the first.
ibv_recv_wr* link_receives(operation_list::iterator first, operation_list::iterator last) noexcept;
/// siw refuses a receive without elements; one of no length does the same.
void give_element(receive_operation& op, const device& d) noexcept;
/// What a receive's completion says.
void take_receive_result(operation& op, const ibv_wc& wc) noexcept;

/// A queue pair's own receive queue.
class receive_queue final : public work_queue {
public:
  receive_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept;
  void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) override;

private:
  int post(operation_list::iterator first, operation_list::iterator last,
           operation*& failed) override;
  bool in_order() const noexcept override { return false; }

  queue_pair_impl& qp_;
};

} // namespace asio_rdma::detail
