// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>

#include <cstddef>
#include <new>
#include <string>

namespace asio_rdma::detail {

/// Of all errors together.
inline constexpr std::size_t most_texts = 1000;

/// As `describe`. Returns the plain error if there are too many texts.
error_code described(error e, const std::string& text, std::size_t most_of_e);

/// An error with the text that `make_text` returns, in place of the error's usual message. It
/// compares equal to the plain error. The text is kept for ever. After so many texts of the error,
/// or `most_texts` in all, and if memory is lacking, the result is the plain error.
template <class Function>
error_code describe(error e, Function&& make_text, std::size_t most_of_e = most_texts) noexcept {
  try {
    return described(e, make_text(), most_of_e);
  } catch (const std::bad_alloc&) {
    return e;
  }
}

} // namespace asio_rdma::detail
