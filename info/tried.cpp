// SPDX-License-Identifier: BSL-1.0
#include "tried.hpp"

#include "files.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace info {
namespace {

using clock = std::chrono::steady_clock;

/// The fields of a line. The last one, a message, may have any text but a new line.
std::string field(const std::vector<std::string>& fields, std::size_t n) {
  return n < fields.size() ? fields[n] : std::string();
}

unsigned number_of(const std::string& text) { return unsigned(number(text).value_or(0)); }

/// Reads both pipes until both have ended. False if the time is over.
bool read_all(const std::array<int, 2>& from, std::array<std::string, 2>& to,
              clock::time_point end) {
  std::array<pollfd, 2> open{{{from[0], POLLIN, 0}, {from[1], POLLIN, 0}}};
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - clock::now()).count();
    if (left <= 0)
      return false;
    open[0].revents = open[1].revents = 0;
    if (::poll(open.data(), open.size(), int(left)) < 0 && errno != EINTR)
      return false;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0)
        continue;
      std::array<char, 4096> some{};
      const ssize_t n = ::read(open[i].fd, some.data(), some.size());
      if (n > 0)
        to[i].append(some.data(), std::size_t(n));
      else if (n == 0 || errno != EINTR)
        open[i].fd = -1;
    }
  }
  return true;
}

std::string last_line(const std::string& text) {
  const auto lines = split(text, '\n');
  const auto found =
      std::find_if(lines.rbegin(), lines.rend(), [](const auto& l) { return !l.empty(); });
  return found != lines.rend() ? *found : std::string();
}

std::string failure_of(int status, const std::string& errors) {
  if (WIFSIGNALED(status))
    return std::string("asio_rdma-info-try was ended by the signal ") +
           ::strsignal(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return {};
  const std::string said = last_line(errors);
  return said.empty()
             ? "asio_rdma-info-try ended with status " + std::to_string(WEXITSTATUS(status))
             : said;
}

} // namespace

std::vector<tried_device> parse_tried(const std::string& lines) {
  std::vector<tried_device> result;
  for (const std::string& line : split(lines, '\n')) {
    const auto fields = split(line, '\t');
    const std::string word = field(fields, 0), name = field(fields, 1);
    if (name.empty())
      continue;
    auto found =
        std::find_if(result.begin(), result.end(), [&](const auto& d) { return d.name == name; });
    if (found == result.end()) {
      result.emplace_back().name = name;
      found = result.end() - 1;
    }
    if (word == "device") {
      found->transport = field(fields, 2);
    } else if (word == "open") {
      found->open_error = field(fields, 2);
    } else if (word == "port") {
      found->ports[number_of(field(fields, 2))] = {field(fields, 3), number_of(field(fields, 4)),
                                                   number_of(field(fields, 5))};
    } else if (word == "address") {
      found->addresses.push_back(field(fields, 2));
    } else if (word == "memory") {
      found->memory = field(fields, 2);
    } else if (word == "listen") {
      found->address = field(fields, 2);
      found->listen = field(fields, 3);
    } else if (word == "message") {
      found->message = field(fields, 3);
      found->microseconds = std::strtod(field(fields, 2).c_str(), nullptr);
    }
  }
  return result;
}

tried_facts run_try(const std::string& program, const std::vector<std::string>& arguments,
                    double seconds) {
  tried_facts result;
  std::array<int, 2> out{-1, -1}, err{-1, -1};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) {
    result.failure = std::strerror(errno);
    return result; // the process ends soon, and its descriptors with it
  }
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execv(argv[0], argv.data());
    const char* const why = std::strerror(errno);
    const bool written = ::write(STDERR_FILENO, why, std::strlen(why)) >= 0;
    ::_exit(written ? 127 : 126);
  }
  ::close(out[1]);
  ::close(err[1]);
  if (child > 0) {
    result.ran = true;
    std::array<std::string, 2> texts;
    const auto end = clock::now() + std::chrono::duration_cast<clock::duration>(
                                        std::chrono::duration<double>(seconds));
    const bool ended = read_all({out[0], err[0]}, texts, end);
    if (!ended)
      ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    result.devices = parse_tried(texts[0]);
    result.failure = ended ? failure_of(status, texts[1])
                           : "it was not done after " + std::to_string(int(seconds)) + " s";
  } else {
    result.failure = std::strerror(errno);
  }
  ::close(out[0]);
  ::close(err[0]);
  return result;
}

std::string find_try() {
  std::error_code ec;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (ec)
    return {};
  for (const char* place : {".", INFO_TRY_FOLDER}) {
    const auto file = (self.parent_path() / place / "asio_rdma-info-try").lexically_normal();
    if (std::filesystem::exists(file, ec))
      return file;
  }
  return {};
}

} // namespace info
