// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"

#include <csignal>
#include <cstdlib>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test {

/// A process that runs this program for one of its hidden test cases.
class child_process {
public:
  child_process(std::string what, const std::vector<std::string>& variables) {
    std::vector<char*> environment;
    for (const std::string& v : variables)
      environment.push_back(const_cast<char*>(v.c_str()));
    for (char** e = environ; *e != nullptr; ++e)
      environment.push_back(*e);
    environment.push_back(nullptr);
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, what.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, program, nullptr, nullptr, arguments, environment.data()) == 0);
  }
  child_process(child_process&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ~child_process() {
    if (pid_ != 0) {
      kill();
      wait();
    }
  }

  void kill() { ::kill(pid_, SIGKILL); }
  /// Stops the process until it is killed.
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  /// Whether the process has ended; it can still be waited for.
  bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  }
  /// Waits for the end of the process and returns its exit status; negative after a signal.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  /// A number from the environment that the parent set; -1 if this is no such process.
  static int variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::stoi(text) : -1;
  }

private:
  pid_t pid_ = 0;
};

} // namespace test
