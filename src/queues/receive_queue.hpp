// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/device.hpp>

#include "queues/work_queue.hpp"

#include <cstdint>
#include <cstdlib>

namespace asio_rdma::detail {

class queue_pair_impl;

/// Links the work requests of receives to a chain and returns the first.
ibv_recv_wr* chain_receives(operation_list::iterator first, operation_list::iterator last) noexcept;
/// work_queue::post for receives, by `post(head, &bad)`: ibv_post_recv or ibv_post_srq_recv.
/// Posting a receive rings no doorbell. So, unlike with sends, an error means that some receives
/// were not taken; without `bad` (rxe before INIT) none was.
template <class Post>
int post_receives(operation_list::iterator first, operation_list::iterator last, operation*& failed,
                  Post post) {
  ibv_recv_wr* bad = nullptr;
  ibv_recv_wr* head = chain_receives(first, last);
  const int e = post(head, &bad);
  if (e == 0) [[likely]]
    return 0;
  failed = reinterpret_cast<operation*>((bad != nullptr ? bad : head)->wr_id);
  return std::abs(e); // siw returns a negative value
}
/// Gives a receive without elements one of length 0 on iWARP, because siw refuses it otherwise.
void give_element(receive_operation& op, const device& d) noexcept;
/// Sets the result of a receive from its completion.
void take_receive_result(operation& op, const ibv_wc& wc) noexcept;

/// The receive queue of one queue pair.
class receive_queue final : public work_queue {
public:
  receive_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept;
  void on_completion(operation& op, const ibv_wc& wc, operation_list& ready) override;

private:
  int post(operation_list::iterator first, operation_list::iterator last, operation*& failed,
           operation_list& ended) override;

  queue_pair_impl& qp_;
};

} // namespace asio_rdma::detail
