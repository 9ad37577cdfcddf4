// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>

#define NULL_DEVICE_EXPORT extern "C" __attribute__((visibility("default")))

namespace null_device {

constexpr unsigned max_sge = 4;
constexpr unsigned max_inline = 256;
constexpr unsigned max_depth = 1u << 15;

struct completion {
  std::uint64_t wr_id;
  std::uint32_t qp_num;
  std::uint32_t byte_len;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  std::uint32_t immediate; // or the key that was invalidated
  unsigned flags;
};

struct channel : ibv_comp_channel {
  std::deque<ibv_cq*> pending;
};

struct completion_queue : ibv_cq {
  std::unique_ptr<completion[]> ring;
  std::uint32_t mask = 0, head = 0, tail = 0;
  bool armed = false;
};

// The work request as a driver writes it for its device.
struct descriptor {
  std::uint64_t remote_address;
  std::uint32_t rkey;
  std::uint32_t opcode_flags;
  std::uint32_t immediate;
  std::uint32_t num_sge;
  union {
    ibv_sge sge[max_sge];
    char payload[max_inline];
  };
};

struct queue_pair : ibv_qp {
  queue_pair* peer = nullptr; // none: nothing moves
  std::unique_ptr<descriptor[]> send_ring;
  std::uint32_t send_mask = 0, send_tail = 0;
  struct receive {
    std::uint64_t wr_id;
    std::uint32_t num_sge;
    ibv_sge sge[max_sge];
  };
  std::unique_ptr<receive[]> receive_ring;
  std::uint32_t receive_mask = 0, receive_head = 0, receive_tail = 0;
  bool all_signaled = false;
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
};

inline std::uint32_t ring_size(std::uint32_t entries) {
  std::uint32_t n = 1;
  while (n < entries)
    n <<= 1;
  return n;
}

// The functions of the context's table.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int poll_cq(ibv_cq* cq, int n, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);

void flush_receives(queue_pair& qp);

/// The queue pair that has the number, or null.
queue_pair* find(std::uint32_t number);

} // namespace null_device
