// SPDX-License-Identifier: BSL-1.0
#include "device/support/peer_process.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <system_error>
#include <utility>
#include <vector>

namespace test {
namespace {

constexpr const char* variable = "PEER_PROCESS_PORT";

struct description {
  std::uint64_t address;
  std::uint32_t rkey, bytes;
};

} // namespace

peer_process::peer_process(const endpoint& to) {
  std::string port = std::string(variable) + "=" + std::to_string(to.port());
  std::vector<char*> environment{port.data()};
  for (char** e = environ; *e != nullptr; ++e)
    environment.push_back(*e);
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe", tests[] = "[.peer]";
  char* arguments[] = {program, tests, nullptr};
  if (const int e = ::posix_spawn(&pid_, program, nullptr, nullptr, arguments, environment.data()))
    throw std::system_error(e, std::generic_category(), "posix_spawn");
}

void peer_process::kill() {
  if (pid_ == 0)
    return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, 0), nullptr, 0);
}

void peer_process::stop() {
  ::kill(pid_, SIGSTOP);
  int status = 0;
  if (::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status))
    throw std::runtime_error("the peer does not stop");
}

std::optional<std::uint16_t> port_of_tester() {
  const char* const port = std::getenv(variable);
  if (port == nullptr)
    return {};
  return static_cast<std::uint16_t>(std::stoi(port));
}

private_data described(const remote_buffer& memory) {
  const description d{memory.address, memory.rkey, static_cast<std::uint32_t>(memory.size)};
  private_data result(sizeof d);
  std::memcpy(result.data(), &d, sizeof d);
  return result;
}

remote_buffer described(const private_data& data) {
  description d{};
  if (data.size() < sizeof d)
    throw std::runtime_error("the peer's private data does not describe its memory");
  std::memcpy(&d, data.data(), sizeof d);
  return {d.address, d.bytes, d.rkey};
}

} // namespace test
