// SPDX-License-Identifier: BSL-1.0
// The handlers' arguments after the error code, as `handler_op` takes them from an operation.
#pragma once

#include <asio_rdma/detail/core/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace asio_rdma::detail {

struct bytes_result {
  using signature = void(error_code, std::size_t);
  static std::tuple<std::size_t> arguments(const operation& op) { return {op.bytes}; }
};

struct value_result {
  using signature = void(error_code, std::uint64_t);
  static std::tuple<std::uint64_t> arguments(const operation& op) { return {op.value}; }
};

struct no_result {
  using signature = void(error_code);
  static std::tuple<> arguments(const operation&) { return {}; }
};

} // namespace asio_rdma::detail
