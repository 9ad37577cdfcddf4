// SPDX-License-Identifier: BSL-1.0
#include "core/device_files.hpp"

#include "core/described_error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <infiniband/verbs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace asio_rdma::detail {
namespace {

namespace fs = std::filesystem;

// The names in a folder, in order; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> result;
  std::error_code ec;
  for (fs::directory_iterator i(folder, ec), end; !ec && i != end; i.increment(ec))
    result.push_back(i->path().filename().string());
  std::sort(result.begin(), result.end());
  return result;
}

bool exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

bool is_in(std::span<const std::string> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The name of the file of a kernel's device, such as "uverbs0"; empty if it has none.
std::string file_of(const device_folders& in, const std::string& device) {
  const std::string folder = in.classes + "/infiniband_verbs/";
  for (const std::string& name : names_in(folder)) {
    std::string of;
    if (std::ifstream(folder + name + "/ibdev") >> of && of == device)
      return name;
  }
  return {};
}

std::string driver_of(const device_folders& in, const std::string& device) {
  std::error_code ec;
  const fs::path target =
      fs::read_symlink(in.classes + "/infiniband/" + device + "/device/driver", ec);
  return ec ? std::string() : target.filename().string();
}

std::string rights_of(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0)
    return {};
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " (mode %04o, owner %u, group %u)",
                static_cast<unsigned>(s.st_mode & 07777), static_cast<unsigned>(s.st_uid),
                static_cast<unsigned>(s.st_gid));
  return text.data();
}

error_code missing_file(const std::string& path) {
  return describe(error::device_file_missing, [&path] {
    return "the file " + path +
           " is missing, although the kernel has the device "
           "(a container needs it: docker run --device=/dev/infiniband)";
  });
}

error_code missing_module(const char* name, const char* purpose) {
  return describe(error::module_missing, [name, purpose] {
    return std::string("the kernel's module ") + name + ", " + purpose +
           ", is not loaded (modprobe " + name + ")";
  });
}

// Opens the file as libibverbs does, because rights are not the only reason for a refusal: a
// container has rules for devices.
int opening_error(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return errno;
  ::close(fd);
  return 0;
}

// The error of the first device that the kernel has and that libibverbs lists.
error_code listed_error(const device_folders& in, const error_code& otherwise) {
  for (const std::string& device : names_in(in.classes + "/infiniband")) {
    const std::string file = file_of(in, device);
    if (file.empty())
      continue;
    if (const error_code ec = file_error(in, file, {}))
      return ec;
  }
  return otherwise;
}

} // namespace

error_code file_error(const device_folders& in, const std::string& name,
                      const error_code& otherwise) {
  const std::string path = in.files + '/' + name;
  switch (opening_error(path)) {
  case EACCES:
    return describe(error::device_permission, [&path] {
      return "this process may not open " + path + rights_of(path) +
             "; permit it to this user or group, by a rule of udev";
    });
  case EPERM:
    return describe(error::device_permission, [&path] {
      return "this process may not open " + path + rights_of(path) +
             ": the container's rules for devices forbid it (docker run --device=" + path + ")";
    });
  case ENOENT:
  case ENOTDIR:
    return missing_file(path);
  default:
    return otherwise;
  }
}

error_code unlisted_error(const device_folders& in, const std::string& device,
                          std::span<const std::string> listed, const error_code& otherwise) {
  for (const std::string& each : names_in(in.classes + "/infiniband")) {
    if ((!device.empty() && each != device) || is_in(listed, each))
      continue;
    const std::string file = file_of(in, each);
    if (file.empty())
      return missing_module("ib_uverbs", "by which programs use RDMA devices");
    // libibverbs lists a device whose file it sees and whose provider it has.
    if (const error_code ec = file_error(in, file, {}))
      return ec;
    return describe(error::provider_missing, [&] {
      const std::string driver = driver_of(in, each);
      return "libibverbs has no provider for the RDMA device " + each +
             (driver.empty() ? "" : " of the driver " + driver) +
             " (install it: ibverbs-providers on Debian, libibverbs on Fedora)";
    });
  }
  return otherwise;
}

error_code cm_file_error(const device_folders& in, const error_code& otherwise) {
  const bool knows = exists(in.classes + "/misc"); // else the system's files say nothing
  if (knows && !exists(in.classes + "/misc/rdma_cm"))
    return missing_module("rdma_ucm", "the connection manager of programs");
  return file_error(in, "rdma_cm", otherwise);
}

bool may_lack_file(int value) noexcept {
  return value == 0 || value == ENOENT || value == EACCES || value == EPERM || value == ENXIO ||
         value == ENODEV;
}

std::vector<std::string> listed_devices() {
  int size = 0;
  std::vector<std::string> result;
  ibv_device** const list = ibv_get_device_list(&size);
  for (int i = 0; list != nullptr && i < size; ++i)
    result.emplace_back(ibv_get_device_name(list[i]));
  if (list != nullptr)
    ibv_free_device_list(list);
  return result;
}

error_code cm_open_error(int value, const error_code& otherwise) {
  if (!may_lack_file(value))
    return otherwise;
  const device_folders system;
  error_code ec;
  if (value == ENODEV) {
    ec = unlisted_error(system, {}, listed_devices(), {});
    if (!ec)
      ec = listed_error(system, {});
    return ec ? ec : otherwise;
  }
  return cm_file_error(system, otherwise);
}

error_code unusable_error() {
  int size = 0;
  error_code result;
  ibv_device** const list = ibv_get_device_list(&size);
  for (int i = 0; list != nullptr && i < size; ++i) {
    const std::string file = list[i]->dev_name;
    const error_code ec = file.starts_with("uverbs") ? file_error({}, file, {}) : error_code();
    if (!result)
      result = ec;
    if (!ec) {
      result.clear();
      break;
    }
  }
  if (list != nullptr)
    ibv_free_device_list(list);
  return result;
}

error_code creation_error() noexcept { return system_error_code(errno != 0 ? errno : ENOMEM); }

error_code locked_memory_error() noexcept {
  return describe(error::memory_limit, [] {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
      return make_error_code(error::memory_limit).message();
    if (limit.rlim_cur == RLIM_INFINITY)
      return std::string(
          "memory could not be registered; the device or the kernel has none left, as "
          "the limit on locked memory is unlimited");
    return "memory could not be registered; the limit on locked memory is " +
           std::to_string(limit.rlim_cur) +
           " bytes (raise it: ulimit -l unlimited, or memlock in limits.conf)";
  });
}

} // namespace asio_rdma::detail
