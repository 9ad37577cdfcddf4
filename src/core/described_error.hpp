// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <new>
#include <string>

namespace asio_rdma::detail {

/// As `describe`. Returns the plain error if there are too many texts.
error_code described(error e, const std::string& text);

/// An error with the text that `make_text` returns, in place of the error's usual message. It
/// compares equal to the plain error. The text is kept for ever. After 200 texts of an error, or
/// 1000 in all, and if memory is lacking, the result is the plain error.
template <class Function>
error_code describe(error e, Function&& make_text) noexcept {
  try {
    return described(e, make_text());
  } catch (const std::bad_alloc&) {
    return e;
  }
}

} // namespace asio_rdma::detail
