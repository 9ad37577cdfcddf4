// SPDX-License-Identifier: BSL-1.0
#include "fake_machine.hpp"

#include "catch.hpp"
#include "print.hpp"
#include "tried.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace test {

namespace fs = std::filesystem;

fake_machine::fake_machine() {
  std::string folder = fs::temp_directory_path() / "info.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("no temporary folder can be made");
  root_ = folder;
  // Tests may run as root, who owns the files: so ann is another one.
  put("/proc/self/status",
      "Name:\ttest\nUid:\t4711\t4711\t4711\t4711\nGid:\t4711\t4711\t4711\t4711\n"
      "Groups:\t4711 4712 \nCapEff:\t0000000000000000\n");
  put("/proc/self/limits",
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max locked memory         unlimited            unlimited            bytes     \n");
  put("/proc/self/uid_map", "         0          0 4294967295\n");
  put("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  put("/proc/net/dev", "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  eth0: 0 0\n");
  put("/etc/os-release", "NAME=\"Debian GNU/Linux\"\nID=debian\n");
  put("/etc/passwd", "root:x:0:0::/:/bin/sh\nann:x:4711:4711::/:/bin/sh\n");
  put("/etc/group", "root:x:0:\nrdma:x:4712:ann\n");
  put("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
  put("/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "");
  put("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "");
  put("/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "");
  put("/lib/modules/6.1.0-18-amd64/modules.dep",
      "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko: x\n");
  put("/sys/module/ib_core/parameters/netns_mode", "Y\n");
  put("/sys/class/misc/rdma_cm/dev", "10:58\n");
  put("/dev/infiniband/rdma_cm", "").allow("/dev/infiniband/rdma_cm", 0666);
  put("/dev/infiniband/uverbs0", "").allow("/dev/infiniband/uverbs0", 0666);
  for (const char* name : {"lo", "eth0"}) {
    const std::string interface = std::string("/sys/class/net/") + name;
    put(interface + "/flags", "0x1003\n");
    put(interface + "/carrier", "1\n");
    put(interface + "/mtu", "4200\n");
    put(interface + "/address",
        name == std::string("lo") ? "00:00:00:00:00:00" : "02:00:00:00:00:01");
  }
  addresses = {{"lo", "127.0.0.1"}, {"eth0", "10.9.0.1"}, {"eth0", "fe80::ff:fe00:1"}};
  put("/sys/class/infiniband_verbs/abi_version", "6\n");
  put("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
  put("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
  put("/sys/class/infiniband/rxe0/parent", "eth0\n");
  const std::string port = "/sys/class/infiniband/rxe0/ports/1";
  put(port + "/state", "4: ACTIVE\n");
  put(port + "/phys_state", "5: LinkUp\n");
  put(port + "/link_layer", "Ethernet\n");
  put(port + "/gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n");
  put(port + "/gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001\n");
  put(port + "/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  for (const char* each : {"0", "1"}) {
    put(port + "/gid_attrs/types/" + each, "RoCE v2\n");
    put(port + "/gid_attrs/ndevs/" + each, "eth0\n");
  }
  tried = "device\trxe0\tinfiniband\nopen\trxe0\t\nport\trxe0\t1\tACTIVE\t4096\t4096\n"
          "address\trxe0\t10.9.0.1\nmemory\trxe0\t\nlisten\trxe0\t10.9.0.1\t\n"
          "message\trxe0\t120.5\t\n";
}

fake_machine::~fake_machine() {
  std::error_code ec;
  fs::remove_all(root_, ec);
}

fake_machine& fake_machine::put(const std::string& path, const std::string& text) {
  const fs::path file = root_ / fs::path(path).relative_path();
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
  return *this;
}

fake_machine& fake_machine::remove(const std::string& path) {
  if (fs::remove_all(root_ / fs::path(path).relative_path()) == 0)
    throw std::runtime_error("the machine has no " + path);
  return *this;
}

fake_machine& fake_machine::link(const std::string& path, const std::string& target) {
  const fs::path file = root_ / fs::path(path).relative_path();
  fs::create_directories(file.parent_path());
  fs::create_symlink(target, file);
  return *this;
}

fake_machine& fake_machine::allow(const std::string& path, unsigned mode) {
  fs::permissions(root_ / fs::path(path).relative_path(), fs::perms(mode));
  return *this;
}

fake_machine& fake_machine::has_adapter() {
  fs::rename(root_ / "sys/class/infiniband/rxe0", root_ / "sys/class/infiniband/mlx5_0");
  put("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
  link("/sys/class/infiniband/mlx5_0/device/driver", "../../bus/pci/drivers/mlx5_core");
  put("/sys/class/infiniband/mlx5_0/device/net/eth0/dev_port", "0\n");
  for (std::size_t at = 0; (at = tried.find("rxe0", at)) != std::string::npos;)
    tried.replace(at, 4, "mlx5_0");
  device = "mlx5_0";
  return *this;
}

fake_machine& fake_machine::is_infiniband() {
  const std::string port = "/sys/class/infiniband/" + device + "/ports/1";
  put(port + "/link_layer", "InfiniBand\n");
  remove(port + "/gid_attrs").remove(port + "/gids/1").remove("/sys/class/net/eth0");
  put(port + "/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001\n");
  put("/proc/net/dev", "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  ib0: 0 0\n");
  put("/sys/class/net/ib0/flags", "0x1003\n").put("/sys/class/net/ib0/carrier", "1\n");
  put("/sys/class/net/ib0/mtu", "2044\n");
  put("/sys/class/net/ib0/address",
      "80:00:00:02:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01\n");
  addresses = {{"lo", "127.0.0.1"}, {"ib0", "10.9.0.1"}};
  return *this;
}

info::facts fake_machine::read() const {
  info::source from;
  from.root = root_;
  from.addresses = [this] {
    return addresses;
  };
  from.opens_files = false; // they are no devices
  info::facts result = info::read_facts(from);
  result.tried.ran = !tried.empty();
  result.tried.devices = info::parse_tried(tried);
  result.tried.failure = failure;
  return result;
}

info::findings fake_machine::judge() const { return info::judge(read(), asked); }

std::string fake_machine::text() const {
  const info::facts f = read();
  return info::to_text(f, info::judge(f, asked));
}

const info::finding& find(const info::findings& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  if (found == all.end())
    throw std::runtime_error("there is no finding " + name);
  return *found;
}

bool has(const info::findings& all, const std::string& name) {
  return std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
}

const info::finding& only_error(const info::findings& all, const std::string& name) {
  for (const info::finding& each : all) {
    INFO(each.name << ": " << each.text);
    CHECK((each.how != info::level::error || each.name == name));
  }
  const info::finding& result = find(all, name);
  CHECK(result.how == info::level::error);
  return result;
}

} // namespace test
