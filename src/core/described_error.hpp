// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <cstddef>
#include <new>
#include <string>

namespace asio_rdma::detail {

/// As `describe`. Returns the plain error if there are too many texts.
error_code described(error e, const std::string& text, std::size_t most_of_e);

/// An error with the text that `make_text` returns, in place of the error's usual message. It
/// compares equal to the plain error. The text is kept for ever. After so many texts of the error,
/// or 1000 in all, and if memory is lacking, the result is the plain error.
template <class Function>
error_code describe(error e, Function&& make_text, std::size_t most_of_e = 1000) noexcept {
  try {
    return described(e, make_text(), most_of_e);
  } catch (const std::bad_alloc&) {
    return e;
  }
}

} // namespace asio_rdma::detail
