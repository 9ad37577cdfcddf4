// SPDX-License-Identifier: BSL-1.0
// Broken set-ups of devices, ports and addresses.
#include "catch.hpp"
#include "fake_machine.hpp"
#include "print.hpp"

#include <string>

using test::fake_machine;

namespace {

const std::string port = "/sys/class/infiniband/rxe0/ports/1";

std::string command(const fake_machine& m, const info::finding& f) {
  return info::command_of(m.read(), f.mend);
}

} // namespace

TEST_CASE("a port is down") {
  fake_machine m;
  m.tried.clear();
  SECTION("its interface is set down") {
    m.put(port + "/state", "1: DOWN\n").put(port + "/phys_state", "3: Disabled\n");
    m.put("/sys/class/net/eth0/flags", "0x1002\n");
    const auto all = m.judge();
    const info::finding& f = test::only_error(all, "port_down");
    CHECK(f.text == "the port is not active (DOWN, Disabled), because its interface eth0 is down");
    CHECK(command(m, f) == "sudo ip link set eth0 up");
  }
  SECTION("although it connects to itself") {
    m.put(port + "/state", "1: DOWN\n");
    m.tried = "open\trxe0\t\nmemory\trxe0\t\nlisten\trxe0\t10.9.0.1\t\nmessage\trxe0\t90\t\n";
    test::only_error(m.judge(), "port_down");
  }
  SECTION("its interface has no link") {
    m.put(port + "/state", "1: DOWN\n").put("/sys/class/net/eth0/carrier", "0\n");
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "port_down")) == "sudo ethtool eth0");
  }
  SECTION("InfiniBand without a subnet manager, and without a link") {
    const std::string own = "/sys/class/infiniband/mlx5_0/ports/1";
    m.has_adapter().is_infiniband().put(own + "/state", "2: INIT\n");
    m.tried.clear();
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "port_down")) == "sudo systemctl start opensm");
    m.put(own + "/state", "1: DOWN\n").put(own + "/phys_state", "2: Polling\n");
    const auto down = m.judge();
    CHECK(command(m, test::only_error(down, "port_down")) == "sudo ibstat mlx5_0");
  }
}

TEST_CASE("a port that is down beside one that works is a warning") {
  fake_machine m;
  m.has_adapter();
  const std::string second = "/sys/class/infiniband/mlx5_0/ports/2";
  m.put(second + "/state", "1: DOWN\n").put(second + "/link_layer", "Ethernet\n");
  const auto all = m.judge();
  CHECK_FALSE(info::has_error(all));
  CHECK(test::find(all, "port_down").how == info::level::warning);
  CHECK(test::find(all, "port_down").subject == "mlx5_0 port 2");
  SECTION("unless both are") {
    m.tried.clear();
    m.put("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    CHECK(info::has_error(m.judge()));
  }
}

TEST_CASE("a link without an address") {
  fake_machine m;
  m.tried.clear();
  m.remove(port + "/gids/1");
  SECTION("with a link-local one") {
    m.addresses.erase(m.addresses.begin() + 1);
    const auto all = m.judge();
    const info::finding& f = test::only_error(all, "address_absent");
    CHECK(f.text == "its interface eth0 has no IP address but a link-local one");
    CHECK(command(m, f) == "sudo ip addr add 192.168.77.1/24 dev eth0");
  }
  SECTION("with none") {
    m.addresses.resize(1);
    const auto all = m.judge();
    CHECK(test::only_error(all, "address_absent").text == "its interface eth0 has no IP address");
  }
}

TEST_CASE("an address of the interface has no GID") {
  fake_machine m;
  SECTION("the only one") {
    m.tried.clear();
    m.remove(port + "/gids/1");
    const auto all = m.judge();
    const info::finding& f = test::only_error(all, "gid_absent");
    CHECK(f.text == "the address 10.9.0.1 of eth0 has no GID on the port");
    CHECK(command(m, f) == "sudo sh -c 'ip link set eth0 down && ip link set eth0 up'");
  }
  SECTION("one of several") {
    m.addresses.emplace_back("eth0", "10.9.0.2");
    CHECK_FALSE(info::has_error(m.judge()));
    CHECK(test::find(m.judge(), "gid_absent").how == info::level::warning);
  }
}

TEST_CASE("the address that a program will use") {
  fake_machine m;
  m.tried.clear();
  m.asked.address = "10.9.0.1";
  CHECK(test::find(m.judge(), "address").text == "is an address of rxe0");
  SECTION("is of no interface: no GID for it") {
    m.asked.address = "10.77.0.1";
    const auto all = m.judge();
    const info::finding& f = test::only_error(all, "address_unknown");
    CHECK(f.text ==
          "no interface of this network namespace has the address, so no device has a GID "
          "for it; the devices have 10.9.0.1 fe80::ff:fe00:1");
    CHECK(command(m, f) == "sudo ip addr add 10.77.0.1/24 dev eth0");
  }
  SECTION("is of an interface without a device") {
    m.addresses.emplace_back("lo", "10.77.0.1");
    m.asked.address = "10.77.0.1";
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "address_without_device")) ==
          "sudo rdma link add rxe_lo type rxe netdev lo");
  }
  SECTION("is of a device's interface, without a GID") {
    m.addresses.emplace_back("eth0", "10.77.0.1");
    m.asked.address = "10.77.0.1";
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "address_without_gid")) ==
          "sudo sh -c 'ip link set eth0 down && ip link set eth0 up'");
  }
  SECTION("is loopback") {
    m.asked.address = "127.0.0.1";
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "address_is_loopback")) ==
          "asio_rdma-info --address 10.9.0.1");
  }
}

TEST_CASE("RoCE v1") {
  fake_machine m;
  SECTION("the port has nothing else") {
    for (const char* each : {"0", "1"})
      m.put(port + "/gid_attrs/types/" + each, "IB/RoCE v1\n");
    const auto all = m.judge();
    CHECK_FALSE(info::has_error(all));
    CHECK(test::find(all, "roce_v1_only").how == info::level::warning);
    CHECK(command(m, test::find(all, "roce_v1_only")) == "sudo ethtool -i eth0");
    CHECK(test::find(all, "port").text.starts_with("active, RoCE v1, software (rxe)"));
  }
  SECTION("rdma_cm is set to it") {
    m.put("/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode", "IB/RoCE v1\n");
    const auto all = m.judge();
    CHECK(test::find(all, "cm_uses_roce_v1").how == info::level::warning);
    CHECK(test::find(all, "cm_uses_roce_v1").mend.command ==
          "echo \"RoCE v2\" >/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode");
  }
}

TEST_CASE("the MTU of port and interface") {
  fake_machine m;
  const auto active = [&](const std::string& mtu) {
    m.tried.replace(m.tried.find("ACTIVE\t") + 7, 4, mtu);
  };
  SECTION("the port is below its interface") {
    m.put("/sys/class/net/eth0/mtu", "9000\n");
    active("1024");
    const auto all = m.judge();
    CHECK_FALSE(info::has_error(all));
    const info::finding& f = test::find(all, "mtu_below_interface");
    CHECK(f.how == info::level::warning);
    CHECK(f.text == "packets carry 1024 bytes, although the MTU 9000 of eth0 has room for 4096");
    CHECK(f.mend.command == "ip link set eth0 mtu 1500 && ip link set eth0 mtu 9000");
  }
  SECTION("the port is above its interface") {
    m.put("/sys/class/net/eth0/mtu", "1500\n");
    const auto all = m.judge();
    CHECK(test::find(all, "mtu_above_interface").how == info::level::warning);
    CHECK(test::find(all, "mtu_above_interface").mend.command == "ip link set eth0 mtu 4200");
  }
  SECTION("both are small") {
    m.put("/sys/class/net/eth0/mtu", "1500\n");
    active("1024");
    const auto all = m.judge();
    CHECK(test::find(all, "mtu_small").how == info::level::note);
    CHECK(test::find(all, "mtu_small").mend.command == "ip link set eth0 mtu 4200");
  }
  CHECK(info::roce_mtu(1500) == 1024);
  CHECK(info::roce_mtu(4191) == 2048);
  CHECK(info::roce_mtu(4192) == 4096);
  CHECK(info::roce_mtu(351) == 0);
}

TEST_CASE("the interface is in another network namespace, mode shared") {
  fake_machine m;
  m.tried.clear();
  m.put("/proc/net/dev", " face |bytes\n    lo: 0 0\n");
  m.addresses.resize(1);
  SECTION("no interface has its name here") { m.remove("/sys/class/net/eth0"); }
  SECTION("another one has its name here") {
    m.put("/proc/net/dev", " face |bytes\n    lo: 0 0\n  eth0: 0 0\n");
    m.put("/sys/class/net/eth0/address", "02:00:00:00:00:02\n");
    m.addresses.emplace_back("eth0", "172.17.0.2");
  }
  const auto all = m.judge();
  const info::finding& f = test::only_error(all, "interface_in_other_namespace");
  CHECK(f.text.starts_with("its interface eth0 is in another network namespace"));
  m.put("/.dockerenv", "");
  CHECK(test::find(m.judge(), "interface_in_other_namespace").mend.command ==
        "docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host IMAGE");
}

TEST_CASE("InfiniBand and iWARP have the addresses of interfaces") {
  fake_machine m;
  m.tried.clear();
  SECTION("IPoIB") {
    m.has_adapter().is_infiniband();
    m.tried.clear();
    CHECK_FALSE(info::has_error(m.judge()));
    CHECK(test::find(m.judge(), "port").text.ends_with("ib0, 10.9.0.1"));
    m.put("/sys/class/net/ib0/address",
          "80:00:00:02:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:02");
    const auto all = m.judge();
    CHECK(command(m, test::only_error(all, "interface_absent")) == "sudo modprobe ib_ipoib");
  }
  SECTION("iWARP") {
    m.remove("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so");
    m.put("/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so", "");
    m.remove("/sys/class/infiniband/rxe0/parent");
    m.put("/sys/class/infiniband/rxe0/node_type", "4: RNIC\n");
    m.remove(port + "/gids").remove(port + "/gid_attrs");
    m.put(port + "/gids/0", "0200:0000:0001:0000:0000:0000:0000:0000\n");
    CHECK_FALSE(info::has_error(m.judge()));
    CHECK(test::find(m.judge(), "port")
              .text.starts_with("active, iWARP, software (siw), eth0, 10.9.0.1"));
  }
}

TEST_CASE("one device is asked for") {
  fake_machine m;
  m.asked.device = "rxe1";
  const auto all = m.judge();
  CHECK(test::only_error(all, "device_unknown").subject == "rxe1");
  m.asked.device = "rxe0";
  CHECK_FALSE(info::has_error(m.judge()));
}
