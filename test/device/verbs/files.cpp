// SPDX-License-Identifier: BSL-1.0
// Machines on which a user's process cannot use the device: in the lab, as another user than root.
#include "catch.hpp"
#include "device/support/child_process.hpp"
#include "device/support/pair.hpp"

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/memory_region.hpp>

#include <cstdlib>
#include <grp.h>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test::files_tests {
namespace {

constexpr const char* folder = "/dev/infiniband";

enum class scene { device_forbidden, manager_forbidden, no_folder, no_provider, locked_memory };

std::string first_device() {
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  REQUIRE(name != nullptr);
  return name;
}

std::string file_of(const std::string& device) {
  std::string result;
  ibv_device** const list = ibv_get_device_list(nullptr);
  REQUIRE(list != nullptr);
  for (ibv_device** i = list; *i != nullptr; ++i)
    if (ibv_get_device_name(*i) == device)
      result = std::string(folder) + '/' + (*i)->dev_name;
  ibv_free_device_list(list);
  return result;
}

/// A file that only root may open, while this exists.
class forbidden {
public:
  explicit forbidden(std::string path) : path_(std::move(path)) {
    struct stat s {};
    REQUIRE(::stat(path_.c_str(), &s) == 0);
    before_ = s.st_mode & 07777;
    REQUIRE(::chmod(path_.c_str(), 0600) == 0);
  }
  forbidden(const forbidden&) = delete;
  ~forbidden() { ::chmod(path_.c_str(), before_); }

private:
  std::string path_;
  mode_t before_ = 0;
};

/// An empty folder in place of one, while this exists.
class hidden {
public:
  explicit hidden(const char* path) : path_(path) {
    REQUIRE(::mount("none", path, "tmpfs", 0, nullptr) == 0);
  }
  hidden(const hidden&) = delete;
  ~hidden() { ::umount(path_); }

private:
  const char* path_;
};

/// Runs the checks of a scene in a process of a user without rights.
void check_as_user(scene s) {
  CHECK(child_process("[.user]", {"ASIO_RDMA_TEST_SCENE=" + std::to_string(static_cast<int>(s)),
                                  "ASIO_RDMA_TEST_FILE=" + file_of(first_device())})
            .wait() == 0);
}

bool says(const error_code& ec, const std::string& text) {
  return ec.message().find(text) != std::string::npos;
}

/// Each way to a device has this error, whose text has these words.
void check_devices(error expected, const std::string& words) {
  const std::string name = first_device();
  error_code ec;
  CHECK_FALSE(device::open(name, ec).is_open());
  CHECK(ec == expected);
  CHECK(says(ec, words));
  device::open_first(ec);
  CHECK(ec == expected);
  CHECK(says(ec, words));
  device::open_for(asio::ip::make_address(std::getenv("ASIO_RDMA_ADDRESS")), ec);
  CHECK(ec == expected);
  CHECK(says(ec, words));
  try {
    device::open(name);
    FAIL("nothing was thrown");
  } catch (const system_error& e) {
    INFO(e.what());
    CHECK(e.code() == expected);
    CHECK(std::string(e.what()).find("device::open " + name) == 0);
    CHECK(std::string(e.what()).find(words) != std::string::npos);
  }
}

void check_acceptor(error expected, const std::string& words,
                    const char* address = std::getenv("ASIO_RDMA_ADDRESS")) {
  asio::io_context io;
  acceptor a(io);
  error_code ec;
  a.open({asio::ip::make_address(address), 0}, 1, ec);
  INFO(address << ": " << describe(ec));
  CHECK(ec == expected);
  CHECK(says(ec, words));
}

void check_connector(error expected, const std::string& words) {
  asio::io_context io;
  const protection_domain pd(device::open(first_device()));
  queue_pair qp(io, pd);
  connector c(io);
  outcome<connection_info> connected;
  c.async_connect(qp, {asio::ip::make_address(std::getenv("ASIO_RDMA_ADDRESS")), 7},
                  connected.handler());
  until(io, [&] { return connected.done(); });
  INFO(describe(connected.ec));
  CHECK(connected.ec == expected);
  CHECK(says(connected.ec, words));
}

} // namespace

TEST_CASE("a user without rights learns which file, folder, provider or limit is the reason",
          "[.files]") {
  if (::geteuid() != 0 || std::getenv("ASIO_RDMA_IN_LAB") == nullptr)
    return not_on_this_device("only root of the lab can make these machines");
  SECTION("the device's file") {
    const forbidden f(file_of(first_device()));
    check_as_user(scene::device_forbidden);
  }
  SECTION("the file of the connection manager") {
    ::chmod(file_of(first_device()).c_str(), 0666);
    const forbidden f(std::string(folder) + "/rdma_cm");
    check_as_user(scene::manager_forbidden);
  }
  SECTION("no folder, as in a container") {
    const std::string file = file_of(first_device());
    const hidden h(folder);
    CHECK(child_process("[.user]", {"ASIO_RDMA_TEST_SCENE=2", "ASIO_RDMA_TEST_FILE=" + file})
              .wait() == 0);
  }
  SECTION("no provider") {
    ::chmod(file_of(first_device()).c_str(), 0666);
    const std::string file = file_of(first_device());
    const hidden h("/etc/libibverbs.d");
    CHECK(child_process("[.user]", {"ASIO_RDMA_TEST_SCENE=3", "ASIO_RDMA_TEST_FILE=" + file})
              .wait() == 0);
  }
  SECTION("little locked memory") {
    ::chmod(file_of(first_device()).c_str(), 0666);
    check_as_user(scene::locked_memory);
  }
}

TEST_CASE("the checks of a user without rights", "[.user]") {
  const int number = child_process::variable("ASIO_RDMA_TEST_SCENE");
  if (number < 0)
    return;
  const std::string file = std::getenv("ASIO_RDMA_TEST_FILE");
  constexpr uid_t other = 65534;
  REQUIRE(::setgroups(0, nullptr) == 0);
  REQUIRE(::setresgid(other, other, other) == 0);
  REQUIRE(::setresuid(other, other, other) == 0);
  switch (static_cast<scene>(number)) {
  case scene::device_forbidden:
    check_devices(error::device_permission, file + " (mode 0600, owner 0, group 0)");
    check_acceptor(error::device_permission, file);
    check_acceptor(error::device_permission, file, "0.0.0.0");
    break;
  case scene::manager_forbidden:
    CHECK(device::open(first_device()).is_open());
    check_acceptor(error::device_permission, "/dev/infiniband/rdma_cm (mode 0600");
    check_acceptor(error::device_permission, "/dev/infiniband/rdma_cm (mode 0600", "0.0.0.0");
    check_connector(error::device_permission, "/dev/infiniband/rdma_cm (mode 0600");
    break;
  case scene::no_folder:
    check_devices(error::device_file_missing, file);
    check_acceptor(error::device_file_missing, file);
    check_acceptor(error::device_file_missing, file, "0.0.0.0");
    break;
  case scene::no_provider:
    check_devices(error::provider_missing, first_device());
    check_acceptor(error::provider_missing, first_device());
    break;
  case scene::locked_memory: {
    rlimit few{65536, 65536};
    REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &few) == 0);
    std::vector<char> large(std::size_t(1) << 20);
    error_code ec;
    const protection_domain pd(device::open(first_device()));
    const memory_region region(pd, large.data(), large.size(), access::local_write, ec);
    CHECK(ec == error::memory_limit);
    CHECK(says(ec, "65536 bytes (raise it"));
    break;
  }
  }
}

} // namespace test::files_tests
