// SPDX-License-Identifier: BSL-1.0
// Judges devices, ports and addresses.
#include "addresses.hpp"
#include "judge.hpp"
#include "remedies.hpp"

#include <algorithm>

namespace info {
namespace {

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::string list(const std::vector<std::string>& all) {
  std::string result;
  for (const std::string& each : all)
    result += (result.empty() ? "" : " ") + each;
  return result;
}

std::string title(const device_facts& d, const port_facts& p) {
  return d.ports.size() > 1 ? d.name + " port " + std::to_string(p.number) : d.name;
}

/// The interface of a port; a placeholder if none is known.
std::string interface_of(const port_facts& p) {
  return p.interfaces.empty() ? "INTERFACE" : p.interfaces.front();
}

bool is_infiniband(const device_facts& d, const port_facts& p) {
  return p.link_layer == "InfiniBand" && !d.iwarp;
}
bool is_roce(const device_facts& d, const port_facts& p) {
  return !d.iwarp && !is_infiniband(d, p);
}

std::string kind_of(const device_facts& d, const port_facts& p) {
  std::string result = d.iwarp ? "iWARP" : is_infiniband(d, p) ? "InfiniBand" : "RoCE";
  if (is_roce(d, p))
    for (const char* version : {"RoCE v2", "IB/RoCE v1"})
      if (std::any_of(p.gids.begin(), p.gids.end(),
                      [&](const gid_facts& g) { return g.type == version; })) {
        result = std::string(version) == "RoCE v2" ? "RoCE v2" : "RoCE v1";
        break;
      }
  return d.software ? result + ", software (" + d.driver + ')' : result + " (" + d.driver + ')';
}

void judge_state(const facts& f, const device_facts& d, const port_facts& p, finding result,
                 findings& to) {
  result.name = "port_down";
  result.text = "the port is not active (" + p.state +
                (p.phys_state.empty() ? "" : ", " + p.phys_state) + ')';
  const interface_facts* const i =
      p.interfaces.empty() ? nullptr : find_interface(f, p.interfaces.front());
  if (is_infiniband(d, p) && p.state == "INIT") {
    result.text += ": no subnet manager has configured it";
    result.mend = by_root(f, "systemctl start opensm");
  } else if (is_infiniband(d, p)) {
    result.text += ": there is no link; look at cable and switch";
    result.mend = by_root(f, "ibstat " + d.name);
  } else if (i != nullptr && !i->up) {
    result.text += ", because its interface " + i->name + " is down";
    result.mend = by_root_here("ip link set " + i->name + " up");
  } else if (i != nullptr && !i->carrier) {
    result.text += ", because its interface " + i->name + " has no link; look at cable and switch";
    result.mend = by_root_here("ethtool " + i->name);
  } else {
    result.mend = by_root_here("ip link set " + interface_of(p) + " up");
  }
  to.push_back(result);
}

/// The addresses of the port's interfaces that rdma_cm could use if the GIDs were there.
std::vector<std::string> interface_addresses_of(const facts& f, const port_facts& p) {
  std::vector<std::string> result;
  for (const std::string& name : p.interfaces)
    if (const interface_facts* const i = find_interface(f, name))
      result.insert(result.end(), i->addresses.begin(), i->addresses.end());
  return result;
}

/// Whether no address was found, and why.
bool judge_addresses(const facts& f, const device_facts& d, const port_facts& p, finding result,
                     findings& to) {
  const auto usable = addresses_of(f, d, p);
  const auto assigned = interface_addresses_of(f, p);
  const auto is_usual = [](const std::string& a) {
    return !is_link_local(a);
  };
  for (const std::string& address : assigned)
    if (is_usual(address) && !contains(usable, address)) {
      finding missing = result;
      missing.how =
          std::any_of(usable.begin(), usable.end(), is_usual) ? level::warning : level::error;
      missing.name = "gid_absent";
      missing.text =
          "the address " + address + " of " + interface_of(p) + " has no GID on the port";
      missing.mend = by_root_here("ip link set " + interface_of(p) + " down && ip link set " +
                                  interface_of(p) + " up");
      to.push_back(missing);
    }
  if (std::any_of(usable.begin(), usable.end(), is_usual))
    return true;
  if (std::any_of(assigned.begin(), assigned.end(), is_usual))
    return false; // reported above
  if (p.interfaces.empty() && (!p.far_interfaces.empty() || d.software)) {
    // A software device without an interface does not exist.
    const std::string interface = p.far_interfaces.empty() ? "INTERFACE" : p.far_interfaces.front();
    result.name = "interface_in_other_namespace";
    result.text = "its interface" + (p.far_interfaces.empty() ? "" : ' ' + list(p.far_interfaces)) +
                  " is in another network namespace, so rdma_cm does not connect from this one, "
                  "whose name is NAME (ip netns list)";
    result.mend = f.container.empty() ? by_root(f, "ip link set " + interface + " netns NAME")
                                      : start_container(f);
  } else if (p.interfaces.empty()) {
    result.name = "interface_absent";
    result.text = is_infiniband(d, p)
                      ? "the port has no IPoIB interface, which rdma_cm needs"
                      : "no network interface of this namespace belongs to the port";
    result.mend = is_infiniband(d, p) ? by_root(f, "modprobe ib_ipoib")
                                      : by_root_here("rdma link show " + d.name);
  } else {
    result.name = "address_absent";
    result.text = "its interface " + interface_of(p) + " has no IP address" +
                  (usable.empty() ? "" : " but a link-local one");
    result.mend = by_root_here("ip addr add 192.168.77.1/24 dev " + interface_of(p));
  }
  to.push_back(result);
  return false;
}

void judge_roce(const facts& f, const device_facts& d, const port_facts& p, finding result,
                findings& to) {
  const auto has_type = [&](const char* type) {
    return std::any_of(p.gids.begin(), p.gids.end(),
                       [&](const gid_facts& g) { return g.type == type; });
  };
  result.how = level::warning;
  if (has_type("IB/RoCE v1") && !has_type("RoCE v2")) {
    result.name = "roce_v1_only";
    result.text = "the port has GIDs of RoCE v1 only: its packets pass no router, and a peer with "
                  "RoCE v2 does not answer; newer firmware or another setting of it may help";
    result.mend = by_root(f, "ethtool -i " + interface_of(p));
    to.push_back(result);
  } else if (p.cm_mode == "IB/RoCE v1" && has_type("RoCE v2")) {
    result.name = "cm_uses_roce_v1";
    result.text = "rdma_cm is set to RoCE v1, although the port has RoCE v2";
    result.mend = by_root(f, "echo \"RoCE v2\" >/sys/kernel/config/rdma_cm/" + d.name + "/ports/" +
                                 std::to_string(p.number) + "/default_roce_mode");
    to.push_back(result);
  }
}

void judge_mtu(const facts& f, const device_facts& d, const port_facts& p, finding result,
               findings& to) {
  const interface_facts* const i =
      p.interfaces.empty() ? nullptr : find_interface(f, p.interfaces.front());
  if (i == nullptr || p.active_mtu == 0 || !is_roce(d, p))
    return;
  const unsigned most = p.max_mtu == 0 ? 4096 : p.max_mtu;
  const unsigned allowed = std::min(roce_mtu(i->mtu), most);
  if (p.active_mtu < allowed) {
    result.how = level::warning;
    result.name = "mtu_below_interface";
    result.text = "packets carry " + std::to_string(p.active_mtu) + " bytes, although the MTU " +
                  std::to_string(i->mtu) + " of " + i->name + " has room for " +
                  std::to_string(allowed);
    result.mend = by_root_here("ip link set " + i->name + " mtu 1500 && ip link set " + i->name +
                               " mtu " + std::to_string(i->mtu));
    to.push_back(result);
  } else if (p.active_mtu > allowed && allowed != 0) {
    result.how = level::warning;
    result.name = "mtu_above_interface";
    result.text = "packets carry " + std::to_string(p.active_mtu) + " bytes, and the MTU " +
                  std::to_string(i->mtu) + " of " + i->name + " has room for " +
                  std::to_string(allowed) + " only, so they are lost";
    result.mend =
        by_root_here("ip link set " + i->name + " mtu " + std::to_string(p.active_mtu + 104));
    to.push_back(result);
  } else if (p.active_mtu < most && most == 4096) {
    result.how = level::note;
    result.name = "mtu_small";
    result.text = "packets carry " + std::to_string(p.active_mtu) + " bytes, because " + i->name +
                  " has the MTU " + std::to_string(i->mtu) +
                  "; 4096 need 4200 here, at the peer and at each switch";
    result.mend = by_root_here("ip link set " + i->name + " mtu 4200");
    to.push_back(result);
  }
}

} // namespace

const interface_facts* find_interface(const facts& f, const std::string& name) {
  const auto found = std::find_if(f.interfaces.begin(), f.interfaces.end(),
                                  [&](const interface_facts& i) { return i.name == name; });
  return found != f.interfaces.end() ? &*found : nullptr;
}

unsigned roce_mtu(unsigned interface_mtu) {
  constexpr unsigned headers = 40 + 8 + 12 + 4 + 28 + 4;
  for (const unsigned mtu : {4096u, 2048u, 1024u, 512u, 256u})
    if (interface_mtu >= mtu + headers)
      return mtu;
  return 0;
}

std::vector<std::string> addresses_of(const facts& f, const device_facts& d, const port_facts& p) {
  std::vector<std::string> result;
  const auto assigned = interface_addresses_of(f, p);
  if (!is_roce(d, p))
    return assigned;
  for (const std::string& address : assigned)
    if (std::any_of(p.gids.begin(), p.gids.end(),
                    [&](const gid_facts& g) { return address_of_gid(g.gid) == address; }))
      result.push_back(address);
  return result;
}

void judge_device(const facts& f, const device_facts& d, findings& to) {
  finding result{level::error, "", d.name, "", {}, d.name};
  if (f.libibverbs && !d.provider.empty() && !d.library) {
    result.name = "provider_absent";
    result.text = "rdma-core's library for it is not installed: no file lib" + d.provider +
                  "-rdmav*.so beside libibverbs";
    result.mend = install(f, "providers");
    to.push_back(result);
  }
  if (d.ports.empty()) {
    result.name = "ports_absent";
    result.text = "its ports cannot be read from /sys/class/infiniband";
    result.mend = by_root_here("mount -t sysfs sysfs /sys");
    to.push_back(result);
  }
  for (const port_facts& p : d.ports)
    judge_port(f, d, p, to);
}

void judge_port(const facts& f, const device_facts& d, const port_facts& p, findings& to) {
  const finding base{level::error, "", title(d, p), "", {}, d.name, p.number};
  if (p.state != "ACTIVE") {
    judge_state(f, d, p, base, to);
    return; // the rest follows from the state
  }
  if (judge_addresses(f, d, p, base, to)) {
    finding good = base;
    good.how = level::ok;
    good.name = "port";
    good.text = "active, " + kind_of(d, p);
    if (p.active_mtu != 0 && !d.iwarp)
      good.text += ", MTU " + std::to_string(p.active_mtu);
    good.text += ", " + list(p.interfaces) + ", " + list(addresses_of(f, d, p));
    to.push_back(good);
  }
  if (is_roce(d, p))
    judge_roce(f, d, p, base, to);
  judge_mtu(f, d, p, base, to);
}

void judge_address(const facts& f, const std::string& address, findings& to) {
  finding result{level::error, "", address, "", {}};
  for (const tried_device& t : f.tried.devices)
    if (contains(t.addresses, address)) {
      to.push_back({level::ok, "address", address, "is an address of " + t.name, {}});
      return;
    }
  std::vector<std::string> known;
  std::string interface;
  for (const device_facts& d : f.devices)
    for (const port_facts& p : d.ports) {
      for (const std::string& each : addresses_of(f, d, p)) {
        if (each == address) {
          to.push_back({level::ok, "address", address, "is an address of " + d.name, {}});
          return;
        }
        known.push_back(each);
      }
      if (interface.empty() && !p.interfaces.empty())
        interface = p.interfaces.front();
    }
  for (const tried_device& t : f.tried.devices)
    known.insert(known.end(), t.addresses.begin(), t.addresses.end());
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const std::string others =
      known.empty() ? "no device has an address" : "the devices have " + list(known);
  if (is_loopback(address)) {
    result.name = "address_is_loopback";
    result.text = "no RDMA device serves loopback; " + others;
    if (!known.empty())
      result.mend = by_user("asio_rdma-info --address " + known.front());
    to.push_back(result);
    return;
  }
  for (const interface_facts& i : f.interfaces)
    if (contains(i.addresses, address)) {
      const bool of_device = std::any_of(f.devices.begin(), f.devices.end(), [&](const auto& d) {
        return std::any_of(d.ports.begin(), d.ports.end(),
                           [&](const port_facts& p) { return contains(p.interfaces, i.name); });
      });
      result.name = of_device ? "address_without_gid" : "address_without_device";
      result.text =
          of_device ? "the interface " + i.name +
                          " has the address, but its device has no "
                          "GID for it; " +
                          others
                    : "the interface " + i.name + " has the address, but no RDMA device; " + others;
      result.mend =
          of_device
              ? by_root_here("ip link set " + i.name + " down && ip link set " + i.name + " up")
              : by_root(f, "rdma link add rxe_" + i.name + " type rxe netdev " + i.name);
      to.push_back(result);
      return;
    }
  result.name = "address_unknown";
  result.text =
      "no interface of this network namespace has the address, so no device has a GID for "
      "it; " +
      others;
  if (!interface.empty())
    result.mend = by_root_here("ip addr add " + address + (is_v6(address) ? "/64" : "/24") +
                               " dev " + interface);
  to.push_back(result);
}

} // namespace info
