// SPDX-License-Identifier: BSL-1.0
// Reads the facts from files. A folder may stand for /, so tests fake a machine by a folder.
#pragma once

#include "facts.hpp"
#include "files.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace info {

using interface_addresses = std::vector<std::pair<std::string, std::string>>; ///< Name, address.

/// The IP addresses of this network namespace's interfaces (getifaddrs(3)).
interface_addresses addresses_here();

struct source {
  std::string root = "/";
  /// The kernel shows addresses by a socket, not by a file.
  std::function<interface_addresses()> addresses = addresses_here;
  /// Whether files under /dev/infiniband are opened, which decides more than their permissions.
  bool opens_files = true;
};

/// All facts but `facts::tried`.
facts read_facts(const source& from);

// ---- its parts

user_facts read_user(const files& root);
std::string read_container(const files& root);
void read_libraries(const files& root, facts& to);
file_facts read_file(const files& root, const std::string& path, bool opens);
std::vector<interface_facts> read_interfaces(const files& root, const interface_addresses& known);
/// The devices, after the interfaces.
void read_devices(const files& root, bool opens, facts& to);
std::vector<adapter_facts> read_adapters(const files& root);
/// The file of a provider beside libibverbs, such as libmlx5-rdmav34.so.
std::optional<std::string> find_provider(const files& root, const std::string& provider);
/// The first of the folders of libraries that has the file, as a path; empty if none has it.
std::optional<std::string> find_library(const files& root, const std::string& file);

} // namespace info
