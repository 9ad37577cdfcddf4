// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

/// The text with control characters written as \n, \t or \xNN, so that a name in it cannot end the
/// line.
inline std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto value = static_cast<unsigned char>(c);
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (value < 0x20 || value == 0x7f) {
      char code[5];
      std::snprintf(code, sizeof(code), "\\x%02x", unsigned(value));
      result += code;
    } else {
      result += c;
    }
  }
  return result;
}
