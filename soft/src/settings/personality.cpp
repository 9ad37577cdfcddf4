// SPDX-License-Identifier: BSL-1.0
// The table of personalities. The comment of a line names where it was read: p/ is providers/ of
// rdma-core 64, k/ is drivers/infiniband/hw/ of the kernel. Nothing here was measured on an
// adapter.
#include "settings/personality.hpp"

#include <algorithm>
#include <cerrno>

namespace soft {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t transfers = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                    IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
constexpr std::uint64_t keys =
    IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;

} // namespace

// The device as it is without settings: the limits of the software device itself.
constexpr personality plain{
    .name = "plain",
    .vendor = 0x50f7, // of no adapter
    .part = 0,
    .send_elements = 32,
    .receive_elements = 32,
    .read_elements = 32,
    .inline_bytes = 512,
    .message_bytes = 1u << 31,
    .datagram_bytes = 4096,
    .reads = 128,
    .reliable = true,
    .unreliable = true,
    .datagrams = true,
    .shared_receives = true,
    .window_flags = true,
    .windows = 1 << 19,
    .no_windows = 0,
    .atomics = IBV_ATOMIC_GLOB,
    .built_requests = transfers | keys,
    .on_demand = true,
    .dma_bufs = true,
    .ece_vendor = 0,
    .ece_options = 0,
    .drops_completions = false, // as rxe and siw
    .late_last_wqe = 0ns,
    .copied_at_poll = 0,
    .eio_after_removal = false,
    .removal = 0ns,
    .locks_memory = false, // so that containers with Docker's limit have room
    .header_in_sl = true,  // UCX needs it
    .grh_required = false,
    .stale_rejects = 0,
    .create = 0ns,
    .destroy = 0ns,
    .register_memory = 0ns,
    .register_byte_ns = 0,
    .latency = 0ns,
};

namespace {

constexpr personality mlx5{
    .name = "mlx5",
    .vendor = 0x02c9,          // ibv_devinfo of ConnectX adapters
    .part = 0x1017,            // p/mlx5/mlx5.c: ConnectX-5
    .send_elements = 30,       // libfabric PR 9940: max_sge 30 of ibv_devinfo
    .receive_elements = 32,    // p/mlx5/verbs.c mlx5_calc_rcv_wqe: 512 bytes of 16-byte elements
    .read_elements = 30,       // libfabric PR 9940: max_sge_rd 30
    .inline_bytes = 828,       // p/mlx5/verbs.c _sq_overhead: 1024 - 192 - 4 bytes for RC
    .message_bytes = 1u << 30, // UCX 10430: max_msg_sz 0x40000000
    .datagram_bytes = 4096,    // man ibv_query_port: the port's MTU
    .reads = 16,               // libfabric PR 9940: max_qp_rd_atom 16
    .reliable = true,          // p/mlx5/verbs.c sq_overhead
    .unreliable = true,        // p/mlx5/verbs.c sq_overhead
    .datagrams = true,         // p/mlx5/verbs.c sq_overhead
    .shared_receives = true,   // UCX 10317: max_srq 8388608
    .window_flags = true,      // UCX 8229: MEM_WINDOW
    .windows = 1 << 19,        // UCX 10317: max_mw 16777216; here the software device's limit
    .no_windows = 0,           // p/mlx5/mlx5.c: alloc_mw
    .atomics = IBV_ATOMIC_HCA, // k/mlx5/main.c; UCX 10317: ATOMIC_HCA
    .built_requests = transfers | keys, // p/mlx5/qp.c mlx5_qp_fill_wr_pfns
    .on_demand = true,                  // k/mlx5/odp.c mlx5_odp_populate_caps
    .dma_bufs = true,                   // p/mlx5/mlx5.c: reg_dmabuf_mr
    .ece_vendor = 0x15b3,               // p/mlx5/verbs.c mlx5_query_ece
    .ece_options = 0x30000002,          // query_ece in logs of NCCL
    .drops_completions = true, // p/mlx5/verbs.c mlx5_destroy_qp, p/mlx5/cq.c __mlx5_cq_clean
    .late_last_wqe = 23ms,     // libvma PR 101: a flush takes 23000 us on ConnectX-4
    .copied_at_poll = 32,      // p/mlx5/qp.c copy_to_scat; k/mlx5 MLX5_RES_SCAT_DATA32_CQE
    .eio_after_removal = true, // libibverbs/cmd_write.h verbs_is_destroy_err
    .removal = 0ns,            // no figure found
    .locks_memory = true,      // ib_umem_get of the kernel
    .header_in_sl = true,      // p/mlx5/cq.c handle_responder; UCX PR 6317
    .grh_required = true,      // k/mlx5/main.c: grh_required of the port's context
    .stale_rejects = 0,        // SPDK 450: after a peer was lost only
    .create = 100us,           // arXiv 2201.11578, libfabric 7880: tens of us to tens of ms
    .destroy = 100us,          // ceph PR 34780: the same
    .register_memory = 16us,   // UCX src/uct/ib/base/ib_md.c
    .register_byte_ns = 0.06,  // UCX src/uct/ib/base/ib_md.c
    .latency = 800ns,          // UCX's model: 600 ns from ConnectX-4 on, 200 ns more for RoCE
};

// k/irdma/hw.c irdma_set_flush_fields, with the status of each `flush_code`.
ibv_event_type irdma_event(ibv_wc_status status) {
  switch (status) {
  case IBV_WC_LOC_PROT_ERR:
  case IBV_WC_REM_ACCESS_ERR:
  case IBV_WC_MW_BIND_ERR:
    return IBV_EVENT_QP_ACCESS_ERR;
  case IBV_WC_REM_INV_REQ_ERR:
    return IBV_EVENT_QP_REQ_ERR;
  default: // also after too many retries
    return IBV_EVENT_QP_FATAL;
  }
}

// k/bnxt_re/main.c bnxt_re_handle_qp_async_event, since Linux 6.7: the first list is that of REQ_
// TIMEOUT_RETRY_LIMIT, RNR_TIMEOUT_RETRY_LIMIT, NAK_ARRIVAL_2, NAK_ARRIVAL_3 and ILLEGAL_BIND. The
// event comes in place of IBV_EVENT_QP_LAST_WQE_REACHED.
ibv_event_type bnxt_re_event(ibv_wc_status status) {
  switch (status) {
  case IBV_WC_RETRY_EXC_ERR:
  case IBV_WC_RNR_RETRY_EXC_ERR:
  case IBV_WC_REM_ACCESS_ERR:
  case IBV_WC_REM_OP_ERR:
  case IBV_WC_MW_BIND_ERR:
    return IBV_EVENT_QP_ACCESS_ERR;
  case IBV_WC_REM_INV_REQ_ERR: // NAK_ARRIVAL_1
    return IBV_EVENT_QP_REQ_ERR;
  default:
    return IBV_EVENT_QP_FATAL;
  }
}

// The driver outside the kernel's tree, on E810.
constexpr personality irdma{
    .name = "irdma",
    .vendor = 0x8086,                // k/irdma/verbs.c irdma_query_device: that of PCI
    .part = 0x1592,                  // p/irdma/ice_devids.h: E810-C
    .send_elements = 6,              // 3FS 192: max_sge 6 of ibv_devinfo; 13 in p/irdma/user.h
    .receive_elements = 6,           // 3FS 192: the same
    .read_elements = 6,              // 3FS 192: max_sge_rd 6
    .inline_bytes = 101,             // p/irdma/user.h IRDMA_MAX_INLINE_DATA_SIZE
    .message_bytes = (1u << 31) - 1, // p/irdma/user.h IRDMA_MAX_OUTBOUND_MSG_SIZE
    .datagram_bytes = 4096,          // k/irdma/verbs.c irdma_query_port: max_mtu
    .reads = 8,                      // 3FS 192: max_qp_rd_atom 8
    .reliable = true,                // k/irdma/verbs.c irdma_validate_qp_attrs
    .unreliable = false,             // k/irdma/verbs.c irdma_validate_qp_attrs: RC and UD
    .datagrams = true,               // k/irdma/verbs.c irdma_validate_qp_attrs
    .shared_receives = false,        // 3FS 192: max_srq 0
    .window_flags = true,            // 3FS 192: MEM_WINDOW_TYPE_2B
    .windows = 0,                    // 3FS 192: max_mw 0
    .no_windows = ENOMEM,            // 3FS 192: max_mw 0
    .atomics = IBV_ATOMIC_NONE,      // 3FS 192: ATOMIC_NONE; p/irdma/uverbs.c: post fails
    .built_requests = 0,             // p/irdma/umain.c: no create_qp_ex
    .on_demand = false,              // k/irdma/verbs.c: no such capability
    .dma_bufs = true,                // k/irdma/verbs.c irdma_reg_user_mr_dmabuf
    .ece_vendor = 0,                 // p/irdma/umain.c: no query_ece
    .ece_options = 0,                // the same
    .drops_completions = true,       // p/irdma/uverbs.c irdma_udestroy_qp, p/irdma/uk.c
    .late_last_wqe = 0ns,            // no shared receive queues
    .copied_at_poll = 0,             // p/irdma has no such copy
    .eio_after_removal = true,       // libibverbs/cmd_write.h verbs_is_destroy_err
    .removal = 0ns,                  // no figure found
    .locks_memory = true,            // ib_umem_get of the kernel
    .header_in_sl = false,           // UCX PR 10209: irdma does not set it
    .grh_required = false,           // k/irdma/verbs.c irdma_query_port does not set it
    .untold_route = true,            // k/irdma/verbs.c irdma_query_qp sets neither
    .stale_rejects = 0,              // SPDK 450: after a peer was lost only
    .create = 0ns,                   // no figure found
    .destroy = 0ns,                  // no figure found
    .register_memory = 0ns,          // no figure found
    .register_byte_ns = 0,           // no figure found
    .latency = 0ns,                  // no figure found
    .event_of_failure = irdma_event,
};

constexpr personality bnxt_re{
    .name = "bnxt_re",
    .vendor = 0x14e4,            // p/bnxt_re/main.c
    .part = 0x1750,              // p/bnxt_re/main.c: BCM57508
    .send_elements = 6,          // k/bnxt_re/qplib_sp.c bnxt_qplib_get_dev_attr: 6 on the P5 chips
    .receive_elements = 6,       // k/bnxt_re/ib_verbs.c bnxt_re_query_device: the same
    .read_elements = 6,          // k/bnxt_re/ib_verbs.c bnxt_re_query_device: the same
    .inline_bytes = 96,          // p/bnxt_re/bnxt_re-abi.h BNXT_RE_MAX_INLINE_SIZE
    .message_bytes = 1u << 30,   // k/bnxt_re/bnxt_re.h BNXT_RE_MAX_MR_SIZE_LOW
    .datagram_bytes = 4096,      // k/bnxt_re/ib_verbs.c bnxt_re_query_port: max_mtu
    .reads = 126,                // k/bnxt_re/qplib_sp.h BNXT_QPLIB_MAX_OUT_RD_ATOM
    .reliable = true,            // p/bnxt_re/verbs.c bnxt_re_check_qp_limits
    .unreliable = false,         // p/bnxt_re/verbs.c bnxt_re_check_qp_limits: RC and UD
    .datagrams = true,           // p/bnxt_re/verbs.c bnxt_re_check_qp_limits
    .shared_receives = true,     // k/bnxt_re/ib_verbs.c bnxt_re_query_device: max_srq
    .window_flags = true,        // k/bnxt_re/ib_verbs.c: IB_DEVICE_MEM_WINDOW_TYPE_2B
    .windows = 1 << 16,          // k/bnxt_re/bnxt_re.h BNXT_RE_MAX_MRW_COUNT
    .no_windows = EOPNOTSUPP,    // p/bnxt_re/main.c: no alloc_mw
    .atomics = IBV_ATOMIC_GLOB,  // k/bnxt_re/ib_verbs.c: with PCIe atomics, else NONE
    .built_requests = transfers, // p/bnxt_re/verbs.c bnxt_re_set_qp_ex_ops
    .on_demand = false,          // k/bnxt_re/main.c: no such capability
    .dma_bufs = true,            // k/bnxt_re/main.c: reg_user_mr_dmabuf
    .ece_vendor = 0,             // p/bnxt_re/main.c: no query_ece
    .ece_options = 0,            // the same
    .drops_completions = true,   // p/bnxt_re/verbs.c bnxt_re_destroy_qp, bnxt_re_cleanup_cq
    .late_last_wqe = 0ns,        // no figure found
    .copied_at_poll = 0,         // p/bnxt_re has no such copy
    .eio_after_removal = true,   // libibverbs/cmd_write.h verbs_is_destroy_err
    .removal = 0ns,              // no figure found
    .locks_memory = true,        // ib_umem_get of the kernel
    .header_in_sl = true,        // p/bnxt_re/verbs.c bnxt_re_fill_ud_cqe: 2 and 3, without bit 3
    .grh_required = false,       // k/bnxt_re/ib_verbs.c bnxt_re_query_port does not set it
    .stale_rejects = 0,          // SPDK 450: after a peer was lost only
    .create = 0ns,               // no figure found
    .destroy = 0ns,              // no figure found
    .register_memory = 0ns,      // no figure found
    .register_byte_ns = 0,       // no figure found
    .latency = 0ns,              // no figure found
    .last_wqe_only_without_error = true,
    .event_of_failure = bnxt_re_event,
};

constexpr personality erdma{
    .name = "erdma",
    .vendor = 0x1ded,           // p/erdma/erdma.c: PCI_VENDOR_ID_ALIBABA
    .part = 0x107f,             // p/erdma/erdma.c
    .send_elements = 6,         // k/erdma/erdma_verbs.h ERDMA_MAX_SEND_SGE
    .receive_elements = 1,      // k/erdma/erdma_verbs.h ERDMA_MAX_RECV_SGE
    .read_elements = 1,         // k/erdma/erdma_verbs.h ERDMA_MAX_SGE_RD
    .inline_bytes = 96,         // k/erdma/erdma_verbs.h ERDMA_MAX_INLINE: 6 elements of 16 bytes
    .message_bytes = 1u << 31,  // k/erdma/erdma_verbs.c erdma_query_port: max_msg_sz is -1
    .datagram_bytes = 4096,     // no datagrams
    .reads = 128,               // k/erdma/erdma_verbs.h ERDMA_MAX_ORD, ERDMA_MAX_IRD
    .reliable = true,           // k/erdma/erdma_verbs.c erdma_qp_validate_attr
    .unreliable = false,        // k/erdma/erdma_verbs.c erdma_qp_validate_attr: RC only
    .datagrams = false,         // k/erdma/erdma_verbs.c erdma_qp_validate_attr: RC only
    .shared_receives = false,   // k/erdma/erdma_verbs.c erdma_qp_validate_attr: EOPNOTSUPP
    .window_flags = false,      // k/erdma/erdma_verbs.c erdma_query_device: no MEM_WINDOW
    .windows = 1,               // k/erdma/erdma_main.c: 1 << MAX_MW of the firmware, so at least 1
    .no_windows = EOPNOTSUPP,   // p/erdma/erdma.c: no alloc_mw
    .atomics = IBV_ATOMIC_GLOB, // k/erdma/erdma_verbs.c erdma_query_device
    .built_requests = 0,        // p/erdma/erdma.c: no create_qp_ex
    .on_demand = false,         // k/erdma/erdma_main.c: no such capability
    .dma_bufs = false,          // p/erdma/erdma.c: no reg_dmabuf_mr
    .ece_vendor = 0,            // p/erdma/erdma.c: no query_ece
    .ece_options = 0,           // the same
    .drops_completions = true,  // p/erdma/erdma_verbs.c: completions of an unknown queue pair
    .late_last_wqe = 0ns,       // no shared receive queues
    .copied_at_poll = 0,        // p/erdma has no such copy
    .eio_after_removal = true,  // libibverbs/cmd_write.h verbs_is_destroy_err
    .removal = 0ns,             // no figure found
    .locks_memory = true,       // ib_umem_get of the kernel
    .header_in_sl = false,      // no datagrams
    .grh_required = false,      // k/erdma/erdma_verbs.c erdma_query_port does not set it
    .stale_rejects = 0,         // the connection manager is iWARP's, which has no such reason
    .create = 0ns,              // no figure found
    .destroy = 0ns,             // no figure found
    .register_memory = 0ns,     // no figure found
    .register_byte_ns = 0,      // no figure found
    .latency = 0ns,             // no figure found
};

constexpr personality efa{
    .name = "efa",
    .vendor = 0x1d0f,         // p/efa/efa.c: PCI_VENDOR_ID_AMAZON
    .part = 0xefa3,           // p/efa/efa.c; the adapter of the lines below
    .send_elements = 2,       // k/efa/efa_verbs.c: max_sq_sge; ibv_devinfo on 0xEFA3: max_sge 2
    .receive_elements = 2,    // k/efa/efa_verbs.c: max_rq_sge; the same
    .read_elements = 1,       // k/efa/efa_verbs.c: max_wr_rdma_sge; there is no RC that would READ
    .inline_bytes = 32,       // libfabric PR 12858: the regular entry of the send queue
    .message_bytes = 8192,    // k/efa/efa_verbs.c efa_query_port: the MTU; man fi_efa: about 8 KiB
    .datagram_bytes = 8192,   // k/efa/efa_verbs.c efa_query_port: the MTU
    .reads = 0,               // ibv_devinfo on 0xEFA3: max_qp_rd_atom 0
    .reliable = false,        // k/efa/efa_verbs.c efa_qp_validate_attr: EOPNOTSUPP
    .unreliable = false,      // k/efa/efa_verbs.c efa_qp_validate_attr: EOPNOTSUPP
    .datagrams = true,        // k/efa/efa_verbs.c efa_qp_validate_attr: UD, and SRD of its own
    .shared_receives = false, // k/efa/efa_verbs.c efa_qp_validate_attr: EOPNOTSUPP
    .window_flags = false,    // ibv_devinfo on 0xEFA3: device_cap_flags 0
    .windows = 0,             // k/efa/efa_verbs.c efa_query_device does not set it
    .no_windows = EOPNOTSUPP, // p/efa/efa.c: no alloc_mw
    .atomics = IBV_ATOMIC_NONE,  // ibv_devinfo on 0xEFA3: ATOMIC_NONE
    .built_requests = transfers, // p/efa/verbs.c efa_qp_fill_wr_pfns
    .on_demand = false,          // k/efa/efa_main.c: no such capability
    .dma_bufs = true,            // p/efa/efa.c: reg_dmabuf_mr
    .ece_vendor = 0,             // p/efa/efa.c: no query_ece
    .ece_options = 0,            // the same
    .drops_completions = true,   // p/efa/verbs.c efa_destroy_qp: the queue pair leaves the table
    .late_last_wqe = 0ns,        // no shared receive queues
    .copied_at_poll = 0,         // p/efa has no such copy
    .eio_after_removal = true,   // libibverbs/cmd_write.h verbs_is_destroy_err
    .removal = 0ns,              // no figure found
    .locks_memory = true,        // ib_umem_get of the kernel
    .header_in_sl = false,       // p/efa/verbs.c: 0
    .grh_required = false,       // k/efa/efa_verbs.c efa_query_port does not set it
    .stale_rejects = 0,          // rdma_cm does not connect by datagrams here
    .create = 0ns,               // no figure found
    .destroy = 0ns,              // no figure found
    .register_memory = 0ns,      // no figure found
    .register_byte_ns = 0,       // no figure found
    .latency = 0ns,              // no figure found
};

constexpr const personality* all[] = {&plain, &mlx5, &irdma, &bnxt_re, &erdma, &efa};

} // namespace

const personality* find_personality(std::string_view name) noexcept {
  const auto found = std::find_if(std::begin(all), std::end(all),
                                  [&](const personality* p) { return p->name == name; });
  return found == std::end(all) ? nullptr : *found;
}

} // namespace soft
