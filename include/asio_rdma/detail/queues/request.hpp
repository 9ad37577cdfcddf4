// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/verbs/flush.hpp>
#include <asio_rdma/detail/verbs/scatter_gather.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/error.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

// The requests of asynchronous functions, as plain values that an initiation carries and that fill
// an operation in place. Each kind is as small as possible, because requests are built and copied
// for every operation.

namespace asio_rdma::detail {

/// An error that was detected while the request was built. `long_message` and `device_only` are
/// none by themselves: the queue pair compares the request with the device's limit, and does not
/// let the CPU access the memory (`const_buffer::is_device_only`).
enum class request_error : std::uint8_t {
  none,
  long_message,
  device_only,
  too_many_buffers,
  message_size,
  remote_range,
  misaligned,
  no_placement,
  not_open
};

inline error_code make_error_code(request_error e) noexcept {
  switch (e) {
  case request_error::none:
  case request_error::long_message:
  case request_error::device_only:
    return {};
  case request_error::too_many_buffers:
    return error::too_many_buffers;
  case request_error::message_size:
    return asio::error::message_size;
  case request_error::remote_range:
    return error::remote_range;
  case request_error::misaligned:
    return error::misaligned;
  case request_error::no_placement:
    return asio::error::invalid_argument;
  case request_error::not_open:
    return asio::error::bad_descriptor;
  }
  return {};
}

constexpr bool is_error(request_error e) noexcept { return e > request_error::device_only; }

/// The most elements that an operation on such buffers needs.
template <class Buffers>
constexpr std::size_t max_elements() {
  if constexpr (std::convertible_to<Buffers, const_buffer>)
    return 1;
  else if constexpr (requires { std::tuple_size<Buffers>::value; })
    return std::tuple_size<Buffers>::value == 0 ? 1 : std::tuple_size<Buffers>::value;
  else
    return 16;
}

/// The scatter/gather elements of a buffer sequence, without empty buffers.
template <std::size_t N>
struct elements {
  static constexpr std::size_t max_elements = N;
  /// The longest message of any device (ibv_port_attr, `max_msg_sz`).
  static constexpr std::uint64_t max_bytes = std::uint64_t(1) << 31;
  /// A message up to this is shorter than the limit of any device with reliable connections; the
  /// lowest known is 8 MiB, of rxe. So it is compared with no other limit.
  static constexpr std::uint64_t short_bytes = std::uint64_t(1) << 20;

  elements() noexcept = default;

  template <class Buffers>
  explicit elements(const Buffers& buffers) {
    if constexpr (std::convertible_to<Buffers, const_buffer>) {
      const const_buffer b = buffers;
      sges[0] = element_of(b);
      count = 1;
      bytes = static_cast<std::uint32_t>(b.size());
      if (b.size() - 1 >= short_bytes || b.is_device_only()) [[unlikely]] { // also if it is empty
        count = b.size() != 0 ? 1 : 0;
        note(b, b.size());
      }
    } else {
      std::uint64_t total = 0;
      for (const const_buffer b : buffers) {
        if (b.size() == 0)
          continue;
        total += b.size();
        note(b, total);
        if (count == N && !is_error(problem))
          problem = request_error::too_many_buffers;
        if (is_error(problem))
          return;
        sges[count++] = element_of(b);
      }
      bytes = static_cast<std::uint32_t>(total);
    }
  }

  void copy_to(ibv_sge* to) const noexcept {
    if constexpr (N == 1) {
      to[0] = sges[0];
    } else {
      for (std::uint32_t i = 0; i < count; ++i)
        to[i] = sges[i];
    }
  }

  std::array<ibv_sge, N> sges;
  std::uint32_t count = 0;
  std::uint32_t bytes = 0;
  request_error problem = request_error::none;

private:
  // `total`: the bytes up to the end of `b`. Of two problems, the later enumerator remains.
  void note(const const_buffer& b, std::uint64_t total) noexcept {
    if (b.size() > max_bytes || total > max_bytes)
      problem = request_error::message_size;
    else if (b.is_device_only())
      problem = std::max(problem, request_error::device_only);
    else if (total > short_bytes)
      problem = std::max(problem, request_error::long_message);
  }
};

/// SEND and its variants.
template <std::size_t N>
struct send_request : elements<N> {
  template <class Buffers>
  send_request(ibv_wr_opcode o, unsigned f, std::uint32_t w, const Buffers& buffers)
      : elements<N>(buffers), opcode(o), flags(f), word(w) {}

  void fill(send_operation& op, ibv_sge* to) const noexcept {
    this->copy_to(to);
    op.wr.sg_list = to;
    op.wr.num_sge = static_cast<int>(this->count);
    op.wr.opcode = opcode;
    op.wr.send_flags = flags;
    op.wr.imm_data = word;
    op.bytes = this->bytes;
    op.usual = N == 1 && (flags & (IBV_SEND_SIGNALED | IBV_SEND_FENCE)) == IBV_SEND_SIGNALED;
    op.inline_bytes = this->bytes;
  }

  ibv_wr_opcode opcode;
  unsigned flags;     // ibv_send_flags
  std::uint32_t word; // immediate data in network order, or the key to invalidate
};

/// SEND with invalidate. siw takes the key from the RDMA field, and does not support inline.
template <std::size_t N>
struct invalidate_request : send_request<N> {
  using send_request<N>::send_request;

  void fill(send_operation& op, ibv_sge* to) const noexcept {
    send_request<N>::fill(op, to);
    op.wr.wr.rdma.rkey = this->word;
    op.inline_bytes = send_operation::never_inline;
  }
};

/// RDMA READ and WRITE.
template <std::size_t N>
struct remote_request : send_request<N> {
  template <class Buffers>
  remote_request(ibv_wr_opcode o, unsigned f, std::uint32_t w, const Buffers& buffers,
                 const remote_buffer& target)
      : send_request<N>(o, f, w, buffers), address(target.address), rkey(target.rkey) {
    if (!is_error(this->problem) && this->bytes > target.size)
      this->problem = request_error::remote_range;
  }

  void fill(send_operation& op, ibv_sge* to) const noexcept {
    send_request<N>::fill(op, to);
    op.wr.wr.rdma = {address, rkey};
    if (this->opcode == IBV_WR_RDMA_READ) {
      op.wr.num_sge = give_read_element(to, op.wr.num_sge);
      op.inline_bytes = send_operation::never_inline;
    }
  }

  std::uint64_t address;
  std::uint32_t rkey;
};

/// An atomic operation. The queue pair provides the memory for the previous value.
struct atomic_request {
  static constexpr std::size_t max_elements = 1;

  atomic_request(ibv_wr_opcode o, unsigned f, const remote_buffer& target,
                 std::uint64_t compare_or_add, std::uint64_t swap_value)
      : opcode(o),
        flags(f),
        address(target.address),
        rkey(target.rkey),
        compare_add(compare_or_add),
        swap(swap_value) {
    if (target.size < sizeof(std::uint64_t))
      problem = request_error::remote_range;
    else if (target.address % sizeof(std::uint64_t) != 0)
      problem = request_error::misaligned;
  }

  void fill(send_operation& op, ibv_sge* to) const noexcept {
    op.wr.sg_list = to;
    op.wr.num_sge = 1;
    op.wr.opcode = opcode;
    op.wr.send_flags = flags;
    op.wr.imm_data = 0;
    op.wr.wr.atomic = {address, compare_add, swap, rkey};
    op.bytes = sizeof(std::uint64_t);
    op.usual = false;
    op.inline_bytes = send_operation::never_inline;
  }

  ibv_wr_opcode opcode;
  unsigned flags;
  request_error problem = request_error::none;
  std::uint64_t address;
  std::uint32_t rkey;
  std::uint64_t compare_add, swap;
};

/// FLUSH of a range of the peer's memory: see `post_flush`.
struct flush_request {
  static constexpr std::size_t max_elements = 1;

  flush_request(const remote_buffer& r, placement w, unsigned f) noexcept
      : range(r), what(w), flags(f) {
    if (r.size > elements<1>::max_bytes)
      problem = request_error::message_size;
    if (w == placement())
      problem = request_error::no_placement;
  }

  void fill(send_operation& op, ibv_sge* to) const noexcept {
    to[0] = {0, static_cast<std::uint32_t>(range.size), 0};
    op.wr.sg_list = to;
    op.wr.num_sge = 0;
    op.wr.opcode = flush_opcode;
    op.wr.send_flags = flags;
    op.wr.imm_data = static_cast<unsigned>(what);
    op.wr.wr.rdma = {range.address, range.rkey};
    op.bytes = 0;
    op.usual = false;
    op.inline_bytes = send_operation::never_inline;
  }

  remote_buffer range;
  placement what;
  unsigned flags; // ibv_send_flags
  request_error problem = request_error::none;
};

#pragma GCC visibility push(default)
ibv_mw* native_handle(const memory_window_impl& window) noexcept;
#pragma GCC visibility pop

/// The binding of a memory window. Its key is set at the start.
struct bind_request {
  static constexpr std::size_t max_elements = 1;

  bind_request() noexcept = default;
  bind_request(std::shared_ptr<memory_window_impl> w, const ibv_mw_bind_info& i,
               unsigned f) noexcept
      : window(std::move(w)), info(i), flags(f) {}

  void fill(bind_operation& op, ibv_sge*) const noexcept {
    op.window = window;
    op.wr.sg_list = nullptr;
    op.wr.num_sge = 0;
    op.wr.opcode = IBV_WR_BIND_MW;
    op.wr.send_flags = flags;
    op.wr.imm_data = 0; // required by rxe
    op.wr.bind_mw = {native_handle(*window), 0, info};
    op.bytes = 0;
    op.usual = false;
    op.inline_bytes = send_operation::never_inline;
  }

  std::shared_ptr<memory_window_impl> window;
  ibv_mw_bind_info info{};
  unsigned flags = 0; // ibv_send_flags
  request_error problem = request_error::none;
};

/// RECEIVE.
template <std::size_t N>
struct receive_request : elements<N> {
  using elements<N>::elements;

  void fill(receive_operation& op, ibv_sge* to) const noexcept {
    this->copy_to(to);
    op.wr.sg_list = to;
    op.wr.num_sge = static_cast<int>(this->count);
  }
};

/// The request of a wait: no data.
struct no_request {
  static constexpr std::size_t max_elements = 0;
  static constexpr request_error problem = request_error::none;
  template <class Operation>
  void fill(Operation&, ibv_sge*) const noexcept {}
};

} // namespace asio_rdma::detail
