// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <boost/intrusive/list.hpp>
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace asio_rdma::detail {

class work_queue;

/// What to do with an operation that has left its queue.
enum class disposal {
  complete_here, ///< Run the handler; this thread runs the completion queue's execution context.
  complete,      ///< Run the handler; this thread may be any.
  destroy        ///< Destroy the handler without running it.
};

/// An asynchronous operation: its place in one queue, its result, and one function that turns it
/// back into a handler. `wr_id` of its work request is its address.
class operation : public boost::intrusive::list_base_hook<
                      boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  using function = void (*)(operation*, disposal);

  explicit operation(function f) noexcept : function_(f) {}
  operation(const operation&) = delete;

  /// Frees the operation; whoever calls has taken it from its list.
  void dispose(disposal how) { function_(this, how); }

  error_code ec;
  std::uint32_t bytes = 0;     ///< Received, or of the local buffers.
  std::uint32_t word = 0;      ///< Immediate data (host order) or the key that was invalidated.
  unsigned flags = 0;          ///< `ibv_wc_flags` of the completion.
  std::uint32_t qp_num = 0;    ///< Whose completion it was.
  std::uint64_t value = 0;     ///< What an atomic operation found.
  std::uint64_t id = 0;        ///< Names the operation to a cancellation slot.
  work_queue* queue = nullptr; ///< Where it is, or was.

protected:
  ~operation() = default;

private:
  function function_;
};

using operation_list =
    boost::intrusive::list<operation, boost::intrusive::constant_time_size<false>>;

/// What a send work request asks for, before it has a queue and a handler.
template <std::size_t MaxBuffers>
struct send_request {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0; // ibv_send_flags, but for `signaled`
  bool unsignaled = false;
  std::uint32_t word = 0; // immediate data (network order) or the key to invalidate
  std::uint32_t rkey = 0;
  std::uint64_t remote = 0;
  std::uint64_t compare_add = 0, swap = 0;
  ibv_mw* window = nullptr;
  ibv_mw_bind_info bind{};
  int buffers = 0;
  std::uint32_t bytes = 0;
  error_code ec;
  std::array<ibv_sge, MaxBuffers> sges;
};

/// An operation of a send queue.
class send_operation : public operation {
public:
  using operation::operation;

  ibv_send_wr wr; // made by assign()
  bool unsignaled = false;
  std::uint32_t result_slot = 0; // an atomic operation's, while posted

  /// Fills the work request; the scatter/gather elements are taken from `sges`.
  template <std::size_t N>
  void assign(const send_request<N>& r, ibv_sge* sges) noexcept {
    wr.wr_id = reinterpret_cast<std::uintptr_t>(static_cast<operation*>(this));
    wr.next = nullptr;
    wr.sg_list = sges;
    wr.num_sge = r.buffers;
    wr.opcode = r.opcode;
    wr.send_flags = r.flags;
    wr.imm_data = r.word;
    unsignaled = r.unsignaled;
    bytes = r.bytes;
    switch (r.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
      break;
    case IBV_WR_BIND_MW:
      wr.bind_mw.mw = r.window;
      wr.bind_mw.rkey = r.rkey;
      wr.bind_mw.bind_info = r.bind;
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      wr.wr.atomic = {r.remote, r.compare_add, r.swap, r.rkey};
      break;
    default:
      wr.wr.rdma.remote_addr = r.remote;
      wr.wr.rdma.rkey = r.rkey;
    }
  }

  bool is_atomic() const noexcept {
    return wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
};

template <std::size_t MaxBuffers>
struct receive_request {
  int buffers = 0;
  error_code ec;
  std::array<ibv_sge, MaxBuffers> sges;
};

/// An operation of a receive queue, a queue pair's own or a shared one.
class receive_operation : public operation {
public:
  using operation::operation;

  ibv_recv_wr wr; // made by assign()

  template <std::size_t N>
  void assign(const receive_request<N>& r, ibv_sge* sges) noexcept {
    wr.wr_id = reinterpret_cast<std::uintptr_t>(static_cast<operation*>(this));
    wr.next = nullptr;
    wr.sg_list = sges;
    wr.num_sge = r.buffers;
  }
};

} // namespace asio_rdma::detail
