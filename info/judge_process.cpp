// SPDX-License-Identifier: BSL-1.0
// Judges the machine and the process: rdma-core, modules, files, rights, limits, namespaces.
#include "judge.hpp"
#include "remedies.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace info {
namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
/// The first arena of a memory pool (`memory_pool_options::first_arena`).
constexpr std::uint64_t least_memory = 2 * mib;
/// Long messages and many connections register more.
constexpr std::uint64_t enough_memory = 64 * mib;

std::string octal(unsigned mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode);
  return text;
}

std::string size_of(const std::optional<std::uint64_t>& bytes) {
  if (!bytes)
    return "unlimited";
  return *bytes % mib == 0 && *bytes != 0 ? std::to_string(*bytes / mib) + " MiB"
                                          : std::to_string(*bytes / kib) + " KiB";
}

bool is_member(const user_facts& u, unsigned group) {
  return u.gid == group || std::find(u.groups.begin(), u.groups.end(), group) != u.groups.end();
}

/// Reading and writing by the permissions of a file.
bool may_use(const user_facts& u, const file_facts& f) {
  const unsigned shift = u.uid == f.uid ? 6 : is_member(u, f.gid) ? 3 : 0;
  return u.overrides_files || ((f.mode >> shift) & 6) == 6;
}

/// Where a group has the right and is no system's, its membership is the remedy.
remedy give_right(const facts& f, const file_facts& file) {
  const bool by_group = (file.mode & 0060) == 0060 && file.gid != 0 && file.open_errno != 0;
  if (by_group && f.container.empty())
    return by_root_here("usermod -a -G " + file.group + ' ' + f.user.name);
  return by_root(f, "chmod 0666 " + file.path);
}

/// A file whose module is loaded: absent, without rights, or without its device.
void judge_file(const facts& f, const file_facts& file, const std::string& device,
                const std::string& number, findings& to) {
  finding result{level::error, "", file.path, "", {}, device};
  const std::string of = device.empty() ? "" : " of " + device;
  if (!file.exists) {
    result.name = "device_file_absent";
    result.text = "the file" + of + " does not exist, although its module is loaded";
    if (!f.container.empty())
      result.mend = start_container(f);
    else if (!number.empty() && number.find(':') != std::string::npos)
      result.mend =
          by_root_here("mknod -m 0666 " + file.path + " c " + number.substr(0, number.find(':')) +
                       ' ' + number.substr(number.find(':') + 1));
    else
      result.mend = by_root_here("udevadm trigger --action=add "
                                 "--subsystem-match=infiniband_verbs --subsystem-match=misc");
    to.push_back(result);
    return;
  }
  const bool permitted = may_use(f.user, file);
  const int error = file.open_errno.value_or(permitted ? 0 : EACCES);
  if (error == 0) {
    to.push_back({level::ok,
                  "device_file",
                  file.path,
                  device.empty() ? "may be opened" : "the file of " + device + " may be opened",
                  {},
                  device});
    return;
  }
  const std::string user = f.user.name + " (uid " + std::to_string(f.user.uid) + ')';
  if ((error == EACCES || error == EPERM) && !permitted) {
    result.name = "device_file_permission";
    result.text = "the user " + user + " may not open the file" + of + ": mode " +
                  octal(file.mode) + ", owner " + file.owner + ", group " + file.group;
    result.mend = give_right(f, file);
  } else if (error == EACCES || error == EPERM) {
    result.name = "device_file_denied";
    result.text = "opening the file" + of + " is denied (" + std::strerror(error) +
                  "), although its mode " + octal(file.mode) + " permits it";
    if (!f.container.empty())
      result.mend = start_container(f);
    else if (!device.empty() && f.netns_mode == "exclusive")
      result.mend = by_root(f, "rdma dev set " + device + " netns NAME");
    else
      result.mend = by_root_here("getfacl " + file.path);
  } else {
    result.name = "device_file_stale";
    result.text =
        "opening the file" + of + " fails (" + std::strerror(error) + "): no device is behind it";
    result.mend = f.container.empty()
                      ? by_root_here("rm " + file.path +
                                     " && udevadm trigger --action=add "
                                     "--subsystem-match=infiniband_verbs --subsystem-match=misc")
                      : start_container(f);
  }
  to.push_back(result);
}

void judge_memlock(const facts& f, findings& to) {
  const user_facts& u = f.user;
  const std::string subject = "locked memory";
  if (u.locks_memory) {
    to.push_back({level::ok, "memlock", subject, "no limit: the process has CAP_IPC_LOCK", {}});
    return;
  }
  if (!u.memlock_soft || *u.memlock_soft >= enough_memory) {
    to.push_back({level::ok, "memlock", subject, "limit " + size_of(u.memlock_soft), {}});
    return;
  }
  finding result{level::warning, "memlock_small", subject, "", {}};
  result.text = "the limit of " + size_of(u.memlock_soft) +
                " does not suffice for long messages or many connections";
  if (*u.memlock_soft < least_memory) {
    result.how = level::error;
    result.name = "memlock_too_small";
    result.text = "the limit of " + size_of(u.memlock_soft) + " is below the " +
                  size_of(least_memory) + " that a memory pool registers first";
  }
  if (!u.memlock_hard)
    result.mend = by_user("ulimit -l unlimited");
  else if (*u.memlock_hard >= enough_memory)
    result.mend = by_user("ulimit -l " + std::to_string(*u.memlock_hard / kib));
  else if (!f.container.empty())
    result.mend = start_container(f);
  else
    result.mend = by_root_here(
        "echo \"" + u.name +
        " - memlock unlimited\" >/etc/security/limits.d/rdma.conf && echo log in again");
  to.push_back(result);
}

void judge_libraries(const facts& f, findings& to) {
  if (f.libibverbs && f.librdmacm) {
    to.push_back({level::ok, "rdma_core", "rdma-core", *f.libibverbs + ", " + *f.librdmacm, {}});
    return;
  }
  std::string absent = f.libibverbs ? "" : "libibverbs.so.1";
  if (!f.librdmacm)
    absent += absent.empty() ? "librdmacm.so.1" : " and librdmacm.so.1";
  to.push_back({level::error, "rdma_core_absent", "rdma-core",
                "not installed, or only in part: there is no " + absent, install(f, "core")});
}

} // namespace

void judge_process(const facts& f, findings& to) {
  if (!f.has_proc)
    to.push_back({level::error, "proc_absent", "/proc",
                  "not mounted: rights, limits and interfaces cannot be read",
                  by_root_here("mount -t proc proc /proc")});
  if (!f.has_sys)
    to.push_back({level::error, "sys_absent", "/sys",
                  "not mounted: libibverbs finds devices by /sys/class/infiniband_verbs",
                  by_root_here("mount -t sysfs sysfs /sys")});
  judge_libraries(f, to);
  if (f.has_proc)
    judge_memlock(f, to);
}

void judge_namespaces(const facts& f, findings& to) {
  if (!f.container.empty())
    to.push_back({level::note,
                  "container",
                  "container",
                  "this is a container (" + f.container + "); modules and devices are the host's",
                  {}});
  if (!f.netns_mode.empty())
    to.push_back({level::ok,
                  "netns_mode",
                  "network namespaces",
                  f.netns_mode == "shared"
                      ? "mode shared: each namespace sees all devices, and rdma_cm uses those that "
                        "have an interface in it"
                      : "mode exclusive: a namespace sees its own devices only",
                  {}});
  if (f.sys_is_foreign)
    to.push_back(
        {level::warning, "sys_of_other_namespace", "/sys",
         "shows another network namespace than the process has, so devices and GIDs may be "
         "those of the other one",
         by_root_here("mount -t sysfs sysfs /sys")});
}

void judge_files(const facts& f, findings& to) {
  if (f.devices.empty())
    return; // the files come with the devices
  if (!f.verbs_loaded)
    to.push_back({level::error, "ib_uverbs_not_loaded", "ib_uverbs",
                  "the module is not loaded, so no program can open an RDMA device",
                  by_root(f, "modprobe ib_uverbs")});
  if (!f.cm_loaded)
    to.push_back({level::error, "rdma_ucm_not_loaded", "rdma_ucm",
                  "the module is not loaded, so there is no connection manager (rdma_cm)",
                  by_root(f, "modprobe rdma_ucm")});
  if (!f.has_folder && (f.verbs_loaded || f.cm_loaded)) {
    finding result{level::error, "device_folder_absent", "/dev/infiniband",
                   "does not exist, although the kernel has RDMA devices", start_container(f)};
    if (f.container.empty()) {
      result.text += " (a container that was started without them?)";
      result.mend = by_root_here("udevadm trigger --action=add --subsystem-match=infiniband_verbs "
                                 "--subsystem-match=misc");
    }
    to.push_back(result);
    return;
  }
  for (const device_facts& d : f.devices) {
    if (f.verbs_loaded && d.verbs)
      judge_file(f, *d.verbs, d.name, "", to);
    else if (f.verbs_loaded)
      to.push_back({level::error, "verbs_absent", d.name,
                    "the kernel gives user space no access to the device: no uverbs file is its",
                    by_root(f, "dmesg | grep -i uverbs"), d.name});
  }
  if (f.cm_loaded)
    judge_file(f, f.cm, "", f.cm_number, to);
}

void judge_absence(const facts& f, findings& to) {
  for (const std::string& name : f.devices_elsewhere)
    to.push_back({level::error, "device_in_other_namespace", name,
                  "the device belongs to another network namespace; there this command gives it to "
                  "this one, whose name is NAME (ip netns list)",
                  by_root(f, "rdma dev set " + name + " netns NAME")});
  bool waits = false;
  for (const adapter_facts& a : f.adapters)
    if (!a.loaded) {
      waits = true;
      to.push_back({f.devices.empty() ? level::error : level::warning, "driver_not_loaded",
                    a.module,
                    "the adapter " + a.place + " has the driver " + a.driver +
                        ", but its module for RDMA is not loaded",
                    by_root(f, "modprobe " + a.module)});
    }
  if (!f.devices.empty() || !f.devices_elsewhere.empty() || waits || !f.has_sys)
    return;
  to.push_back({level::error, "no_device", "devices",
                "the kernel has no RDMA device; a software device serves for development",
                make_software_device(f)});
}

} // namespace info
