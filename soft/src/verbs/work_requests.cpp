// SPDX-License-Identifier: BSL-1.0
// ibv_wr_post(3): libibverbs' header calls its functions through the pointers of `ibv_qp_ex`.
#include "device/faults.hpp"
#include "device/queue_pair.hpp"
#include "verbs/functions.hpp"
#include "verbs/next.hpp"

#include <cerrno>

using namespace soft;

namespace soft {
namespace {

queue_pair& of(ibv_qp_ex* q) noexcept { return *static_cast<queue_pair*>(q); }
send_queue& sends_of(ibv_qp_ex* q) noexcept { return of(q).sends(); }

[[gnu::always_inline]] inline send_work* begin(ibv_qp_ex* q, ibv_wr_opcode opcode,
                                               std::uint32_t immediate = 0) {
  return sends_of(q).begin(opcode, q->wr_id, q->wr_flags, immediate);
}

template <ibv_wr_opcode Opcode>
void remote(ibv_qp_ex* q, std::uint32_t key, std::uint64_t address) {
  if (send_work* const r = begin(q, Opcode)) {
    r->address = address;
    r->key = key;
  }
}

void write_with_immediate(ibv_qp_ex* q, std::uint32_t key, std::uint64_t address,
                          __be32 immediate) {
  if (send_work* const r = begin(q, IBV_WR_RDMA_WRITE_WITH_IMM, immediate)) {
    r->address = address;
    r->key = key;
  }
}

void atomic(ibv_qp_ex* q, ibv_wr_opcode opcode, std::uint32_t key, std::uint64_t address,
            std::uint64_t compare_add, std::uint64_t swap) {
  if (send_work* const r = begin(q, opcode)) {
    r->address = address;
    r->key = key;
    r->compare_add = compare_add;
    r->swap = swap;
  }
}
void compare_and_swap(ibv_qp_ex* q, std::uint32_t key, std::uint64_t address, std::uint64_t compare,
                      std::uint64_t swap) {
  atomic(q, IBV_WR_ATOMIC_CMP_AND_SWP, key, address, compare, swap);
}
void fetch_and_add(ibv_qp_ex* q, std::uint32_t key, std::uint64_t address, std::uint64_t add) {
  atomic(q, IBV_WR_ATOMIC_FETCH_AND_ADD, key, address, add, 0);
}

void send(ibv_qp_ex* q) { begin(q, IBV_WR_SEND); }
void send_with_immediate(ibv_qp_ex* q, __be32 immediate) {
  begin(q, IBV_WR_SEND_WITH_IMM, immediate);
}
void send_with_invalidate(ibv_qp_ex* q, std::uint32_t key) { begin(q, IBV_WR_SEND_WITH_INV, key); }
void invalidate(ibv_qp_ex* q, std::uint32_t key) { begin(q, IBV_WR_LOCAL_INV, key); }

void bind_window(ibv_qp_ex* q, ibv_mw* window, std::uint32_t key, const ibv_mw_bind_info* how) {
  if (window->type != IBV_MW_TYPE_2)
    return sends_of(q).refuse(EINVAL);
  if (send_work* const r = begin(q, IBV_WR_BIND_MW)) {
    r->key = key;
    r->binding = binding_of(*window, *how);
  }
}

// A builder that the program did not ask for when it made the queue pair.
template <class... Arguments>
void not_asked_for(ibv_qp_ex* q, Arguments...) {
  sends_of(q).refuse(EINVAL);
}

void set_address(ibv_qp_ex* q, ibv_ah* handle, std::uint32_t qp_num, std::uint32_t q_key) {
  sends_of(q).set_address(handle, qp_num, q_key);
}
void set_element(ibv_qp_ex* q, std::uint32_t key, std::uint64_t address, std::uint32_t bytes) {
  const ibv_sge e{address, bytes, key};
  sends_of(q).set_elements(&e, 1);
}
void set_elements(ibv_qp_ex* q, std::size_t n, const ibv_sge* elements) {
  sends_of(q).set_elements(elements, n);
}
void set_inline(ibv_qp_ex* q, void* data, std::size_t bytes) {
  const ibv_data_buf b{data, bytes};
  sends_of(q).set_inline(&b, 1);
}
void set_inline_list(ibv_qp_ex* q, std::size_t n, const ibv_data_buf* buffers) {
  sends_of(q).set_inline(buffers, n);
}

// One call of ibv_wr_start is one of ibv_post_send, for the settings. A delay comes before the
// lock.
void start(ibv_qp_ex* q) {
  int error = 0;
  if (needs_attention(bit_of(place::post_send))) [[unlikely]]
    error = refuse(q->qp_base.context, place::post_send);
  sends_of(q).start();
  if (error != 0)
    sends_of(q).refuse(error);
}
int complete(ibv_qp_ex* q) { return of(q).post_built(); }
void abort(ibv_qp_ex* q) { sends_of(q).abort(); }

constexpr std::uint64_t operations_of(ibv_qp_type type) {
  constexpr std::uint64_t of_datagrams = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr std::uint64_t of_connections =
      of_datagrams | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE |
      IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
  switch (type) {
  case IBV_QPT_RC:
    return of_connections | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
           IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  case IBV_QPT_UC:
    return of_connections;
  case IBV_QPT_UD:
    return of_datagrams;
  default:
    return 0;
  }
}

} // namespace

bool has_operations(ibv_qp_type type, std::uint64_t wanted) noexcept {
  return (wanted & ~(operations_of(type) & habits().built_requests)) == 0;
}

void extend(queue_pair& qp, std::uint64_t operations) noexcept {
  ibv_qp_ex& q = qp;
  const auto set = [operations](auto& builder, std::uint64_t asked, auto function) {
    if ((operations & asked) != 0)
      builder = function;
    else
      builder = not_asked_for;
  };
  set(q.wr_send, IBV_QP_EX_WITH_SEND, send);
  set(q.wr_send_imm, IBV_QP_EX_WITH_SEND_WITH_IMM, send_with_immediate);
  set(q.wr_send_inv, IBV_QP_EX_WITH_SEND_WITH_INV, send_with_invalidate);
  set(q.wr_rdma_write, IBV_QP_EX_WITH_RDMA_WRITE, remote<IBV_WR_RDMA_WRITE>);
  set(q.wr_rdma_write_imm, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, write_with_immediate);
  set(q.wr_rdma_read, IBV_QP_EX_WITH_RDMA_READ, remote<IBV_WR_RDMA_READ>);
  set(q.wr_atomic_cmp_swp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, compare_and_swap);
  set(q.wr_atomic_fetch_add, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, fetch_and_add);
  set(q.wr_bind_mw, IBV_QP_EX_WITH_BIND_MW, bind_window);
  set(q.wr_local_inv, IBV_QP_EX_WITH_LOCAL_INV, invalidate);
  // Operations that no queue pair of the device has.
  q.wr_send_tso = not_asked_for;
  q.wr_set_xrc_srqn = not_asked_for;
  q.wr_atomic_write = not_asked_for;
  q.wr_set_ud_addr = set_address;
  q.wr_set_sge = set_element;
  q.wr_set_sge_list = set_elements;
  q.wr_set_inline_data = set_inline;
  q.wr_set_inline_data_list = set_inline_list;
  q.wr_start = start;
  q.wr_complete = complete;
  q.wr_abort = soft::abort;
  qp.libibverbs_mask |= verbs_queue_pair::is_extended;
}

} // namespace soft

SOFT_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  if (!is_soft(qp->context))
    return SOFT_NEXT(ibv_qp_to_qp_ex)(qp);
  queue_pair& own = queue_pair::of(qp);
  return (own.libibverbs_mask & verbs_queue_pair::is_extended) != 0 ? &own : nullptr;
}
