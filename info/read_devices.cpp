// SPDX-License-Identifier: BSL-1.0
// The facts of devices, their ports, and adapters whose driver for RDMA is not loaded.
#include "addresses.hpp"
#include "read_facts.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace info {
namespace {

/// The names of a driver: of the PCI function, of the module for RDMA if it is another one, and of
/// the provider in rdma-core.
struct driver {
  const char *pci, *module, *provider;
};
constexpr driver drivers[] = {
    {"mlx5_core", "mlx5_ib", "mlx5"},
    {"mlx4_core", "mlx4_ib", "mlx4"},
    {"bnxt_en", "bnxt_re", "bnxt_re"},
    {"ice", "irdma", "irdma"},
    {"i40e", "irdma", "irdma"},
    {"idpf", "irdma", "irdma"},
    {"qede", "qedr", "qedr"},
    {"cxgb4", "iw_cxgb4", "cxgb4"},
    {"hns3", "hns_roce_hw_v2", "hns"},
    {"mana", "mana_ib", "mana"},
    {"be2net", "ocrdma", "ocrdma"},
    {"ionic", "ionic_rdma", "ionic"},
    {"efa", "", "efa"},
    {"erdma", "", "erdma"},
    {"vmw_pvrdma", "", "vmw_pvrdma"},
    {"ib_mthca", "", "mthca"},
    {"hfi1", "", "hfi1verbs"},
    {"ib_qib", "", "ipathverbs"},
    {"hns_roce_hw_v2", "", "hns"},
    {"rxe", "", "rxe"},
    {"siw", "", "siw"},
};

const driver* find_driver(const std::string& name) {
  const auto found = std::find_if(std::begin(drivers), std::end(drivers),
                                  [&](const driver& d) { return name == d.pci; });
  return found != std::end(drivers) ? &*found : nullptr;
}

/// The word of "4: ACTIVE".
std::string meaning(const std::string& line) {
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

bool is_zero(const std::string& gid) { return gid.find_first_not_of("0:") == std::string::npos; }

std::vector<gid_facts> read_gids(const files& root, const std::string& port) {
  std::vector<gid_facts> result;
  for (const std::string& each : root.names(port + "/gids")) {
    const auto index = number(each);
    const std::string gid = root.line(port + "/gids/" + each);
    if (!index || is_zero(gid))
      continue;
    result.push_back({unsigned(*index), gid, root.line(port + "/gid_attrs/types/" + each),
                      root.line(port + "/gid_attrs/ndevs/" + each)});
  }
  std::sort(result.begin(), result.end(),
            [](const gid_facts& a, const gid_facts& b) { return a.index < b.index; });
  return result;
}

/// Whether the interface of this namespace has the GID. Another namespace may have an interface of
/// the same name.
bool has_gid(const interface_facts& i, const gid_facts& g) {
  const std::string address = address_of_gid(g.gid);
  return std::find(i.addresses.begin(), i.addresses.end(), address) != i.addresses.end() ||
         (address.starts_with("fe80:") && address == link_local_of(i.hardware));
}

void add(std::vector<std::string>& to, const std::string& name) {
  if (!name.empty() && std::find(to.begin(), to.end(), name) == to.end())
    to.push_back(name);
}

/// The interfaces of a port: by its GIDs, by its hardware address, and by the files of its driver.
void find_interfaces(const files& root, const device_facts& device, port_facts& port,
                     const std::vector<interface_facts>& here) {
  std::vector<std::string> named;
  for (const gid_facts& g : port.gids)
    add(named, g.interface);
  const std::string folder = "/sys/class/infiniband/" + device.name;
  if (device.software)
    add(named, root.line(folder + "/parent")); // rxe's
  for (const std::string& name : named) {
    const auto found =
        std::find_if(here.begin(), here.end(), [&](const auto& i) { return i.name == name; });
    bool is_here = found != here.end();
    const auto of_name = [&](const gid_facts& g) {
      return g.interface == name;
    };
    if (is_here && std::any_of(port.gids.begin(), port.gids.end(), of_name))
      is_here = std::any_of(port.gids.begin(), port.gids.end(), [&](const gid_facts& g) {
        return of_name(g) && (device.iwarp || has_gid(*found, g));
      });
    add(is_here ? port.interfaces : port.far_interfaces, name);
  }
  for (const interface_facts& i : here)
    for (const gid_facts& g : port.gids)
      if (has_hardware_of(i.hardware, g.gid, device.iwarp))
        add(port.interfaces, i.name);
  // The port of an interface counts from 0.
  for (const std::string& name : root.names(folder + "/device/net")) {
    const std::string dev_port = root.line(folder + "/device/net/" + name + "/dev_port");
    const bool is_here =
        std::any_of(here.begin(), here.end(), [&](const auto& i) { return i.name == name; });
    if (is_here && number(dev_port).value_or(0) + 1 == port.number)
      add(port.interfaces, name);
  }
}

device_facts read_device(const files& root, const std::string& name, bool opens, facts& to) {
  device_facts result;
  result.name = name;
  const std::string folder = "/sys/class/infiniband/" + name;
  result.iwarp = root.line(folder + "/node_type").starts_with("4");
  result.software = !root.has(folder + "/device");
  result.driver =
      result.software ? (result.iwarp ? "siw" : "rxe") : root.link(folder + "/device/driver");
  if (const driver* const known = find_driver(result.driver)) {
    result.provider = known->provider;
    result.library = find_provider(root, result.provider);
  }
  for (const std::string& each : root.names("/sys/class/infiniband_verbs"))
    if (root.line("/sys/class/infiniband_verbs/" + each + "/ibdev") == name)
      result.verbs = read_file(root, "/dev/infiniband/" + each, opens);
  for (const std::string& each : root.names(folder + "/ports")) {
    const std::string place = folder + "/ports/" + each;
    port_facts port;
    port.number = unsigned(number(each).value_or(1));
    port.state = meaning(root.line(place + "/state"));
    port.phys_state = meaning(root.line(place + "/phys_state"));
    port.link_layer = root.line(place + "/link_layer");
    port.gids = read_gids(root, place);
    port.cm_mode =
        root.line("/sys/kernel/config/rdma_cm/" + name + "/ports/" + each + "/default_roce_mode");
    find_interfaces(root, result, port, to.interfaces);
    result.ports.push_back(std::move(port));
  }
  return result;
}

} // namespace

std::optional<std::string> find_provider(const files& root, const std::string& provider) {
  const auto verbs = find_library(root, "libibverbs.so.1");
  if (!verbs)
    return {};
  const std::string folder = verbs->substr(0, verbs->rfind('/')) + "/libibverbs";
  for (const std::string& file : root.names(folder))
    if (file.starts_with("lib" + provider + "-rdmav"))
      return folder + '/' + file;
  return {};
}

void read_devices(const files& root, bool opens, facts& to) {
  for (const std::string& name : root.names("/sys/class/infiniband"))
    to.devices.push_back(read_device(root, name, opens, to));
  for (const std::string& each : root.names("/sys/class/infiniband_verbs")) {
    const std::string name = root.line("/sys/class/infiniband_verbs/" + each + "/ibdev");
    if (!name.empty() && !root.has("/sys/class/infiniband/" + name))
      to.devices_elsewhere.push_back(name);
  }
}

std::vector<adapter_facts> read_adapters(const files& root) {
  std::vector<adapter_facts> result;
  for (const std::string& place : root.names("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + place;
    const driver* const known = find_driver(root.link(folder + "/driver"));
    if (known != nullptr && *known->module != '\0')
      result.push_back({place, known->pci, known->module,
                        root.has("/sys/module/" + std::string(known->module))});
  }
  return result;
}

} // namespace info
