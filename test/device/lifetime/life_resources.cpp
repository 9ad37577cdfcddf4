// SPDX-License-Identifier: BSL-1.0
#include "device/lifetime/life_resources.hpp"

#include <catch.hpp>

#include <algorithm>
#include <array>
#include <asio_rdma_soft.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <rdma/rdma_cma.h>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unistd.h>

// The function is there if the software device is.
#pragma weak soft_get_resources

namespace test {

std::string device_resources() {
  if (soft_get_resources != nullptr) {
    soft_resources r{};
    soft_get_resources(&r);
    std::ostringstream result;
    for (const int n : {r.domains, r.regions, r.windows, r.completion_queues,
                        r.shared_receive_queues, r.queue_pairs, r.ids})
      result << n << ' ';
    return result.str();
  }
  // Not "ctx": librdmacm keeps one open from its first use.
  FILE* const lines =
      ::popen("PATH=$PATH:/usr/sbin:/sbin; printf 'resource show %s\\n' pd cq qp mr "
              "cm_id srq | rdma -b -",
              "r");
  if (lines == nullptr)
    throw std::runtime_error("rdma does not run");
  const std::string own = " pid " + std::to_string(::getpid()) + " ";
  std::map<std::string, int> counts;
  std::array<char, 1024> line;
  while (std::fgets(line.data(), line.size(), lines) != nullptr) {
    if (std::string(line.data()).find(own) == std::string::npos)
      continue;
    std::istringstream words(line.data()); // "dev rxe0 pdn 1 ..."
    std::string word, kind;
    words >> word >> word >> kind;
    ++counts[kind];
  }
  if (::pclose(lines) != 0)
    throw std::runtime_error("rdma resource fails");
  std::ostringstream result;
  for (const auto& [kind, n] : counts)
    result << kind << ' ' << n << ' ';
  return result.str();
}

// Neither the library nor a device has a pipe open for longer than a call. UBSan's runtime opens
// one for a moment, in any thread, to see whether memory can be read.
std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::count_if(begin(all), end(all), [](const auto& entry) {
    std::error_code closed_meanwhile;
    return read_symlink(entry.path(), closed_meanwhile).native().rfind("pipe:", 0) != 0 &&
           !closed_meanwhile;
  }));
}

resource_check::resource_check() : before_(device_resources()) {
  // librdmacm opens every device at its first use, and keeps it open.
  static const bool used = [] {
    rdma_free_devices(rdma_get_devices(nullptr));
    return true;
  }();
  static_cast<void>(used);
  descriptors_ = open_descriptors();
}

resource_check::~resource_check() {
  const std::string after = device_resources();
  CHECK(after == before_);
  // The software device's thread closes the socket of a connection when both sides have ended it.
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
       open_descriptors() != descriptors_ && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(open_descriptors() == descriptors_);
}

} // namespace test
