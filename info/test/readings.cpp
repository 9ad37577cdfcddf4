// SPDX-License-Identifier: BSL-1.0
// The reading of files, of asio_rdma-info-try's lines, and of its process.
#include "addresses.hpp"
#include "catch.hpp"
#include "fake_machine.hpp"
#include "tried.hpp"

#include <string>
#include <vector>

using test::fake_machine;

TEST_CASE("the facts of a machine") {
  const fake_machine m;
  const info::facts f = m.read();
  CHECK(f.kernel == "6.1.0-18-amd64");
  CHECK(f.system == "debian");
  CHECK(f.container.empty());
  CHECK(f.netns_mode == "shared");
  CHECK(f.user.uid == 4711);
  CHECK(f.user.name == "ann");
  CHECK(f.user.groups == std::vector<unsigned>{4711, 4712});
  CHECK_FALSE(f.user.memlock_soft);
  CHECK(f.libibverbs == "/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
  CHECK(f.verbs_loaded);
  CHECK(f.cm_loaded);
  CHECK(f.cm.mode == 0666);
  CHECK_FALSE(f.cm.open_errno);
  CHECK(f.modules == std::vector<std::string>{"rdma_rxe"});
  CHECK_FALSE(f.sys_is_foreign);
  REQUIRE(f.devices.size() == 1);
  const info::device_facts& d = f.devices.front();
  CHECK(d.driver == "rxe");
  CHECK(d.software);
  CHECK(d.library == "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so");
  REQUIRE(d.ports.size() == 1);
  CHECK(d.ports.front().gids.size() == 2);
  CHECK(d.ports.front().interfaces == std::vector<std::string>{"eth0"});
}

TEST_CASE("an adapter's driver and interface") {
  fake_machine m;
  const info::facts f = m.has_adapter().read();
  REQUIRE(f.devices.size() == 1);
  CHECK(f.devices.front().driver == "mlx5_core");
  CHECK(f.devices.front().provider == "mlx5");
  CHECK_FALSE(f.devices.front().software);
}

TEST_CASE("the kind of a container") {
  fake_machine m;
  const auto is = [&](const char* name) {
    return m.read().container == name;
  };
  SECTION("by the group of processes") {
    m.put("/proc/self/cgroup", "0::/kubepods/besteffort/pod1\n");
    CHECK(is("kubernetes"));
  }
  SECTION("by systemd") {
    m.put("/run/systemd/container", "systemd-nspawn\n");
    CHECK(is("container"));
  }
  SECTION("by the environment") {
    m.put("/proc/self/environ", std::string("container=lxc\0", 14));
    CHECK(is("lxc"));
  }
}

TEST_CASE("libraries in other places") {
  fake_machine m;
  m.remove("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
  SECTION("of the dynamic linker's configuration") {
    m.put("/opt/rdma/lib/libibverbs.so.1", "")
        .put("/etc/ld.so.conf.d/rdma.conf", "/opt/rdma/lib\n");
    CHECK(m.read().libibverbs == "/opt/rdma/lib/libibverbs.so.1");
  }
  SECTION("of the environment") {
    m.put("/opt/l/libibverbs.so.1", "");
    m.put("/proc/self/environ", std::string("LD_LIBRARY_PATH=/none:/opt/l\0", 29));
    CHECK(m.read().libibverbs == "/opt/l/libibverbs.so.1");
  }
}

TEST_CASE("forms of addresses") {
  CHECK(info::usual_form("10.9.0.1") == "10.9.0.1");
  CHECK(info::usual_form("::ffff:10.9.0.1") == "10.9.0.1");
  CHECK(info::usual_form("FE80:0::1%eth0") == "fe80::1");
  CHECK(info::usual_form("10.9.0").empty());
  CHECK(info::usual_form("host").empty());
  CHECK(info::link_local_of("02:00:00:00:00:01") == "fe80::ff:fe00:1");
  CHECK(info::link_local_of("").empty());
  CHECK(info::has_hardware_of("02:00:00:00:00:01", "0200:0000:0001::", true));
  CHECK_FALSE(info::has_hardware_of("00:00:00:00:00:00", "0000:0000:0000::", true));
}

TEST_CASE("the lines of a trial") {
  const auto all = info::parse_tried(
      "device\ta\tiwarp\nopen\ta\t\nport\ta\t2\tINIT\t1024\t4096\naddress\ta\t::1\n"
      "memory\ta\tno room\nlisten\ta\t::1\tno\nopen\tb\tdenied\ngarbage\n\n");
  REQUIRE(all.size() == 2);
  CHECK(all[0].transport == "iwarp");
  CHECK(all[0].open_error.empty());
  CHECK(all[0].ports.at(2).state == "INIT");
  CHECK(all[0].ports.at(2).active_mtu == 1024);
  CHECK(all[0].memory == "no room");
  CHECK(all[0].listen == "no");
  CHECK_FALSE(all[0].message);
  CHECK(all[1].open_error == "denied");
}

TEST_CASE("the process of a trial") {
  const auto run = [](const std::string& script, double seconds) {
    return info::run_try("/bin/sh", {"-c", script}, seconds);
  };
  SECTION("succeeds") {
    const auto t = run("printf 'open\\tx\\t\\n'", 60);
    CHECK(t.ran);
    CHECK(t.failure.empty());
    CHECK(t.devices.size() == 1);
  }
  SECTION("fails with a message") {
    CHECK(run("echo first >&2; echo no library >&2; exit 127", 60).failure == "no library");
  }
  SECTION("crashes; its results so far count") {
    const auto t = run("printf 'open\\tx\\t\\n'; kill -SEGV $$", 60);
    CHECK(t.failure.find("signal") != std::string::npos);
    CHECK(t.devices.size() == 1);
  }
  SECTION("hangs") { CHECK(run("exec sleep 1000", 0.1).failure == "it was not done after 0 s"); }
  SECTION("is absent") {
    CHECK(info::run_try("/nowhere/x", {}, 60).failure == "No such file or directory");
  }
}
