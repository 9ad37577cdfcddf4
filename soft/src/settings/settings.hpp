// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_SETTINGS_SETTINGS_HPP
#define SOFT_SETTINGS_SETTINGS_HPP

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>

namespace soft {

/// What a user has set, by ASIO_RDMA_SOFT or `soft_set`.
struct settings {
  std::chrono::nanoseconds latency{0}; ///< from a post to its effect, within a process
  double rate = 0; ///< bits per second of a queue pair's wire within a process; 0: any
};

/// What is wrong with a text of settings.
struct settings_error {
  std::size_t position = 0, length = 0; ///< of the part that is wrong
  const char* what = "";
};

/// Reads a comma separated list of settings: soft/README.md.
std::optional<settings_error> parse(std::string_view text, settings& to);

} // namespace soft

#endif
