// SPDX-License-Identifier: BSL-1.0
#include "queues/queue_pair_impl.hpp"

#include <arpa/inet.h>

#include <cassert>

namespace asio_rdma::detail {

receive_queue::receive_queue(queue_pair_impl& qp, std::uint32_t depth) noexcept
    : work_queue(qp.mutex_, depth), qp_(qp) {}

int receive_queue::post(operation_list::iterator first, operation_list::iterator last,
                        operation*& failed, operation_list&) {
  assert(qp_.qp_ != nullptr);
  return post_receives(first, last, failed, [this](ibv_recv_wr* head, ibv_recv_wr** bad) {
    return ibv_post_recv(qp_.qp_, head, bad);
  });
}

void receive_queue::on_completion(operation& op, const ibv_wc& wc, operation_list& ready) {
  take_receive_result(op, wc);
  if (wc.status == IBV_WC_SUCCESS) [[likely]] {
    if (qp_.awaits_first_) [[unlikely]]
      qp_.first_arrived(ready);
    if (!complete_oldest(op, ready)) [[unlikely]]
      complete(op, ready);
    return;
  }
  operation_list behind;
  op.fail(qp_.completion_failure(wc, behind));
  complete(op, qp_.list_of_failed(ready));
  ready.splice(ready.end(), behind);
}

ibv_recv_wr* chain_receives(operation_list::iterator first,
                            operation_list::iterator last) noexcept {
  assert(first != last);
  ibv_recv_wr* head = nullptr;
  ibv_recv_wr** next = &head;
  for (auto i = first; i != last; ++i) {
    auto& op = static_cast<receive_operation&>(*i);
    *next = &op.wr;
    next = &op.wr.next;
  }
  *next = nullptr;
  return head;
}

void give_element(receive_operation& op, const device& d) noexcept {
  if (op.wr.num_sge != 0 || d.type() != transport::iwarp)
    return;
  op.wr.sg_list[0] = {};
  op.wr.num_sge = 1;
}

void take_receive_result(operation& op, const ibv_wc& wc) noexcept {
  op.qp_num = wc.qp_num;
  op.bytes = wc.byte_len;
  op.flags = wc.wc_flags;
  op.value = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? 1 : 0;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0)
    op.word = ntohl(wc.imm_data);
  else if ((wc.wc_flags & IBV_WC_WITH_INV) != 0)
    op.word = wc.invalidated_rkey;
}

} // namespace asio_rdma::detail
