// SPDX-License-Identifier: BSL-1.0
// The facts of the machine and of the process.
#include "read_facts.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <ifaddrs.h>
#include <memory>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

namespace info {
namespace {

constexpr unsigned cap_dac_override = 1, cap_ipc_lock = 14; // capabilities(7)

/// The name of a number in /etc/passwd or /etc/group.
std::string name_of(const files& root, const char* table, unsigned id) {
  for (const std::string& line : split(root.text(table), '\n')) {
    const auto fields = split(line, ':');
    if (fields.size() > 2 && fields[2] == std::to_string(id))
      return fields[0];
  }
  return std::to_string(id);
}

/// The field after a name such as "Uid:" of /proc/self/status.
std::vector<std::string> status_of(const std::string& status, std::string_view name) {
  for (const std::string& line : split(status, '\n'))
    if (line.starts_with(name))
      return words(std::string_view(line).substr(name.size()));
  return {};
}

std::optional<std::uint64_t> limit_of(const std::string& word) {
  if (word == "unlimited")
    return {};
  return number(word).value_or(0);
}

bool is_name(const std::string& known, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* each) { return known == each; });
}

} // namespace

interface_addresses addresses_here() {
  interface_addresses result;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    return result;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> freed(first, ::freeifaddrs);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr)
      continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* bytes = nullptr;
    if (i->ifa_addr->sa_family == AF_INET)
      bytes = &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    else if (i->ifa_addr->sa_family == AF_INET6)
      bytes = &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
    if (bytes == nullptr ||
        ::inet_ntop(i->ifa_addr->sa_family, bytes, text.data(), text.size()) == nullptr)
      continue;
    const std::string label = i->ifa_name; // of an IPv4 address perhaps "eth0:1"
    result.emplace_back(label.substr(0, label.find(':')), text.data());
  }
  return result;
}

user_facts read_user(const files& root) {
  user_facts result;
  const std::string status = root.text("/proc/self/status");
  const auto id = [&](const char* name) -> unsigned {
    const auto ids = status_of(status, name); // real, effective, saved, of files
    return ids.size() > 1 ? unsigned(number(ids[1]).value_or(0)) : 0;
  };
  result.uid = id("Uid:");
  result.gid = id("Gid:");
  for (const std::string& each : status_of(status, "Groups:"))
    if (const auto group = number(each))
      result.groups.push_back(unsigned(*group));
  result.name = name_of(root, "/etc/passwd", result.uid);
  // The kernel asks for the rights of the initial user namespace, which maps each user to itself.
  const auto map = words(root.line("/proc/self/uid_map"));
  const bool initial = map == std::vector<std::string>{"0", "0", "4294967295"};
  const auto held = status_of(status, "CapEff:");
  const auto capabilities = held.empty() ? 0 : number(held.front(), 16).value_or(0);
  result.overrides_files = initial && ((capabilities >> cap_dac_override) & 1) != 0;
  result.locks_memory = initial && ((capabilities >> cap_ipc_lock) & 1) != 0;
  const auto limits = status_of(root.text("/proc/self/limits"), "Max locked memory");
  if (limits.size() > 1) {
    result.memlock_soft = limit_of(limits[0]);
    result.memlock_hard = limit_of(limits[1]);
  }
  return result;
}

std::string read_container(const files& root) {
  const std::string environment = root.text("/proc/self/environ");
  for (const std::string& each : split(environment, '\0'))
    if (each.starts_with("KUBERNETES_SERVICE_HOST="))
      return "kubernetes";
  if (root.has("/.dockerenv"))
    return "docker";
  if (root.has("/run/.containerenv"))
    return "podman";
  for (const std::string& each : split(environment, '\0'))
    if (each.starts_with("container="))
      return each == "container=podman" ? "podman" : each == "container=lxc" ? "lxc" : "container";
  const std::string said = root.line("/run/systemd/container");
  if (!said.empty())
    return is_name(said, {"docker", "podman", "lxc"}) ? said : "container";
  const std::string group = root.text("/proc/self/cgroup");
  constexpr std::pair<const char*, const char*> kinds[] = {
      {"/kubepods", "kubernetes"}, {"/docker", "docker"}, {"/libpod", "podman"}, {"/lxc", "lxc"}};
  for (const auto& [part, name] : kinds)
    if (group.find(part) != std::string::npos)
      return name;
  return {};
}

std::optional<std::string> find_library(const files& root, const std::string& file) {
  std::vector<std::string> places;
  for (const std::string& each : split(root.text("/proc/self/environ"), '\0'))
    if (each.starts_with("LD_LIBRARY_PATH="))
      places = split(std::string_view(each).substr(each.find('=') + 1), ':');
  for (const std::string& each : root.names("/etc/ld.so.conf.d"))
    for (const std::string& line : split(root.text("/etc/ld.so.conf.d/" + each), '\n'))
      if (line.starts_with('/'))
        places.push_back(line);
  for (const char* each :
       {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu", "/lib/powerpc64le-linux-gnu", "/lib/s390x-linux-gnu",
        "/lib/riscv64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
        "/usr/local/lib64"})
    places.emplace_back(each);
  for (const std::string& place : places)
    if (root.has(place + '/' + file))
      return place + '/' + file;
  return {};
}

void read_libraries(const files& root, facts& to) {
  to.libibverbs = find_library(root, "libibverbs.so.1");
  to.librdmacm = find_library(root, "librdmacm.so.1");
}

file_facts read_file(const files& root, const std::string& path, bool opens) {
  file_facts result;
  result.path = path;
  struct stat found {};
  const std::string where = root / path;
  result.exists = ::stat(where.c_str(), &found) == 0;
  if (!result.exists)
    return result;
  result.mode = found.st_mode & 07777;
  result.uid = found.st_uid;
  result.gid = found.st_gid;
  result.owner = name_of(root, "/etc/passwd", found.st_uid);
  result.group = name_of(root, "/etc/group", found.st_gid);
  if (opens) {
    const int fd = ::open(where.c_str(), O_RDWR | O_CLOEXEC);
    result.open_errno = fd < 0 ? errno : 0;
    if (fd >= 0)
      ::close(fd);
  }
  return result;
}

std::vector<interface_facts> read_interfaces(const files& root, const interface_addresses& known) {
  std::vector<interface_facts> result;
  for (const std::string& line : split(root.text("/proc/net/dev"), '\n')) {
    const std::size_t colon = line.find(':');
    const auto name = words(line.substr(0, colon));
    if (colon == std::string::npos || name.size() != 1)
      continue;
    interface_facts one;
    one.name = name.front();
    const std::string folder = "/sys/class/net/" + one.name;
    one.up = (number(root.line(folder + "/flags"), 16).value_or(0) & 1) != 0;
    one.carrier = root.line(folder + "/carrier") == "1";
    one.mtu = unsigned(number(root.line(folder + "/mtu")).value_or(0));
    one.hardware = root.line(folder + "/address");
    for (const auto& [interface, address] : known)
      if (interface == one.name)
        one.addresses.push_back(address);
    const auto rank = [](const std::string& a) {
      return a.starts_with("fe80:") ? 2 : a.find(':') != std::string::npos ? 1 : 0;
    };
    std::stable_sort(one.addresses.begin(), one.addresses.end(),
                     [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    result.push_back(std::move(one));
  }
  return result;
}

facts read_facts(const source& from) {
  const files root(from.root);
  facts result;
  result.has_proc = root.has("/proc/self/status");
  result.has_sys = root.has("/sys/class");
  result.kernel = root.line("/proc/sys/kernel/osrelease");
  const std::string release = root.text("/etc/os-release");
  result.system = value_of(release, "ID");
  result.like = value_of(release, "ID_LIKE");
  result.container = read_container(root);
  result.user = read_user(root);
  read_libraries(root, result);

  // A module, or a part of the kernel that is no module.
  result.verbs_loaded =
      root.has("/sys/class/infiniband_verbs/abi_version") || root.has("/sys/module/ib_uverbs");
  result.cm_loaded = root.has("/sys/class/misc/rdma_cm") || root.has("/sys/module/rdma_ucm");
  result.cm_number = root.line("/sys/class/misc/rdma_cm/dev");
  const std::string mode = root.line("/sys/module/ib_core/parameters/netns_mode");
  result.netns_mode = mode == "Y" ? "shared" : mode == "N" ? "exclusive" : "";
  const std::string modules = "/lib/modules/" + result.kernel;
  const std::string list =
      root.text(modules + "/modules.dep") + root.text(modules + "/modules.builtin");
  for (const char* each : {"rdma_rxe", "siw"})
    if (list.find('/' + std::string(each) + ".ko") != std::string::npos ||
        root.has("/sys/module/" + std::string(each)))
      result.modules.emplace_back(each);

  result.has_folder = root.has("/dev/infiniband");
  result.cm = read_file(root, "/dev/infiniband/rdma_cm", from.opens_files);
  result.interfaces = read_interfaces(root, from.addresses());
  auto shown = root.names("/sys/class/net");
  std::erase_if(shown, [&](const std::string& name) { // such as the file bonding_masters
    return !root.has("/sys/class/net/" + name + "/flags");
  });
  std::vector<std::string> here;
  for (const interface_facts& each : result.interfaces)
    here.push_back(each.name);
  std::sort(here.begin(), here.end());
  result.sys_is_foreign = !shown.empty() && !here.empty() && shown != here;
  read_devices(root, from.opens_files, result);
  result.adapters = read_adapters(root);
  return result;
}

} // namespace info
