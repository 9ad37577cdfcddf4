// SPDX-License-Identifier: BSL-1.0
// The reason why a device cannot be used, by folders that stand for the kernel's.
#include <catch.hpp>

#include "core/device_files.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <unistd.h>
#include <vector>

using namespace asio_rdma;
using detail::device_folders;

namespace {

namespace fs = std::filesystem;

/// A machine with the device rxe0, whose file is uverbs0, and with the connection manager.
class machine {
public:
  machine() {
    std::string name = (fs::temp_directory_path() / "asio_rdma_files_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("mkdtemp");
    root = name;
    folders = {(root / "class").string(), (root / "infiniband").string()};
    add_device("rxe0", "uverbs0");
    fs::create_directories(root / "class/misc/rdma_cm");
    add_file("rdma_cm");
  }
  machine(const machine&) = delete;
  ~machine() {
    std::error_code ec;
    fs::remove_all(root, ec);
  }

  void add_device(const std::string& device, const std::string& file) {
    fs::create_directories(root / "class/infiniband" / device);
    if (file.empty())
      return;
    fs::create_directories(root / "class/infiniband_verbs" / file);
    std::ofstream(root / "class/infiniband_verbs" / file / "ibdev") << device << '\n';
    add_file(file);
  }
  void add_file(const std::string& name) {
    fs::create_directories(root / "infiniband");
    std::ofstream(root / "infiniband" / name) << "";
  }
  /// The process of root may open each file.
  bool forbid(const std::string& name) {
    fs::permissions(root / "infiniband" / name, fs::perms::none);
    return ::geteuid() != 0;
  }
  error_code unlisted(const std::string& device = {},
                      const std::vector<std::string>& listed = {}) const {
    return detail::unlisted_error(folders, device, listed, error::no_device);
  }
  std::string path(const std::string& name) const { return folders.files + '/' + name; }

  fs::path root;
  device_folders folders;
};

bool names(const error_code& ec, const std::string& text) {
  return ec.message().find(text) != std::string::npos;
}

} // namespace

TEST_CASE("files that may be opened are no reason") {
  const machine m;
  CHECK(detail::file_error(m.folders, "uverbs0", error::device_fatal) == error::device_fatal);
  CHECK(detail::cm_file_error(m.folders, error::device_fatal) == error::device_fatal);
  CHECK(m.unlisted({}, {"rxe0"}) == error::no_device);
  CHECK(m.unlisted("siw0", {"rxe0"}) == error::no_device); // the kernel does not have it either
}

TEST_CASE("a file that may not be opened is named with its rights") {
  machine m;
  if (!m.forbid("uverbs0") || !m.forbid("rdma_cm")) {
    WARN("not as root, who may open each file; the test verbs_files has the rights of a user");
    return;
  }
  const error_code device = detail::file_error(m.folders, "uverbs0", {});
  CHECK(device == error::device_permission);
  CHECK(names(device, m.path("uverbs0") + " (mode 0000, owner "));
  const error_code manager = detail::cm_file_error(m.folders, {});
  CHECK(manager == error::device_permission);
  CHECK(names(manager, m.path("rdma_cm")));
}

TEST_CASE("a missing file is named, as in a container without it") {
  machine m;
  SECTION("one file") {
    fs::remove(m.path("uverbs0"));
    fs::remove(m.path("rdma_cm"));
  }
  SECTION("the folder") { fs::remove_all(m.folders.files); }
  const error_code device = m.unlisted();
  CHECK(device == error::device_file_missing);
  CHECK(names(device, m.path("uverbs0")));
  CHECK(names(device, "--device"));
  CHECK(detail::file_error(m.folders, "uverbs0", {}) == error::device_file_missing);
  const error_code manager = detail::cm_file_error(m.folders, {});
  CHECK(manager == error::device_file_missing);
  CHECK(names(manager, m.path("rdma_cm")));
}

TEST_CASE("a device of the kernel that libibverbs does not list lacks its provider") {
  machine m;
  m.add_device("mlx5_0", "uverbs1");
  fs::create_directories(m.root / "class/infiniband/mlx5_0/device");
  fs::create_directory_symlink(m.root / "mlx5_core",
                               m.root / "class/infiniband/mlx5_0/device/driver");
  CHECK(m.unlisted({}, {"mlx5_0", "rxe0"}) == error::no_device);
  const error_code ec = m.unlisted({}, {"rxe0"});
  CHECK(ec == error::provider_missing);
  CHECK(names(ec, "mlx5_0 of the driver mlx5_core"));
  CHECK(m.unlisted("mlx5_0", {"rxe0"}) == error::provider_missing);
  CHECK(names(m.unlisted("rxe0"), "rxe0 (")); // without a driver of a bus
}

TEST_CASE("a module that is not loaded is named") {
  machine m;
  SECTION("of the device") {
    m.add_device("siw0", {});
    const error_code ec = m.unlisted({}, {"rxe0"});
    CHECK(ec == error::module_missing);
    CHECK(names(ec, "modprobe ib_uverbs"));
  }
  SECTION("of the connection manager") {
    fs::remove(m.root / "class/misc/rdma_cm");
    const error_code ec = detail::cm_file_error(m.folders, {});
    CHECK(ec == error::module_missing);
    CHECK(names(ec, "modprobe rdma_ucm"));
  }
  SECTION("without the kernel's folders the file decides") {
    fs::remove_all(m.folders.classes);
    CHECK(m.unlisted() == error::no_device);
    CHECK(!detail::cm_file_error(m.folders, {}));
    fs::remove(m.path("rdma_cm"));
    CHECK(detail::cm_file_error(m.folders, {}) == error::device_file_missing);
  }
}

TEST_CASE("the files are examined only after errors that a file can cause") {
  for (const int value : {ENOENT, EACCES, EPERM, ENODEV, 0})
    CHECK(detail::may_lack_file(value));
  for (const int value : {EMFILE, ENFILE, ENOMEM, EINVAL, EIO})
    CHECK_FALSE(detail::may_lack_file(value));
}
