// SPDX-License-Identifier: BSL-1.0
// Facts about a machine, a process on it, and its RDMA devices: plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace info {

/// A file under /dev/infiniband.
struct file_facts {
  std::string path;
  bool exists = false;
  unsigned mode = 0; ///< Permissions, such as 0600.
  unsigned uid = 0, gid = 0;
  std::string owner, group;      ///< Names, or the numbers in decimal.
  std::optional<int> open_errno; ///< Of open(2), 0 for success. Empty if it was not opened.
};

/// The process: its user and its rights.
struct user_facts {
  unsigned uid = 0, gid = 0;
  std::vector<unsigned> groups; ///< Supplementary ones.
  std::string name;             ///< Or the number in decimal.
  bool overrides_files = false; ///< CAP_DAC_OVERRIDE of the initial user namespace.
  bool locks_memory = false;    ///< CAP_IPC_LOCK of the initial user namespace.
  std::optional<std::uint64_t> memlock_soft, memlock_hard; ///< In bytes; empty: unlimited.
};

/// A network interface of this network namespace.
struct interface_facts {
  std::string name;
  bool up = false;      ///< The administrator has set it up.
  bool carrier = false; ///< There is a link.
  unsigned mtu = 0;
  std::string hardware;               ///< As in sysfs: "02:00:00:00:00:01"; of IPoIB 20 bytes.
  std::vector<std::string> addresses; ///< IPv4 addresses first, link-local ones last.
};

/// An entry of a port's GID table.
struct gid_facts {
  unsigned index = 0;
  std::string gid;       ///< As in sysfs: eight groups of four digits.
  std::string type;      ///< "IB/RoCE v1", "RoCE v2", or empty.
  std::string interface; ///< The name that it has in its own network namespace.
};

struct port_facts {
  unsigned number = 1;
  std::string state;      ///< "ACTIVE", "DOWN", "INIT", "ARMED"; empty if unknown.
  std::string phys_state; ///< "LinkUp", "Polling", "Disabled"; empty if unknown.
  std::string link_layer; ///< "InfiniBand" or "Ethernet".
  std::vector<gid_facts> gids;
  std::string cm_mode;                     ///< The RoCE version of rdma_cm; empty if unknown.
  unsigned active_mtu = 0;                 ///< 0: unknown, as it is no file.
  unsigned max_mtu = 0;                    ///< 0: unknown.
  std::vector<std::string> interfaces;     ///< Of this network namespace.
  std::vector<std::string> far_interfaces; ///< Of another network namespace.
};

/// A device under /sys/class/infiniband.
struct device_facts {
  std::string name;
  std::string driver;                 ///< "rxe", "siw", or that of its PCI function.
  std::string provider;               ///< Of rdma-core, such as "mlx5"; empty if unknown.
  std::optional<std::string> library; ///< The provider's file; empty if there is none.
  bool software = false, iwarp = false;
  std::optional<file_facts> verbs; ///< Its file; empty if the kernel made none.
  std::vector<port_facts> ports;
};

/// An adapter that can do RDMA, and whose driver for RDMA is a module of its own.
struct adapter_facts {
  std::string place;  ///< Of its PCI function.
  std::string driver; ///< Of the network interface.
  std::string module; ///< Of RDMA.
  bool loaded = false;
};

/// The results of asio_rdma-info-try for a device.
struct tried_port {
  std::string state;
  unsigned active_mtu = 0, max_mtu = 0;
};
struct tried_device {
  std::string name;
  std::string transport;  ///< "infiniband", "iwarp" or "other".
  std::string open_error; ///< Empty: it was opened.
  std::map<unsigned, tried_port> ports;
  std::vector<std::string> addresses;
  std::optional<std::string> memory; ///< An error, or empty text for success.
  std::string address;               ///< At which it listened.
  std::optional<std::string> listen, message;
  double microseconds = 0; ///< Of a message and its answer.
};
struct tried_facts {
  bool ran = false;    ///< The program was started.
  std::string failure; ///< Why it did not end well; empty if it did.
  std::vector<tried_device> devices;
};

struct facts {
  std::string kernel;    ///< Its release.
  std::string system;    ///< ID of os-release, such as "debian".
  std::string like;      ///< ID_LIKE of os-release.
  std::string container; ///< "docker", "podman", "kubernetes", "lxc" or "container"; empty: none.
  bool has_proc = true, has_sys = true;
  bool sys_is_foreign = false; ///< /sys shows another network namespace.
  std::string netns_mode;      ///< "shared" or "exclusive"; empty: unknown.
  user_facts user;

  std::optional<std::string> libibverbs, librdmacm; ///< Files of rdma-core; empty if absent.
  bool verbs_loaded = false, cm_loaded = false;     ///< The modules ib_uverbs and rdma_ucm.
  std::string cm_number;                            ///< "10:58", of rdma_cm's file.
  bool has_folder = false;                          ///< /dev/infiniband
  file_facts cm;                                    ///< /dev/infiniband/rdma_cm
  std::vector<std::string> modules;                 ///< rdma_rxe, siw: those that the kernel has.

  std::vector<device_facts> devices;
  std::vector<std::string> devices_elsewhere; ///< Of other network namespaces.
  std::vector<adapter_facts> adapters;
  std::vector<interface_facts> interfaces;
  tried_facts tried;
};

} // namespace info
