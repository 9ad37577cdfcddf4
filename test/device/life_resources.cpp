// SPDX-License-Identifier: BSL-1.0
#include "life_resources.hpp"

#include <catch.hpp>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

namespace test {
namespace {

int count_of(const std::string& kind) {
  const std::string command = "PATH=$PATH:/usr/sbin:/sbin rdma resource show " + kind;
  const std::unique_ptr<FILE, int (*)(FILE*)> lines(::popen(command.c_str(), "r"), ::pclose);
  if (!lines)
    throw std::runtime_error("rdma does not run");
  const std::string own = " pid " + std::to_string(::getpid()) + " ";
  int n = 0;
  std::array<char, 1024> line;
  while (std::fgets(line.data(), line.size(), lines.get()) != nullptr)
    n += std::string(line.data()).find(own) != std::string::npos ? 1 : 0;
  return n;
}

} // namespace

std::string device_resources() {
  std::ostringstream result;
  // Not "ctx": librdmacm keeps one open from its first use on.
  for (const char* kind : {"pd", "cq", "qp", "mr", "cm_id", "srq"})
    result << kind << ' ' << count_of(kind) << ' ';
  return result.str();
}

resource_check::resource_check() : before_(device_resources()) {}

resource_check::~resource_check() {
  const std::string after = device_resources();
  CHECK(after == before_);
}

} // namespace test
