// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>

namespace asio_rdma::detail {

/// A string of JSON (RFC 8259, section 7). The installed programs use it, too, so it needs nothing
/// of the library.
inline std::string json_text(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (result += '\\') += c;
    else if (code < 0x20)
      ((result += "\\u00") += digits[code >> 4]) += digits[code & 15];
    else
      result += c;
  }
  return result += '"';
}

} // namespace asio_rdma::detail
