// SPDX-License-Identifier: BSL-1.0
#include "remedies.hpp"

#include <algorithm>
#include <utility>

namespace info {

using place = remedy::place;

remedy by_root(const facts& f, std::string command) {
  return {std::move(command), true, f.container.empty() ? place::here : place::host};
}

remedy by_root_here(std::string command) { return {std::move(command), true, place::here}; }

remedy by_user(std::string command) { return {std::move(command), false, place::here}; }

remedy install(const facts& f, const std::string& part) {
  const std::string kin = ' ' + f.system + ' ' + f.like + ' ';
  const auto is = [&](const char* name) {
    return kin.find(' ' + std::string(name) + ' ') != std::string::npos;
  };
  const bool all = part == "core";
  std::string command;
  if (is("fedora") || is("rhel"))
    command = all ? "dnf install rdma-core libibverbs librdmacm" : "dnf install libibverbs";
  else if (is("suse") || is("opensuse"))
    command = all ? "zypper install rdma-core libibverbs1 librdmacm1" : "zypper install libibverbs";
  else if (is("arch"))
    command = "pacman -S rdma-core";
  else if (is("alpine"))
    command = "apk add rdma-core";
  else
    command = all ? "apt install rdma-core libibverbs1 librdmacm1 ibverbs-providers"
                  : "apt install ibverbs-providers";
  return {command, true, f.container.empty() ? place::here : place::image};
}

remedy start_container(const facts& f) {
  if (f.container == "kubernetes")
    return {"kubectl edit pod POD, with a resource of an RDMA device plugin such as "
            "rdma/hca_shared_devices_a: 1",
            false, place::host};
  if (f.container == "lxc")
    return {"lxc config device add CONTAINER infiniband disk source=/dev/infiniband "
            "path=/dev/infiniband",
            true, place::host};
  const std::string engine = f.container == "podman" ? "podman" : "docker";
  return {engine + " run --device=/dev/infiniband --ulimit memlock=-1 --network=host IMAGE", true,
          place::host};
}

remedy make_software_device(const facts& f) {
  const auto usable = [](const interface_facts& i) {
    return i.up && i.name != "lo" && !i.addresses.empty();
  };
  const auto found = std::find_if(f.interfaces.begin(), f.interfaces.end(), usable);
  const std::string interface = found != f.interfaces.end() ? found->name : "eth0";
  const bool has_rxe = f.modules.empty() || f.modules.front() == "rdma_rxe";
  return by_root(f, std::string("modprobe ") + (has_rxe ? "rdma_rxe" : "siw") +
                        " && rdma link add " + (has_rxe ? "rxe0 type rxe" : "siw0 type siw") +
                        " netdev " + interface);
}

} // namespace info
