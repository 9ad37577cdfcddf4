// SPDX-License-Identifier: BSL-1.0
// The arguments of the program.
#pragma once

#include "request.hpp"

#include <cstdint>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace perf {

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr const char* default_port = "18531";

/// A host and a port of TCP.
struct place {
  std::string host; ///< Empty: this machine for a client, all addresses for a server.
  std::string port = default_port;
};
/// HOST, HOST:PORT, :PORT, an IPv6 address, or [ADDRESS]:PORT. Throws `usage_error`.
place parse_place(std::string text);

struct options {
  bool help = false, listen = false;
  /// Whether there is a progress line; empty: if it is on a terminal.
  std::optional<bool> progress;
  place where;
  std::string device; ///< Empty: the one that has the address of the connection, or the best one.
  // Of a client.
  std::vector<kind> kinds{std::begin(all_kinds), std::end(all_kinds)};
  std::vector<mode> modes{std::begin(all_modes), std::end(all_modes)};
  std::vector<metric> metrics{std::begin(all_metrics), std::end(all_metrics)};
  std::vector<std::uint64_t> sizes{64, 4096, 65536, 1048576};
  double seconds = 0.2;
  std::uint32_t window = 64;
  memory_limits memory;
  std::string json, svg; ///< Files; empty: none.
  // Of a server.
  double session = 3600;     ///< Seconds that a client may take in all.
  std::uint64_t clients = 0; ///< The server ends after as many; 0: never.
};

/// Throws `usage_error`.
options parse_options(const std::vector<std::string>& words);

std::string help_text();

} // namespace perf
