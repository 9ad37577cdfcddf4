// SPDX-License-Identifier: BSL-1.0
// Broken set-ups of the machine and of the process: each has its one diagnosis and its remedy.
#include "catch.hpp"
#include "fake_machine.hpp"
#include "print.hpp"

#include <cerrno>
#include <string>

using test::fake_machine;

namespace {

/// The diagnosis and the command that mends it, by files alone.
void check(fake_machine& m, const std::string& name, const std::string& command,
           info::remedy::place at = info::remedy::place::here) {
  m.tried.clear();
  INFO(m.text());
  const info::findings all = m.judge();
  const info::finding& f = test::only_error(all, name);
  CHECK(info::command_of(m.read(), f.mend) == command);
  CHECK(f.mend.at == at);
  CHECK(info::has_error(all));
}

constexpr auto on_host = info::remedy::place::host, in_image = info::remedy::place::image;
const char* const verbs = "/dev/infiniband/uverbs0";
const char* const run_docker =
    "docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host IMAGE";

void limit(fake_machine& m, const std::string& soft, const std::string& hard) {
  m.put("/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  " + soft +
                                 "   " + hard + "  bytes\n");
}

} // namespace

TEST_CASE("a healthy machine has no error and no warning") {
  fake_machine m;
  INFO(m.text());
  for (const info::finding& each : m.judge()) {
    CHECK(each.how < info::level::warning);
    CHECK(each.mend.command.empty());
  }
  CHECK(test::find(m.judge(), "device_file").text == "the file of rxe0 may be opened");
  CHECK(test::find(m.judge(), "port").text ==
        "active, RoCE v2, software (rxe), MTU 4096, eth0, 10.9.0.1 fe80::ff:fe00:1");
  CHECK(test::find(m.judge(), "message").text ==
        "a message to itself at 10.9.0.1 was answered in 120 us");
}

TEST_CASE("/dev/infiniband is absent") {
  fake_machine m;
  m.remove("/dev/infiniband");
  SECTION("on a host") {
    check(m, "device_folder_absent",
          "sudo udevadm trigger --action=add --subsystem-match=infiniband_verbs "
          "--subsystem-match=misc");
  }
  SECTION("in a container of docker") {
    m.put("/.dockerenv", "");
    check(m, "device_folder_absent", run_docker, on_host);
  }
  SECTION("in a container of podman") {
    m.put("/run/.containerenv", "");
    check(m, "device_folder_absent", "podman" + std::string(run_docker).substr(6), on_host);
  }
  SECTION("in Kubernetes") {
    m.put("/proc/self/environ", std::string("A=1\0KUBERNETES_SERVICE_HOST=10.0.0.1\0", 38));
    check(m, "device_folder_absent",
          "kubectl edit pod POD, with a resource of an RDMA device plugin such as "
          "rdma/hca_shared_devices_a: 1",
          on_host);
  }
}

TEST_CASE("one file is absent") {
  fake_machine m;
  SECTION("rdma_cm on a host") {
    m.remove("/dev/infiniband/rdma_cm");
    check(m, "device_file_absent", "sudo mknod -m 0666 /dev/infiniband/rdma_cm c 10 58");
  }
  SECTION("uverbs in a container") {
    m.remove(verbs).put("/.dockerenv", "");
    check(m, "device_file_absent", run_docker, on_host);
  }
}

TEST_CASE("uverbs has the mode 0600") {
  fake_machine m;
  m.allow(verbs, 0600);
  check(m, "device_file_permission", "sudo chmod 0666 /dev/infiniband/uverbs0");
  CHECK(test::find(m.judge(), "device_file_permission")
            .text.starts_with(
                "the user ann (uid 4711) may not open the file of rxe0: mode 0600, owner "));
  SECTION("root may open it") {
    m.put("/proc/self/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
    CHECK_FALSE(info::has_error(m.judge()));
  }
  SECTION("root of another user namespace may not") {
    m.put("/proc/self/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
    m.put("/proc/self/uid_map", "         0       4711          1\n");
    m.allow(verbs, 0);
    CHECK(test::has(m.judge(), "device_file_permission"));
  }
}

TEST_CASE("rdma_cm has the mode 0600") {
  fake_machine m;
  m.allow("/dev/infiniband/rdma_cm", 0600);
  check(m, "device_file_permission", "sudo chmod 0666 /dev/infiniband/rdma_cm");
  SECTION("in a container the host's administrator mends it") {
    m.put("/.dockerenv", "");
    check(m, "device_file_permission", "chmod 0666 /dev/infiniband/rdma_cm", on_host);
  }
}

TEST_CASE("the files are those of a group: the wrong user") {
  fake_machine m;
  info::facts f = m.read();
  f.tried = {};
  for (info::file_facts* file : {&*f.devices.front().verbs, &f.cm}) {
    file->mode = 0660;
    file->uid = 0;
    file->owner = "root";
    file->gid = 104;
    file->group = "rdma";
  }
  const info::findings all = info::judge(f, {});
  const info::finding& error = test::find(all, "device_file_permission");
  CHECK(error.text ==
        "the user ann (uid 4711) may not open the file of rxe0: mode 0660, owner root, "
        "group rdma");
  CHECK(info::command_of(f, error.mend) == "sudo usermod -a -G rdma ann");
  f.user.groups = {104};
  CHECK_FALSE(info::has_error(info::judge(f, {})));
}

TEST_CASE("opening a file decides more than its mode") {
  fake_machine m;
  info::facts f = m.read();
  f.tried = {};
  info::file_facts& file = *f.devices.front().verbs;
  SECTION("the container's controller of devices denies it") {
    f.container = "docker";
    file.open_errno = EPERM;
    const info::findings all = info::judge(f, {});
    CHECK(test::only_error(all, "device_file_denied").mend.command == run_docker);
  }
  SECTION("an access control list permits it") {
    file.mode = 0600;
    file.open_errno = 0;
    CHECK_FALSE(info::has_error(info::judge(f, {})));
  }
  SECTION("no device is behind it") {
    file.open_errno = ENXIO;
    const info::findings all = info::judge(f, {});
    CHECK(test::only_error(all, "device_file_stale")
              .mend.command.starts_with("rm /dev/infiniband/uverbs0 && udevadm trigger"));
  }
}

TEST_CASE("the module rdma_ucm is not loaded") {
  fake_machine m;
  m.remove("/sys/class/misc/rdma_cm").remove("/dev/infiniband/rdma_cm");
  check(m, "rdma_ucm_not_loaded", "sudo modprobe rdma_ucm");
  m.put("/.dockerenv", "");
  check(m, "rdma_ucm_not_loaded", "modprobe rdma_ucm", on_host);
}

TEST_CASE("the module ib_uverbs is not loaded") {
  fake_machine m;
  m.remove("/sys/class/infiniband_verbs").remove(verbs);
  check(m, "ib_uverbs_not_loaded", "sudo modprobe ib_uverbs");
}

TEST_CASE("the limit on locked memory") {
  fake_machine m;
  SECTION("64 KiB") {
    limit(m, "65536", "65536");
    check(m, "memlock_too_small",
          "sudo sh -c 'echo \"ann - memlock unlimited\" >/etc/security/limits.d/rdma.conf && echo "
          "log "
          "in again'");
    CHECK(test::find(m.judge(), "memlock_too_small").text ==
          "the limit of 64 KiB is below the 2 MiB that a memory pool registers first");
  }
  SECTION("64 KiB of which the user may raise it") {
    limit(m, "65536", "unlimited");
    check(m, "memlock_too_small", "ulimit -l unlimited");
    limit(m, "65536", "1073741824");
    check(m, "memlock_too_small", "ulimit -l 1048576");
  }
  SECTION("64 KiB in a container") {
    limit(m, "65536", "65536");
    m.put("/.dockerenv", "");
    check(m, "memlock_too_small", run_docker, on_host);
  }
  SECTION("8 MiB is a warning") {
    limit(m, "8388608", "8388608");
    CHECK(test::find(m.judge(), "memlock_small").how == info::level::warning);
    CHECK_FALSE(info::has_error(m.judge()));
  }
  SECTION("a process with CAP_IPC_LOCK has none") {
    limit(m, "65536", "65536");
    m.put("/proc/self/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
    CHECK_FALSE(info::has_error(m.judge()));
    m.put("/proc/self/uid_map", "         0       4711          1\n"); // the rights of a namespace
    CHECK(test::has(m.judge(), "memlock_too_small"));
  }
}

TEST_CASE("rdma-core is absent") {
  fake_machine m;
  m.remove("/usr/lib/x86_64-linux-gnu");
  check(m, "rdma_core_absent",
        "sudo apt install rdma-core libibverbs1 librdmacm1 ibverbs-providers");
  SECTION("in an image") {
    m.put("/.dockerenv", "")
        .put("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
    check(m, "rdma_core_absent", "dnf install rdma-core libibverbs librdmacm", in_image);
  }
  SECTION("the trial that cannot start is no second error") {
    m.failure =
        "error while loading shared libraries: libibverbs.so.1: cannot open shared object file";
    const info::findings all = m.judge();
    test::only_error(all, "rdma_core_absent");
    CHECK(test::find(all, "trial_failed").how == info::level::note);
  }
}

TEST_CASE("librdmacm alone is absent") {
  fake_machine m;
  m.remove("/usr/lib/x86_64-linux-gnu/librdmacm.so.1");
  CHECK(test::find(m.judge(), "rdma_core_absent").text ==
        "not installed, or only in part: there is no librdmacm.so.1");
}

TEST_CASE("a provider's library is absent") {
  fake_machine m;
  m.has_adapter().remove("/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so");
  check(m, "provider_absent", "sudo apt install ibverbs-providers");
  SECTION("the device that libibverbs does not list is no second error") {
    m.tried = " "; // ran, and listed nothing
    const info::findings all = m.judge();
    test::only_error(all, "provider_absent");
    CHECK(test::find(all, "device_not_listed").how == info::level::note);
  }
}

TEST_CASE("libibverbs does not list a device, for an unknown reason") {
  fake_machine m;
  m.tried = " ";
  test::only_error(m.judge(), "device_not_listed");
}

TEST_CASE("the device is in another network namespace, mode exclusive") {
  fake_machine m;
  m.remove("/sys/class/infiniband").put("/sys/module/ib_core/parameters/netns_mode", "N\n");
  check(m, "device_in_other_namespace", "sudo rdma dev set rxe0 netns NAME");
}

TEST_CASE("/sys shows another network namespace") {
  fake_machine m;
  m.put("/proc/net/dev", " face |bytes\n    lo: 0 0\n");
  CHECK(test::find(m.judge(), "sys_of_other_namespace").mend.command ==
        "mount -t sysfs sysfs /sys");
}

TEST_CASE("no device") {
  fake_machine m;
  m.remove("/sys/class/infiniband").remove("/sys/class/infiniband_verbs").remove("/dev/infiniband");
  SECTION("a software device is made") {
    check(m, "no_device",
          "sudo sh -c 'modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0'");
  }
  SECTION("the kernel has siw only") {
    m.put("/lib/modules/6.1.0-18-amd64/modules.dep",
          "kernel/drivers/infiniband/sw/siw/siw.ko: x\n");
    check(m, "no_device", "sudo sh -c 'modprobe siw && rdma link add siw0 type siw netdev eth0'");
  }
  SECTION("the adapter's module for RDMA is not loaded") {
    m.link("/sys/bus/pci/devices/0000:01:00.0/driver", "../../../bus/pci/drivers/bnxt_en");
    check(m, "driver_not_loaded", "sudo modprobe bnxt_re");
    CHECK(test::find(m.judge(), "driver_not_loaded").text ==
          "the adapter 0000:01:00.0 has the driver bnxt_en, but its module for RDMA is not loaded");
  }
  SECTION("a software device within the process works, and nothing else is an error") {
    m.tried =
        "device\tsoft0\tinfiniband\nopen\tsoft0\t\naddress\tsoft0\t127.0.0.1\nmemory\tsoft0\t\n"
        "listen\tsoft0\t127.0.0.1\t\nmessage\tsoft0\t20\t\n";
    const info::findings all = m.judge();
    CHECK_FALSE(info::has_error(all));
    CHECK(test::find(all, "software_device")
              .text.starts_with("a software device within the process"));
    CHECK(test::find(all, "no_device").how == info::level::note);
    m.asked.address = "127.0.0.1";
    CHECK_FALSE(info::has_error(m.judge()));
  }
}

TEST_CASE("/proc or /sys is not mounted") {
  fake_machine m;
  SECTION("/proc") {
    m.remove("/proc");
    m.tried.clear();
    CHECK(test::find(m.judge(), "proc_absent").mend.command == "mount -t proc proc /proc");
  }
  SECTION("/sys") {
    m.remove("/sys");
    check(m, "sys_absent", "sudo mount -t sysfs sysfs /sys");
  }
}

TEST_CASE("a connection that the trial has made outweighs the files") {
  fake_machine m;
  m.allow("/dev/infiniband/rdma_cm", 0600);
  CHECK(test::find(m.judge(), "device_file_permission").how == info::level::warning);
  CHECK_FALSE(info::has_error(m.judge()));
  m.tried.replace(m.tried.find("120.5\t"), 6, "0\tno answer in 5 s");
  CHECK(info::has_error(m.judge()));
}

TEST_CASE("faults that only the trial sees") {
  fake_machine m;
  SECTION("the device does not open") {
    m.tried = "device\trxe0\tinfiniband\nopen\trxe0\tCannot allocate memory\n";
    CHECK(test::only_error(m.judge(), "open_failed").text ==
          "the library cannot open the device: Cannot allocate memory");
  }
  SECTION("no address can be listened at") {
    m.tried =
        "device\trxe0\tinfiniband\nopen\trxe0\t\nmemory\trxe0\t\nlisten\trxe0\t10.9.0.1\tNo such "
        "device\n";
    CHECK(test::only_error(m.judge(), "listen").text ==
          "cannot listen at 10.9.0.1: No such device");
  }
  SECTION("a device that does not reach itself is a warning") {
    m.tried.replace(m.tried.find("120.5\t"), 6, "0\tno answer in 5 s");
    CHECK(test::find(m.judge(), "message").how == info::level::warning);
    CHECK_FALSE(info::has_error(m.judge()));
  }
  SECTION("a device without reliable connections") {
    m.tried = "device\trxe0\tother\nopen\trxe0\t\nmemory\trxe0\t\n";
    test::only_error(m.judge(), "no_reliable_connections");
  }
  SECTION("the trial hangs") {
    m.failure = "it was not done after 20 s";
    test::only_error(m.judge(), "trial_failed");
  }
}
