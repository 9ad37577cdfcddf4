// SPDX-License-Identifier: BSL-1.0
// The commands that mend faults.
#pragma once

#include "facts.hpp"
#include "finding.hpp"

#include <string>

namespace info {

/// A command for an administrator of the machine: of the host, if this is a container.
remedy by_root(const facts& f, std::string command);
/// A command for an administrator of this system or network namespace, container or not.
remedy by_root_here(std::string command);
/// A command that needs no rights.
remedy by_user(std::string command);
/// Installs a part of rdma-core: "core", "providers".
remedy install(const facts& f, const std::string& part);
/// Starts the container anew with the devices and without a limit on locked memory.
remedy start_container(const facts& f);
/// Makes a software device on this machine.
remedy make_software_device(const facts& f);

} // namespace info
