// SPDX-License-Identifier: BSL-1.0
// The arguments and results of a connection's asynchronous functions.
#pragma once

#include <asio_rdma/detail/connection/connection_operations.hpp>
#include <asio_rdma/detail/queues/request.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/revocation.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

namespace asio_rdma::detail {

struct sent_result {
  using signature = void(error_code, std::size_t);
  static std::tuple<std::size_t> arguments(const operation& op) { return {op.value}; }
};

/// The result `Base` of an operation on the peer's memory. Handler tracking shows the name.
template <class Base, ibv_wr_opcode Opcode>
struct result_of : Base {
  static constexpr const char* name = Opcode == IBV_WR_RDMA_WRITE  ? "async_write"
                                      : Opcode == IBV_WR_RDMA_READ ? "async_read"
                                      : Opcode == IBV_WR_ATOMIC_CMP_AND_SWP
                                          ? "async_compare_and_swap"
                                          : "async_fetch_add";
};

/// The results of a wait for the end of a connection, and of a close.
struct ended_result : no_result {
  static constexpr const char* name = "async_wait_disconnect";
};
struct closed_result : no_result {
  static constexpr const char* name = "async_close";
};

struct message_result {
  using signature = void(error_code, message);
  static std::tuple<message> arguments(message_receive& op) { return {std::move(op.result)}; }
};

struct size_result {
  using signature = void(error_code, std::size_t);
  static std::tuple<std::size_t> arguments(const message_receive& op) { return {op.size}; }
};

struct immediate_result {
  using signature = void(error_code, std::uint32_t);
  static std::tuple<std::uint32_t> arguments(const message_receive& op) { return {op.word}; }
};

/// The payload of any Asio buffers. Valid during the initiation only.
template <class Buffers>
class payload_of : public payload {
public:
  explicit payload_of(const Buffers& buffers) noexcept {
    if constexpr (std::same_as<Buffers, registered_buffer>) {
      owner = &buffers;
      device_only = buffers.is_device_only();
    } else if constexpr (has_payload<Buffers>) {
      owner = &buffers.payload;
      device_only = owner->is_device_only();
    } else {
      registered = const_buffer_sequence<Buffers>;
      parts = parts_.data();
      for_each_buffer(buffers, [&](const const_buffer& b) {
        if (count == max_parts)
          too_many = true;
        else
          parts_[count++] = {b.data(), b.size(), b.lkey()};
        bytes += b.size();
        device_only = device_only || b.is_device_only();
        return true;
      });
    }
  }

private:
  // Asio takes at most 64 elements of a sequence at a time.
  static constexpr std::size_t max_parts = max_elements<Buffers>() == 1 ? 1 : 64;

  std::array<part, max_parts> parts_;
};

/// Neither memory that can be lent nor the peer's.
template <class T>
concept no_region = !std::convertible_to<const T&, const registered_buffer&> &&
                    !std::convertible_to<const T&, const remote_region&>;

struct region_result {
  using signature = void(error_code, remote_region);
  static std::tuple<remote_region> arguments(region_operation& op) {
    return {std::move(op.region)};
  }
};

struct arrival_result {
  using signature = void(error_code, received_region);
  static std::tuple<received_region> arguments(region_operation& op) {
    received_region result;
    if (op.region.is_open())
      result = std::move(op.region);
    else
      result = std::move(op.memory);
    result.tag = op.arrival.tag;
    return {std::move(result)};
  }
};

struct revocation_result {
  using signature = void(error_code, revocation);
  static constexpr const char* name = "async_revoke"; // for handler tracking
  static std::tuple<revocation> arguments(const region_operation& op) {
    return {revocation{op.recall.count, op.recall.unconfirmed}};
  }
};

inline remote_work work_on(const remote_buffer& target, ibv_wr_opcode opcode) {
  return {.opcode = opcode, .target = target, .region = nullptr};
}
inline remote_work work_on(const remote_region& target, ibv_wr_opcode opcode) {
  return {.opcode = opcode, .target = target.buffer(), .region = &target};
}

} // namespace asio_rdma::detail
